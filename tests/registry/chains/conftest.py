"""Chains for the tests: enrolled at a registry, with entries as a prover would sign them."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.protocol import signing
from polo.protocol.entries import Entry
from polo.protocol.records import (
    Enrolment,
    FinishRecord,
    Manifest,
    NoiseRecord,
    Receipt,
    Retention,
    Shard,
    Start,
)
from polo.registry.settings import Settings
from polo.registry.tasks.service import Tasks

OFFERS = """
[digits]
shards = 6
fewest_shards = 1
fewest_steps = 3
bits = { usual = 128, least = 128, most = 512 }
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch knows of the digits, worked out once for all tests."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "tasks.toml").write_text(OFFERS)
    Tasks(folder, str(folder / "tasks.toml")).get("digits")
    return folder


@pytest.fixture
def offers() -> str:
    """The operator's file of offers; a test module may have its own."""
    return OFFERS


@pytest.fixture
def settings(tmp_path: Path, database_url: str, built: Path, offers: str) -> Settings:
    """Settings of a registry that offers the digits."""
    data = tmp_path / "data"
    shutil.copytree(built / "tasks", data / "tasks")
    (data / "tasks.toml").write_text(offers)
    return Settings(
        data=data,
        database=database_url,
        origin="registry.test/log",
        rate=100_000,
        guest_rate=100_000,
        tasks=str(data / "tasks.toml"),
    )


def root_of(*words: object) -> bytes:
    """Some root; the same words give the same."""
    return hashlib.sha256(repr(words).encode()).digest()


@dataclass
class Live:
    """A prover with an enrolment at the registry."""

    asking: Any
    key: polo.Identity
    record: Enrolment
    answers: list[Any] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.record.digest.hex()

    @property
    def url(self) -> str:
        return f"/v1/enrolments/{self.id}/commitments"

    def start(self, root: bytes | None = None) -> Entry:
        start = Start(root or root_of(self.id, 0), root_of("secret"), None)
        return self.signed(Entry(self.record.digest, start, None, None))

    def shard(self, number: int, *, opening: bytes = b"", **changes: Any) -> Entry:
        shard = Shard(
            shard=number,
            previous=root_of(self.id, number - 1),
            root=root_of(self.id, number),
            epochs=1,
            steps=10,
            matches=self.record.terms.scheme.bits,
            metrics={"accuracy": 900_000},
            finish=FinishRecord(0, 0),
            noise=NoiseRecord(40_000, root_of("next")),
            evidence={},
            sealed=1_800_000_000,
            receipt=None,
        )
        opened = opening or root_of("opening", number)
        return self.signed(Entry(self.record.digest, None, replace(shard, **changes), opened))

    def entry(self, number: int) -> Entry:
        return self.shard(number) if number else self.start()

    def signed(self, entry: Entry) -> Entry:
        return signing.sign(entry, self.key)

    def post(self, entry: Entry | bytes, **options: Any) -> Any:
        data = entry if isinstance(entry, bytes) else entry.to_bytes()
        return self.asking.post(self.url, content=data, **options)

    def commit(self, number: int) -> Any:
        answer = self.post(self.entry(number))
        assert answer.status_code == 200, answer.text
        self.answers.append(answer.json())
        return answer.json()

    def manifest(self, **changes: Any) -> Manifest:
        """The manifest of everything committed so far."""
        receipts = [Receipt.from_json(item["receipt"], "receipt") for item in self.answers]
        entries = [self.entry(number) for number in range(len(receipts))]
        start = replace(entries[0].start, receipt=receipts[0])
        shards = tuple(
            replace(entry.shard, receipt=receipt)
            for entry, receipt in zip(entries[1:], receipts[1:], strict=True)
        )
        whole = Manifest(self.record, start, shards, Retention("thin", 1, False), (), True, 0, None)
        return signing.sign(replace(whole, **changes), self.key)

    def close(self, **changes: Any) -> Any:
        data = self.manifest(**changes).to_bytes()
        return self.asking.post(f"/v1/enrolments/{self.id}/close", content=data)


@pytest.fixture
def enrolled(client_of: Callable[..., Any]) -> Callable[..., Live]:
    """Enrols somebody new for the digits."""

    def make(key: polo.Identity | None = None, asking: Any = None, **options: Any) -> Live:
        key = key or polo.Identity.generate()
        asking = asking or client_of(key)
        answer = asking.post("/v1/enrolments", json={"task": "digits", **options})
        assert answer.status_code == 201, answer.text
        return Live(asking, key, Enrolment.from_json(answer.json()["enrolment"], "enrolment"))

    return make


@pytest.fixture
def live(enrolled: Callable[..., Live]) -> Live:
    """A prover with a fresh enrolment."""
    return enrolled()

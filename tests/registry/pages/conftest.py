"""A registry whose tables hold real chains, to render pages of."""

import contextlib
import dataclasses
import hashlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, insert
from starlette.testclient import TestClient

import polo
from polo.protocol import entries, log_notes, log_tree, nonces, signing
from polo.protocol.entries import Entry
from polo.protocol.records import (
    Enrolment,
    EvidenceTerms,
    Manifest,
    NonceTerms,
    Receipt,
    Start,
    Terms,
)
from polo.protocol.verdicts import Asked, CheckRecord, Others, SignedVerdict
from polo.registry import schema
from polo.registry.app import create_app
from polo.registry.callers import token_hash
from polo.registry.context import Registry
from polo.registry.serving import server_of
from polo.registry.settings import Settings

NOW = 1_800_000_000
ORIGIN = "polo.example/log"
HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e"
SECRET = b"\xa7" * 32
OPERATOR = "polo_" + "o" * 40
AUDITOR = "polo_" + "a" * 40


@dataclass(frozen=True)
class Trained:
    """A real proof, and what a buyer's verification of it said."""

    manifest: Manifest
    verdict: dict[str, Any]
    model: bytes


@dataclass
class Filled:
    """A registry with chains in it, by name, and ids of what else the pages show."""

    registry: Registry
    chains: dict[str, str]
    verifications: dict[str, str]
    scans: dict[str, str]

    def place(self, template: str) -> str:
        """An address of a page, with the ids of what is in this registry."""
        return template.format(**self.chains, **self.verifications, **self.scans)


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
    task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
) -> Trained:
    """Twelve shards of the tiny task."""
    import torch

    terms = polo.make_terms(task, bits=128, shards=12, strength=0.02)
    drawing = random.Random(5)
    commitment, drawn = nonces.draw(terms.shards.most, drawing.randbytes)
    record = Enrolment(terms, alice.public_key, commitment, NOW - 40_000, issuer.public_key)
    enrolment = polo.OfflineEnrolment(signing.sign(record, issuer), drawn)
    path = tmp_path_factory.mktemp("pages") / "proof"
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.004, momentum=0.9)
    prover = polo.Prover(enrolment, key=alice, store=path)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(12):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    proof = prover.finish()
    verdict = polo.verify(path, trust=issuer.public_key, task=task)
    found = sorted((path / "checkpoints").glob("*.safetensors"))[-1].read_bytes()
    return Trained(proof.manifest, verdict.to_json(), found)


@pytest.fixture(scope="session")
def fill(
    trained: Trained, alice: polo.Identity, bob: polo.Identity, issuer: polo.Identity
) -> Callable[[Registry], Filled]:
    """Writes chains, log, challenges, verifications, scans, people and events into the tables."""

    def write(registry: Registry) -> Filled:
        with registry.database.begin() as connection:
            return Writer(connection, trained, issuer).everything(registry, alice, bob)

    return write


@pytest.fixture(scope="session")
def shown(
    tmp_path_factory: pytest.TempPathFactory, fill: Callable[[Registry], Filled]
) -> Iterator[Filled]:
    """A filled registry on SQLite for tests that only look; all of them share it."""
    settings = Settings(
        data=tmp_path_factory.mktemp("registry"),
        origin=ORIGIN,
        rate=100_000,
        guest_rate=100_000,
    )
    registry = Registry.open(settings, migrate=True, clock=lambda: NOW)
    yield fill(registry)
    registry.close()


@pytest.fixture
def reader(shown: Filled) -> TestClient:
    """Somebody who looks at the shared registry."""
    return browsing(shown.registry)


@pytest.fixture
def filled(registry: Registry, fill: Callable[[Registry], Filled]) -> Filled:
    """A filled registry of one's own, over SQLite and over PostgreSQL."""
    return fill(registry)


@pytest.fixture
def visitor(filled: Filled) -> TestClient:
    """Somebody with a browser, who has not signed in."""
    return browsing(filled.registry)


@pytest.fixture
def operator(visitor: TestClient) -> TestClient:
    """The same, signed in as the operator."""
    sign_in(visitor, OPERATOR)
    return visitor


def browsing(registry: Registry) -> TestClient:
    """A client that asks as a browser does."""
    headers = {"Accept": "text/html,*/*;q=0.8"}
    app = create_app(registry)
    url = registry.settings.public_url
    return TestClient(app, url, headers=headers, follow_redirects=False)


class Writer:
    """Puts rows into the tables as the registry's services would."""

    def __init__(self, connection: Connection, trained: Trained, issuer: polo.Identity) -> None:
        self.connection = connection
        self.trained = trained
        self.issuer = issuer
        self.leaves: list[bytes] = []

    def put(self, table: Any, **values: Any) -> None:
        self.connection.execute(insert(table).values(**values))

    def everything(self, registry: Registry, alice: polo.Identity, bob: polo.Identity) -> Filled:
        self.identity(alice, "Alice Example")
        self.identity(bob, HOSTILE)
        chains = {
            "closed": self.chain(alice, 12, state="closed", issued=NOW - 90_000, read=True),
            "hostile": self.chain(bob, 3, state="failed", issued=NOW - 60_000, task=HOSTILE),
            "empty": self.chain(alice, -1, issued=NOW - 100),
            "growing": self.chain(
                alice, 12, issued=NOW - 30_000, read=True, waits=True, history="streaming"
            ),
        }
        self.challenge(chains["growing"], 5, "checkpoint", "passed", "root and mark hold")
        self.challenge(chains["growing"], 8, "replay", "passed", "3 segments came out the same")
        self.challenge(chains["growing"], 12, "checkpoint", "open", "")
        self.challenge(chains["hostile"], 3, "replay", "failed", HOSTILE)
        hostile = json.loads(json.dumps(self.trained.verdict))
        hostile |= {"outcome": "rejected", "headline": f"REJECTED: {HOSTILE}"}
        hostile["checks"][0] |= {"status": "failed", "detail": HOSTILE, "place": HOSTILE}
        verifications = {
            "accepted": self.verification(chains["closed"], "done", self.trained.verdict),
            "running": self.verification(chains["closed"], "running", None, "reading mark 7 of 12"),
            "waiting": self.verification(chains["closed"], "waiting", None, ""),
            "broken": self.verification(chains["hostile"], "broken", None, HOSTILE),
            "rejected": self.verification(chains["hostile"], "done", hostile),
        }
        self.head(registry)
        self.people()
        return Filled(registry, chains, verifications, self.scans(chains))

    def identity(self, key: polo.Identity, name: str) -> None:
        values = {"id": key.id, "key": key.public_key, "name": name, "role": "prover"}
        self.put(schema.identities, **values, registered=NOW - 100_000)

    def terms(self, history: str) -> Terms:
        settings = {
            "origin": ORIGIN,
            "log": log_notes.NoteKey(ORIGIN, self.issuer.public_key).text,
            "checkpoints": "50000",
            "replays": "20000",
            "answer_within": "3600",
            "witnesses": log_notes.NoteKey(
                "witness.example/one", bytes(32), log_notes.COSIGNATURE
            ).text,
        }
        levels = (EvidenceTerms("chain", {}), EvidenceTerms("receipts", settings))
        return dataclasses.replace(self.trained.manifest.terms, evidence=levels, history=history)

    def chain(
        self,
        key: polo.Identity,
        shards: int,
        *,
        state: str = "open",
        issued: int,
        read: bool = False,
        waits: bool = False,
        history: str = "any",
        task: str = "tiny",
    ) -> str:
        nonce = NonceTerms("live", entries.secret_commitment(SECRET), 0)
        record = Enrolment(
            self.terms(history), key.public_key, nonce, issued, self.issuer.public_key
        )
        record = signing.sign(record, self.issuer)
        self.put(
            schema.enrolments,
            id=record.digest.hex(),
            identity=key.id,
            task=task,
            record=record.to_bytes(),
            layout=b"{}",
            secret=SECRET,
            state=state,
            shards=max(0, shards - waits),
            issued=issued,
            changed=NOW,
        )
        for number in range(shards + 1):
            self.commit(record, key, number, read=read, waits=waits and number == shards)
        return record.digest.hex()

    def commit(
        self, record: Enrolment, key: polo.Identity, number: int, *, read: bool, waits: bool
    ) -> None:
        manifest = self.trained.manifest
        start = Start(manifest.start.root, manifest.start.secret, None) if number == 0 else None
        shard = manifest.shards[number - 1] if number else None
        opening = hashlib.sha256(b"%d" % number).digest() if number else None
        entry = signing.sign(Entry(record.digest, start, shard, opening), key)
        time = record.issued + 60 + 95 * number + (number * 37) % 23
        index = len(self.leaves)
        self.leaves.append(entry.leaf)
        nonce = entries.live_nonce(SECRET, entry)
        receipt = Receipt(
            record.digest, number, entry.root, time, ORIGIN, index, nonces.leaf(nonce)
        )
        self.put(schema.log_leaves, index=index, hash=entry.leaf, entry=entry.to_bytes())
        self.put(
            schema.commitments,
            enrolment=record.digest.hex(),
            shard=number,
            root=entry.root,
            record=entry.to_bytes(),
            index=index,
            time=time,
            receipt=None if waits else signing.sign(receipt, self.issuer).to_bytes(),
            opening=opening.hex() if opening else None,
            matches=shard.matches if shard and read else None,
        )

    def challenge(self, chain: str, shard: int, kind: str, state: str, detail: str) -> None:
        name = hashlib.sha256(f"{chain}{shard}".encode()).hexdigest()[:32]
        ended = None if state == "open" else NOW - 4_000 + shard
        times = {"made": NOW - 5_000 + shard, "due": NOW + 1_400, "ended": ended}
        values = {"enrolment": chain, "shard": shard, "kind": kind, "state": state}
        self.put(
            schema.challenges, id=name, record=b'"drawn: secret"', detail=detail, **values, **times
        )

    def verification(
        self, chain: str, state: str, verdict: dict[str, Any] | None, progress: str = "done"
    ) -> str:
        name = hashlib.sha256(f"{chain}{state}".encode()).hexdigest()[:32]
        ended = NOW - 20 if state in ("done", "broken") else None
        self.put(
            schema.verifications,
            id=name,
            enrolment=chain,
            state=state,
            made=NOW - 200,
            begun=None if state == "waiting" else NOW - 95,
            ended=ended,
            progress=progress,
            outcome=verdict["outcome"] if verdict else None,
            verdict=self.signed(chain, verdict).to_bytes() if verdict else None,
        )
        return name

    def signed(self, chain: str, verdict: dict[str, Any]) -> SignedVerdict:
        checks = [
            CheckRecord(
                check["name"],
                check["level"],
                check["status"].replace(" ", "-"),
                check["shard"],
                check["ancestor"],
                check["place"],
                check["detail"],
                {name: str(value) for name, value in check["figures"].items()},
            )
            for check in verdict["checks"]
        ]
        record = SignedVerdict(
            ORIGIN,
            bytes.fromhex(chain),
            self.trained.manifest.digest,
            verdict["outcome"],
            verdict["headline"],
            ("chain",),
            tuple(checks),
            0,
            (Asked("checkpoint", 5, "passed"),),
            Others(1, 2, 0, 0),
            None,
            "1",
            NOW,
            self.issuer.public_key,
        )
        return signing.sign(record, self.issuer)

    def scan(self, name: str, state: str, result: dict[str, Any] | None) -> str:
        key = hashlib.sha256(name.encode()).hexdigest()[:32]
        self.put(
            schema.scans,
            id=key,
            sha256="0" * 64,
            asked="pages",
            state=state,
            made=NOW - 50,
            ended=NOW - 40 if result else None,
            chains=result["chains"] if result else None,
            result=json.dumps(result).encode() if result else None,
        )
        return key

    def scans(self, chains: dict[str, str]) -> dict[str, str]:
        claim = {
            "enrolment": chains["closed"],
            "owner": "0" * 64,
            "name": "Alice Example",
            "task": "tiny",
            "issued": NOW - 90_000,
            "eta": 0.994,
            "marks": 12,
            "bits": 1536,
            "log2_p": -1342.5,
            "coverage": 1.0,
            "state": "closed",
            "finding": "claim",
        }
        other = {**claim, "enrolment": chains["hostile"], "name": HOSTILE, "state": "failed"}
        found = {"format": "polo/scan-result/1", "chains": 10_000, "unread": 12}
        found |= {"description": "3 tensors, 6 000 weights", "power": 0.9995, "problem": ""}
        return {
            "claimed": self.scan("a", "done", {**found, "claims": [claim, other]}),
            "unclaimed": self.scan("b", "done", {**found, "claims": []}),
            "scanning": self.scan("c", "running", None),
            "unreadable": self.scan("d", "done", {**found, "problem": HOSTILE, "claims": []}),
        }

    def head(self, registry: Registry) -> None:
        size = len(self.leaves)
        frontier, _ = log_tree.Frontier(0, ()).grown(self.leaves)
        checkpoint = log_notes.Checkpoint(ORIGIN, size, frontier.root)
        note = str(log_notes.sign_checkpoint(checkpoint, self.issuer))
        self.put(schema.log_heads, size=size, root=frontier.root, time=NOW - 30, note=note)
        values = {"size": size, "line": "— line", "time": NOW - 20}
        self.put(schema.cosignatures, witness="witness.example/one", **values)
        self.put(schema.cosignatures, witness=HOSTILE, **values)

    def people(self) -> None:
        for name, secret, role in (("first", OPERATOR, "operator"), ("books", AUDITOR, "auditor")):
            scopes = "read write admin" if role == "operator" else "read"
            values = {"role": role, "scopes": scopes, "made": NOW - 900, "expires": NOW + 90_000}
            self.put(schema.tokens, id=name, hash=token_hash(secret), name=HOSTILE, **values)
        self.put(
            schema.jobs,
            kind="verification",
            subject="x" * 32,
            queue="cpu",
            state="broken",
            tries=3,
            due=NOW,
            error=HOSTILE,
        )
        self.put(
            schema.events,
            time=NOW,
            actor="token first",
            action="token.made",
            subject="books",
            detail=HOSTILE,
        )


@pytest.fixture
def site(filled: Filled) -> Iterator[str]:
    """The address of a real server over one's own registry."""
    with serving(filled.registry) as url:
        yield url


@contextlib.contextmanager
def serving(registry: Registry) -> Iterator[str]:
    """Runs the server in a thread on a free port."""
    server = server_of(registry, port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 20
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


def sign_in(client: TestClient, token: str) -> Any:
    page = client.get("/login")
    return client.post("/login", data={"csrf": word_of(page.text), "token": token})


def word_of(page: str) -> str:
    """The word that the first form of a page carries."""
    return re.search(r'name="csrf" value="([0-9a-f]+)"', page)[1]  # type: ignore[index]


@pytest.fixture(name="word_of")
def _word_of() -> Callable[[str], str]:
    return word_of


@pytest.fixture(name="signing_in")
def _signing_in() -> Callable[[TestClient, str], Any]:
    return sign_in


@pytest.fixture(name="serving", scope="session")
def _serving() -> Any:
    return serving

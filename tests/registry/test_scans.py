"""Scans: whose marks are in an uploaded checkpoint or a found file, and what the registry signs."""

import contextlib
import hashlib
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save
from sqlalchemy import insert, select, update

import polo
from polo.enrolment import enrol_live
from polo.evidence.receipts.rules import Rules
from polo.keys import Ed25519Verifier
from polo.protocol import chain as chain_protocol
from polo.protocol import derivation, signing
from polo.protocol.entries import Entry, live_nonce
from polo.protocol.log_notes import NoteKey
from polo.protocol.records import FinishRecord, NoiseRecord, Shard, Start, identity_of
from polo.protocol.uniqueness import Uniqueness
from polo.registry.commitments.chains import about_secret
from polo.registry.context import Registry
from polo.registry.jobs import Later
from polo.registry.objects import key_of
from polo.registry.problems import Problem
from polo.registry.scans import child, marks, room, service, work
from polo.registry.schema import (
    commitments,
    enrolments,
    identities,
    jobs,
    log_heads,
    objects,
    scans,
    uploads,
)
from polo.registry.schema import marks as marks_table
from polo.watermark.mark import Mark, carrier_of
from polo.watermark.signed import places
from polo.weights.checkpoint import checkpoint_of
from polo.weights.files import write_checkpoint
from polo.weights.hashing import commit

MARKS = 5


def weights(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {f"{at}.weight": rng.normal(size=(128, 256)).astype(np.float32) for at in range(3)}


def somebody(seed: int) -> polo.Identity:
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


@dataclass
class Run:
    """A chain that nobody trained, as the tables of a registry have it; its marks are real."""

    registry: Registry
    key: polo.Identity
    state: dict[str, Any]
    parent: str | None = None
    marks: int = MARKS
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        registry, now = self.registry, self.registry.clock()
        layout = checkpoint_of(self.state).layout
        with registry.database.begin() as connection:
            log = NoteKey(registry.settings.origin, registry.vault.log_key(connection).public_key)
            rules = Rules(registry.settings.origin, log)
            terms = polo.make_terms(
                layout, scheme="signed", bits=256, shards=20, receipts=rules, uniqueness=True
            )
            self.record = enrol_live(
                terms,
                identity=self.key.public_key,
                issuer=registry.vault.issuer(connection),
                secret=self.secret,
                issued=now,
            )
            owner = identity_of(self.key.public_key).hex()
            known = connection.execute(select(identities.c.id)).scalars().all()
            if owner not in known:
                connection.execute(
                    insert(identities).values(
                        id=owner, key=self.key.public_key, name="x", role="prover", registered=now
                    )
                )
            connection.execute(
                insert(enrolments).values(
                    id=self.id,
                    identity=owner,
                    task="draft",
                    record=self.record.to_bytes(),
                    layout=layout.to_bytes(),
                    secret=registry.vault.seal(self.secret, about_secret(self.id)),
                    state="open",
                    shards=0,
                    issued=now,
                    changed=now,
                    parent=self.parent,
                )
            )
        start = Start(secrets.token_bytes(32), bytes(32), None)
        self._commit(Entry(self.record.digest, start, None, None))
        for number in range(1, self.marks):
            self._commit(self._entry(number, secrets.token_bytes(32)))

    @property
    def id(self) -> str:
        return self.record.digest.hex()

    def seeds(self) -> list[bytes]:
        return [
            chain_protocol.seed_of(self.record, live_nonce(self.secret, entry), previous=entry.root)
            for entry in self.entries
        ]

    def press(self) -> None:
        """Write all marks, that of the shard to come included."""
        terms = self.record.terms
        carrier = carrier_of(terms, checkpoint_of(self.state).layout)
        for seed in self.seeds():
            blocks = derivation.positions(seed, terms.scheme.blocks, carrier.blocks)
            mark = Mark(terms.scheme, blocks, seed)
            for group, block in enumerate(blocks):
                where = carrier.locate(block)
                flat = self.state[carrier.layout.tensors[where.tensor].name].reshape(-1)
                at = where.element + places(mark, group)
                flat[at] = np.abs(flat[at]) * np.where(mark.bits[group], 1, -1)

    def seal(self, *, pressed: bool = True, upload: bool = True) -> "Run":
        """Press, commit to the weights, and upload them."""
        if pressed:
            self.press()
        checkpoint = checkpoint_of(self.state)
        self._commit(self._entry(self.marks, commit(checkpoint).root))
        if upload:
            parts: list[bytes] = []
            write_checkpoint(checkpoint, lambda data: parts.append(bytes(data)))
            self.upload(b"".join(parts))
        return self

    def upload(self, data: bytes) -> None:
        digest, now = hashlib.sha256(data).hexdigest(), self.registry.clock()
        self.registry.objects.put(key_of(digest), data)
        about = {"enrolment": self.id, "kind": "checkpoint", "size": len(data), "sha256": digest}
        with self.registry.database.begin() as connection:
            connection.execute(insert(objects).values(**about, made=now))
            connection.execute(
                insert(uploads).values(
                    **about,
                    id=secrets.token_hex(16),
                    shard=self.marks,
                    received=len(data),
                    state="stored",
                    made=now,
                    expires=now + 100,
                )
            )

    def _entry(self, number: int, root: bytes) -> Entry:
        shard = Shard(
            number, self.entries[-1].root, root, 1, 1, 256, {}, FinishRecord(0, 0),
            NoiseRecord(0, bytes(32)), {}, 0, None,
        )  # fmt: skip
        return Entry(self.record.digest, None, shard, bytes(32))

    def _commit(self, entry: Entry) -> None:
        entry, now = signing.sign(entry, self.key), self.registry.clock()
        self.entries.append(entry)
        with self.registry.database.begin() as connection:
            place = len(connection.execute(select(commitments.c.root)).all())
            connection.execute(
                insert(commitments).values(
                    enrolment=self.id,
                    shard=entry.number,
                    root=entry.root,
                    record=entry.to_bytes(),
                    index=place,
                    time=now,
                )
            )
            connection.execute(
                insert(log_heads).values(size=place + 1, root=bytes(32), time=now, note="")
            )
            connection.execute(
                update(enrolments).where(enrolments.c.id == self.id).values(shards=entry.number)
            )


@pytest.fixture
def own_process() -> None:
    """For tests that look at files in a process of its own, as a registry does."""


@pytest.fixture(autouse=True)
def _inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the others its start, which takes longer than looking."""
    if "own_process" in request.fixturenames:
        return

    def run(_registry: Any, folder: Path, asked: Any, *, secret: bytes, **_: Any) -> Any:
        with contextlib.chdir(folder):
            return child.looked(asked, secret)

    monkeypatch.setattr(work.sandbox, "run", run)


@pytest.fixture
def run(registry: Registry) -> Any:
    """Makes chains."""
    return lambda by, state, **options: Run(registry, somebody(by), state, **options)


@pytest.fixture
def judge(registry: Registry) -> Any:
    """Scans a chain's last checkpoint, and gives back how it ended."""

    def scan(chain: Run) -> service.Scan:
        from polo.registry.callers import Caller

        caller = Caller(identity=identity_of(chain.key.public_key).hex(), role="prover")
        asked = service.about(registry, chain.id, caller)
        work.work(registry, asked.id)
        with registry.database.read() as connection:
            return service.get(connection, asked.id)

    return scan


def test_a_model_that_is_nobody_elses(run: Any, judge: Any, registry: Registry) -> None:
    for other in range(3):
        run(10 + other, weights(other)).seal()
    mine = run(1, weights(9)).seal()
    done = judge(mine)
    assert done.state == "done", done.result
    assert done.result["claims"] == []
    assert done.result["power"] > 0.999
    assert done.chains == 3
    statement = done.statement
    signing.check(statement, mine.record.issuer, Ed25519Verifier(), place="")
    assert statement.enrolment == mine.record.digest
    assert statement.root == mine.entries[-1].root
    assert (statement.chains, statement.claims, statement.unread) == (3, (), 0)
    assert statement.size == 4 * (MARKS + 1)
    assert Uniqueness.from_bytes(statement.to_bytes(), "again") == statement


def test_a_copy_of_an_earlier_chain_is_named(run: Any, judge: Any) -> None:
    owner = run(1, weights(1)).seal()
    thief = run(2, {name: value.copy() for name, value in owner.state.items()}).seal()
    done = judge(thief)
    (claim,) = done.result["claims"]
    assert claim["enrolment"] == owner.id
    assert claim["owner"] == identity_of(owner.key.public_key).hex()
    assert claim["earlier"]
    assert claim["relation"] == "none"
    assert claim["containment"] == work.CONTAINED
    assert claim["log2_p"] < -64
    assert [o.enrolment for o in done.statement.objections] == [owner.record.digest]
    # And the thief's marks are not in the owner's weights.
    assert judge(owner).result["claims"] == []


def test_marks_that_came_into_the_log_after_the_weights_are_no_objection(
    run: Any, judge: Any
) -> None:
    """Whoever presses marks into a model that is in the log already comes too late."""
    state = weights(1)
    mine = run(1, state)
    mine.press()
    checkpoint = checkpoint_of(state)
    mine._commit(mine._entry(MARKS, commit(checkpoint).root))
    late = run(2, weights(2)).seal()
    # The same marks in both: as if the owner had known them before they existed.
    late.state = state
    late.press()
    parts: list[bytes] = []
    write_checkpoint(checkpoint_of(state), lambda data: parts.append(bytes(data)))
    data = b"".join(parts)
    mine.upload(data)
    with mine.registry.database.begin() as connection:
        connection.execute(
            update(commitments)
            .where(commitments.c.enrolment == mine.id, commitments.c.shard == MARKS)
            .values(root=commit(checkpoint_of(state)).root)
        )
    done = judge(mine)
    (claim,) = done.result["claims"]
    assert claim["enrolment"] == late.id
    assert not claim["earlier"]
    assert done.statement.objections == ()


def test_own_versions_and_declared_parents_are_no_theft(run: Any, judge: Any) -> None:
    first = run(1, weights(1)).seal()
    copy = {name: value.copy() for name, value in first.state.items()}
    second = run(2, copy, parent=first.id).seal()
    third = run(3, {n: v.copy() for n, v in second.state.items()}, parent=second.id).seal()
    again = run(3, {n: v.copy() for n, v in third.state.items()}).seal()
    found = {claim["enrolment"]: claim["relation"] for claim in judge(third).result["claims"]}
    assert found == {first.id: "parent", second.id: "parent"}
    assert judge(third).statement.objections == ()
    related = {claim["enrolment"]: claim["relation"] for claim in judge(again).result["claims"]}
    assert related[third.id] == "own"
    assert related[second.id] == related[first.id] == "none"
    assert len(judge(again).statement.objections) == 2


def test_two_chains_in_each_other_are_decided_by_the_log(run: Any, judge: Any) -> None:
    one, two = run(1, weights(1)), run(2, weights(1))
    one.press()
    two.state = one.state
    two.press()
    one.press()
    both = {name: value.copy() for name, value in one.state.items()}
    one.seal(pressed=False)
    two.state = both
    two.seal(pressed=False)
    (later,), (earlier,) = judge(two).result["claims"], judge(one).result["claims"]
    assert later["containment"] == earlier["containment"] == work.MUTUAL
    assert later["earlier"]
    assert not earlier["earlier"]


def test_the_file_must_be_what_was_committed_to(run: Any, judge: Any) -> None:
    mine = run(1, weights(1)).seal(upload=False)
    other = {name: value + 1 for name, value in mine.state.items()}
    parts: list[bytes] = []
    write_checkpoint(checkpoint_of(other), lambda data: parts.append(bytes(data)))
    mine.upload(b"".join(parts))
    done = judge(mine)
    assert done.state == "broken"
    assert "not the one committed to" in done.result["problem"]
    assert done.statement is None


# The table


def test_rows_follow_the_chains_and_are_sealed(run: Any, registry: Registry) -> None:
    mine = run(1, weights(1))
    assert marks.refresh(registry) == 1
    assert marks.refresh(registry) == 0
    mine.seal()
    assert marks.refresh(registry) == 1
    with registry.database.read() as connection:
        (known,) = marks.known(registry, connection)
        row = connection.execute(select(marks_table)).one()
    assert known.chain.seeds == b"".join(mine.seeds()[:MARKS])
    assert known.first == 1
    assert row.shards == MARKS
    assert all(seed not in bytes(row.seeds) for seed in mine.seeds())
    with registry.database.begin() as connection:
        connection.execute(marks_table.delete())
    assert marks.refresh(registry) == 1
    with registry.database.read() as connection:
        assert [item.chain for item in marks.known(registry, connection)] == [known.chain]


def test_a_row_of_another_chain_cannot_be_put_in_its_place(run: Any, registry: Registry) -> None:
    run(1, weights(1)).seal()
    run(2, weights(2)).seal()
    marks.refresh(registry)
    with registry.database.begin() as connection:
        rows = connection.execute(select(marks_table)).all()
        for row, other in zip(rows, reversed(rows), strict=True):
            connection.execute(
                update(marks_table)
                .where(marks_table.c.enrolment == row.enrolment)
                .values(seeds=bytes(other.seeds))
            )
    with registry.database.read() as connection, pytest.raises(polo.PoloError):
        list(marks.known(registry, connection))


def test_many_chains_are_brought_up_to_date_in_pieces(
    run: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_AT_ONCE", 2)
    made = [run(at, weights(at)) for at in range(1, 6)]
    assert marks.refresh(registry) == len(made)


# Over REST


def finish(registry: Registry) -> None:
    """Wait until the registry's own thread has done every scan."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with registry.database.read() as connection:
            open_ones = connection.execute(
                select(jobs.c.id).where(
                    jobs.c.kind == "scan", jobs.c.state.in_(("waiting", "running"))
                )
            ).all()
        if not open_ones:
            return
        time.sleep(0.05)
    raise AssertionError("the scans are not done")


def model_bytes(state: dict[str, Any]) -> bytes:
    return save(state)


def test_a_found_file(
    client_of: Any, person: Any, run: Any, registry: Registry, own_process: None
) -> None:
    owner = run(1, weights(1)).seal()
    stranger = client_of(somebody(7), name="finder")
    data = model_bytes(owner.state | {"more": weights(3)["0.weight"]})
    raw = {"content-type": "application/octet-stream"}
    answer = stranger.post("/v1/scans", content=data, headers=raw)
    assert answer.status_code == 202, answer.text
    finish(registry)
    shown = stranger.get(f"/v1/scans/{answer.json()['id']}").json()
    assert shown["state"] == "done"
    (claim,) = shown["result"]["claims"]
    assert claim["enrolment"] == owner.id
    assert "earlier" not in claim
    assert shown["statement"] is None
    assert not registry.objects.exists(key_of(hashlib.sha256(data).hexdigest()))
    assert list((registry.settings.data / "scans").iterdir()) == []
    other = client_of(somebody(8), name="other")
    assert other.get(f"/v1/scans/{answer.json()['id']}").status_code == 404
    assert person("auditor").get(f"/v1/scans/{answer.json()['id']}").status_code == 200


def test_a_file_with_another_signature_is_not_taken(
    client_of: Any, client: Any, registry: Registry
) -> None:
    from polo.protocol import requests

    finder = somebody(7)
    client_of(finder, name="finder")
    data = model_bytes(weights(1))
    signed = requests.sign(
        finder, "POST", registry.settings.origin, "/v1/scans", data + b"!",
        time=registry.clock(), nonce=bytes(16),
    )  # fmt: skip
    headers = {"authorization": signed, "content-type": "application/octet-stream"}
    answer = client.post("/v1/scans", content=data, headers=headers)
    assert answer.status_code == 401
    assert not registry.objects.exists(key_of(hashlib.sha256(data).hexdigest()))
    assert list((registry.settings.data / "scans").iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\x80\x04.", b"\xff" * 100, b"GGUF" + bytes(100)],
    ids=["empty", "short", "pickle", "noise", "gguf"],
)
def test_a_hostile_file(data: bytes, client_of: Any, run: Any, registry: Registry) -> None:
    run(1, weights(1)).seal()
    finder = client_of(somebody(7), name="finder")
    raw = {"content-type": "application/octet-stream"}
    answer = finder.post("/v1/scans", content=data, headers=raw)
    if not data:
        assert answer.status_code in (411, 413)
        return
    assert answer.status_code == 202
    finish(registry)
    shown = finder.get(f"/v1/scans/{answer.json()['id']}").json()
    assert shown["state"] == "broken"
    assert shown["result"]["problem"]
    assert str(registry.settings.data) not in shown["result"]["problem"]


def test_a_chain_over_rest(client_of: Any, person: Any, run: Any, registry: Registry) -> None:
    mine = run(1, weights(1)).seal()
    owner = client_of(mine.key, register=False)
    answer = owner.post("/v1/scans", json={"enrolment": mine.id})
    assert answer.status_code == 202, answer.text
    finish(registry)
    shown = owner.get(f"/v1/scans/{answer.json()['id']}").json()
    assert shown["state"] == "done"
    assert Uniqueness.from_json(shown["statement"], "statement").root == mine.entries[-1].root
    stranger = client_of(somebody(7), name="stranger")
    assert stranger.post("/v1/scans", json={"enrolment": mine.id}).status_code == 403
    assert person("auditor").post("/v1/scans", json={"enrolment": mine.id}).status_code == 202
    assert owner.post("/v1/scans", json={"enrolment": "00" * 32}).status_code == 404
    assert owner.post("/v1/scans", json={}).status_code == 422


def test_guests_do_not_scan(client: Any, run: Any) -> None:
    mine = run(1, weights(1)).seal()
    assert client.post("/v1/scans", json={"enrolment": mine.id}).status_code == 401
    raw = {"content-type": "application/octet-stream"}
    assert client.post("/v1/scans", content=b"x" * 100, headers=raw).status_code == 401


def test_a_chain_without_its_checkpoint(client_of: Any, run: Any) -> None:
    mine = run(1, weights(1)).seal(upload=False)
    answer = client_of(mine.key, register=False).post("/v1/scans", json={"enrolment": mine.id})
    assert answer.status_code == 409
    assert answer.json()["code"] == "scan.no-checkpoint"


def test_nobody_may_wait_for_many(run: Any, registry: Registry) -> None:
    with registry.database.begin() as connection:
        for at in range(service.MOST_WAITING):
            connection.execute(
                insert(scans).values(
                    id=f"{at:032d}", asked="me", sha256="0" * 64, state="waiting", made=0
                )
            )
    with pytest.raises(polo.PoloError) as raised:
        service.check_waiting(registry, "me")
    assert raised.value.code == "scan.too-many"
    service.check_waiting(registry, "somebody else")


def test_a_json_body_of_a_model_s_size_is_not_read(client_of: Any, registry: Registry) -> None:
    finder = client_of(somebody(7), name="finder")
    large = b"{" + b" " * registry.settings.max_body
    answer = finder.post("/v1/scans", content=large, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_given_up(run: Any, registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "found"
    file.write_bytes(b"x")
    asked = service.found(registry, file, "me")
    assert not file.exists()
    work.give_up(registry, asked.id, "the machine burned down")
    with registry.database.read() as connection:
        done = service.get(connection, asked.id)
    assert (done.state, done.result) == ("broken", {"problem": "the scan failed, again and again"})


def test_a_process_of_its_own_says_what_is_wrong_and_not_where(
    run: Any, registry: Registry, tmp_path: Path, own_process: None, monkeypatch: Any
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a password")
    run(1, weights(1)).seal()
    (tmp_path / "found").write_bytes(b"\xff" * 100)
    asked = service.found(registry, tmp_path / "found", "me")
    work.work(registry, asked.id)
    with registry.database.read() as connection:
        done = service.get(connection, asked.id)
    assert done.state == "broken"
    assert done.result is not None
    assert "model.safetensors" in done.result["problem"]
    assert str(registry.settings.data) not in done.result["problem"]
    assert list((registry.settings.data / "work").iterdir()) == []


@pytest.mark.parametrize("slow", [True, False])
def test_a_file_that_takes_too_long_is_given_up(
    registry: Registry, tmp_path: Path, monkeypatch: Any, slow: bool
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        kind = work.sandbox.SlowError if slow else work.sandbox.ChildError
        raise kind("took longer than 5 s" if slow else "ended with 1: /secret/place")

    monkeypatch.setattr(work.sandbox, "run", run)
    (tmp_path / "found").write_bytes(model_bytes(weights(1)))
    asked = service.found(registry, tmp_path / "found", "me")
    work.work(registry, asked.id)
    with registry.database.read() as connection:
        done = service.get(connection, asked.id)
    assert done.state == "broken"
    told = "took longer than 5 s" if slow else "broke off"
    assert told in done.result["problem"]  # type: ignore[index]
    assert "secret" not in done.result["problem"]  # type: ignore[index]


def test_two_files_are_not_promised_the_same_room(tmp_path: Path, monkeypatch: Any) -> None:
    size = 10 * 2**20
    real = room.shutil.disk_usage(tmp_path)
    free = room.SPARE + room.COPIES * size + size
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: real._replace(free=free))
    with room.promised(tmp_path, size) as wrote:
        with pytest.raises(Problem, match="no room"), room.promised(tmp_path, size):
            pass
        wrote(room.COPIES * size)  # As if its bytes were there, and the rest given up.
        with room.promised(tmp_path, size):
            pass
    with room.promised(tmp_path, size):
        pass
    assert room._promised == 0


def test_no_room_to_look_is_no_failure(
    run: Any, registry: Registry, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "found").write_bytes(model_bytes(weights(1)))
    asked = service.found(registry, tmp_path / "found", "me")
    monkeypatch.setattr(work, "SPARE", 2**62)
    with pytest.raises(Later):
        work.work(registry, asked.id)
    monkeypatch.undo()
    assert os.path.exists(registry.settings.data / "objects" / key_of(asked.sha256))

"""Chains without weights: enrolled straight into a registry's database, committed over the wire.

Every entry is what a prover would sign; only the roots are made up. So thousands of commitments
cost no training.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import insert, select

import polo
from polo.enrolment import enrol_live
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tree, nonces, requests, signing
from polo.protocol.entries import Entry, Inclusion
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import (
    EvidenceTerms,
    FinishRecord,
    FinishTerms,
    NoiseRecord,
    NoiseTerms,
    Nonce,
    Receipt,
    SchemeTerms,
    Shard,
    ShardTerms,
    Start,
    StartTerms,
    TaskTerms,
    Terms,
    Thresholds,
)
from polo.registry.commitments.chains import about_secret
from polo.registry.context import Registry
from polo.registry.identities import service as identities
from polo.registry.schema import enrolments, identity_keys

LAYOUT = Layout(CHUNK_BYTES, (Tensor("weight", "F32", (64, 512)),), ())
BITS = 128


def identity(number: int) -> polo.Identity:
    """The same key for the same number."""
    seed = hashlib.sha256(b"live chain %d" % number).digest()
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(seed))


def terms(origin: str, log: log_notes.NoteKey, **settings: str) -> Terms:
    """Terms of a task that nobody has: its chains are never verified."""
    made = Terms(
        task=TaskTerms("made-up", 1, "accuracy", ()),
        layout=LAYOUT.digest,
        carrier=("weight",),
        scheme=SchemeTerms("ednn", BITS, 256, 31_250, "block", 20_000, "sum", 1),
        thresholds=Thresholds(950_000, 900_000, -40),
        finish=FinishTerms(0, 0),
        noise=NoiseTerms(0, 0, 0),
        shards=ShardTerms(1, 10_000, 0),
        start=StartTerms("free", None),
        evidence=(
            EvidenceTerms("chain", {}),
            EvidenceTerms("receipts", {"origin": origin, "log": log.text, **settings}),
        ),
        history="any",
        base=None,
        data=None,
        rewards=(),
        deposit=None,
    )
    made.check()
    return made


def enrol(registry: Registry, prover: polo.Identity, **settings: str) -> "LiveChain":
    """Put an enrolment into the registry's database, and the prover if it is not there."""
    now, origin = registry.clock(), registry.settings.origin
    with registry.database.begin() as connection:
        log = log_notes.NoteKey(origin, registry.vault.log_key(connection).public_key)
        known = select(identity_keys.c.identity).where(identity_keys.c.key == prover.public_key)
        if connection.execute(known).first() is None:
            identities.register(connection, prover.public_key, "live", request=None, now=now)
        secret = secrets.token_bytes(32)
        record = enrol_live(
            terms(origin, log, **settings),
            identity=prover.public_key,
            issuer=registry.vault.issuer(connection),
            secret=secret,
            issued=now,
        )
        id_ = record.digest.hex()
        connection.execute(
            insert(enrolments).values(
                id=id_,
                identity=prover.id,
                task="made-up",
                record=record.to_bytes(),
                layout=LAYOUT.to_bytes(),
                secret=registry.vault.seal(secret, about_secret(id_)),
                state="open",
                shards=0,
                issued=now,
                changed=now,
            )
        )
    return LiveChain(prover, record, log, lambda: int(time.time()))


class LiveChain:
    """One chain as its prover holds it; `entry()` is the next one to commit."""

    def __init__(
        self,
        prover: polo.Identity,
        record: Any,
        log: log_notes.NoteKey,
        clock: Callable[[], int],
    ) -> None:
        self.prover, self.record, self.log, self.clock = prover, record, log, clock
        self.id = record.digest.hex()
        self.path = f"/v1/enrolments/{self.id}/commitments"
        self.receipts: list[bytes] = []
        self.checkpoints: dict[int, bytes] = {}

    def root(self, number: int) -> bytes:
        return hashlib.sha256(self.record.digest + number.to_bytes(4, "big")).digest()

    def entry(self, number: int | None = None, **changes: Any) -> Entry:
        """The entry of a shard, signed; the next one if none is named."""
        number = len(self.receipts) if number is None else number
        if number == 0:
            start = Start(self.root(0), hashlib.sha256(b"noise").digest(), None)
            made = Entry(self.record.digest, start, None, None)
        else:
            shard = Shard(
                **{
                    "shard": number,
                    "previous": self.root(number - 1),
                    "root": self.root(number),
                    "epochs": 1,
                    "steps": 1,
                    "matches": BITS,
                    "metrics": {"accuracy": 900_000},
                    "finish": FinishRecord(0, 0),
                    "noise": NoiseRecord(0, bytes(32)),
                    "evidence": {},
                    "sealed": 1_800_000_000,
                    "receipt": None,
                    **changes,
                }
            )
            made = Entry(self.record.digest, None, shard, self.root(number))
        return signing.sign(made, self.prover)

    def headers(self, body: bytes, *, method: str = "POST", path: str | None = None) -> Any:
        """Headers of a request that is signed now."""
        header = requests.sign(
            self.prover,
            method,
            self.log.name,
            path or self.path,
            body,
            time=self.clock(),
            nonce=secrets.token_bytes(16),
        )
        return {"Authorization": header, "Content-Type": "application/json"}

    def commit(self, client: Any) -> Receipt:
        """Commit the next entry over a client, and check everything that comes back."""
        entry = self.entry()
        body = entry.to_bytes()
        answer = client.post(self.path, content=body, headers=self.headers(body))
        assert answer.status_code == 200, answer.text
        return self.accept(entry, answer.json())

    def accept(self, entry: Entry, answer: Any) -> Receipt:
        """Check an answer as a prover does, and go on from it."""
        receipt = Receipt.from_json(answer["receipt"], "receipt")
        signing.check(receipt, self.record.issuer, Ed25519Verifier(), place="receipt")
        assert (receipt.shard, receipt.root) == (entry.number, entry.root)
        assert receipt.next_nonce == nonces.leaf(Nonce.from_json(answer["nonce"], "nonce"))
        inclusion = Inclusion.from_json(answer["inclusion"], "inclusion")
        assert inclusion.entry == entry
        assert inclusion.index == receipt.index
        note = log_notes.Note.parse(inclusion.checkpoint, place="checkpoint")
        seen = log_notes.open_checkpoint(note, self.log, Ed25519Verifier(), place="checkpoint")
        assert seen.size == inclusion.size
        log_tree.check_inclusion(
            entry.leaf, inclusion.index, seen.size, inclusion.path, seen.root, place="inclusion"
        )
        self.checkpoints[seen.size] = seen.root
        self.receipts.append(receipt.to_bytes())
        return receipt

"""Many chains for a registry's database, loaded past its front door, and entries for them."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import insert

from polo.enrolment import enrol_live, make_terms
from polo.evidence.receipts.rules import Rules
from polo.keys import Identity
from polo.protocol import signing
from polo.protocol.entries import Entry
from polo.protocol.layout import Layout, Tensor
from polo.protocol.log_notes import NoteKey
from polo.protocol.records import (
    Enrolment,
    FinishRecord,
    NoiseRecord,
    Shard,
    Start,
    Terms,
)
from polo.protocol.requests import Authorization
from polo.registry.commitments.chains import about_secret
from polo.registry.commitments.rules import Submission
from polo.registry.context import Registry
from polo.registry.schema import enrolments, identities

LAYOUT = Layout(16384, (Tensor("weight", "F32", (256, 256)),), ())


@dataclass(frozen=True)
class Prover:
    """A key with an enrolment.

    Attributes:
        key: The key.
        record: The enrolment.
        private: The raw private key in hexadecimal, for a process that signs with it.
    """

    key: Identity
    record: Enrolment
    private: str = ""

    @property
    def id(self) -> str:
        """The enrolment's id."""
        return self.record.digest.hex()

    def root(self, number: int) -> bytes:
        """Some root for each shard."""
        return hashlib.sha256(self.record.digest + number.to_bytes(4, "big")).digest()

    def entry(
        self, number: int, *, previous: bytes = b"", root: bytes = b"", opening: bytes = b""
    ) -> Entry:
        """The signed entry of a shard, or of the start.

        Args:
            number: Number of the shard; 0 for the start.
            previous: Root before, where it is a real one.
            root: Root of the shard, where it is a real one.
            opening: The file of its opening, where there is one.
        """
        start = None if number else Start(self.root(0), bytes(32), None)
        shard = self._shard(number) if number else None
        if shard and root:
            shard = replace(shard, previous=previous, root=root)
        digest = hashlib.sha256(opening).digest() if number else None
        return signing.sign(Entry(self.record.digest, start, shard, digest), self.key)

    def _shard(self, number: int) -> Shard:
        return Shard(
            shard=number,
            previous=self.root(number - 1),
            root=self.root(number),
            epochs=1,
            steps=100,
            matches=self.record.terms.scheme.bits,
            metrics={"accuracy": 900_000},
            finish=FinishRecord(10, 1000),
            noise=NoiseRecord(40_000, self.root(number)),
            evidence={},
            sealed=1_800_000_000,
            receipt=None,
        )


def terms_of(registry: Registry, history: str = "any") -> Terms:
    """Terms of a small model, at this registry."""
    origin = registry.settings.origin
    with registry.database.read() as connection:
        log = NoteKey(origin, registry.vault.log_key(connection).public_key)
    return make_terms(LAYOUT, bits=256, shards=9000, receipts=Rules(origin, log), history=history)


def enrol(registry: Registry, count: int, history: str = "any") -> list[Prover]:
    """So many provers, each with an open enrolment."""
    return admit(registry, terms_of(registry, history), LAYOUT, count)


def admit(registry: Registry, terms: Terms, layout: Layout, count: int) -> list[Prover]:
    """So many provers, each with an open enrolment under these terms."""
    now = registry.clock()
    people, chains, made = [], [], []
    with registry.database.begin() as connection:
        issuer = registry.vault.issuer(connection)
        for _ in range(count):
            raw, secret = secrets.token_bytes(32), secrets.token_bytes(32)
            key = Identity(Ed25519PrivateKey.from_private_bytes(raw))
            record = enrol_live(
                terms, identity=key.public_key, issuer=issuer, secret=secret, issued=now
            )
            prover = Prover(key, record, raw.hex())
            person = {"id": key.id, "key": key.public_key, "name": "load", "role": "prover"}
            people.append({**person, "registered": now, "revoked": None})
            chains.append(
                {
                    "id": prover.id,
                    "identity": key.id,
                    "task": "draft",
                    "record": record.to_bytes(),
                    "layout": layout.to_bytes(),
                    "secret": registry.vault.seal(secret, about_secret(prover.id)),
                    "state": "open",
                    "shards": 0,
                    "issued": now,
                    "changed": now,
                    "manifest": None,
                    "parent": None,
                }
            )
            made.append(prover)
        connection.execute(insert(identities), people)
        connection.execute(insert(enrolments), chains)
    return made


def submissions(registry: Registry, provers: Sequence[Prover], number: int) -> Iterator[Submission]:
    """Their entries of one shard, as the sequencer takes them."""
    for prover in provers:
        chain = registry.sequencer.chains.get(prover.id)
        assert chain is not None
        entry = prover.entry(number)
        given = Authorization(
            prover.key.public_key, registry.clock(), secrets.token_bytes(16), bytes(64)
        )
        yield Submission(chain, entry, entry.to_bytes(), given)

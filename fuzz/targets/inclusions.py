"""What shows a shard in a registry's log, as a verifier reads it."""

import functools
from collections.abc import Iterator
from dataclasses import replace

from fuzz import mutation, promises, sandbox, seeds
from fuzz.target import Target
from fuzz.targets.note import LOG, LOG_KEY, ORIGIN, TIME, WITNESS, WITNESS_KEY
from polo.checks import Status
from polo.evidence.receipts.check import receipts
from polo.protocol import entries, log_notes, log_tree, nonces, signing
from polo.protocol.entries import Entry, Inclusion, Inclusions
from polo.protocol.log_notes import Checkpoint
from polo.protocol.records import EvidenceTerms, Manifest, NonceTerms, Receipt
from polo.storage.folder import ProofFolder, opening_path, receipts_path

_SECRET = bytes(32)
_NAME = receipts_path(1)


@functools.cache
def chain() -> tuple[Manifest, tuple[Inclusion, ...]]:
    """A golden proof's first shard as a live chain, whose registry and prover are one key."""
    golden = seeds.manifest()
    settings = {"origin": ORIGIN, "log": LOG_KEY.text, "witnesses": WITNESS_KEY.text}
    levels = (EvidenceTerms("chain", {}), EvidenceTerms("receipts", settings))
    live = NonceTerms("live", entries.secret_commitment(_SECRET), 0)
    terms = replace(golden.terms, evidence=levels)
    enrolment = replace(
        golden.enrolment, terms=terms, nonces=live, issuer=LOG.public_key, identity=LOG.public_key
    )
    enrolment = signing.sign(enrolment, LOG)
    opening = next(file.sha256 for file in golden.files if file.path == opening_path(1))
    made = (
        Entry(enrolment.digest, golden.start, None, None),
        Entry(enrolment.digest, None, golden.shards[0], opening),
    )
    logged = [signing.sign(entry, LOG) for entry in made]
    start = replace(golden.start, receipt=_receipt(logged[0]))
    shard = replace(golden.shards[0], receipt=_receipt(logged[1]))
    manifest = replace(golden, enrolment=enrolment, start=start, shards=(shard,))
    return manifest, _inclusions(logged)


def _receipt(entry: Entry) -> Receipt:
    following = nonces.leaf(entries.live_nonce(_SECRET, entry))
    at = entry.number
    bare = Receipt(entry.enrolment, at, entry.root, TIME, ORIGIN, at, following)
    return signing.sign(bare, LOG)


def _inclusions(logged: list[Entry]) -> tuple[Inclusion, ...]:
    frontier, nodes = log_tree.Frontier().grown(entry.leaf for entry in logged)
    kept = {(node.level, node.index): node.hash for node in nodes}
    note = log_notes.sign_checkpoint(Checkpoint(ORIGIN, 2, frontier.root), LOG)
    note = note.signed(log_notes.cosign(note.text, WITNESS_KEY.name, WITNESS, TIME))
    return tuple(
        Inclusion(
            entry,
            at,
            2,
            tuple(log_tree.inclusion(at, 2, lambda *where: kept[where])),
            str(note),
        )
        for at, entry in enumerate(logged)
    )


def check(data: bytes) -> None:
    """Every check is short, and an entry that passes is the one that was logged."""
    manifest, honest = chain()
    folder = sandbox.folder("inclusions")
    (folder / _NAME).parent.mkdir(parents=True, exist_ok=True)
    (folder / _NAME).write_bytes(data)
    found = list(receipts(ProofFolder(folder), manifest, {_NAME}))
    for item in found:
        promises.require(len(item.sentence()) < 1000, "a complaint is short")
        promises.require(item.level == "receipts", "a level speaks for itself")
    passed = {item.shard for item in found if (item.name, item.status) == ("entry", Status.PASSED)}
    for shown in Inclusions.from_bytes(data, _NAME).inclusions if passed else ():
        if shown.entry.number in passed:
            true = honest[shown.entry.number]
            same = (shown.entry, shown.index, shown.path) == (true.entry, true.index, true.path)
            promises.require(same, "only what was logged passes")


def documents() -> Iterator[bytes]:
    """The honest file, each half of it, and an empty one."""
    _, honest = chain()
    for part in (honest, honest[:1], honest[1:], ()):
        yield Inclusions(part).to_bytes()


TARGET = Target(check, documents, mutation.document)

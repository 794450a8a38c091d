"""Vectors of a registry's log: entries and their nonces, the tree, tiles, notes, inclusions."""

from dataclasses import replace

from vectors.kit import ISSUER_SEED, PROVER_SEED, Json, fixed, key_of, small_terms

from polo.protocol import entries, log_notes, log_tiles, log_tree, merkle, nonces, signing
from polo.protocol.entries import Entry, Inclusion, Inclusions
from polo.protocol.log_notes import COSIGNATURE, Checkpoint, Note, NoteKey
from polo.protocol.log_tiles import Tile
from polo.protocol.records import (
    Enrolment,
    EvidenceTerms,
    FinishRecord,
    NoiseRecord,
    NonceTerms,
    Receipt,
    Shard,
    Start,
)

LOG_SEED = "polo vectors: log"
WITNESS_SEED = "polo vectors: witness"
ORIGIN = "registry.example/log"
WITNESS = "witness.example/w1"
KAPPA = fixed("polo vectors: live secret", 32)
TIME = 1_700_000_000
SIZE = 300


def _log_key() -> NoteKey:
    return NoteKey(ORIGIN, key_of(LOG_SEED).public_key)


def _witness_key() -> NoteKey:
    return NoteKey(WITNESS, key_of(WITNESS_SEED).public_key, COSIGNATURE)


def _enrolment() -> Enrolment:
    settings = {"origin": ORIGIN, "log": _log_key().text, "witnesses": _witness_key().text}
    terms = small_terms()
    terms = replace(terms, evidence=(*terms.evidence, EvidenceTerms("receipts", settings)))
    live = NonceTerms("live", entries.secret_commitment(KAPPA), 0)
    prover, issuer = key_of(PROVER_SEED), key_of(ISSUER_SEED)
    bare = Enrolment(terms, prover.public_key, live, TIME, issuer.public_key)
    return signing.sign(bare, issuer)


def _root(number: int) -> bytes:
    return fixed(f"polo vectors: logged root {number}", 32)


def _shard(number: int) -> Shard:
    return Shard(
        shard=number,
        previous=_root(number - 1),
        root=_root(number),
        epochs=1,
        steps=20,
        matches=64,
        metrics={"accuracy": 250_000},
        finish=FinishRecord(3, 120_000),
        noise=NoiseRecord(20_000, fixed(f"polo vectors: logged secret {number + 1}", 32)),
        evidence={},
        sealed=TIME + 60 * number,
        receipt=None,
    )


def _entry(number: int) -> Entry:
    enrolment, start = _enrolment().digest, fixed("polo vectors: logged secret 1", 32)
    opening = fixed(f"polo vectors: opening {number}", 32)
    bare = Entry(enrolment, Start(_root(0), start, None), None, None)
    if number:
        bare = Entry(enrolment, None, _shard(number), opening)
    return signing.sign(bare, key_of(PROVER_SEED))


def _answered(entry: Entry) -> Json:
    nonce = entries.live_nonce(KAPPA, entry)
    return {
        "entry": entry.to_bytes().decode(),
        "message": entry.message().decode(),
        "leaf": entry.leaf.hex(),
        "nonce": nonce.to_bytes().decode(),
        "next_nonce": nonces.leaf(nonce).hex(),
    }


def _refused_entries() -> list[Json]:
    start, shard = _entry(0), _entry(1)
    receipt = _receipt(shard, 7)
    assert shard.shard is not None
    wrong = {
        "of a start and a shard": replace(shard, start=start.start),
        "of neither": replace(start, start=None),
        "of a start with an opening": replace(start, opening=bytes(32)),
        "of a shard without an opening": replace(shard, opening=None),
        "with a receipt in it": replace(shard, shard=replace(shard.shard, receipt=receipt)),
    }
    return [{"name": name, "entry": item.to_bytes().decode()} for name, item in wrong.items()]


def _leaves() -> list[bytes]:
    """A log in which the entries of the start and of shards 1 and 2 stand among others'."""
    found = [fixed(f"polo vectors: logged leaf {at}", 32) for at in range(SIZE)]
    for number, index in enumerate((5, 7, 280)):
        found[index] = _entry(number).leaf
    return found


def _lookup() -> log_tree.Lookup:
    _, nodes = log_tree.Frontier().grown(_leaves())
    kept = {(item.level, item.index): item.hash for item in nodes}
    return lambda level, index: kept[level, index]


_INCLUSIONS = ((0, 1), (0, 2), (1, 2), (2, 3), (4, 5), (5, 7), (6, 7), (0, 8), (7, 8), (99, 100),
               (255, 256), (256, 257), (7, 300), (280, 300), (299, 300))  # fmt: skip
_CONSISTENCIES = ((0, 5), (1, 1), (1, 2), (1, 8), (2, 5), (3, 7), (4, 8), (6, 8), (7, 100),
                  (128, 256), (256, 300), (257, 300), (299, 300))  # fmt: skip


def _tree() -> Json:
    lookup = _lookup()
    sizes = sorted({size for _, size in _INCLUSIONS} | {n for both in _CONSISTENCIES for n in both})
    return {
        "roots": [{"size": n, "root": merkle.root(_leaves()[:n]).hex()} for n in sizes],
        "inclusions": [
            {"index": at, "size": n, "path": _hexed(log_tree.inclusion(at, n, lookup))}
            for at, n in _INCLUSIONS
        ],
        "consistencies": [
            {"old": old, "new": new, "path": _hexed(log_tree.consistency(old, new, lookup))}
            for old, new in _CONSISTENCIES
        ],
    }


def _hexed(hashes: list[bytes]) -> list[str]:
    return [item.hex() for item in hashes]


def _tiles() -> Json:
    tiles = [Tile(level, at, width) for level, at, width in (
        (0, 0, 256), (0, 1, 44), (1, 0, 1), (None, 0, 256), (None, 1234067, 256), (2, 7, 255),
    )]  # fmt: skip
    few = [b"", b"a", b"bc" * 200]
    return {
        "paths": [
            {"level": tile.level, "index": tile.index, "width": tile.width, "path": tile.path}
            for tile in tiles
        ],
        "tile": {
            "path": Tile(0, 1, 44).path,
            "hex": log_tiles.tile_bytes(Tile(0, 1, 44), _lookup()).hex(),
        },
        "level_1": log_tiles.tile_bytes(Tile(1, 0, 1), _lookup()).hex(),
        "bundle": {"entries": _hexed(few), "hex": log_tiles.bundle_bytes(few).hex()},
    }


def _note() -> Note:
    head = Checkpoint(ORIGIN, SIZE, merkle.root(_leaves()))
    note = log_notes.sign_checkpoint(head, key_of(LOG_SEED))
    return note.signed(log_notes.cosign(note.text, WITNESS, key_of(WITNESS_SEED), TIME + 500))


def _notes() -> Json:
    note, stranger = _note(), key_of(PROVER_SEED)
    log, witness = note.signatures
    late = replace(witness, signature=(TIME + 501).to_bytes(8, "big") + witness.signature[8:])
    other = log_notes.sign_checkpoint(Checkpoint(ORIGIN, SIZE, bytes(32)), key_of(LOG_SEED))
    wrong = {
        "signed by another key": log_notes.sign_checkpoint(
            Checkpoint.parse(note.text, place="vector"), stranger
        ),
        "of another root": Note(other.text, (log, witness)),
        "without the log's signature": Note(note.text, (witness,)),
        "another time of the witness": Note(note.text, (log, late)),
    }
    return {
        "log": _log_key().text,
        "witness": _witness_key().text,
        "checkpoint": str(note),
        "origin": ORIGIN,
        "size": SIZE,
        "root": merkle.root(_leaves()).hex(),
        "cosigned": TIME + 500,
        "refused": [{"name": name, "checkpoint": str(item)} for name, item in wrong.items()],
    }


def _receipt(entry: Entry, index: int) -> Receipt:
    bare = Receipt(
        enrolment=entry.enrolment,
        shard=entry.number,
        root=entry.root,
        time=TIME + 100 * entry.number,
        origin=ORIGIN,
        index=index,
        next_nonce=nonces.leaf(entries.live_nonce(KAPPA, entry)),
    )
    return signing.sign(bare, key_of(ISSUER_SEED))


def _inclusion(number: int, index: int) -> Inclusion:
    path = tuple(log_tree.inclusion(index, SIZE, _lookup()))
    return Inclusion(_entry(number), index, SIZE, path, str(_note()))


def _shown() -> Json:
    shown, elsewhere = _inclusion(1, 7), _inclusion(2, 280)
    wrong = {
        "another place": replace(shown, index=8),
        "another entry": replace(shown, entry=elsewhere.entry),
        "another path": replace(shown, path=elsewhere.path),
        "a path too short": replace(shown, path=shown.path[:-1]),
        "another size": replace(shown, size=SIZE - 1),
    }
    return {
        "enrolment": _enrolment().to_bytes().decode(),
        "shard": _shard(1).to_json(),
        "receipt": _receipt(_entry(1), 7).to_bytes().decode(),
        "inclusions": Inclusions((_inclusion(0, 5), shown)).to_bytes().decode(),
        "refused": [
            {"name": name, "inclusions": Inclusions((item,)).to_bytes().decode()}
            for name, item in wrong.items()
        ],
    }


def log_json() -> Json:
    """Everything of a log, from the secret behind its nonces to a shard's place in it."""
    return {
        "secret": KAPPA.hex(),
        "commitment": entries.secret_commitment(KAPPA).hex(),
        "answered": [_answered(_entry(number)) for number in (0, 1, 2)],
        "refused_entries": _refused_entries(),
        "leaves": [leaf.hex() for leaf in _leaves()],
        "tree": _tree(),
        "tiles": _tiles(),
        "notes": _notes(),
        "shown": _shown(),
    }

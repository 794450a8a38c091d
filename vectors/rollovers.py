"""Vectors of a log's changes of key: notes, where they lead, and checkpoints by each key."""

from vectors.kit import Json, fixed, key_of

from polo.protocol.log_notes import Checkpoint, Note, NoteKey, sign_checkpoint
from polo.protocol.log_rollover import Rollover, sign_rollover

ORIGIN = "registry.example/log"
SEEDS = tuple(f"polo vectors: log key {number}" for number in (1, 2, 3))


def _key(number: int) -> NoteKey:
    return NoteKey(ORIGIN, key_of(SEEDS[number]).public_key)


def _at(size: int) -> Checkpoint:
    return Checkpoint(ORIGIN, size, fixed(f"polo vectors: log of {size}", 32))


def _rollover(size: int, old: int, new: int) -> Note:
    return sign_rollover(_at(size), key_of(SEEDS[old]), key_of(SEEDS[new]))


def _checkpoint(size: int, *signers: int) -> str:
    first, *others = (sign_checkpoint(_at(size), key_of(SEEDS[number])) for number in signers)
    return str(first.signed(*(line for other in others for line in other.signatures)))


def rollover_json() -> Json:
    """Two changes of a log's key, what each key signs, and what is refused."""
    one, two = _rollover(5, 0, 1), _rollover(9, 1, 2)
    renamed = Rollover(_at(5), _key(0), _key(1)).text
    return {
        "keys": [_key(number).text for number in range(3)],
        "notes": [str(one), str(two)],
        "checkpoints": [
            {"note": _checkpoint(5, 0), "size": 5},
            {"note": _checkpoint(5, 1), "size": 5},
            {"note": _checkpoint(6, 1, 0), "size": 6},
            {"note": _checkpoint(9, 1), "size": 9},
            {"note": _checkpoint(10, 2), "size": 10},
        ],
        "refused_checkpoints": [_checkpoint(6, 0), _checkpoint(10, 1), _checkpoint(10, 1, 0)],
        "refused_notes": {
            "signed by another key than the old one": [str(Note(renamed, two.signatures))],
            "not signed by the new key": [str(Note(one.text, one.signatures[:1]))],
            "one key, two successors": [str(one), str(_rollover(5, 0, 2))],
            "a circle": [str(one), str(_rollover(6, 1, 0))],
            "a smaller size": [str(one), str(_rollover(4, 1, 2))],
        },
    }

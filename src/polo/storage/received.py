"""A registry's answers, kept beside a proof: the next nonce is in them, and nobody else's business.

The newest is needed to go on after a crash, and that of the start until the first shard is sealed,
whose file in the proof shows both in the log.
"""

from dataclasses import dataclass
from pathlib import Path

from polo.protocol import canonical
from polo.protocol.entries import Inclusion
from polo.protocol.fields import Nested, Nullable, Record, of
from polo.protocol.records import Nonce, Receipt
from polo.receipts import Answer
from polo.storage import atomic
from polo.weights.files import open_plain

CLOSED_FILE = "closed"


@dataclass(frozen=True)
class KeptAnswer(Record):
    """The file `<shard>.answer.json`."""

    FORMAT = "polo-answer-1"

    receipt: Receipt = of(Nested(Receipt))
    nonce: Nonce | None = of(Nullable(Nested(Nonce)))
    inclusion: Inclusion | None = of(Nullable(Nested(Inclusion)))


def keep(state: Path, shard: int, answer: Answer) -> None:
    """Write an answer down, for its owner's eyes only."""
    assert answer.receipt is not None
    document = KeptAnswer(answer.receipt, answer.nonce, answer.inclusion)
    with atomic.replacing(_path(state, shard), mode=0o600) as file:
        file.write(document.to_bytes())


def kept(state: Path, shard: int) -> Answer | None:
    """The answer to a commitment; None if it is not here."""
    path = _path(state, shard)
    if not path.exists():
        return None
    with open_plain(path) as file:
        found = KeptAnswer.from_bytes(file.read(canonical.MAX_DOCUMENT_BYTES + 1), str(path))
    return Answer(found.receipt, found.nonce, found.inclusion)


def note_closed(state: Path, manifest: bytes) -> None:
    """Note that the registry has closed the chain, with a manifest of this digest."""
    atomic.write(state / CLOSED_FILE, manifest.hex().encode())


def is_closed(state: Path) -> bool:
    """Whether the registry has closed the chain, as far as is known here."""
    return (state / CLOSED_FILE).exists()


def forget(state: Path, *, before: int) -> None:
    """Remove answers that nobody will need."""
    for path in state.glob("[0-9]*.answer.json"):
        number = path.name.partition(".")[0]
        if number.isdecimal() and int(number) < before:
            path.unlink(missing_ok=True)


def _path(state: Path, shard: int) -> Path:
    return state / f"{shard:06d}.answer.json"

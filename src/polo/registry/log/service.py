"""What the log holds: hashes, tiles, proofs, checkpoints with their cosignatures."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, func, select

from polo.errors import FormatError, PoloError
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tiles, log_tree
from polo.protocol.log_tree import Lookup
from polo.registry.problems import CODES, Problem
from polo.registry.reading import rows_at
from polo.registry.schema import cosignatures, log_heads, log_leaves, log_nodes
from polo.registry.writing import insert_new

CODES.update(
    {
        "log.empty": "The log has no entries yet.",
        "log.missing": "The log has no such entry, tile or checkpoint.",
        "log.not-cosigned": "No witness that this registry knows signed the checkpoint.",
        "log.other-checkpoint": "The checkpoint is none that this log signed.",
    }
)

T = TypeVar("T")


@dataclass(frozen=True)
class Head:
    """A signed checkpoint of the log.

    Attributes:
        size: Entries.
        root: Root over them.
        time: When it was signed.
        note: The checkpoint as text, with the log's signature.
    """

    size: int
    root: bytes
    time: int
    note: str

    @property
    def origin(self) -> str:
        """The log's name."""
        return self.note.partition("\n")[0]


_HEADS = select(log_heads.c.size, log_heads.c.root, log_heads.c.time, log_heads.c.note)
_NEWEST = _HEADS.order_by(log_heads.c.size.desc()).limit(1)


def newest(connection: Connection) -> Head | None:
    """The newest checkpoint; None as long as the log is empty."""
    row = connection.execute(_NEWEST).first()
    return Head(row.size, bytes(row.root), row.time, row.note) if row else None


def current(connection: Connection) -> Head:
    """The newest checkpoint, or a `Problem`."""
    head = newest(connection)
    if head is None:
        raise Problem(404, "log.empty", "nothing was committed yet")
    return head


def at_size(connection: Connection, size: int) -> Head | None:
    """The checkpoint of this size, if one was signed."""
    row = connection.execute(_HEADS.where(log_heads.c.size == size)).first()
    return Head(row.size, bytes(row.root), row.time, row.note) if row else None


def with_cosignatures(connection: Connection, head: Head) -> str:
    """A checkpoint with what witnesses added to it."""
    lines = connection.execute(
        select(cosignatures.c.line)
        .where(cosignatures.c.size == head.size)
        .order_by(cosignatures.c.witness)
    ).scalars()
    return head.note + "".join(lines)


def cosigned(connection: Connection, *, quorum: int, index: int | None = None) -> Head | None:
    """The first checkpoint over an entry that so many witnesses cosigned; without one the newest.

    Args:
        connection: A transaction.
        quorum: Fewest cosignatures.
        index: The entry.
    """
    order = cosignatures.c.size.desc() if index is None else cosignatures.c.size
    sizes = (
        select(cosignatures.c.size)
        .where(cosignatures.c.size > (0 if index is None else index))
        .group_by(cosignatures.c.size)
        .having(func.count() >= quorum)
        .order_by(order)
        .limit(1)
    )
    size = connection.execute(sizes).scalar()
    return None if size is None else at_size(connection, size)


def hashes(connection: Connection, wanted: Iterable[tuple[int, int]]) -> Lookup:
    """A lookup of these subtrees, read at once."""
    asked = list(wanted)
    leaves = [index for level, index in asked if level == 0]
    nodes = [pair for pair in asked if pair[0]]
    found: dict[tuple[int, int], bytes] = {}
    if leaves:
        at = select(log_leaves.c.index, log_leaves.c.hash)
        some = connection.execute(at.where(log_leaves.c.index.in_(leaves)))
        found |= {(0, index): bytes(found_hash) for index, found_hash in some}
    rows = rows_at(connection, log_nodes, ("level", "index"), ("level", "index", "hash"), nodes)
    found |= {(level, index): bytes(found_hash) for level, index, found_hash in rows}
    return lambda level, index: found[level, index]


def proved(connection: Connection, prove: Callable[[Lookup], T]) -> T:
    """A proof by `prove`, with one look into the database for all hashes it needs."""
    wanted: list[tuple[int, int]] = []

    def note(level: int, index: int) -> bytes:
        wanted.append((level, index))
        return bytes(32)

    prove(note)
    return prove(hashes(connection, wanted))


def inclusion(connection: Connection, index: int, size: int) -> list[bytes]:
    """The path from an entry to the root of the first `size`."""
    return proved(connection, lambda lookup: log_tree.inclusion(index, size, lookup))


def consistency(connection: Connection, old: int, new: int) -> list[bytes]:
    """Shows that the first `old` entries are the beginning of the first `new`."""
    return proved(connection, lambda lookup: log_tree.consistency(old, new, lookup))


def tile(connection: Connection, wanted: log_tiles.Tile) -> bytes:
    """The content of a tile or of a bundle of entries."""
    head = current(connection)
    try:
        wanted.check(head.size, place=wanted.path)
    except FormatError as error:
        raise Problem(404, "log.missing", str(error)) from error
    level = log_tiles.HEIGHT * (wanted.level or 0)
    table = log_nodes if level else log_leaves
    first = wanted.index * log_tiles.WIDTH
    column = log_leaves.c.entry if wanted.level is None else table.c.hash
    asked = select(column).where(table.c.index >= first, table.c.index < first + wanted.width)
    if level:
        asked = asked.where(log_nodes.c.level == level)
    rows = [bytes(row) for row in connection.execute(asked.order_by(table.c.index)).scalars()]
    return log_tiles.bundle_bytes(rows) if wanted.level is None else b"".join(rows)


def cosign(
    connection: Connection, text: str, witnesses: Iterable[str], now: int
) -> tuple[int, list[str]]:
    """Keep the cosignatures of known witnesses under a checkpoint of this log.

    Args:
        connection: A write transaction.
        text: The checkpoint, with its cosignatures, as a note.
        witnesses: Keys of the witnesses that count here.
        now: The time.

    Returns:
        The checkpoint's size, and the names of the witnesses whose cosignatures are kept now.
    """
    known = [log_notes.NoteKey.parse(item, place="setting witnesses") for item in witnesses]
    try:
        note = log_notes.Note.parse(text, place="note")
        checkpoint = log_notes.Checkpoint.parse(note.text, place="note")
        signed = log_notes.cosigned(note, known, Ed25519Verifier(), place="note")
    except PoloError as error:
        raise Problem(422, "log.not-cosigned", str(error)) from error
    head = at_size(connection, checkpoint.size)
    if head is None or not head.note.startswith(f"{note.text}\n"):
        raise Problem(409, "log.other-checkpoint", "this log never signed such a checkpoint")
    if not signed:
        raise Problem(403, "log.not-cosigned", "no witness that is known here signed it")
    rows = [
        {"size": head.size, "witness": key.text, "line": note.by(key)[0].line, "time": now}
        for key in signed
    ]
    insert_new(connection, cosignatures, rows)
    return head.size, sorted(key.name for key in signed)

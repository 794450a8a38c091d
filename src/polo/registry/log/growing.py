"""Appending entries to the log, many at once, under one signed checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from polo.errors import StoreError
from polo.protocol import log_tree
from polo.protocol.entries import leaf_hash
from polo.protocol.log_notes import Checkpoint, sign_checkpoint
from polo.protocol.log_tree import Frontier
from polo.protocol.signing import Signer
from polo.registry.log import service
from polo.registry.schema import log_heads, log_leaves, log_nodes
from polo.registry.writing import add_all


@dataclass(frozen=True)
class Appended:
    """What one transaction added.

    Attributes:
        frontier: The log with them.
        note: The checkpoint over all of them, signed.
        known: Hashes of all subtrees that paths of the new entries lead through.
    """

    frontier: Frontier
    note: str
    known: dict[tuple[int, int], bytes]

    @property
    def size(self) -> int:
        """Entries of the log with them."""
        return self.frontier.size

    def path(self, index: int) -> list[bytes]:
        """The path of a new entry to the root."""
        return log_tree.inclusion(index, self.size, lambda *at: self.known[at])


class Growth:
    """The log as its writer sees it. One writer at a time, which the caller's lock ensures.

    Args:
        origin: The log's name.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._kept: Frontier | None = None

    def frontier(self, connection: Connection, head: service.Head | None) -> Frontier:
        """The frontier of what is committed: the one at hand, unless others wrote meanwhile."""
        size, kept = head.size if head else 0, self._kept
        if kept is None or kept.size != size or (head and kept.root != head.root):
            kept = Frontier.load(size, service.hashes(connection, log_tree.peaks(size)))
        if head and kept.root != head.root:
            raise StoreError(
                f"the log's hashes do not lead to the root of its {size} entries",
                advice="Nothing is added any more. Run polo registry doctor.",
            )
        return kept

    def append(
        self, connection: Connection, frontier: Frontier, entries: list[bytes],
        signers: Sequence[Signer], *, now: int,
    ) -> Appended:  # fmt: skip
        """Add entries. They count once the transaction is committed, see `keep`."""
        leaves = [leaf_hash(entry) for entry in entries]
        grown, nodes = frontier.grown(leaves)
        checkpoint = Checkpoint(self._origin, grown.size, grown.root)
        first, *others = (sign_checkpoint(checkpoint, signer) for signer in signers)
        note = str(first.signed(*(line for other in others for line in other.signatures)))
        rows = [
            {"index": frontier.size + at, "hash": leaf, "entry": entry}
            for at, (leaf, entry) in enumerate(zip(leaves, entries, strict=True))
        ]
        add_all(connection, log_leaves, rows)
        inner = [
            {"level": node.level, "index": node.index, "hash": node.hash}
            for node in nodes
            if node.level
        ]
        add_all(connection, log_nodes, inner)
        head = {"size": grown.size, "root": checkpoint.root, "time": now, "note": note}
        add_all(connection, log_heads, [head])
        known = dict(zip(log_tree.peaks(frontier.size), frontier.hashes, strict=True))
        known |= {(node.level, node.index): node.hash for node in nodes}
        return Appended(grown, note, known)

    def keep(self, appended: Appended) -> None:
        """Go on from here: the transaction is committed."""
        self._kept = appended.frontier

"""Whether the log in the database is what its checkpoints say, and the receipts what they sign.

All of it, as after a restore, or a sample, which is enough to see that a disk forgets. Nothing here
trusts a stored hash: leaves are hashed again from their entries.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from polo.errors import PoloError
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tree, signing
from polo.protocol.entries import leaf_hash
from polo.protocol.log_tree import Frontier
from polo.protocol.records import Enrolment, Receipt
from polo.registry.log import keys
from polo.registry.log import service as log
from polo.registry.schema import commitments, enrolments, log_heads, log_leaves

TOGETHER = 1024
"""Leaves that are read at once."""


@dataclass(frozen=True)
class Audit:
    """Looks at one registry's log.

    Attributes:
        connection: A transaction; all of it must be one state of the database.
        origin: The log's name.
        key: One of the log's public keys; its others follow from what they signed of each other.
        sample: How many entries, heads and receipts to look at; None for all.
    """

    connection: Connection
    origin: str
    key: bytes
    sample: int | None = None

    def faults(self) -> Iterator[str]:
        """Everything that is wrong, in words."""
        yield from self._size()
        head = log.newest(self.connection)
        if head is None:
            return
        yield from self._heads()
        yield from self._all_leaves() if self.sample is None else self._some_leaves(head)
        yield from self._commitments()
        yield from self._receipts()

    def _size(self) -> Iterator[str]:
        count, last = self.connection.execute(
            select(func.count(), func.max(log_leaves.c.index)).select_from(log_leaves)
        ).one()
        size = self.connection.execute(select(func.max(log_heads.c.size))).scalar() or 0
        if not count == size == (0 if last is None else last + 1):
            yield f"the newest checkpoint is over {size} entries, and {count} are there"
        committed = self.connection.execute(
            select(func.count()).select_from(commitments)
        ).scalar_one()
        if committed != count:
            yield f"{committed} commitments stand beside {count} entries of the log"

    def _heads(self) -> Iterator[str]:
        """Each checkpoint is signed, says what its row says, and the stored hashes lead to it."""
        try:
            lineage = keys.lineage(self.connection, self.origin, self.key)
        except PoloError as error:
            yield str(error)
            return
        query = select(log_heads).order_by(log_heads.c.size.desc())
        for row in self.connection.execute(query.limit(self.sample)):
            place = f"checkpoint of {row.size}"
            try:
                note = log_notes.Note.parse(row.note, place=place)
                said = lineage.open(note, Ed25519Verifier(), place=place)
                lookup = log.hashes(self.connection, log_tree.peaks(row.size))
                found = Frontier.load(row.size, lookup).root
            except (PoloError, KeyError) as error:
                yield str(error) if isinstance(error, PoloError) else f"{place}: hashes are missing"
                continue
            if (said.size, said.root) != (row.size, bytes(row.root)) or found != said.root:
                yield f"{place}: the hashes do not lead to its root"

    def _all_leaves(self) -> Iterator[str]:
        """Grow the log again from its entries, and compare with every checkpoint and hash."""
        query = select(log_heads.c.size, log_heads.c.root).order_by(log_heads.c.size)
        heads = iter(self.connection.execute(query).all())
        due = next(heads, None)
        frontier = Frontier()
        while due is not None:
            upto = min(due.size, frontier.size + TOGETHER)
            leaves = []
            for index, stored, entry in self._leaves(frontier.size, upto):
                leaves.append(leaf_hash(entry))
                if leaves[-1] != stored:
                    yield f"entry {index}: its hash is another than the one stored"
            if len(leaves) != upto - frontier.size:
                yield f"entries from {frontier.size} to {upto} are not all there"
                return
            frontier, nodes = frontier.grown(leaves)
            yield from self._nodes(nodes)
            if frontier.size == due.size:
                if frontier.root != bytes(due.root):
                    yield f"checkpoint of {due.size}: its root is not that of the entries"
                due = next(heads, None)

    def _nodes(self, nodes: list[log_tree.Node]) -> Iterator[str]:
        inner = [node for node in nodes if node.level]
        lookup = log.hashes(self.connection, [(node.level, node.index) for node in inner])
        for node in inner:
            try:
                wrong = lookup(node.level, node.index) != node.hash
            except KeyError:
                wrong = True
            if wrong:
                yield f"hash {node.index} of level {node.level} is missing or wrong"

    def _leaves(self, start: int, end: int) -> list[tuple[int, bytes, bytes]]:
        rows = self.connection.execute(
            select(log_leaves.c.index, log_leaves.c.hash, log_leaves.c.entry)
            .where(log_leaves.c.index >= start, log_leaves.c.index < end)
            .order_by(log_leaves.c.index)
        )
        return [(index, bytes(stored), bytes(entry)) for index, stored, entry in rows]

    def _some_leaves(self, head: log.Head) -> Iterator[str]:
        assert self.sample is not None
        chosen = random.sample(range(head.size), min(self.sample, head.size))
        for index in sorted(chosen):
            found = self._leaves(index, index + 1)
            if not found:
                yield f"entry {index} is not there"
                continue
            leaf = leaf_hash(found[0][2])
            try:
                path = log.inclusion(self.connection, index, head.size)
                log_tree.check_inclusion(
                    leaf, index, head.size, path, head.root, place=f"entry {index}"
                )
            except KeyError:
                yield f"entry {index}: hashes on its path are missing"
            except PoloError as error:
                yield str(error)

    def _commitments(self) -> Iterator[str]:
        """Each commitment is the entry at its place in the log."""
        query = (
            select(commitments.c.enrolment, commitments.c.shard, commitments.c.index)
            .outerjoin(log_leaves, log_leaves.c.index == commitments.c.index)
            .where(log_leaves.c.entry.is_distinct_from(commitments.c.record))
        )
        if self.sample is not None:
            newest = select(func.max(commitments.c.index)).scalar_subquery()
            query = query.where(commitments.c.index > newest - self.sample)
        for row in self.connection.execute(query.limit(100)):
            yield (
                f"shard {row.shard} of {row.enrolment[:16]}… is not what the log has at {row.index}"
            )

    def _receipts(self) -> Iterator[str]:
        """Each receipt is signed by its enrolment's issuer, and about its own commitment."""
        query = (
            select(
                commitments.c.enrolment,
                commitments.c.shard,
                commitments.c.root,
                commitments.c.index.label("place"),
                commitments.c.receipt,
                enrolments.c.record.label("of"),
            )
            .join(enrolments, enrolments.c.id == commitments.c.enrolment)
            .where(commitments.c.receipt.is_not(None))
            .order_by(commitments.c.index.desc())
            .limit(self.sample)
        )
        issuers: dict[str, bytes] = {}
        # An audit that ends early must let go of the server's cursor.
        streaming = {"yield_per": TOGETHER}
        with self.connection.execute(query, execution_options=streaming) as rows:
            for row in rows:
                place = f"receipt of shard {row.shard} of {row.enrolment[:16]}…"
                try:
                    if row.enrolment not in issuers:
                        issuers[row.enrolment] = Enrolment.from_bytes(bytes(row.of), place).issuer
                    receipt = Receipt.from_bytes(bytes(row.receipt), place)
                    signing.check(receipt, issuers[row.enrolment], Ed25519Verifier(), place=place)
                except PoloError as error:
                    yield str(error)
                    continue
                told = (receipt.enrolment.hex(), receipt.shard, receipt.root, receipt.index)
                if told != (row.enrolment, row.shard, bytes(row.root), row.place):
                    yield f"{place}: it is about another commitment"

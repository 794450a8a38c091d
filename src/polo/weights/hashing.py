"""The root of a checkpoint, computed piece by piece on several threads.

Memory stays at a few pieces, and 100 bytes per 16 KiB of weights for the leaf hashes. hashlib
releases the interpreter's lock, so two threads hash nearly twice as fast as one; with many, another
process does better.
"""

import functools
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from polo.errors import WeightsError
from polo.protocol import commitment, merkle
from polo.protocol.digest import SIZE
from polo.protocol.layout import CHUNK_BYTES, Layout, Leaf, Tensor
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint
from polo.weights.hasher import Hasher
from polo.weights.pieces import table_of

PIECE_BYTES = 128 * CHUNK_BYTES
"""How much a thread reads at a time; this and the number of threads bound the memory used."""


@dataclass(frozen=True)
class Commitment:
    """A checkpoint's layout, leaf hashes and root."""

    layout: Layout
    leaves: Sequence[bytes]
    root: bytes

    def open(self, checkpoint: Checkpoint, where: dict[int, Leaf]) -> commitment.Opening:
        """An opening of the leaves in `where`, by index."""
        chunks = {
            index: bytes(checkpoint.read(leaf.tensor, leaf.start, leaf.start + leaf.length))
            for index, leaf in where.items()
        }
        return commitment.Opening(chunks, tuple(merkle.multiproof(self.leaves, list(where))))


def usual_threads() -> int:
    """How many threads hash if nobody says: one per core, at most four."""
    return min(4, os.cpu_count() or 1)


def commit(checkpoint: Checkpoint, *, threads: int | None = None) -> Commitment:
    """Hash a checkpoint.

    Args:
        checkpoint: What to commit to.
        threads: How many threads; by default one per core, at most four: beyond that
            the interpreter's lock eats the gain, and memory grows with every piece in flight.

    Raises:
        WeightsError: A tensor holds NaN or infinity; the error names it.
    """
    workers = threads or usual_threads()
    pieces = list(_pieces(checkpoint.layout))
    hashed: list[list[bytes]] = [[] for _ in pieces]
    failed: dict[int, Exception] = {}
    # Threads help themselves to pieces. Handing every result over to this thread would wake it
    # for each of them, only to get in their way at the interpreter's lock.
    waiting = iter(range(len(pieces)))

    def work() -> None:
        while not failed and (at := next(waiting, None)) is not None:
            try:
                hashed[at] = _hash_piece(checkpoint, *pieces[at])
            except Exception as error:
                failed[at] = error

    with ThreadPoolExecutor(workers) as pool:
        try:
            wait([pool.submit(work) for _ in range(min(workers, len(pieces)))])
        finally:
            # After an interrupt the threads need not go on.
            for _ in waiting:
                pass
    if failed:
        # Pieces are taken in order, so the first bad one is always among those that failed.
        raise failed[min(failed)]
    leaves = list(itertools.chain.from_iterable(hashed))
    return Commitment(checkpoint.layout, leaves, commitment.root(checkpoint.layout, leaves))


def commit_by(hasher: Hasher, checkpoint: HeldCheckpoint) -> Commitment:
    """Have a checkpoint hashed.

    Raises:
        WeightsError: A tensor holds NaN or infinity; the error names it.
    """
    layout = checkpoint.layout
    if name := checkpoint.not_finite():
        raise _not_finite(name)
    for at, tensor in enumerate(layout.tensors):
        _check_truth(checkpoint.read(at, 0, tensor.size), tensor)
    found = hasher.hashes(checkpoint, _table(layout))
    leaves = [found[at : at + SIZE] for at in range(0, len(found), SIZE)]
    return Commitment(layout, leaves, commitment.root(layout, leaves))


@functools.lru_cache(maxsize=4)
def _table(layout: Layout) -> bytes:
    """What a hasher is to hash of a held checkpoint: its leaves."""
    header = commitment.LEAF_HEADER.pack
    return table_of(
        (first + start, first + stop, header(0, at, start // CHUNK_BYTES, stop - start))
        for at, (tensor, first) in enumerate(zip(layout.tensors, layout.offsets, strict=True))
        for start in range(0, tensor.size, CHUNK_BYTES)
        for stop in (min(start + CHUNK_BYTES, tensor.size),)
    )


def _pieces(layout: Layout) -> Iterator[tuple[int, int, int]]:
    for at, tensor in enumerate(layout.tensors):
        for start in range(0, tensor.size, PIECE_BYTES):
            yield at, start, min(start + PIECE_BYTES, tensor.size)


def _hash_piece(checkpoint: Checkpoint, tensor: int, start: int, stop: int) -> list[bytes]:
    data = memoryview(checkpoint.read(tensor, start, stop))
    spec = checkpoint.layout.tensors[tensor]
    if not dtypes.is_finite(data, spec.dtype):
        raise _not_finite(spec.name)
    _check_truth(data, spec)
    sha256, header = hashlib.sha256, commitment.LEAF_HEADER.pack
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    numbers = itertools.count(start // CHUNK_BYTES)
    states = [sha256(header(0, tensor, next(numbers), len(chunk))) for chunk in chunks]
    # Only `update` lets go of the interpreter's lock. With nothing else in its loop a thread
    # needs the lock for moments, and seldom meets the others there.
    for state, chunk in zip(states, chunks, strict=True):
        state.update(chunk)
    return [state.digest() for state in states]


def _not_finite(name: str) -> WeightsError:
    return WeightsError(
        "the weights are not finite (NaN or infinity)",
        place=name,
        advice="Training has diverged: lower the learning rate or the mark's strength.",
    )


def _check_truth(data: memoryview, tensor: Tensor) -> None:
    if tensor.dtype == "BOOL" and max(data, default=0) > 1:
        raise WeightsError("a truth value is neither 0 nor 1", place=tensor.name)


def diff(one: Commitment, other: Commitment) -> list[str]:
    """Names of the tensors whose bytes differ between two checkpoints of one layout."""
    if one.layout != other.layout:
        raise WeightsError("the two checkpoints have different layouts")
    changed = []
    for at, tensor in enumerate(one.layout.tensors):
        first = one.layout.first_leaf[at]
        span = slice(first, first + tensor.chunks)
        if one.leaves[span] != other.leaves[span]:
            changed.append(tensor.name)
    return changed

"""Is this file the model that a proof ends in? Exactly, or in another number format?"""

from collections.abc import Callable
from pathlib import Path

from polo.checks import Check, Status
from polo.errors import PoloError, StoreError
from polo.protocol.layout import CARRIER_DTYPES, DTYPE_BYTES, Layout, Tensor
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import FileCheckpoint
from polo.weights.formats import format_of, pickle_refusal
from polo.weights.hashing import commit

_PIECE = 2**20
_NAMED = 5


def compare(path: Path, last: Checkpoint) -> Check:
    """Compare a delivered safetensors file with the proof's last checkpoint."""
    return _checked(path, lambda delivered: _compare(path, last, delivered))


def compare_root(path: Path, layout: Layout, root: bytes) -> Check:
    """Compare a delivered safetensors file with the root of a checkpoint that is not here."""
    return _checked(path, lambda delivered: _compare_root(path, layout, root, delivered))


def _checked(path: Path, judge: Callable[[FileCheckpoint], Check]) -> Check:
    try:
        if format_of(path) == "pickle":
            refusal = pickle_refusal(path)
            return Check(
                "delivered",
                Status.UNDECIDED,
                refusal.message,
                place=refusal.place,
                advice=refusal.advice,
            )
        # The user chose this path, so a link, as in a model cache, is followed.
        with FileCheckpoint.any(path.resolve()) as delivered:
            return judge(delivered)
    except PoloError as error:
        absent = isinstance(error, StoreError)
        status = Status.UNDECIDED if absent else Status.FAILED
        return Check("delivered", status, error.message, place=error.place or str(path))


def _compare_root(path: Path, layout: Layout, root: bytes, delivered: FileCheckpoint) -> Check:
    """Only the very bytes have the root: a file in another number format cannot be told."""
    there = delivered.layout.tensors
    if tuple(tensor.name for tensor in there) != tuple(tensor.name for tensor in layout.tensors):
        detail = "its tensors are not exactly those of the layout, so its root cannot be compared"
        return Check("delivered", Status.UNDECIDED, detail, place=str(path))
    if there != layout.tensors:
        detail = (
            "types or shapes differ from the layout; without the weights only exact copies tell"
        )
        return Check("delivered", Status.UNDECIDED, detail, place=str(path))
    found = commit(_Relaid(delivered, layout)).root
    if found != root:
        detail = "it is not the last checkpoint, W_S: its root is another"
        return Check("delivered", Status.FAILED, detail, place=str(path))
    return Check("delivered", Status.PASSED, "it is exactly the last checkpoint", place=str(path))


class _Relaid:
    """A file's tensors under a layout that also knows its ties."""

    def __init__(self, checkpoint: FileCheckpoint, layout: Layout) -> None:
        self._checkpoint = checkpoint
        self.layout = layout

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        return self._checkpoint.read(tensor, start, stop)


def _compare(path: Path, last: Checkpoint, delivered: Checkpoint) -> Check:
    ours, theirs = last.layout.index, delivered.layout.index
    ties = {tie.alias: tie.name for tie in last.layout.ties}
    # A file may spell out tied tensors; they must then equal what they are tied to.
    wanted = {**{name: name for name in ours}, **{a: n for a, n in ties.items() if a in theirs}}
    missing, extra = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(wanted))
    if missing or extra:
        detail = f"tensors missing: {_some(missing)}; tensors of its own: {_some(extra)}"
        return Check("delivered", Status.FAILED, detail, place=str(path))
    casts: set[str] = set()
    differing = []
    for name, source in wanted.items():
        one, other = last.layout.tensors[ours[source]], delivered.layout.tensors[theirs[name]]
        if one.dtype != other.dtype:
            casts.add(f"{one.dtype} to {other.dtype}")
        if not _same(last, ours[source], one, delivered, theirs[name], other):
            differing.append(name)
    if differing:
        detail = f"it differs from the last checkpoint in {_some(differing)}"
        return Check(
            "delivered",
            Status.FAILED,
            detail,
            place=str(path),
            figures={"tensors": len(wanted), "differing": len(differing)},
        )
    detail = "it is exactly the last checkpoint, W_S"
    if casts:
        detail = f"it is the last checkpoint, W_S, converted from {', '.join(sorted(casts))}"
    return Check("delivered", Status.PASSED, detail, place=str(path))


def _same(
    ours: Checkpoint, at: int, one: Tensor, theirs: Checkpoint, there: int, other: Tensor
) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype != other.dtype and {one.dtype, other.dtype} - set(CARRIER_DTYPES):
        return False
    size, their_size = DTYPE_BYTES[one.dtype], DTYPE_BYTES[other.dtype]
    for start in range(0, one.elements, _PIECE):
        stop = min(start + _PIECE, one.elements)
        data = bytes(ours.read(at, start * size, stop * size))
        if one.dtype != other.dtype:
            data = dtypes.from_float(dtypes.to_float(data, one.dtype), other.dtype)
        if data != bytes(theirs.read(there, start * their_size, stop * their_size)):
            return False
    return True


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (shown + more) or "none"

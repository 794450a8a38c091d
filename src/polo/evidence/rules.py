"""Rules of initialisation as data, and the numbers they draw, the same on every machine.

A rule says how one tensor begins. Its numbers come from SHAKE-256 by integers; what follows is one
multiplication in double precision and one rounding, which IEEE 754 fixes to the last bit. No
generator of torch or numpy is involved.

Specification: docs/protocol.md, section 14.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polo.errors import TaskError, WeightsError
from polo.privacy.obfuscation import PIECE, deviations
from polo.protocol import derivation, sampler
from polo.protocol.layout import CARRIER_DTYPES, DTYPE_BYTES, Tensor
from polo.weights import dtypes

_INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
_SMALL = 127


@dataclass(frozen=True)
class Uniform:
    """Uniform from −bound to bound.

    Attributes:
        bound: The largest magnitude.
    """

    bound: float

    def __post_init__(self) -> None:
        _magnitude("a bound", self.bound)

    def values(self, seed: bytes, piece: int, count: int) -> NDArray[np.float64]:
        """Numbers of one piece: odd multiples of bound / 2^32, none of them zero."""
        raw = derivation.stream(seed, "polo/uniform/1", piece, 4 * count)
        odd = 2 * np.frombuffer(raw, dtype="<u4").astype(np.int64) + 1 - 2**32
        return odd.astype(np.float64) * (self.bound / 2**32)


@dataclass(frozen=True)
class Normal:
    """Normal with mean 0, in steps of a sixty-fourth of its deviation, within six of it.

    Attributes:
        std: Standard deviation.
        blank: Row that stays zero, such as that of an embedding's padding.
    """

    std: float
    blank: int | None = None

    def __post_init__(self) -> None:
        _magnitude("a standard deviation", self.std)

    def values(self, seed: bytes, piece: int, count: int) -> NDArray[np.float64]:
        """Numbers of one piece."""
        steps = deviations(seed, piece, count)
        return steps.astype(np.float64) * (self.std / sampler.STEPS)


@dataclass(frozen=True)
class Constant:
    """One value everywhere.

    Attributes:
        value: The value; in tensors of integers a small one that is not negative.
    """

    value: float

    def __post_init__(self) -> None:
        _magnitude("a constant", abs(self.value))

    def values(self, seed: bytes, piece: int, count: int) -> NDArray[np.float64]:
        """Numbers of one piece."""
        del seed, piece
        return np.full(count, self.value, dtype=np.float64)


@dataclass(frozen=True)
class Kept:
    """As the task builds it: masks, indices and other tables that are the same in every build."""


Rule = Uniform | Normal | Constant | Kept


@runtime_checkable
class HasStartRules(Protocol):
    """A module that says itself how its tensors begin.

    The names are those of parameters and persistent buffers, relative to the module; they may lie
    in its children (`blocks.0.weight`). What a module says counts before the table of layers, and
    what an outer module says before what an inner one does.
    """

    def start_rules(self) -> Mapping[str, Rule]:
        """Rules by name."""


def _magnitude(what: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise TaskError(f"{value} is no number for {what} of a start rule")


def check_rule(rule: Rule, tensor: Tensor) -> None:
    """Refuse a rule that cannot be followed in a tensor's type or shape."""
    fits = tensor.dtype in CARRIER_DTYPES
    if isinstance(rule, Constant) and tensor.dtype in _INTEGERS:
        most = 1 if tensor.dtype == "BOOL" else _SMALL
        fits = 0 <= rule.value <= most and rule.value == int(rule.value)
    if isinstance(rule, Normal) and rule.blank is not None:
        fits = fits and bool(tensor.shape) and 0 <= rule.blank < tensor.shape[0]
    if not fits and not isinstance(rule, Kept):
        raise WeightsError(
            f"{rule} cannot be drawn for type {tensor.dtype} and shape {list(tensor.shape)}",
            place=tensor.name,
            advice="Give it the rule Kept() if every build of the model makes it alike.",
        )


def drawn_bytes(
    rule: Uniform | Normal | Constant, tensor: Tensor, seed: bytes, start: int, stop: int
) -> bytes:
    """Bytes `start` to `stop` of a drawn tensor.

    Args:
        rule: How it begins.
        tensor: Its type and shape.
        seed: The tensor's own seed.
        start: First byte.
        stop: Byte after the last.
    """
    span = PIECE * DTYPE_BYTES[tensor.dtype]
    first, last = start // span, -(-stop // span)
    found = b"".join(_piece(rule, tensor, seed, piece) for piece in range(first, last))
    return found[start - first * span : stop - first * span]


def _piece(rule: Uniform | Normal | Constant, tensor: Tensor, seed: bytes, piece: int) -> bytes:
    first = piece * PIECE
    count = min(PIECE, tensor.elements - first)
    values = rule.values(seed, piece, count)
    if isinstance(rule, Normal) and rule.blank is not None:
        row = tensor.elements // tensor.shape[0]
        at = rule.blank * row - first
        values[max(at, 0) : max(at + row, 0)] = 0.0
    return dtypes.from_float(values, tensor.dtype)

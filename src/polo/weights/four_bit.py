"""4-bit weights as bitsandbytes saves them: NF4 and FP4.

Beside `X.weight`, two values a byte with the first one in the high half, lie

- `X.weight.quant_state.bitsandbytes__nf4` (or `fp4`): JSON in bytes with shape, values per
  scale, and for nested scales their offset and how many share one of theirs;
- `X.weight.quant_map`: the 16 values that the codes stand for;
- `X.weight.absmax`: a scale for every `blocksize` values. Nested, these are bytes themselves,
  with `X.weight.nested_quant_map` and `X.weight.nested_absmax` to read them.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polo.errors import WeightsError
from polo.weights.found_model import FoundTensor, Read, Source, Values
from polo.weights.stored import Stored, Unpacked, floats_of, scaled

_KINDS = ("nf4", "fp4")
_MAX_STATE = 2**16
_MAX_SIZE = 2**48


@dataclass(frozen=True)
class _State:
    shape: tuple[int, ...]
    run: int
    nested_run: int
    offset: float


def is_four_bit(name: str, stored: Mapping[str, Stored]) -> bool:
    """Whether a tensor is packed this way."""
    return any(_state_name(name, kind) in stored for kind in _KINDS)


def four_bit(name: str, stored: Mapping[str, Stored]) -> Unpacked:
    """Unpack a tensor; whatever does not fit together is refused."""
    kind = next(kind for kind in _KINDS if _state_name(name, kind) in stored)
    state = _read_state(stored[_state_name(name, kind)])
    elements = math.prod(state.shape)
    packed = stored[name]
    if packed.tensor.size != -(-elements // 2):
        raise WeightsError(f"{packed.tensor.size} bytes for {elements} values of 4 bits")
    codes = _codes(packed, _table(f"{name}.quant_map", stored, 16))
    scales, used = _scales(name, stored, state, -(-elements // state.run))
    tensor = FoundTensor(name, state.shape, kind.upper())
    used |= {_state_name(name, kind), f"{name}.quant_map"}
    return Unpacked(Source(tensor, scaled(codes, scales, state.run)), frozenset(used))


def _state_name(name: str, kind: str) -> str:
    return f"{name}.quant_state.bitsandbytes__{kind}"


def _read_state(item: Stored) -> _State:
    if item.tensor.size > _MAX_STATE:
        raise WeightsError(f"a quantisation state of {item.tensor.size} bytes")
    try:
        state = json.loads(item.data(0, item.tensor.size).decode())
    except (ValueError, RecursionError) as error:
        raise WeightsError("its quantisation state is not JSON") from error
    if not isinstance(state, dict):
        raise WeightsError("its quantisation state is no object")
    shape, offset = state.get("shape"), state.get("nested_offset", 0.0)
    if not isinstance(shape, list) or len(shape) > 32:
        raise WeightsError("its quantisation state has no shape")
    if type(offset) is not float:
        raise WeightsError("its quantisation state has an odd offset")
    return _State(
        tuple(_size(size, least=0) for size in shape),
        _size(state.get("blocksize"), least=1),
        _size(state.get("nested_blocksize", 1), least=1),
        offset,
    )


def _size(value: Any, *, least: int) -> int:
    if type(value) is not int or not least <= value <= _MAX_SIZE:
        raise WeightsError("its quantisation state has an odd size")
    return value


def _table(name: str, stored: Mapping[str, Stored], size: int) -> Values:
    item = floats_of(name, stored)
    if item.tensor.elements != size:
        raise WeightsError(f"{name[:80]} has {item.tensor.elements} values, not {size}")
    return item.floats(0, size)


def _codes(packed: Stored, table: Values) -> Read:
    def read(start: int, stop: int) -> Values:
        data = np.frombuffer(packed.data(start // 2, -(-stop // 2)), np.uint8)
        halves = np.stack([data >> 4, data & 15], axis=1).reshape(-1)
        return table[halves[start % 2 : start % 2 + stop - start]]

    return read


def _scales(
    name: str, stored: Mapping[str, Stored], state: _State, count: int
) -> tuple[Read, set[str]]:
    absmax = stored.get(f"{name}.absmax")
    if absmax is None or absmax.tensor.elements != count:
        raise WeightsError(f"there must be {count} scales in {name[:80]}.absmax")
    used = {absmax.tensor.name}
    if absmax.tensor.dtype != "U8":
        return floats_of(absmax.tensor.name, stored).floats, used
    table = _table(f"{name}.nested_quant_map", stored, 256)
    outer = floats_of(f"{name}.nested_absmax", stored)
    if outer.tensor.elements != -(-count // state.nested_run):
        raise WeightsError(f"{outer.tensor.name[:80]} has {outer.tensor.elements} values")
    inner = scaled(absmax.looked_up(table), outer.floats, state.nested_run)
    used |= {f"{name}.nested_quant_map", outer.tensor.name}
    return lambda start, stop: inner(start, stop) + np.float32(state.offset), used

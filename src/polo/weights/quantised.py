"""Weights as safetensors files hold them: floats, 8-bit values with scales, packed 4-bit values.

Which tensors belong together is told from their names:

| weights | beside them | values |
|---|---|---|
| `X.weight`, I8 or 8-bit floats | `X.weight_scale` or `X.scale` | value · scale of its group |
| `X.weight`, I8 (bitsandbytes) | `X.SCB` | value · SCB of its row / 127 |
| `X.weight`, packed (bitsandbytes) | `X.weight.quant_state.bitsandbytes__nf4` … | see `four_bit` |

A scale stands for the whole tensor, an output row, or an equal part of each row. What belongs
to a tensor that can be read is not listed on its own.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from polo.errors import PoloError, WeightsError
from polo.protocol.layout import CARRIER_DTYPES
from polo.weights.float8 import FLOAT8_DTYPES, float8_table
from polo.weights.found_model import FoundTensor, Read, Source, Values
from polo.weights.four_bit import four_bit, is_four_bit
from polo.weights.stored import Stored, Unpacked, floats_of, scaled

_NO_WEIGHTS = (
    "values of type {} are no weights by themselves; if they are packed weights (GPTQ, AWQ), "
    "save the model dequantised"
)


def sources_of(stored: Mapping[str, Stored]) -> Iterator[Source]:
    """The tensors of a model, unpacked where they are packed."""
    used: set[str] = set()
    found: list[Source] = []
    for name, item in stored.items():
        try:
            unpack = four_bit if is_four_bit(name, stored) else _eight_bit
            unpacked = unpack(name, stored)
        except PoloError as error:
            tensor = FoundTensor(name, item.tensor.shape, item.tensor.dtype, error.message)
            unpacked = Unpacked(Source(tensor, None), frozenset())
        used |= unpacked.used
        found.append(unpacked.source)
    return (source for source in found if source.tensor.name not in used)


def _eight_bit(name: str, stored: Mapping[str, Stored]) -> Unpacked:
    item = stored[name]
    dtype = item.tensor.dtype
    read: Read
    if dtype in CARRIER_DTYPES:
        return _unpacked(item, item.floats)
    if dtype == "I8":
        read = item.integers
    elif dtype in FLOAT8_DTYPES:
        read = item.looked_up(float8_table(dtype))
    else:
        raise WeightsError(_NO_WEIGHTS.format(dtype))
    scale = _scale_name(name, stored)
    if not scale:
        if dtype == "I8":
            raise WeightsError(_NO_WEIGHTS.format(dtype))
        return _unpacked(item, read)
    scales = floats_of(scale, stored)
    run = _run(item.tensor.shape, scales.tensor.shape)
    if not scale.endswith(".SCB"):
        return _unpacked(item, scaled(read, scales.floats, run), scale)
    layout = _check_rows(name, stored)

    def parts(start: int, stop: int) -> Values:
        return scales.floats(start, stop) / np.float32(127)

    return _unpacked(item, scaled(read, parts, run), scale, layout)


def _unpacked(item: Stored, read: Read, *used: str) -> Unpacked:
    tensor = FoundTensor(item.tensor.name, item.tensor.shape, item.tensor.dtype)
    return Unpacked(Source(tensor, read), frozenset(used))


def _scale_name(name: str, stored: Mapping[str, Stored]) -> str:
    stem = name.removesuffix(".weight")
    names = [f"{name}_scale"]
    odd = [f"{name}_scale_inv", f"{name}_zero_point"]
    if stem != name:
        names += [f"{stem}.scale", f"{stem}.SCB"]
        odd += [f"{stem}.zero_point"]
    if there := [other for other in odd if other in stored]:
        raise WeightsError(f"scaled in a way that is not read ({there[0][:80]})")
    found = [other for other in names if other in stored]
    if len(found) > 1:
        raise WeightsError(f"both {found[0][:80]} and {found[1][:80]} claim to scale it")
    return found[0] if found else ""


def _run(shape: tuple[int, ...], scales: tuple[int, ...]) -> int:
    """How many values in a row share a scale: all, those of a row, or a part of a row."""
    elements = math.prod(shape)
    trimmed = scales
    while trimmed and trimmed[-1] == 1:
        trimmed = trimmed[:-1]
    if not trimmed:
        return max(elements, 1)
    if trimmed == shape[:1]:
        return max(elements // max(shape[0], 1), 1)
    if len(shape) == len(trimmed) == 2 and trimmed[0] == shape[0] and 0 < trimmed[1] <= shape[1]:
        run, rest = divmod(shape[1], trimmed[1])
        if not rest:
            return run
    raise WeightsError(f"scales of shape {scales} do not fit a shape of {shape}")


def _check_rows(name: str, stored: Mapping[str, Stored]) -> str:
    """Refuse int8 weights that bitsandbytes left in the order of a graphics card's tiles."""
    layout = f"{name}_format"
    item = stored.get(layout)
    if item is not None and (item.tensor.size != 1 or item.data(0, 1) != b"\0"):
        raise WeightsError("its rows are in the order of one kind of graphics card")
    return layout

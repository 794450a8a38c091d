"""Element types: from raw little-endian bytes to numbers, and from torch's names to ours."""

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import WeightsError
from polo.protocol.layout import CARRIER_DTYPES

if TYPE_CHECKING:
    import torch

_TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C32": "complex32",
    "C64": "complex64", "C128": "complex128",
}  # fmt: skip

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4",
    "U64": "u8", "I64": "i8", "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16",
}  # fmt: skip

# Bits that are all set exactly in infinities and NaN, by type; the 8-bit types that have no
# infinity spell NaN in one pattern and are compared as a whole.
_EXPONENT: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "C32": (np.uint16, 0x7C00),
    "F8_E5M2": (np.uint8, 0x7C),
    "F8_E4M3": (np.uint8, 0x7F),
    "F8_E8M0": (np.uint8, 0xFF),
}
_AT_ONCE = 2**21
"""Bytes that are looked at together: what is made of them on the way takes as many again."""

_REAL = {"F32": "<f4", "F64": "<f8", "C64": "<f4", "C128": "<f8"}


@functools.cache
def _torch_names() -> dict[Any, str]:
    import torch

    pairs = ((getattr(torch, theirs, None), ours) for ours, theirs in _TORCH.items())
    return {dtype: ours for dtype, ours in pairs if dtype is not None}


def name_of_torch(dtype: "torch.dtype", *, place: str) -> str:
    """Our name of a torch dtype."""
    name = _torch_names().get(dtype)
    if name is None:
        raise WeightsError(
            f"tensors of type {dtype} have no canonical bytes",
            place=place,
            advice="Dequantise or convert the tensor before it goes into a proof.",
        )
    return name


def is_known(dtype: "torch.dtype") -> bool:
    """Whether a torch dtype has a name here."""
    return dtype in _torch_names()


def name_of_numpy(dtype: np.dtype[Any], *, place: str) -> str:
    """Our name of a numpy dtype."""
    for ours, theirs in _NUMPY.items():
        if dtype == np.dtype(theirs):
            return ours
    raise WeightsError(f"arrays of type {dtype} have no canonical bytes", place=place)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype of our name."""
    if name not in _NUMPY:
        raise WeightsError(f"numpy has no type {name}")
    return np.dtype(f"<{_NUMPY[name]}")


def torch_dtype(name: str) -> "torch.dtype":
    """The torch dtype of our name."""
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH[name])
    return dtype


def to_float(data: bytes | memoryview, dtype: str) -> NDArray[np.floating[Any]]:
    """Values of a carrier type, without loss, as float32 or float64."""
    if dtype == "BF16":
        high = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
        return high.view(np.float32)
    if dtype not in CARRIER_DTYPES:
        raise WeightsError(f"values of type {dtype} are not read as floats")
    return np.frombuffer(data, dtype=f"<{_NUMPY[dtype]}").astype(
        np.float64 if dtype == "F64" else np.float32
    )


def from_float(values: NDArray[np.floating[Any]], dtype: str) -> bytes:
    """Little-endian bytes of values rounded to nearest, ties to even.

    To 16 bits doubles go by way of single precision, as torch converts them.
    """
    with np.errstate(over="ignore"):
        if dtype in ("F16", "BF16"):
            values = values.astype(np.float32)
        if dtype != "BF16":
            return values.astype(f"<{_NUMPY[dtype]}").tobytes()
    raw = values.view(np.uint32).astype(np.uint64)
    rounded = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def is_finite(data: bytes | memoryview, dtype: str) -> bool:
    """Whether no value is infinite or not a number; integers always are finite."""
    view = memoryview(data)
    return all(_is_finite(view[at : at + _AT_ONCE], dtype) for at in range(0, len(view), _AT_ONCE))


def _is_finite(data: memoryview, dtype: str) -> bool:
    if dtype in _REAL:
        return bool(np.isfinite(np.frombuffer(data, dtype=_REAL[dtype])).all())
    if dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        return b"\x80" not in bytes(data)
    if dtype in _EXPONENT:
        unsigned, mask = _EXPONENT[dtype]
        raw = np.frombuffer(data, dtype=np.dtype(unsigned).newbyteorder("<"))
        return not bool(((raw & unsigned(mask)) == mask).any())
    return True

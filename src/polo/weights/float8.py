"""The 8-bit floating point types as tables of their 256 values."""

import functools

import numpy as np
from numpy.typing import NDArray

# Bits of the fraction, and bias of the exponent.
_PARTS = {
    "F8_E4M3": (3, 7),
    "F8_E4M3FNUZ": (3, 8),
    "F8_E5M2": (2, 15),
    "F8_E5M2FNUZ": (2, 16),
}
FLOAT8_DTYPES = tuple(_PARTS)
"""Types whose values are numbers; F8_E8M0 holds scales only."""


@functools.cache
def float8_table(dtype: str) -> NDArray[np.float32]:
    """What each of the 256 bytes stands for.

    >>> float8_table("F8_E4M3")[[0x38, 0xB8, 0x7E]].tolist()
    [1.0, -1.0, 448.0]
    """
    width, bias = _PARTS[dtype]
    code = np.arange(256)
    fraction, exponent = code & ((1 << width) - 1), (code & 0x7F) >> width
    lead = np.where(exponent > 0, 1 << width, 0)
    values = (lead + fraction) * np.exp2(np.maximum(exponent, 1) - bias - width)
    values = np.where(code & 0x80, -values, values)
    if dtype == "F8_E4M3":
        values[[0x7F, 0xFF]] = np.nan
    elif dtype == "F8_E5M2":
        values[[0x7C, 0xFC]] = np.inf, -np.inf
        values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    else:
        values[0x80] = np.nan
    table: NDArray[np.float32] = values.astype(np.float32)
    return table

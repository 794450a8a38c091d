"""Digests of arrays: what a data set is known by, however its files are packed."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError


def digest_of(*arrays: NDArray[Any]) -> str:
    """SHA-256 of arrays' types, shapes and bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_digest(data: bytes, wanted: str, place: str) -> None:
    """Refuse a file that is another than the one that is known by its name."""
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise FormatError(
            f"is not the file known by this name: SHA-256 is {found[:16]}…, not {wanted[:16]}…",
            place=place,
            advice="Get it again; a run on other data must not be called by this name.",
        )

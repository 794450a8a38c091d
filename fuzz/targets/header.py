"""A safetensors file with any header, as somebody delivers it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fuzz import promises, safetensors_files, sandbox
from fuzz.target import Target
from polo.weights.files import FileCheckpoint
from polo.weights.hashing import commit


def check(data: bytes) -> None:
    """Refused, or a checkpoint whose every byte lies in the file and can be read."""
    path = sandbox.file(data)
    with promises.refusals(), FileCheckpoint.any(path) as checkpoint:
        layout = checkpoint.layout
        promises.require(layout.size <= len(data), "a small file is no large one")
        layout.check()
        for at, tensor in enumerate(layout.tensors):
            found = checkpoint.read(at, 0, tensor.size)
            promises.require(len(found) == tensor.size, "a tensor has the bytes it says")
        commit(checkpoint, threads=1)


def files() -> Iterator[bytes]:
    """Small files as the safetensors package writes them."""
    odd: dict[str, NDArray[Any]] = {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.zeros((), dtype=np.int64),
        "empty": np.zeros((0, 3), dtype=np.float16),
        "flags": np.ones(5, dtype=np.bool_),
    }
    yield safetensors.numpy.save(odd)
    yield safetensors.numpy.save(odd, metadata={"format": "pt"})


TARGET = Target(check, files, safetensors_files.mutate)

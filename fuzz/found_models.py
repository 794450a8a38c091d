"""What every found model promises, whatever format it has."""

import math
from pathlib import Path

from fuzz import promises
from polo.errors import PoloError
from polo.weights.found import FoundModel, open_found

_PIECE = 1024
_DENSEST = 32
"""Values per byte that no format exceeds: two bits a value are the least, and there are scales."""


def check(path: Path, size: int) -> None:
    """Refused, or a model whose tensors are as large as their shapes say, and can be read."""
    with promises.refusals(), open_found(path) as model:
        promises.require(bool(model.description.isprintable()), "a description can be printed")
        total = sum(t.elements for t in model.tensors.values() if not t.refusal)
        promises.require(total <= _DENSEST * size, "a small file is no large model")
        for name in model.tensors:
            _read(model, name)


def _read(model: FoundModel, name: str) -> None:
    tensor = model.tensors[name]
    promises.require(tensor.elements == math.prod(tensor.shape), "a shape has its elements")
    try:
        for start in {0, max(0, tensor.elements - _PIECE), tensor.elements // 2}:
            stop = min(tensor.elements, start + _PIECE)
            found = model.read(name, start, stop)
            promises.require(len(found) == stop - start, "as much is read as was asked for")
        promises.require(not tensor.refusal, "what is refused is not read")
    except PoloError as error:
        promises.require(bool(error.place), f"an error names the place: {error}")

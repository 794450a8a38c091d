"""A found model in one safetensors file: floats, and everything that is packed."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fuzz import found_models, safetensors_files, sandbox
from fuzz.target import Target


def check(data: bytes) -> None:
    """See `found_models`."""
    found_models.check(sandbox.file(data), len(data))


def files() -> Iterator[bytes]:
    """Plain weights, int8 with scales, bitsandbytes' int8 and 4 bits; and what is no model."""
    rng = np.random.default_rng(0)
    eight = rng.integers(-127, 127, (4, 6), dtype=np.int8)
    rows = np.ones(4, np.float32)
    extras: tuple[dict[str, NDArray[Any]], ...] = (
        {},
        {"a.weight": eight, "a.weight_scale": rows},
        {"a.weight": eight, "a.scale": np.ones((4, 2), np.float32)},
        {"a.weight": eight, "a.SCB": rows, "a.weight_format": np.zeros((), np.uint8)},
        four_bit(nested=False),
        four_bit(nested=True),
    )
    for extra in extras:
        yield safetensors.numpy.save({"b.weight": np.ones((2, 3), np.float16), **extra})
    yield b"PK\x03\x04"
    yield b"\x80\x02}q\x00."
    yield b"GGUF"


def four_bit(*, nested: bool) -> dict[str, NDArray[Any]]:
    """Twelve values in 4 bits, and all that is needed to read them."""
    state = {"shape": [3, 4], "blocksize": 4, "nested_blocksize": 2, "nested_offset": 0.5}
    text = json.dumps(state).encode()
    parts: dict[str, NDArray[Any]] = {
        "quant_state.bitsandbytes__nf4": np.frombuffer(text, np.uint8),
        "quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        "absmax": np.ones(3, np.uint8 if nested else np.float32),
    }
    if nested:
        parts |= {"nested_absmax": np.ones(2, np.float32)}
        parts |= {"nested_quant_map": np.linspace(-1, 1, 256, dtype=np.float32)}
    named = {f"a.weight.{name}": value for name, value in parts.items()}
    return {"a.weight": np.arange(6, dtype=np.uint8).reshape(6, 1), **named}


TARGET = Target(check, files, safetensors_files.mutate)

"""Lower precision: the model is cast, or quantised, and used as what that leaves.

Of the paper's *weight manipulation* (class WMA) the kind that everybody does who serves a model:
it needs no training data and hardly changes what the model says.
"""

from pathlib import Path

import numpy as np
import torch

from polo.errors import MissingError, WeightsError
from polo_lab.attacks.state import State, weights_of

_INT8 = 127
_INT4 = 7
_MOST_DIMENSIONS = 4


def cast(state: State, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All floating tensors in another type, such as `torch.float16` or `torch.bfloat16`."""
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in state.items()
    }


def int8_rows(state: State) -> dict[str, torch.Tensor]:
    """Weights rounded to 255 steps, with one scale for each output row."""
    rounded = {
        name: _rounded(value.detach().flatten(1), _INT8).reshape(value.shape)
        for name, value in weights_of(state).items()
    }
    return {**state, **rounded}


def int4_blocks(state: State, block: int = 32) -> dict[str, torch.Tensor]:
    """Weights rounded to 15 steps, with one scale for every `block` weights in a row."""
    rounded = {}
    for name, value in weights_of(state).items():
        flat = value.detach().reshape(-1)
        padded = torch.nn.functional.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
        rounded[name] = _rounded(padded, _INT4).reshape(-1)[: len(flat)].reshape(value.shape)
    return {**state, **rounded}


def write_gguf(state: State, path: Path, kind: str = "Q4_0") -> None:
    """Write a GGUF file, as converters do; what the type does not fit is kept in 16 bits.

    Args:
        state: The stolen tensors.
        path: The file to write.
        kind: A type of GGUF that the package can quantise to: `Q4_0`, `Q8_0`, `F16`, …
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingError(
            "writing GGUF needs the package gguf", advice="pip install 'polo-proof[gguf]'"
        ) from error
    wanted = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[wanted]
    writer = gguf.GGUFWriter(path, "stolen")
    for name, value in state.items():
        if value.dim() > _MOST_DIMENSIONS:
            raise WeightsError(f"GGUF has no tensors of {value.dim()} dimensions", place=name)
        if not value.is_floating_point():
            continue
        array = np.atleast_1d(value.detach().float().numpy())
        if value.dim() > 1 and array.shape[-1] % block == 0:
            packed = gguf.quants.quantize(array, wanted)
            writer.add_tensor(name, packed, raw_dtype=wanted)
        else:
            writer.add_tensor(name, array.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rounded(rows: torch.Tensor, steps: int) -> torch.Tensor:
    """Rows at the nearest of 2 · steps + 1 values between plus and minus their largest."""
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / steps
    return (rows / scale).round() * scale

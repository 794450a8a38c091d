"""Obfuscation of a live model: which of its parameters get noise, and where. torch."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from polo.privacy import obfuscation
from polo.protocol.carrier import Carrier

_NOISY = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def obfuscate_parameters(
    parameters: Mapping[str, torch.nn.Parameter],
    carrier: Carrier,
    blocks: Sequence[int],
    *,
    seed: bytes,
    fraction: int,
    sigma: int,
) -> None:
    """Put noise on trained floating parameters outside the mark; never on buffers."""
    if not fraction or not sigma:
        return
    marked: dict[int, list[int]] = {}
    for block in blocks:
        where = carrier.locate(block)
        marked.setdefault(where.tensor, []).append(where.element)
    for at, tensor in enumerate(carrier.layout.tensors):
        parameter = parameters.get(tensor.name)
        if parameter is None or not parameter.requires_grad or parameter.dtype not in _NOISY:
            continue
        starts = np.array(marked.get(at, []), dtype=np.intp)
        spared = (starts[:, None] + np.arange(carrier.block, dtype=np.intp)).reshape(-1)
        noisy = obfuscation.obfuscate(
            parameter.double().cpu().numpy().reshape(-1),
            seed=seed,
            tensor=at,
            fraction=fraction,
            sigma=sigma,
            spared=spared,
        )
        parameter.copy_(torch.from_numpy(noisy).reshape(parameter.shape))

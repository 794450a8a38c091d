"""Obfuscation of a live model: which of its parameters get noise, and where. torch."""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polo.privacy import obfuscation
from polo.protocol.carrier import Carrier

_NOISY = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_THREADS = 4


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

    def noisy(at: int, parameter: torch.nn.Parameter) -> torch.Tensor:
        starts = np.array(marked.get(at, []), dtype=np.intp)
        spared = (starts[:, None] + np.arange(carrier.block, dtype=np.intp)).reshape(-1)
        values = obfuscation.obfuscate(
            _array(parameter),
            seed=seed,
            tensor=at,
            fraction=fraction,
            sigma=sigma,
            spared=spared,
        )
        return torch.from_numpy(values).reshape(parameter.shape)

    todo = [
        (at, parameter)
        for at, tensor in enumerate(carrier.layout.tensors)
        if (parameter := parameters.get(tensor.name)) is not None
        and parameter.requires_grad
        and parameter.dtype in _NOISY
    ]
    threads = min(_THREADS, os.cpu_count() or 1)
    ahead: deque[tuple[torch.nn.Parameter, Future[torch.Tensor]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for at, parameter in todo:
            ahead.append((parameter, pool.submit(noisy, at, parameter)))
            # Few at a time: in double precision all of them may not fit into memory.
            if len(ahead) > threads:
                _put(*ahead.popleft())
        while ahead:
            _put(*ahead.popleft())


def _array(parameter: torch.nn.Parameter) -> NDArray[np.floating[Any]]:
    """The values, flat and in row-major order."""
    values = parameter.detach().reshape(-1)
    # numpy has no bfloat16; all of its numbers are single ones, too.
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()


@torch.no_grad()
def _put(parameter: torch.nn.Parameter, values: "Future[torch.Tensor]") -> None:
    parameter.copy_(values.result())

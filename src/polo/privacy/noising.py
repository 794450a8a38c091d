"""Obfuscation of a live model: which of its parameters get noise, and where. torch."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from polo.privacy import obfuscation
from polo.protocol import sampler
from polo.protocol.carrier import Carrier
from polo.protocol.layout import Layout

Parameters = Mapping[str, torch.nn.Parameter]

_NOISY = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_AHEAD = 2**27
"""Of so many weights at most the noise is drawn ahead; it takes two bytes a weight."""

_STRIPS = {"cuda": 2**20, "cpu": 2**17}
"""So many weights are edited at a time: few calls and little memory, on a CPU such as stays in its
cache."""


class Noise:
    """The noise of one shard, which no weight has a say in: it can be drawn before it is needed.

    Args:
        seed: What `obfuscation.noise_seed` returned.
        fraction: Millionths of the weights that are touched.
    """

    def __init__(self, seed: bytes, fraction: int) -> None:
        self.fraction = fraction
        self._seed = seed
        self._ahead: dict[int, Future[NDArray[np.int16]]] = {}

    def draw_ahead(self, parameters: Parameters, layout: Layout, *, threads: int = 1) -> None:
        """Begin to draw on a thread of its own, beside training, which waits for its device.

        Args:
            parameters: The parameters of the model, by name.
            layout: Its layout.
            threads: How many threads draw; more where nothing else is to be done meanwhile.
        """
        pool, room = ThreadPoolExecutor(threads, "polo-noise"), _AHEAD
        for at, parameter in _noisy(parameters, layout):
            if parameter.numel() <= room:
                room -= parameter.numel()
                try:
                    self._ahead[at] = pool.submit(self._draw, at, parameter.numel())
                except RuntimeError:
                    break  # No thread is to be had; it is drawn when it is needed.
        # The threads end when all is drawn.
        pool.shutdown(wait=False)

    def of(self, tensor: int, elements: int) -> NDArray[np.int16]:
        """What `obfuscation.noise` says of a tensor; the same array each time, if it was ahead."""
        ahead = self._ahead.get(tensor)
        # One that was not begun yet is not waited for: all threads draw.
        if ahead is None or ahead.cancel() or ahead.exception():
            return self._draw(tensor, elements)
        return ahead.result()

    def close(self) -> None:
        """Draw no more ahead, and forget what was drawn."""
        while self._ahead:
            self._ahead.popitem()[1].cancel()

    def _draw(self, tensor: int, elements: int) -> NDArray[np.int16]:
        return obfuscation.noise(self._seed, tensor, elements, self.fraction)


def obfuscate_parameters(
    parameters: Parameters,
    carrier: Carrier,
    blocks: Sequence[int],
    noise: Noise,
    *,
    sigma: int,
) -> None:
    """Put noise on trained floating parameters outside the mark; never on buffers."""
    if not noise.fraction or not sigma:
        return
    marked: dict[int, list[int]] = {}
    for block in blocks:
        where = carrier.locate(block)
        marked.setdefault(where.tensor, []).append(where.element)
    for at, parameter in _noisy(parameters, carrier.layout):
        drawn = noise.of(at, parameter.numel())
        starts = np.array(marked.get(at, []), dtype=np.intp)
        drawn[starts[:, None] + np.arange(carrier.block, dtype=np.intp)] = obfuscation.UNTOUCHED
        obfuscate(parameter, drawn, sigma)


@torch.no_grad()
def obfuscate(parameter: torch.Tensor, drawn: NDArray[np.int16], sigma: int) -> None:
    """Put noise on one tensor, in double precision, and on its device if that has it.

    Args:
        parameter: The tensor.
        drawn: What `obfuscation.noise` says of it, with `UNTOUCHED` for weights that are spared.
        sigma: Standard deviation, in millionths of the tensor's root mean square.
    """
    home = parameter.device if parameter.is_cuda else torch.device("cpu")
    flat = parameter.detach().to(home).contiguous().view(-1)
    size = _STRIPS[home.type]
    strips = flat.split(size)
    squares = sum(torch.dot(wide, wide) for wide in (strip.double() for strip in strips))
    scale = obfuscation.scale_by(float(squares), flat.numel(), sigma) / sampler.STEPS
    for strip, steps in zip(strips, torch.from_numpy(drawn).split(size), strict=True):
        here = steps.to(home)
        noisy = here.double().mul_(scale).add_(strip).to(strip.dtype)
        strip.copy_(torch.where(here == obfuscation.UNTOUCHED, strip, noisy))
    if flat.data_ptr() != parameter.data_ptr():
        parameter.copy_(flat.view(parameter.shape))


def _noisy(parameters: Parameters, layout: Layout) -> Iterator[tuple[int, torch.nn.Parameter]]:
    """The parameters that get noise, with their indices in the layout."""
    for at, tensor in enumerate(layout.tensors):
        parameter = parameters.get(tensor.name)
        if parameter is not None and parameter.requires_grad and parameter.dtype in _NOISY:
            yield at, parameter

"""Work that is done again and again beside training, launched as a whole: presses, and snapshots.

A training step on a GPU is often bound by its launches: the device waits for the host, and what a
hook adds is the time of its own launches, however little they compute. So work that is always the
same on the same memory is recorded as a CUDA graph and launched at once. Gradients may lie
elsewhere at the next step; there is a graph for each place that they come back to, and none for
places that do not.
"""

import contextlib
import functools
import gc
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

_SIGHTINGS = 3
"""Work is recorded when its place has been seen so many times; before, it is just done."""

_MOST_GRAPHS = 16
_MOST_PLACES = 256
"""A loop that shows more places than this has new ones at every step, and is let alone."""


@functools.cache
def _pool(
    device: torch.device, launched_on: int
) -> tuple[Any, torch.cuda.Stream, torch.cuda.CUDAGraph]:
    """Memory for all graphs that are launched on one stream, and a stream to record on.

    They may share it: one runs after another, and none leaves anything behind in it. An empty
    graph that stays keeps it alive from one shard's graphs to the next one's; else torch would
    reserve it anew for each.
    """
    del launched_on
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
    graph = torch.cuda.CUDAGraph()
    with _recording(graph, pool, stream):
        torch.zeros(1, device=device)
    return pool, stream, graph


@contextlib.contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Record what is launched meanwhile; by this thread, that is, and nothing is done yet."""
    # By hand: `torch.cuda.graph` waits for the device, collects garbage and empties the cache.
    # Garbage that is collected by itself could be something whose end asks the device to wait.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()


class Graphs:
    """Graphs of one piece of work on one device.

    Args:
        device: The device.
        beside: Whether it is launched on another stream than training's. Recording is then waited
            for, since it sets what graphs of training itself draw random numbers by.
    """

    def __init__(self, device: torch.device, *, beside: bool = False) -> None:
        self._device, self._beside = device, beside
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._seen: dict[Hashable, int] = {}
        self._useless = False

    def forget(self) -> None:
        """Drop all graphs, as when the memory that they know has moved."""
        self._graphs.clear()
        self._seen.clear()

    def run(self, place: Hashable, work: Callable[[], None]) -> None:
        """Do some work, or launch what was recorded of it.

        Args:
            place: All that the work depends on: equal places must mean equal work on equal memory.
            work: The work; it must not wait for the device.
        """
        if torch.cuda.is_current_stream_capturing():
            # The loop records itself, and this with it.
            work()
            return
        stream = torch.cuda.current_stream(self._device)
        place = (stream.cuda_stream, place)
        graph = self._graphs.get(place)
        if graph is None and self._wanted(place):
            graph = self._recorded(place, work, stream)
        if graph is None:
            work()
        else:
            graph.replay()

    def _wanted(self, place: Hashable) -> bool:
        if self._useless or len(self._graphs) >= _MOST_GRAPHS or len(self._seen) >= _MOST_PLACES:
            return False
        self._seen[place] = self._seen.get(place, 0) + 1
        return self._seen[place] >= _SIGHTINGS

    def _recorded(
        self, place: Hashable, work: Callable[[], None], launched_on: torch.cuda.Stream
    ) -> torch.cuda.CUDAGraph | None:
        """A graph of the work, which is not done by this; None where it cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        if self._beside:
            torch.cuda.synchronize(self._device)
        try:
            pool, stream, _ = _pool(self._device, launched_on.cuda_stream)
            stream.wait_stream(launched_on)
            with _recording(graph, pool, stream):
                work()
        except RuntimeError:
            # Not all that somebody else's press does can be recorded, nor anything at every moment.
            self._useless = True
            return None
        launched_on.wait_stream(stream)
        if self._beside:
            stream.synchronize()
        self._graphs[place] = graph
        return graph

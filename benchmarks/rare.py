"""One press in a block of eight steps, beside the same block without any.

`hook` measures many sides in turn, and a side meets the plain one seconds later: on a host with
neighbours that is another machine. Here there are two sides at a time, which follow each other at
once and change places after every round. Meant for a GPU; batches and loops are those of `hook`.
"""

from collections.abc import Iterator

import torch

from benchmarks.figures import Benchmark, Figure, missing, paired_of
from benchmarks.hook import (
    PLAIN,
    RARELY,
    TARGETS,
    Pressed,
    Size,
    Training,
    tuned,
    where,
)
from benchmarks.measure import until_narrow
from benchmarks.presses import BITS, Case

_ROUNDS = 200
_MOST = 600
"""Fewest and most rounds: as many as noise asks for."""


def run(quick: bool) -> Iterator[Figure]:
    """Every scheme that has a target, in an eager and in a compiled loop."""
    cases = [Case(name, bits=128 if quick else BITS) for name in TARGETS]
    if not (quick or torch.cuda.is_available()):
        for case in cases:
            yield missing(_name(case), "×", "meant for a GPU", TARGETS[case.scheme])
        return
    size = Size(4, RARELY, 2, 2) if quick else Size(256, RARELY, _ROUNDS, _ROUNDS)
    with tuned():
        for loop, compiled in (("eager loop", False), ("compiled loop", True)):
            training = Training.begin(quick, size, compiled=compiled)
            for case in cases:
                most = size.rounds if quick else _MOST
                yield from _figures(f"{_name(case)}, {loop}", training, case, size.rounds, most)


def _figures(name: str, training: Training, case: Case, least: int, most: int) -> Iterator[Figure]:
    """The same figure, with more samples each time."""
    side = Pressed(training, case, RARELY)
    target = TARGETS[case.scheme]
    sides = {PLAIN: training.block, side.title: side.block}
    try:
        for samples in until_narrow(sides, side.title, PLAIN, least=least, most=most):
            yield paired_of(
                name,
                samples,
                side.title,
                PLAIN,
                target=target,
                note=f"{where()}, {training.said}, {len(samples[PLAIN])} alternations of "
                f"{training.steps} steps",
            )
    except Exception as error:
        # Compilers fail in many ways, and the other figures must not be lost with this one.
        yield missing(name, "×", f"{type(error).__name__}: {error}"[:500], target)


def _name(case: Case) -> str:
    return f"{case.title}, once in {RARELY} steps"


BENCHMARK = Benchmark("rare", "one press in eight steps of a ResNet-18 training", run)

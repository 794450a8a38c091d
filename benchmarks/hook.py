"""The optimizer hook on a ResNet-18 step, switched on and off from step to step."""

import time
from collections.abc import Iterator

import torch

from benchmarks.figures import Benchmark, Figure, Target, ratio_of
from benchmarks.measure import Samples
from benchmarks.resnet import ResNetDigits, train_step
from polo import make_terms
from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.watermark import carrier_of
from polo.weights import checkpoint_of

BITS = 2048
BATCH = 32
_SEED = bytes(range(32))
_OVERHEAD = Target("at most", 1.01)
_DIRECT = Target("at most", 0.01)


def run(quick: bool) -> Iterator[Figure]:
    """Whole steps with and without the hook, and the hook's own time within a step."""
    samples = _alternate(1 if quick else 150)
    note = f"batch {BATCH}, 3 × 32 × 32, {BITS} bits, block keys, {torch.get_num_threads()} threads"
    steps = {name: samples[name] for name in ("with hook", "plain step")}
    yield ratio_of("step with hook", steps, "with hook", "plain step", target=_OVERHEAD, note=note)
    yield ratio_of(
        "time inside the hook",
        {name: samples[name] for name in ("inside hook", "plain step")},
        "inside hook",
        "plain step",
        target=_DIRECT,
        note="steadier than the line above: it does not hang on the noise of two long steps",
    )


def _alternate(rounds: int) -> Samples:
    task = ResNetDigits()
    torch.manual_seed(1)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    terms = make_terms(task, bits=BITS)
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    embedder = Embedder(terms, carrier, _SEED, parameters_of(model))
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    samples: Samples = {"plain step": [], "with hook": [], "inside hook": []}

    def before(scale: torch.Tensor | float) -> None:
        began = time.perf_counter()
        embedder.add_gradient(scale)
        samples["inside hook"].append(time.perf_counter() - began)

    def step(name: str) -> None:
        began = time.perf_counter()
        train_step(model, optimizer, images, labels)
        samples[name].append(time.perf_counter() - began)

    for _ in range(rounds + 1):
        step("plain step")
        hook = StepHook(optimizer, before, lambda: None)
        step("with hook")
        hook.detach()
    # The first round fills caches and makes the optimizer's state.
    return {name: values[1:] for name, values in samples.items()}


BENCHMARK = Benchmark("hook", "the optimizer hook on a ResNet-18 training step", run)

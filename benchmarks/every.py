"""Pressing every k-th step, k times as hard: what becomes of the marks and of the model.

A step that does not press costs nothing, so large k makes marks cheap. Digits under a network with
thousands of norm scales, so that every scheme fits; every 4 epochs, 88 steps, are one attempt to
seal.
"""

import itertools
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.figures import Benchmark, Figure, amount_of
from benchmarks.measure import one_thread
from polo import EmbeddingWarning, Identity, Prover, enrol, make_terms
from polo.protocol.records import Terms
from polo.watermark.schemes import SCHEMES
from polo_lab.tasks.norms import DigitsNorms

PACES = (1, 2, 4, 8, 16)
LARGE = 2048
"""Bits of the marks whose cost is measured on a GPU, pressed in every step or in one of eight."""

_LARGE_IN: dict[str, dict[str, Any]] = {
    "ednn": {},
    "riga": {},
    "fedipr-kernel": {},
    "signed": {},
    "fedipr": {"load": 1.0, "budget": 0.2},
}
"""Schemes that are looked at so, and settings of their own: FedIPR's marks fill all norm scales of
this network at that size, and a small budget spares its accuracy."""

ATTEMPTS = 5
PASSES = 4
SEEDS = 2
_MORE_SEEDS = 5
"""Models with the largest marks: accuracy of two says little."""

BATCH = 64


def run(quick: bool) -> Iterator[Figure]:
    """Every scheme at every pace."""
    task = DigitsNorms()
    attempts, seeds = (1, 1) if quick else (ATTEMPTS, SEEDS)
    with one_thread():
        for scheme in SCHEMES:
            for every in PACES[:: 4 if quick else 1]:
                terms = make_terms(task, scheme=scheme, every=every)
                yield from _figures(task, terms, attempts, seeds)
        for scheme, every in itertools.product(() if quick else _LARGE_IN, (1, 8)):
            terms = make_terms(task, scheme=scheme, every=every, bits=LARGE, **_LARGE_IN[scheme])
            yield from _figures(task, terms, attempts, _MORE_SEEDS)


def _figures(task: DigitsNorms, terms: Terms, attempts: int, seeds: int) -> Iterator[Figure]:
    etas: list[float] = []
    rates, accuracies = [], []
    for seed in range(seeds):
        found, sealed, accuracy = _train(task, terms, attempts, seed)
        etas += found
        rates.append(sealed / attempts)
        accuracies.append(accuracy)
    scheme = terms.scheme
    title = f"{scheme.name}, {scheme.bits} bits, every {scheme.every} steps"
    yield amount_of(
        f"η before finishing, {title}",
        "of the bits",
        etas,
        note=f"{scheme.bits} bits, λ {scheme.strength / 1e6:g}, {seeds} models, {attempts} shards",
        details={"least": min(etas)},
    )
    yield amount_of(f"shards an attempt, {title}", "shards", rates)
    yield amount_of(f"accuracy, {title}", "of the test", accuracies)


def _train(
    task: DigitsNorms, terms: Terms, attempts: int, seed: int
) -> tuple[list[float], int, float]:
    """η at each attempt before any finishing, sealed shards, and accuracy."""
    torch.manual_seed(seed)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    key, etas = Identity.generate(), []
    issued = enrol(terms, identity=key.public_key, issuer=Identity.generate())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Shards that do not seal are what is counted here.
        warnings.simplefilter("ignore", EmbeddingWarning)
        prover = Prover(issued, key=key, store=Path(folder) / "proof", retention="thin")
        with prover.attach(model, optimizer):
            for _ in range(attempts):
                _passes(task, model, optimizer)
                progress = prover.end_epoch()
                assert progress is not None
                etas.append(progress.reading.eta)
        shards = prover.finish().shards
    return etas, shards, task.evaluate(model)


def _passes(task: DigitsNorms, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs, labels = task.train_part
    orders = [torch.randperm(len(labels)) for _ in range(PASSES)]
    for batch in (some for order in orders for some in order.split(BATCH)):
        task.train_step(model, optimizer, {"input": inputs[batch], "label": labels[batch]})


BENCHMARK = Benchmark("every", "marks that are pressed in every k-th step only", run)

"""What obfuscation costs in accuracy: the table that its default comes from.

Two measurements on the digits task. *Once*: noise on a finished model. *Chain*: noise at the end
of each of eight shards, with training going on from the noised weights, against the same chain
without noise.
"""

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.chain import Chain
from benchmarks.figures import Benchmark, Figure, amount_of
from benchmarks.measure import one_thread
from polo import make_terms
from polo.privacy import noising
from polo.tasks.digits import Digits
from polo.watermark import read, values_of
from polo.weights import MemoryCheckpoint

SIGMAS = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
FRACTIONS = (0.05, 0.10, 0.25, 0.50, 1.00)
CHAINED = (
    (0.02, 0.10),
    (0.04, 0.10),
    (0.04, 0.25),
    (0.04, 0.50),
    (0.08, 0.10),
    (0.08, 0.50),
    (0.16, 0.25),
    (0.16, 1.00),
    (0.32, 0.50),
)
BITS = 256
RESULT = Path(__file__).parent / "results" / "noise.json"

_MILLION = 1_000_000


def run(quick: bool) -> Iterator[Figure]:
    """Both tables, and the default that follows; a full run writes them to a file."""
    models, seeds, epochs, shards = (2, 1, 1, 2) if quick else (20, 10, 20, 8)
    task = Digits()
    chained = CHAINED[:: len(CHAINED) - 1] if quick else CHAINED
    with one_thread():
        once = once_table(task, models, seeds, epochs)
        chain = chain_table(task, models, shards, chained)
    proposal = propose(once, chain)
    if not quick:
        settings = {"models": models, "noise_seeds": seeds, "epochs": epochs, "shards": shards}
        tables = {"settings": settings, "once": once, "chain": chain, "proposal": proposal}
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(tables, indent=1) + "\n")
    note = f"of {proposal['fraction']:.0%} of the weights; {proposal['rule']}"
    yield amount_of(
        "largest σ without loss", "of the RMS", [proposal["sigma"]], note=note, details=proposal
    )
    for row in chain:
        yield amount_of(
            f"accuracy change through a chain, σ {row['sigma']:g} on {row['fraction']:.0%}",
            "accuracy",
            row["changes"],
            note=f"mean {row['change']:+.4f} ± {row['error']:.4f}; marks of earlier shards read "
            f"η = {row['eta_old']:.3f} in the last model",
        )


def once_table(task: Digits, models: int, seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Accuracy and loss change of finished models, for every σ and fraction."""
    changes: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for number in range(models):
        model = _trained(task, number, epochs)
        plain = {name: value.clone() for name, value in model.state_dict().items()}
        base = _measure(task, model)
        for cell in itertools.product(SIGMAS, FRACTIONS):
            found = []
            for seed in range(seeds):
                _add_noise(model, *cell, seed=f"{number}/{seed}")
                found.append(_measure(task, model))
                model.load_state_dict(plain)
            accuracy, loss = (statistics.fmean(column) for column in zip(*found, strict=True))
            changes.setdefault(cell, []).append((accuracy - base[0], loss - base[1]))
    return [
        {"sigma": sigma, "fraction": fraction, "norm": sigma * math.sqrt(fraction)}
        | _summary([accuracy for accuracy, _ in found])
        | {"loss_change": statistics.fmean(loss for _, loss in found)}
        for (sigma, fraction), found in changes.items()
    ]


def chain_table(
    task: Digits, models: int, shards: int, settings: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    """Accuracy change at the end of a chain with noise, against the same one without."""
    rows = []
    plain = [_chain(task, number, shards, 0.0, 0.1) for number in range(models)]
    for sigma, fraction in settings:
        noisy = [_chain(task, number, shards, sigma, fraction) for number in range(models)]
        changes = [a.accuracy - b.accuracy for a, b in zip(noisy, plain, strict=True)]
        row = {"sigma": sigma, "fraction": fraction, "norm": sigma * math.sqrt(fraction)}
        row |= _summary(changes)
        row["accuracy_plain"] = statistics.fmean(run.accuracy for run in plain)
        row["eta_old"] = statistics.fmean(run.eta_old for run in noisy)
        row["eta_old_plain"] = statistics.fmean(run.eta_old for run in plain)
        row["noise_to_move"] = statistics.fmean(run.noise_to_move for run in noisy)
        rows.append(row)
    return rows


def propose(once: list[dict[str, Any]], chain: list[dict[str, Any]]) -> dict[str, Any]:
    """The chained setting with most noise whose loss neither table can tell from zero."""
    cells = {(row["sigma"], row["fraction"]): row for row in once}
    free = [
        row
        for row in chain
        if all(
            item["change"] >= -item["error"] for item in (row, cells[row["sigma"], row["fraction"]])
        )
    ]
    most = max(free, key=lambda row: float(row["norm"]), default=None)
    rule = "most noise whose mean accuracy loss is within one standard error of zero, both ways"
    chosen = {name: most[name] if most else 0.0 for name in ("sigma", "fraction", "norm")}
    return chosen | {"rule": rule}


def _trained(task: Digits, seed: int, epochs: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        task.train_epoch(model, optimizer)
    return model


@torch.no_grad()
def _add_noise(model: torch.nn.Module, sigma: float, fraction: float, *, seed: str) -> None:
    drawing = noising.Noise(hashlib.sha256(seed.encode()).digest(), round(fraction * _MILLION))
    for at, parameter in enumerate(model.parameters()):
        drawn = drawing.of(at, parameter.numel())
        noising.obfuscate(parameter, drawn, round(sigma * _MILLION))


@dataclass(frozen=True)
class _Run:
    """One chain.

    Attributes:
        accuracy: Accuracy of the last sealed weights.
        eta_old: Mean η of all earlier marks in them.
        noise_to_move: Mean norm of a shard's noise relative to that of its training.
    """

    accuracy: float
    eta_old: float
    noise_to_move: float


def _chain(task: Digits, seed: int, shards: int, sigma: float, fraction: float) -> _Run:
    terms = make_terms(task, bits=BITS, noise=(sigma, sigma), noise_fraction=fraction)
    torch.manual_seed(seed)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    chain = Chain(terms, model, optimizer, str(seed).encode())
    ratios, last = [], chain.start
    for _ in range(shards):
        link = chain.advance(lambda: task.train_epoch(model, optimizer))
        ratios.append(_distance(link.before, link.after) / _distance(last, link.before))
        last = link.after
    etas = [read(mark, values_of(mark, chain.carrier, last)).eta for mark in chain.marks[:-1]]
    return _Run(task.evaluate(model), statistics.fmean(etas), statistics.fmean(ratios))


def _distance(one: MemoryCheckpoint, other: MemoryCheckpoint) -> float:
    """Norm of the difference in everything of two or more dimensions: no buffers, no norms."""
    return math.sqrt(
        sum(
            float((one.tensor(at) - other.tensor(at)).double().square().sum())
            for at, tensor in enumerate(one.layout.tensors)
            if len(tensor.shape) > 1
        )
    )


@torch.no_grad()
def _measure(task: Digits, model: torch.nn.Module) -> tuple[float, float]:
    """Accuracy and cross-entropy on the test images."""
    images, labels = task.test_data
    model.eval()
    output = model(images)
    accuracy = float((output.argmax(1) == labels).float().mean())
    return accuracy, float(functional.cross_entropy(output, labels))


def _summary(changes: Sequence[float]) -> dict[str, Any]:
    """Mean and standard error over models, the only independent samples."""
    error = statistics.stdev(changes) / math.sqrt(len(changes))
    return {"change": statistics.fmean(changes), "error": error, "changes": list(changes)}


BENCHMARK = Benchmark("noise", "what obfuscation costs in accuracy", run)

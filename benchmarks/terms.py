"""How many shards a run seals, and at what accuracy: what λ and the finishing budget come from.

The digits task under three common ways to train. A shard should be sealed in every epoch, also
when the learning rate has decayed to nothing, and the model should be as good as without PoLO.
"""

import itertools
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import Benchmark, Figure, amount_of
from benchmarks.measure import one_thread
from polo import EmbeddingWarning, Identity, Prover, enrol, make_terms
from polo.protocol.records import Terms
from polo.tasks.digits import Digits

LOOPS = ("sgd", "sgd, cosine to zero", "adamw")
STRENGTHS = (0.001, 0.003, 0.01)
BUDGETS = (0.10, 0.25, 0.40)
EPOCHS = 10
SEEDS = 5


def run(quick: bool) -> Iterator[Figure]:
    """Every λ and budget in every loop."""
    seeds, epochs = (1, 2) if quick else (SEEDS, EPOCHS)
    loops = LOOPS[:1] if quick else LOOPS
    task, rows = Digits(), []
    with one_thread():
        for loop in loops:
            plain = [_train(task, loop, seed, epochs, None)[0] for seed in range(seeds)]
            for strength, budget in itertools.product(STRENGTHS, BUDGETS):
                terms = make_terms(task, bits=256, strength=strength, budget=budget)
                found = [_train(task, loop, seed, epochs, terms) for seed in range(seeds)]
                rows.append(_row(loop, strength, budget, plain, found, epochs))
    for row in rows:
        yield amount_of(
            f"shards an epoch, {row['loop']}, λ {row['strength']:g}, budget {row['budget']:g}",
            "shards",
            row["rates"],
            note=f"{row['wrong']:.1f} wrong answers, without PoLO {row['wrong_plain']:.1f}",
        )


def _row(
    loop: str,
    strength: float,
    budget: float,
    plain: list[int],
    found: list[tuple[int, int]],
    epochs: int,
) -> dict[str, Any]:
    return {
        "loop": loop,
        "strength": strength,
        "budget": budget,
        "rates": [shards / epochs for _, shards in found],
        "rate": statistics.fmean(shards / epochs for _, shards in found),
        "wrong": statistics.fmean(wrong for wrong, _ in found),
        "wrong_plain": statistics.fmean(plain),
    }


def _train(task: Digits, loop: str, seed: int, epochs: int, terms: Terms | None) -> tuple[int, int]:
    """Wrong answers on the test set, and sealed shards."""
    torch.manual_seed(seed)
    model = task.build_model()
    optimizer: torch.optim.Optimizer
    if loop == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Shards that do not seal are what is counted here.
        warnings.simplefilter("ignore", EmbeddingWarning)
        prover = _prover(terms, Path(folder) / "proof") if terms else None
        if prover:
            prover.attach(model, optimizer)
        for _ in range(epochs):
            task.train_epoch(model, optimizer)
            if "cosine" in loop:
                decay.step()
            if prover:
                prover.end_epoch()
        shards = prover.finish().shards if prover else 0
    total = len(task.test_data[1])
    return total - round(task.evaluate(model) * total), shards


def _prover(terms: Terms, store: Path) -> Prover:
    key = Identity.generate()
    issued = enrol(terms, identity=key.public_key, issuer=Identity.generate())
    return Prover(issued, key=key, store=store, retention="thin")


BENCHMARK = Benchmark("terms", "sealing rate and accuracy by λ and finishing budget", run)

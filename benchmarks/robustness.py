"""Is the owner still named? Every attack of the laboratory on models with real chains.

The digits task under default terms, and a larger one (`larger.py`), over several seeds. A full run
writes all that was read to `results/robustness.json`, row by row. On a machine with a GPU and
CIFAR-10 (`POLO_DATA`) it is ResNet-18 on all of CIFAR-10 instead, in `results/robustness-gpu.json`.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, theft
from benchmarks.figures import Benchmark, Figure, Target, amount_of
from benchmarks.larger import ThinResNet, WholeResNet
from benchmarks.measure import one_thread
from benchmarks.theft import ATTACKS, Owned, Stolen, TrainedTask
from polo.ownership import Claim, Finding, Order, compare, identify
from polo.protocol.combination import CLAIM_LOG2_P
from polo.tasks.digits import Digits

RESULT = Path(__file__).parent / "results" / "robustness.json"
GPU_RESULT = RESULT.with_name("robustness-gpu.json")

_CLAIM = Target("at most", CLAIM_LOG2_P)
_NONE = Target("at most", 0)
_ALWAYS = Target("at least", 1)
_STANDS = Finding.CLAIM.name.lower()

CONTROLS = {"unmarked model": False, "unmarked model (aligned)": True}
"""Readings of models that carry no mark, by name; whether they are aligned."""


@dataclass(frozen=True)
class Subject:
    """What is attacked: a task, for how long it is trained, and its marks."""

    title: str
    task: TrainedTask
    epochs: int
    bits: int
    seeds: int


def subjects(quick: bool) -> list[Subject]:
    """The digits task and the larger one; on a GPU with CIFAR-10 at hand, the whole of that."""
    if WholeResNet.possible() and not quick:
        whole = WholeResNet()
        return [Subject(whole.title, whole, 30, 2048, 1)]
    small, large = Digits(), ThinResNet()
    if quick:
        return [Subject("digits", small, 3, 256, 1)]
    return [
        Subject("digits", small, 20, 256, 5),
        Subject(large.title, large, 10, 2048, 3),
    ]


def run(quick: bool) -> Iterator[Figure]:
    """All attacks on all subjects; what is known so far is written after every row."""
    rows: list[dict[str, Any]] = []
    with one_thread():
        for subject in subjects(quick):
            for seed in range(subject.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    for row in attacked(subject, seed, Path(folder)):
                        rows.append(row)
                        if not quick:
                            record(rows)
            yield from figures([row for row in rows if row["subject"] == subject.title])


def record(rows: Sequence[dict[str, Any]]) -> None:
    """Write what was read so far."""
    settings = {"date": machine.now(), "rate": theft.RATE, "claim": CLAIM_LOG2_P}
    path = GPU_RESULT if WholeResNet.possible() else RESULT
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"settings": settings, "rows": rows}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n")


def attacked(subject: Subject, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """One owner's model under every attack, and the same training without marks."""
    owned = theft.own(subject.task, folder, seed=seed, epochs=subject.epochs, bits=subject.bits)
    about = {
        "subject": subject.title,
        "seed": seed,
        "epochs": subject.epochs,
        "bits": subject.bits,
        "before": subject.task.evaluate(owned.model),
    }
    for name, attack in ATTACKS.items():
        torch.manual_seed(1000 + seed)
        began = time.perf_counter()
        stolen = attack(owned)
        spent = time.perf_counter() - began
        yield {**about, "attack": name, "marked": True, "seconds": spent, **read(owned, stolen)}
    plain = theft.state_of(theft.unmarked(subject.task, seed, subject.epochs))
    for name, align in CONTROLS.items():
        found = read(owned, Stolen(plain, align))
        yield {**about, "attack": name, "marked": False, "seconds": 0.0, **found}


def read(owned: Owned, stolen: Stolen) -> dict[str, Any]:
    """What the owner finds in a copy, and for a thief with a proof who came first."""
    path = theft.write(stolen, owned.folder / "found.safetensors")
    trust = owned.issuer.public_key
    result = identify(path, [owned.proof], trust=trust, align=stolen.align, task=owned.task)
    claim = result.claims[0]
    row = {
        "after": theft.accuracy(owned.task, owned.model, stolen.state),
        "moved": theft.moved(owned, stolen.state),
        **_said(claim),
    }
    if stolen.proof is not None:
        found = compare(owned.proof, stolen.proof, model=path, trust=trust)
        row["compared"] = found.order.name.lower()
        row["headline"] = found.headline().replace(f"{owned.folder}/", "")
        row["thief"] = _said(found.in_model[1]) if found.in_model else {}
    return row


def figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """What counts of one subject: the weakest claim, who came first, false claims."""
    marked = [row for row in rows if row["marked"]]
    controls = [row for row in rows if not row["marked"]]
    title, weakest = rows[0]["subject"], max(marked, key=lambda row: float(row["log2_p"]))
    missed = sorted({row["attack"] for row in marked if row["finding"] != _STANDS})
    yield amount_of(
        f"{title}: weakest claim on a stolen copy",
        "log2 p",
        [weakest["log2_p"]],
        target=_CLAIM,
        note=f"{weakest['attack']}; {len(ATTACKS)} attacks on {len(marked) // len(ATTACKS)} models"
        + (f"; not named after: {', '.join(missed)}" if missed else ""),
    )
    disputed = [row for row in marked if "compared" in row]
    first = [row["compared"] == Order.FIRST.name.lower() for row in disputed]
    yield amount_of(
        f"{title}: owner comes first, by polo compare",
        "of the disputes",
        [statistics.fmean(first)],
        target=_ALWAYS,
        note=f"{len(first)} disputes with a thief who has a proof",
    )
    yield amount_of(
        f"{title}: claims on unmarked models",
        "claims",
        [sum(row["finding"] == _STANDS for row in controls)],
        target=_NONE,
        note=f"{len(controls)} readings, half of them aligned; smallest log2 p "
        f"{min(row['log2_p'] for row in controls):.1f}",
    )


def _said(claim: Claim) -> dict[str, Any]:
    rates = [mark.reading.eta for mark in claim.marks if mark.reading.bits]
    return {
        "finding": claim.finding.name.lower(),
        "log2_p": claim.log2_p,
        "eta": claim.eta,
        "worst_eta": min(rates, default=0.5),
        "marks": len(rates),
        "coverage": claim.coverage,
        "how": claim.how,
        "problem": claim.problem,
    }


BENCHMARK = Benchmark("robustness", "is the owner still named, after every attack", run)

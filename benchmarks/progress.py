"""Error rates of level progress: on honest runs of many kinds, and on forgeries.

Where the level's default thresholds come from. Every run is a real chain of marks in memory, and
its numbers are those that a verifier would take. A full run writes them to a file.
"""

import dataclasses
import itertools
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.courses import FORGERIES, Course, Forger, honest, stolen
from benchmarks.figures import Benchmark, Figure, amount_of
from benchmarks.measure import one_thread
from polo.checks import Status
from polo.errors import PoloError
from polo.evidence.progress.judgement import judge
from polo.evidence.progress.rules import Rules
from polo_lab.effort.catalogue import SMALL
from polo_lab.effort.plan import OPTIMIZERS, SCHEDULES, Plan
from polo_lab.effort.training import LabTask
from polo_lab.experiments.statistics import clopper_pearson

RESULT = Path(__file__).parent / "results" / "progress.json"
HONEST = "honest training"
SHARDS = (3, 6, 10, 20)
RATES = (0.3, 1.0, 2.0)
"""Factors on the learning rate that suits a task: too little and too much are honest, too."""

Row = dict[str, Any]


def run(quick: bool) -> Iterator[Figure]:
    """All runs; then how many of each kind fail."""
    trained, forged = (4, 1) if quick else (120, 16)
    with one_thread():
        rows = [*honest_rows(trained), *forged_rows(forged)]
    if not quick:
        settings = {"honest": trained, "forged": forged, "rules": dataclasses.asdict(Rules())}
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
    for kind in (HONEST, *FORGERIES):
        yield figure([row for row in rows if row["kind"] == kind])


def honest_rows(count: int) -> Iterator[Row]:
    """Honest runs over tasks, optimizers, schedules, numbers of shards and rates."""
    for seed, name, optimizer, schedule, shards, rate in _settings(count):
        task, plan = _plan(name, optimizer, schedule, shards, rate)
        about = {"kind": HONEST, "task": name, "optimizer": optimizer, "schedule": schedule}
        try:
            course = honest(task, plan, seed)
        except PoloError as error:
            # Too high a rate: the weights are no numbers any more, so there is nothing to prove.
            yield {**about, "shards": shards, "rate": rate, "diverged": str(error)}
            continue
        yield {**about, "shards": shards, "rate": rate, **_found(course)}


def forged_rows(count: int) -> Iterator[Row]:
    """Every forgery, on models that were stolen from runs like the honest ones."""
    for seed, name, optimizer, schedule, shards, _ in _settings(count):
        task, plan = _plan(name, optimizer, schedule, shards, 1.0)
        loot = stolen(task, dataclasses.replace(plan, shards=max(shards, 6)), seed)
        about = {"task": name, "optimizer": optimizer, "schedule": schedule, "shards": shards}
        for kind, forge in FORGERIES.items():
            yield {"kind": kind, **about, **_found(forge(Forger(task, plan, seed, loot)))}


def figure(rows: Sequence[Row]) -> Figure:
    """How many runs of one kind fail."""
    judged = [row for row in rows if "failed" in row]
    rejected = sum(bool(row["failed"]) for row in judged)
    low, high = clopper_pearson(rejected, len(judged))
    kind = rows[0]["kind"]
    name = "honest runs that fail" if kind == HONEST else f"fail: {kind}"
    return amount_of(
        name,
        "%",
        [100 * rejected / len(judged)],
        note=f"{rejected} of {len(judged)}, 95 % interval {low:.1%} to {high:.1%}",
        details={
            key: statistics.median(row[key] for row in judged if row[key] is not None)
            for key in ("early", "moved", "fall")
        },
    )


def _settings(count: int) -> Iterator[tuple[int, str, str, str, int, float]]:
    """Settings drawn without regard to each other; tasks take turns."""
    drawing = random.Random(count)
    for seed, task in zip(range(count), itertools.cycle(SMALL), strict=False):
        optimizer, schedule = drawing.choice(OPTIMIZERS), drawing.choice(SCHEDULES)
        yield seed, task, optimizer, schedule, drawing.choice(SHARDS), drawing.choice(RATES)


def _plan(
    name: str, optimizer: str, schedule: str, shards: int, rate: float
) -> tuple[LabTask, Plan]:
    entry = SMALL[name]
    plan = entry.plan(optimizer, schedule)
    return entry.task(), dataclasses.replace(plan, shards=shards, rate=plan.rate * rate)


def _found(course: Course) -> Row:
    findings = course.findings()
    checks = [check for check in judge(findings, Rules()) if not check.shard]
    return {
        "early": findings.early,
        "whole": findings.whole,
        "moved": findings.moved,
        "straight": findings.straight,
        "fall": findings.fall,
        "accuracy": course.accuracy,
        "cost": course.steps / course.honest_steps,
        "failed": [check.name for check in checks if check.status is Status.FAILED],
        "open": [check.name for check in checks if check.status is Status.NOTE],
    }


BENCHMARK = Benchmark("progress", "error rates of level progress", run)

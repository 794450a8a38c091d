"""Honest runs and attacks on evidence of effort, in parallel, each recorded when it is done.

A unit of work is one case: an honest run, which is judged, and the attacks that are made on it,
so that every attack's cost is measured beside the honest training that it is compared with. Whoever
measures a run writes it down at once: an experiment that is killed loses the runs under way.
"""

import functools
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polo.errors import WeightsError
from polo_lab.attacks.effort import ATTACKS
from polo_lab.effort.case import Attack, Attempt, Case
from polo_lab.effort.catalogue import SMALL, Key, keys
from polo_lab.effort.judging import Judgement, judge
from polo_lab.effort.training import Trained, respond
from polo_lab.experiments import pool, rows
from polo_lab.experiments.rows import HONEST, Row

PER_ATTACK = 30
NO_PROOF = "no proof"


@dataclass(frozen=True)
class Unit:
    """A case and what is measured on it: `honest`, or names of attacks."""

    key: Key
    runs: tuple[str, ...]


def units(
    honest: int,
    attacked: int,
    *,
    tasks: tuple[str, ...] = tuple(SMALL),
    attacks: Sequence[str] = (),
    per_attack: int = PER_ATTACK,
    tolerance: int = 0,
) -> list[Unit]:
    """The work: so many honest runs, and attacks spread over their cases.

    Args:
        honest: Honest runs, each a case of its own.
        attacked: Attacked runs in all, at least.
        tasks: Tasks to take.
        attacks: Attacks by name; by default all.
        per_attack: Runs of each attack, at least.
        tolerance: Largest deviation that the terms allow where platforms differ, in millionths.
            Honest runs are then judged as on another platform; attacks name another one.
    """
    names = list(attacks) or [attack.name for attack in ATTACKS]
    each = max(per_attack, -(-attacked // len(names)))
    if each > honest:
        raise ValueError(f"{each} runs of each attack need as many honest runs, not {honest}")
    chosen: list[list[str]] = [[HONEST] for _ in range(honest)]
    for name in names:
        for at in np.random.default_rng(list(name.encode())).permutation(honest)[:each]:
            chosen[at].append(name)
    cases = keys(honest, tasks, tolerance)
    return [Unit(key, tuple(runs)) for key, runs in zip(cases, chosen, strict=True)]


def run(work: Iterable[Unit], *, workers: int, out: Path, minutes: float = 0) -> int:
    """Measure what is not recorded yet; 1 if something came out as it must not, or is missing.

    Args:
        work: The units.
        workers: Processes.
        out: The file of JSON lines to add to.
        minutes: Begin no unit after so many minutes; 0 for no limit. What is left is taken up by
            the next call.
    """
    _, known = rows.read(out)
    pending = list(_missing(work, known))
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    pool.begin(out, workers)
    measuring = functools.partial(measure, out=out)
    found = pool.measured(measuring, pending, workers=workers, deadline=deadline)
    done = [row for some in found for row in some]
    left = sum(len(unit.runs) for unit in pending) - len(done)
    return _summary(rows.settled([*known, *done]), left)


def measure(unit: Unit, out: Path) -> list[Row]:
    """One case: the honest run, and the attacks on it; each is written down when it is done."""
    found = []
    with tempfile.TemporaryDirectory(prefix="polo-lab-") as temporary:
        case = unit.key.case(Path(temporary) / "case")
        for name in unit.runs:
            # What one run leaves behind goes before the next: large models leave gigabytes.
            with tempfile.TemporaryDirectory(dir=temporary) as own:
                row = _row(case, unit.key, name, Path(own) / "proof")
            pool.add(out, {"row": row.to_json()})
            print(
                f"{row.task} {row.optimizer} {row.schedule} {row.attack}: {row.outcome}", flush=True
            )
            found.append(row)
    return found


def _row(case: Case, key: Key, name: str, folder: Path) -> Row:
    row = Row(
        key.task, key.optimizer, key.schedule, key.seed, name, rows.ERROR, tolerance=key.tolerance
    )
    try:
        victim = case.victim
        try:
            attempt = _honest(case, victim) if name == HONEST else _attack(name).run(case, folder)
        except WeightsError as error:
            # An attack that trains until weights are no numbers has no proof to show.
            lost = replace(row, outcome="rejected", faults=(NO_PROOF,), note=str(error)[:200])
            return replace(lost, **_compared(victim, name)) if name != HONEST else lost
        away = name == HONEST and key.tolerance > 0
        found = judge(case, attempt, folder.with_name("answer"), away=away)
    except Exception as error:
        # Whatever breaks in one run must not take the others with it; it is recorded and counts.
        traceback.print_exc()
        return replace(row, note=f"{type(error).__name__}: {error}"[:200])
    return replace(_filled(row, attempt, found), **_compared(victim, name))


def _honest(case: Case, victim: Trained) -> Attempt:
    return Attempt(victim.proof, respond(case.task, victim), victim.seconds, victim.steps)


def _attack(name: str) -> Attack:
    return next(attack for attack in ATTACKS if attack.name == name)


def _filled(row: Row, attempt: Attempt, found: Judgement) -> Row:
    return replace(
        row,
        outcome=found.outcome,
        levels=found.levels,
        faults=found.faults,
        seconds=attempt.seconds,
        steps=attempt.gradient_steps,
        answering=found.answering,
        verifying=found.verifying,
        replaying=found.replaying,
        replayed=found.replayed,
        accuracy=found.accuracy,
        note="; ".join(text for text in (attempt.note, found.silence) if text),
    )


def _compared(victim: Trained, name: str) -> dict[str, Any]:
    return {
        "honest_seconds": victim.seconds,
        "honest_steps": victim.steps,
        "honest_accuracy": victim.accuracy,
        "waiting": victim.waiting if name == HONEST else 0.0,
    }


def _missing(work: Iterable[Unit], known: Sequence[Row]) -> Iterator[Unit]:
    """What is not recorded yet; runs that broke are tried again."""
    done = {
        (Key(row.task, row.optimizer, row.schedule, row.seed, row.tolerance), row.attack)
        for row in known
        if row.outcome != rows.ERROR
    }
    for unit in work:
        if runs := tuple(name for name in unit.runs if (unit.key, name) not in done):
            yield Unit(unit.key, runs)


def _summary(found: Sequence[Row], left: int) -> int:
    for name, count in sorted(Counter((row.attack, row.outcome) for row in found).items()):
        print(*name, count)
    wrong = [row for row in found if row.wrong]
    for row in wrong:
        print(f"WRONG: {row}")
    if left:
        print(f"{left} runs are left; run the same command again")
    return int(bool(wrong or left))

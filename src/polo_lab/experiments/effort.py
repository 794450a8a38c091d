"""Honest runs and attacks on evidence of effort.

Runs of one case share a bench: an honest run, which is judged, and the attacks that are made on it,
so that every attack's cost is measured beside the honest training that it is compared with.
"""

import functools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polo.errors import WeightsError
from polo_lab.attacks.effort import ATTACKS
from polo_lab.effort.case import Attack, Attempt, Case
from polo_lab.effort.catalogue import LARGE, SMALL, Key, keys
from polo_lab.effort.judging import Judgement, judge
from polo_lab.effort.plan import OPTIMIZERS
from polo_lab.effort.training import Trained, respond
from polo_lab.experiments import effort_report
from polo_lab.experiments.effort_rows import ERROR, HONEST, Row
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Settings

PER_ATTACK = 30
NO_PROOF = "no proof"
QUICK = ("inflation from a drawn start", "skipping 50%, ahead")
"""Attacks of the trimmed form."""

NEAR = (
    "tiny subset of 16, varied copies",
    "tiny subset of 16, relabelled copies",
    "labels that the loss leaves out, all but 4 places",
    "a rate at which weights stand still, nearly",
    "straight lines between gradients",
    "spoofed replay, near",
    "spoofed replay, small",
    "spoofed replay, batches",
)
"""Attacks that an allowance for other platforms might let through."""

BROAD = (
    "inflation from a drawn start",
    "inflation from a stolen start",
    "interpolation, straight",
    "interpolation, curved",
    "few real steps, 20%",
    "idle steps, identity",
    "idle steps, no loss",
    "reused segments, own",
    "skipping 50%, ahead",
    "spoofed replay, small",
)
"""One attack of every kind, where a run takes long."""


_LAYERED = ("digits", "digits-mlp", "cancer")
_WITH_MEMORY = ("momentum", "adam", "adamw")
SUITED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tiny subset of 16, plain copies": (("cancer", "letters"), OPTIMIZERS),
    "tiny subset of 16, varied copies": (("cancer", "letters"), OPTIMIZERS),
    "tiny subset of 16, relabelled copies": (("cancer", "letters"), OPTIMIZERS),
    "silent samples, 90%": (("cancer",), OPTIMIZERS),
    "swallowed copies, 20% of a batch": (("cancer",), OPTIMIZERS),
    "swallowed copies, 36% of a batch": (("cancer",), OPTIMIZERS),
    "loud samples, 3%": (("digits-mlp",), OPTIMIZERS),
    "a rate that silences units": (("digits-mlp",), OPTIMIZERS),
    "a rate at which weights stand still": (("cancer",), OPTIMIZERS),
    "a rate at which weights stand still, nearly": (("cancer",), OPTIMIZERS),
    "straight lines between gradients": (("cancer",), OPTIMIZERS),
    "saturated data, by momentum": (("digits", "cancer"), _WITH_MEMORY),
    "saturated data, by aimed": (_LAYERED, _WITH_MEMORY),
    "detours through a dead model": (_LAYERED, OPTIMIZERS),
}
"""On which tasks and with which optimizers an attack finds something to leave out, where that is
not everywhere. Elsewhere it trains in full after all, and there are more runs where it does not."""


def units(
    honest: int,
    attacked: int,
    *,
    tasks: tuple[str, ...] = tuple(SMALL),
    attacks: Sequence[str] = (),
    per_attack: int = PER_ATTACK,
    tolerance: int = 0,
) -> list[Settings]:
    """The work: so many honest runs, and attacks spread over their cases.

    Args:
        honest: Honest runs, each a case of its own.
        attacked: Attacked runs in all, at least.
        tasks: Tasks to take.
        attacks: Attacks by name; by default all.
        per_attack: Runs of each attack, at least; as many where it is suited.
        tolerance: Largest deviation that the terms allow where platforms differ, in millionths.
            Honest runs are then judged as on another platform; attacks name another one.
    """
    names = list(attacks) or [attack.name for attack in ATTACKS]
    each = max(per_attack, -(-attacked // len(names)))
    if each > honest:
        raise ValueError(f"{each} runs of each attack need as many honest runs, not {honest}")
    cases = keys(honest, tasks, tolerance)
    chosen: list[list[str]] = [[HONEST] for _ in range(honest)]
    for name in names:
        drawn = np.random.default_rng(list(name.encode())).permutation(honest)
        suited = [at for at in drawn if _suits(name, cases[at])][:each]
        for at in dict.fromkeys([*drawn[:each], *suited]):
            chosen[at].append(name)
    return [
        _row(key, name).settings() for key, own in zip(cases, chosen, strict=True) for name in own
    ]


def _suits(attack: str, case: Key) -> bool:
    known = SUITED.get(attack)
    return known is None or (case.task in known[0] and case.optimizer in known[1])


def measure(settings: Settings, bench: Bench) -> Measured:
    """One honest run, or one attack on it."""
    _warm()
    key = Key(**{name: settings[name] for name in _GROUP})
    case: Case = bench.once(key, lambda: key.case(bench.folder / "case"))
    # What one run leaves behind goes before the next: large models leave gigabytes.
    with tempfile.TemporaryDirectory(dir=bench.folder) as own:
        row = _measured(case, key, settings["attack"], Path(own) / "proof")
    return Measured(row.figures(), row.timings(), row.note)


@functools.cache
def _warm() -> None:
    """A first training, so that none that is timed pays for what a process loads once."""
    with tempfile.TemporaryDirectory() as folder:
        case = Key("cancer", "sgd", "constant", 0).case(Path(folder))
        judge(case, _honest(case, case.victim), Path(folder) / "answer")


def wrong(line: Line) -> str:
    """An honest run that was not accepted, or a cheap attack that was."""
    row = Row.of(line)
    return f"{row.attack} was {row.outcome}: {', '.join(row.faults)}" if row.wrong else ""


_GROUP = ("task", "optimizer", "schedule", "seed", "tolerance")


def _row(key: Key, name: str) -> Row:
    return Row(
        key.task, key.optimizer, key.schedule, key.seed, name, ERROR, tolerance=key.tolerance
    )


def _measured(case: Case, key: Key, name: str, folder: Path) -> Row:
    row, victim = _row(key, name), case.victim
    try:
        attempt = _honest(case, victim) if name == HONEST else _attack(name).run(case, folder)
    except WeightsError as error:
        # An attack that trains until weights are no numbers has no proof to show.
        lost = replace(row, outcome="rejected", faults=(NO_PROOF,), note=str(error)[:200])
        return replace(lost, **_compared(victim, name)) if name != HONEST else lost
    away = name == HONEST and key.tolerance > 0
    found = judge(case, attempt, folder.with_name("answer"), away=away)
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
        possible=attempt.possible,
        work=found.work,
        note="; ".join(text for text in (attempt.note, found.silence) if text),
    )


def _compared(victim: Trained, name: str) -> dict[str, Any]:
    return {
        "honest_seconds": victim.seconds,
        "honest_steps": victim.steps,
        "honest_accuracy": victim.accuracy,
        "waiting": victim.waiting if name == HONEST else 0.0,
    }


def _all(quick: bool) -> Iterable[Settings]:
    if quick:
        return units(1, 2, tasks=("cancer",), attacks=QUICK, per_attack=1)
    return units(300, 300)


def _tolerant(quick: bool) -> Iterable[Settings]:
    if quick:
        return units(1, 1, tasks=("cancer",), attacks=NEAR[:1], per_attack=1, tolerance=20_000)
    return units(64, 96, attacks=NEAR, per_attack=16, tolerance=20_000)


def _large(quick: bool) -> Iterable[Settings]:
    """The large tasks want a GPU; the trimmed form stays with a small one."""
    if quick:
        return units(1, 1, tasks=("cancer",), attacks=QUICK[:1], per_attack=1)
    return units(10, 10, tasks=tuple(LARGE), attacks=BROAD, per_attack=1)


EXPERIMENTS = tuple(
    Experiment(
        name=name,
        title=title,
        units=own,
        measure=measure,
        tables=effort_report.tables,
        group=_GROUP,
        wrong=wrong,
        workers=workers,
        needs=needs,
        gpu=lambda settings: settings["task"] in LARGE,
    )
    for name, title, own, workers, needs in (
        ("effort", "evidence of effort: honest runs, and every attack on it", _all, 2, ""),
        ("effort-tolerance", "the same with an allowance for other platforms", _tolerant, 2, ""),
        ("effort-resnet18", "the same on ResNet-18 and CIFAR-10", _large, 0, "a GPU"),
    )
)

"""Fidelity, stealth and load of every scheme: trainings with marks beside trainings without.

Trainings of one task and seed share a bench, and the training without marks from the same start.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polo.enrolment import millionths
from polo.protocol.detection import MILLION
from polo.watermark.mark import carrier_of
from polo.watermark.schemes import SCHEMES
from polo.weights.checkpoint import checkpoint_of
from polo_lab.effort.training import LabTask
from polo_lab.experiments import schemes_report
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Settings
from polo_lab.experiments.schemes_rows import (
    BARE,
    DENSE,
    PLAIN,
    Row,
    defaults_of,
    scheme_of,
)
from polo_lab.schemes.courses import COURSES
from polo_lab.schemes.measures import forging, found_in, overwritten, told_apart
from polo_lab.schemes.training import Marked, Plain, Setting, train_marked, train_plain

BITS = (256, 512, 1024, 2048)
SMALL = ("digits", "norms")
LOADS = (0.25, 4.0)
"""Loads beside a scheme's own, as multiples of it."""

STRENGTHS = (0.3, 3.0)
"""λ beside a scheme's own, as multiples of it."""

HINGES = (0.003, 0.01, 0.1)
"""Strengths of FedIPR's hinge beside its own: norm scales are few, so that it decides much."""

BUDGETS = (0.1, 0.2, 0.4)
"""Largest edits of the finishing step, relative to a block's norm."""

HINGES_LARGE = (0.003, 0.0003, 0.03)
"""The same for ResNet-18, whose shards have more steps; the one in the middle first."""

LARGE = ("resnet18",)
"""Tasks that want a GPU."""

SMALLER = 0.2
"""A finishing budget of FedIPR that costs little where a mark takes most of the scales."""


def units(
    *,
    tasks: Sequence[str],
    schemes: Sequence[str],
    bits: Sequence[int],
    loads: Sequence[float | None] = (None,),
    strengths: Sequence[float | None] = (None,),
    budgets: Sequence[float | None] = (None,),
    seeds: int,
) -> list[Settings]:
    """The work, seed by seed, so that whatever is done by a deadline is spread evenly.

    Args:
        tasks: Courses by name.
        schemes: Schemes by name.
        bits: Bits of marks.
        loads: Loads; None for the scheme's own.
        strengths: λ; None for the scheme's own.
        budgets: Largest edits of the finishing step; None for the scheme's own.
        seeds: Number of seeds.
    """
    found: dict[tuple[object, ...], Row] = {}
    for seed, task in itertools.product(range(seeds), tasks):
        unmarked = Row(task, PLAIN, 0, 0, 0, seed)
        found[unmarked.key] = unmarked
        for name, size, load, strength, budget in itertools.product(
            schemes, bits, loads, strengths, budgets
        ):
            own = defaults_of(name)
            row = Row(
                task,
                name,
                size,
                millionths(own.load if load is None else load),
                millionths(own.strength if strength is None else strength),
                seed,
                millionths(own.budget if budget is None else budget),
            )
            found[row.key] = row
    return [row.settings() for row in found.values()]


def measure(settings: Settings, bench: Bench) -> Measured:
    """One training, and everything that is measured on its model."""
    row, course = Row(**settings), COURSES[settings["task"]]
    task: LabTask = bench.once("task", course.task)
    if row.scheme != PLAIN:
        row = replace(row, share=_share(task, row))
    plain: Plain = bench.once("plain", lambda: train_plain(task, course, row.seed))
    row = replace(row, plain_accuracy=plain.accuracy, plain_seconds=plain.seconds)
    if row.scheme == PLAIN:
        row = replace(row, epochs=course.epochs, accuracy=plain.accuracy, seconds=plain.seconds)
    else:
        folder = bench.folder / "-".join(map(str, row.key[1:-1]))
        folder.mkdir()
        row = _marked(task, row, plain, folder)
    return Measured(row.figures(), row.timings())


def _marked(task: LabTask, row: Row, plain: Plain, folder: Path) -> Row:
    course = COURSES[row.task]
    marked = train_marked(task, course, _setting(row), row.seed, folder / "proof")
    row = replace(
        row,
        epochs=course.epochs,
        shards=len(marked.shards),
        accuracy=marked.accuracy,
        seconds=marked.seconds,
        reached=sum(marked.before) / len(marked.before) if marked.before else None,
        sealed=marked.sealed,
        edit=marked.edit,
    )
    row = replace(row, **_forged(task, row, marked))
    if not marked.shards:
        return row
    row = replace(row, **_found(task, row, marked, folder))
    told = told_apart(marked, plain, seed=row.seed)
    if told is None:
        return row
    return replace(
        row, told=told.accuracy, told_low=told.low, told_high=told.high, told_blocks=told.blocks
    )


def _forged(task: LabTask, row: Row, marked: Marked) -> dict[str, Any]:
    made = forging(task, COURSES[row.task], marked)
    return {
        "forge_edit": made.alone.whole.edit,
        "forged": made.alone.whole.metric,
        "forged_estimated": made.estimated,
        "least_edit": made.alone.least.edit,
        "least_forged": made.alone.least.metric,
        "strict_edit": made.strict.least.edit,
        "strict_forged": made.strict.least.metric,
    }


def _found(task: LabTask, row: Row, marked: Marked, folder: Path) -> dict[str, Any]:
    own = found_in(marked.model, marked, folder)
    left = overwritten(task, COURSES[row.task], marked, folder)
    return {
        "residual_least": own.least,
        "residual_mean": own.mean,
        "residual_log2_p": own.log2_p,
        "thief_least": left.owner.least,
        "thief_mean": left.owner.mean,
        "thief_log2_p": left.owner.log2_p,
        "thief_accuracy": left.accuracy,
        "claimed": left.owner.claimed,
    }


def _setting(row: Row) -> Setting:
    return Setting(
        scheme_of(row.scheme),
        row.bits,
        row.load / MILLION,
        row.strength / MILLION,
        row.budget / MILLION,
        "dense" if row.scheme == DENSE else "block",
        disguised=row.scheme != BARE,
    )


def _share(task: LabTask, row: Row) -> float:
    """Part of the carrier that one mark takes; refuses what does not fit."""
    terms = _setting(row).terms(task)
    carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
    return terms.scheme.blocks / carrier.blocks


def _small(quick: bool) -> Iterable[Settings]:
    if quick:
        return units(tasks=["digits"], schemes=["ednn", "fedipr"], bits=[256], seeds=1)
    found = units(tasks=SMALL, schemes=tuple(SCHEMES), bits=BITS, seeds=5)
    found += units(tasks=SMALL, schemes=[DENSE], bits=BITS, seeds=2)
    found += units(tasks=SMALL, schemes=[BARE], bits=BITS, seeds=3)
    # A dense key has a sign for every bit and weight of a group, and a group has a limit: at light
    # loads large marks do not fit.
    found += units(tasks=SMALL, schemes=[DENSE], bits=BITS[:3], loads=(0.0625, 0.5), seeds=2)
    found += units(tasks=SMALL, schemes=[DENSE], bits=BITS[3:], loads=(0.5,), seeds=2)
    # Its own size where nothing else is asked for, since norm scales are few.
    fewest = [defaults_of("fedipr").bits]
    found += units(tasks=["norms"], schemes=["fedipr"], bits=fewest, budgets=(None, 0.2), seeds=5)
    for name in SCHEMES:
        loads = [defaults_of(name).load * factor for factor in LOADS]
        found += units(tasks=SMALL, schemes=[name], bits=BITS, loads=loads, seeds=2)
    found += units(tasks=["norms"], schemes=["fedipr"], bits=BITS[:3], strengths=HINGES, seeds=2)
    found += _budgets()
    for name in (*SCHEMES, DENSE):
        strengths = [defaults_of(name).strength * factor for factor in STRENGTHS]
        found += units(tasks=SMALL, schemes=[name], bits=(256, 1024), strengths=strengths, seeds=2)
    # Stable: of one seed the rows stay in order, and marks at their own load come first.
    unique = {tuple(unit.values()): unit for unit in found}.values()
    return sorted(unique, key=lambda unit: unit["seed"])


def _budgets() -> list[Settings]:
    """What the finishing step may do, beside what it usually may."""
    found = units(
        tasks=SMALL, schemes=(*SCHEMES, DENSE), bits=(256, 1024), budgets=BUDGETS, seeds=2
    )
    for strength in (0.03, 0.1):
        found += units(
            tasks=["norms"],
            schemes=["fedipr"],
            bits=BITS[:3],
            strengths=[strength],
            budgets=(0.1, 0.2, 0.4, 0.7),
            seeds=3,
        )
    return found


def _large(quick: bool) -> Iterable[Settings]:
    """The large task wants a GPU; the trimmed form stays with a small one."""
    if quick:
        return units(tasks=["digits"], schemes=["signed"], bits=[256], seeds=1)
    tasks, bits = LARGE, (2048, 1024)
    found = units(tasks=tasks, schemes=tuple(SCHEMES), bits=bits, seeds=1)
    # Norm scales are so few that load and λ decide what their marks cost: each λ at the least load
    # that 2048 bits fit into, or at the scheme's own, and each load at the λ in the middle.
    more: list[Settings] = []
    for size, least, heavier in ((2048, 0.5, [1.0]), (1024, 0.25, [0.5, 1.0])):
        for loads, strengths in (([least], HINGES_LARGE), (heavier, HINGES_LARGE[:1])):
            more += units(
                tasks=tasks,
                schemes=["fedipr"],
                bits=[size],
                loads=loads,
                strengths=strengths,
                seeds=1,
            )
        more += units(
            tasks=tasks,
            schemes=["fedipr"],
            bits=[size],
            loads=[least],
            strengths=(0.01, 0.03, 0.003),
            budgets=[SMALLER],
            seeds=1,
        )
    more += units(tasks=tasks, schemes=[DENSE], bits=bits, seeds=1)
    # What `polo validate` advises for it.
    more += units(tasks=tasks, schemes=["ednn"], bits=[1024], loads=[0.03125], seeds=1)
    return [*found, *(unit for unit in more if unit not in found)]


EXPERIMENTS = tuple(
    Experiment(
        name=name,
        title=title,
        units=own,
        measure=measure,
        tables=schemes_report.tables,
        group=("task", "seed"),
        workers=workers,
        needs=needs,
        gpu=lambda settings: settings["task"] in LARGE,
    )
    for name, title, own, workers, needs in (
        ("schemes", "what marks of every scheme cost, and what they withstand", _small, 2, ""),
        ("schemes-resnet18", "the same on ResNet-18 and CIFAR-10", _large, 0, "a GPU"),
    )
)

"""docs/schemes.md: what marks cost and what they withstand, from recorded trainings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from polo.checks import counted
from polo.protocol.detection import MILLION
from polo.watermark.schemes import SCHEMES
from polo_lab.experiments import schemes_findings
from polo_lab.experiments.lines import Recording
from polo_lab.experiments.origin import origins
from polo_lab.experiments.schemes_findings import Group, grouped
from polo_lab.experiments.schemes_rows import PLAIN, UNFIT, Row
from polo_lab.experiments.statistics import mean_interval
from polo_lab.experiments.table import Table, markdown
from polo_lab.schemes.courses import COURSES

_INTRODUCTION = """\
# Schemes: what marks cost, and what they withstand

Written by `polo-lab docs` from recorded trainings (`results/schemes*.jsonl`); do not edit.

Every training runs twice from the same start and in the same order: with a prover attached, under
terms of level chain, and without. A shard may be sealed after every epoch. What is measured:

- **accuracy**: of the finished model, less that of the unmarked one, in points. Obfuscation, whose
  noise the terms ask for in every shard, is part of what a chain costs and is in it.
- **shards**: sealed shards for each epoch. η is the detection rate at the end of an epoch, before
  the finishing step; the edit is the finishing step's largest, relative to its group of weights.
- **residual**: all marks of the chain, read from the finished model by `polo identify`.
- **overwritten**: the same after a thief has trained on at the full learning rate with a chain of
  their own, of the same scheme, size and load and ten times as strong. That is the paper's OFA made
  stronger: there the thief trains for three to five rounds at a tenth of the rate, with a mark as
  strong as the owner's (`polo-lab run ofa-wma`, with RIGA's marks on every checkpoint). Accuracy is
  then less that of the marked model; where marks had ruined it, training on mends it.
- **forged**: somebody without data presses one more mark into the finished model by the closed-form
  edit alone. *All bits* turns every wrong bit; *enough* turns just as many as the thresholds of a
  verifier ask for (η ≥ 0.70 by default), the cheapest first; then the same if they asked for
  η ≥ 0.95, which honest marks have in their own checkpoint. Where batch-norm's statistics may be
  estimated anew, inputs are needed and no labels. What is left of accuracy is the forge-hardness.
- **told apart**: the better of two classifiers, on held-out blocks of marked and of unmarked
  weights, where guessing is right half of the time. RIGA's discriminator is on but in `riga-bare`;
  where terms ask for replay it is off, and marks of RIGA are as conspicuous as those
  (docs/adr/0017). Of fewer than ten blocks of a kind nothing can be learnt, and none is told.

Figures are means over seeds, ± half of their 95 % interval (Student's t), where sizes are put
together of the means of each seed; log2 p is the weakest of them. Of told apart the interval is
exact for the better of two classifiers, over the blocks of all seeds as if they were
independent."""


_DEFAULTS = """\
Sizes and loads are such that a mark fits into small models. `polo validate` advises by the tables
below: the lightest load at which one mark takes at most a tenth of the blocks. Marks that are
spread thinly are the easier to seal; those that take much of a carrier are worn off by the ones
that follow. λ and budget are such that about every epoch ends in a shard, with any optimizer: Adam
presses by its own steps' size and leaves more to the finishing step. Where a FedIPR mark takes most
of the norm scales, that step costs accuracy: on a small network a smaller budget loses less and
seals fewer shards. On ResNet-18 a strong λ leaves that step nothing to do, and it is the hinge that
costs. Margins were not varied."""


def page(found: Mapping[str, Recording], adapters: Sequence[str] = ()) -> str:
    """The page's text; the part about adapters comes last."""
    rows = {name: [Row.of(line) for line in one.lines] for name, one in found.items()}
    parts = [_INTRODUCTION, "## What it shows"]
    parts += schemes_findings.sentences([row for own in rows.values() for row in own])
    parts += ["## Defaults", _defaults(), _DEFAULTS]
    parts += schemes_findings.of_defaults(grouped([row for own in rows.values() for row in own]))
    for name, recording in found.items():
        parts += _sections(name, recording, rows[name])
    parts += adapters
    return "\n\n".join(parts) + "\n"


def tables(recording: Recording) -> Iterator[Table]:
    """All tables of every task."""
    rows = [Row.of(line) for line in recording.lines]
    for task in dict.fromkeys(row.task for row in rows):
        groups = grouped([row for row in rows if row.task == task])
        for title, of in _SWEPT:
            yield _table(f"{title} ({task})", of(groups), _TOGETHER)
        for title, columns in _TABLES.items():
            yield _table(f"{title} ({task})", groups, columns)


def _defaults() -> str:
    head = ("scheme", "bits", "block", "load", "λ", "finishing budget", "margin")
    lines = [
        (name, f"{own.bits}", f"{own.block}", f"{own.load:g}", f"{own.strength:g}",
         f"{own.budget:g}", f"{own.margin:g}")
        for name, own in ((name, scheme.defaults) for name, scheme in SCHEMES.items())
    ]  # fmt: skip
    return markdown(Table("Defaults", head, lines))


def _sections(name: str, recording: Recording, rows: Sequence[Row]) -> Iterator[str]:
    yield f"## {name}: {counted(sum(not row.problem for row in rows), 'training')}"
    yield from origins(recording)
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        yield f"### {task}: {COURSES[task].title}"
        yield _plain([row for row in own if row.scheme == PLAIN])
        groups = grouped(own)
        for title, of in _SWEPT:
            if swept := of(groups):
                yield f"#### {title}"
                yield markdown(_table(title, swept, _TOGETHER))
        for title, columns in _TABLES.items():
            yield f"#### {title}"
            yield markdown(_table(title, groups, columns))
        if unfit := _unfit(own):
            yield unfit


def _plain(rows: Sequence[Row]) -> str:
    accuracies = [row.accuracy for row in rows if row.accuracy is not None]
    epochs, seeds = rows[0].epochs if rows else 0, counted(len(rows), "seed")
    return f"Without marks: accuracy {_percent(accuracies)}, {epochs} epochs, {seeds}."


def _unfit(rows: Sequence[Row]) -> str:
    """What does not fit, in the words of those who refused it."""
    found = {
        (row.scheme, row.bits, row.load): row.problem.removeprefix(UNFIT)
        for row in rows
        if row.problem
    }
    lines = [
        f"- {scheme}, {bits} bits at {load / MILLION:g}: {why}"
        for (scheme, bits, load), why in found.items()
    ]
    return "\n".join(["Refused or broken:", "", *lines]) if lines else ""


def _table(
    title: str,
    groups: Sequence[Group],
    columns: dict[str, Callable[[Group], str]],
) -> Table:
    head = ("scheme", "bits", "load", "λ", "budget", *columns)
    lines = [
        (
            group.scheme,
            ", ".join(map(str, group.sizes or (group.bits,))),
            f"{group.load / MILLION:g}",
            f"{group.strength / MILLION:g}",
            f"{group.budget / MILLION:g}",
            *(column(group) for column in columns.values()),
        )
        for group in groups
    ]
    return Table(title, head, lines)


def _points(values: Sequence[float]) -> str:
    """Differences of accuracy, in points."""
    if not values:
        return "–"
    mean, half = mean_interval([100 * value for value in values])
    return f"{mean:+.1f}" + (f" ± {half:.1f}" if math.isfinite(half) else "")


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean, half = mean_interval([100 * value for value in values])
    return f"{mean:.1f} %" + (f" ± {half:.1f}" if math.isfinite(half) else "")


def _number(values: Sequence[float], digits: int = 2) -> str:
    return f"{sum(values) / len(values):.{digits}f}" if values else "–"


def _log2(values: Sequence[float]) -> str:
    return f"{max(values):.0f}" if values else "–"


def _claimed(group: Group) -> str:
    named = [row.claimed for row in group.rows if row.claimed is not None]
    return f"{sum(named)} of {len(named)}" if named else "–"


def _told(group: Group) -> str:
    if (told := group.told) is None:
        return "–"
    return f"{told.rate:.2f} ({told.low:.2f} to {told.high:.2f})"


_TABLES: dict[str, dict[str, Callable[[Group], str]]] = {
    "Fidelity": {
        "of the carrier": lambda g: f"{g.rows[0].share:.1%}",
        "accuracy": lambda g: _points(g.loss("accuracy", "plain_accuracy")),
        "shards per epoch": lambda g: _number([r.shards / r.epochs for r in g.rows]),
        "η before finishing": lambda g: _number(g.values("reached")),
        "η as sealed": lambda g: _number(g.values("sealed"), 3),
        "largest edit": lambda g: _number(g.values("edit")),
    },
    "Residual marks and overwriting": {
        "least η": lambda g: _number(g.values("residual_least"), 3),
        "mean η": lambda g: _number(g.values("residual_mean"), 3),
        "log2 p": lambda g: _log2(g.values("residual_log2_p")),
        "overwritten: least η": lambda g: _number(g.values("thief_least"), 3),
        "mean η ": lambda g: _number(g.values("thief_mean"), 3),
        "log2 p ": lambda g: _log2(g.values("thief_log2_p")),
        "owner named": _claimed,
        "accuracy": lambda g: _points(g.loss("thief_accuracy", "accuracy")),
    },
    "Forging and stealth": {
        "all bits: edit": lambda g: _number(g.values("forge_edit")),
        "accuracy": lambda g: _points(g.loss("forged", "accuracy")),
        "statistics anew": lambda g: _points(g.loss("forged_estimated", "accuracy")),
        "enough: edit": lambda g: _number(g.values("least_edit")),
        "accuracy ": lambda g: _points(g.loss("least_forged", "accuracy")),
        "for η ≥ 0.95: edit": lambda g: _number(g.values("strict_edit")),
        "accuracy  ": lambda g: _points(g.loss("strict_forged", "accuracy")),
        "told apart": _told,
    },
}
"""Tables of every size, load and λ."""

_TOGETHER: dict[str, Callable[[Group], str]] = {
    "accuracy": lambda g: _points(g.by_seed(lambda own: own.loss("accuracy", "plain_accuracy"))),
    "shards per epoch": lambda g: _number([r.shards / r.epochs for r in g.rows]),
    "largest edit": lambda g: _number(g.values("edit")),
    "residual: mean η": lambda g: _number(g.values("residual_mean"), 3),
    "overwritten: mean η": lambda g: _number(g.values("thief_mean"), 3),
    "owner named": _claimed,
    "forged, all bits: accuracy": lambda g: _points(
        g.by_seed(lambda own: own.loss("forged", "accuracy"))
    ),
    "told apart": _told,
}

_SWEPT: tuple[tuple[str, Callable[[Sequence[Group]], list[Group]]], ...] = (
    ("By load, over sizes and seeds that all have", schemes_findings.by_load),
    ("By λ, over sizes and seeds that all have", schemes_findings.by_strength),
    ("By finishing budget, over sizes and seeds that all have", schemes_findings.by_budget),
)
"""Tables that put sizes together, and what makes their rows."""

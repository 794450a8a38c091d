"""The part of docs/results.md about evidence of effort, and the tables it is made of."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from polo_lab.attacks.effort import ATTACKS
from polo_lab.effort.catalogue import TASKS
from polo_lab.experiments.effort_rows import ERROR, HONEST, UNDECIDED, Row
from polo_lab.experiments.lines import Recording
from polo_lab.experiments.origin import origins
from polo_lab.experiments.statistics import clopper_pearson, median
from polo_lab.experiments.table import Table, markdown

TERMS: dict[str, tuple[str, ...]] = {
    "chain": (),
    "chain, start": ("start",),
    "chain, start, progress": ("start", "progress"),
    "chain, start, replay": ("start", "replay"),
    "all": ("start", "progress", "replay"),
}
"""Columns of the table: what terms might ask for. The paper's chain is the first."""

WORDS = """\
An honest run trains a model with a prover attached, is challenged, answers, and is verified. An
attack makes a proof under the same terms without that training, or without all of it. Its cost is a
part of that of the honest run of the same case, which ran right before it in the same process: in
seconds, and in gradient steps, counted in full batches. An attack is *cheap* if it takes less than
half of the gradient steps; every cheap attack must be rejected by all levels together. Time stands
beside it; in runs of a second much of it goes into files and checks, which forgers do without, and
runs that share a machine wait for each other. Gradient steps are counted as libraries make them,
with every product of every row; `docs/threat-model.md` says what zeros of single rows would save.

Rejected means: not accepted, be it for a failed check or for one that could not be decided; how
many ended undecided stands beside. Nobody is paid for such a verdict, and nobody is shown to have
cheated: who names a machine that rounds otherwise, where the terms allow no deviation, gets no
further than that.

Intervals are Clopper–Pearson, 95 %, over the tasks, optimizers and schedules that are named; an
attack that works on one task only has no rate elsewhere. Keys, nonces, starts, orders and salts
come from the recorded seed of a case; what a verifier draws, and the secret of the noise, from the
system's randomness.

Levels are judged one by one as well: a column says what terms would have said that ask for no more
than its head names. `docs/threat-model.md` says what each level shows."""


def retried(replays: float, shards: int, last: int) -> str:
    """What passes in the end if a forger may enrol again and again while a registry draws.

    It fakes the first shards, gives the chain up when one of them is drawn from, and trains the
    last ones, until one of these is drawn from.

    Args:
        replays: Chance that a shard is drawn from while the chain grows.
        shards: Shards of a chain.
        last: How many of them are trained.
    """
    caught = 1 - (1 - replays) ** last
    enrolments, trained = 1 / ((1 - replays) ** (shards - last) * caught), last / caught
    return (
        "Computed, and not run: **whoever may enrol again and again while a registry draws passes "
        f"in the end for {trained / shards:.0%} of the training**, if each shard is drawn from "
        f"with a chance of {replays:g}, chains have {shards} shards, and the {last} last ones are "
        f"trained; it takes about {enrolments:.0f} enrolments, and the registry's verdict counts "
        "those that failed. `docs/threat-model.md` has the argument and what helps against it."
    )


def tables(recording: Recording) -> Iterator[Table]:
    """Attacks by level, honest runs, single checks, and costs."""
    honest, attacked, _ = _sides([Row.of(line) for line in recording.lines])
    yield _table(attacked)
    yield _honest(honest)
    yield _checks(honest, attacked)
    yield _cost(honest)


def _sides(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Honest runs, attacked ones, and attacks that found nothing to leave out."""
    attacked = [row for row in rows if row.attack != HONEST]
    return (
        [row for row in rows if row.attack == HONEST],
        [row for row in attacked if row.possible],
        [row for row in attacked if not row.possible],
    )


def sections(name: str, recording: Recording) -> Iterator[str]:
    """An experiment's part of the page, piece by piece."""
    rows = [Row.of(line) for line in recording.lines]
    honest, attacked, futile = _sides(rows)
    title = f"{name}: {len(honest)} honest and {len(attacked)} attacked runs"
    yield f"## {title[0].upper()}{title[1:]}"
    yield from _setting(recording, rows)
    yield "### What still passes"
    yield _passing(attacked)
    if futile:
        yield _futile(futile)
    if alarms := [row for row in honest if row.outcome != ERROR and not row.accepted]:
        yield "### Honest runs that were not accepted"
        yield "\n".join(map(_alarm, alarms))
    for table in tables(recording):
        yield f"### {table.title}"
        yield markdown(table)


def _setting(recording: Recording, rows: Sequence[Row]) -> Iterator[str]:
    yield from origins(recording)
    if most := max((row.tolerance for row in rows), default=0):
        yield (
            f"Terms allow a deviation of {most} millionths of a segment's move where platforms "
            "differ. Honest runs are judged as on another machine, whose gradients are all off by "
            "a few last binary digits; attacks say that they were made on another machine."
        )
    lines = ["Tasks:"]
    for task in dict.fromkeys(row.task for row in rows):
        entry, own = TASKS[task], [row for row in rows if row.task == task]
        lengths = sorted({row.honest_steps for row in own if row.honest_steps} or {0})
        steps = " to ".join(str(count) for count in dict.fromkeys((lengths[0], lengths[-1])))
        optimizers = ", ".join(sorted({row.optimizer for row in own}))
        schedules = ", ".join(sorted({row.schedule for row in own}))
        lines.append(f"- {task}: {entry.title}; {steps} steps; {optimizers}; {schedules}.")
    yield "\n".join([lines[0], "", *lines[1:]])


def _passing(attacked: Sequence[Row]) -> str:
    """Attacks that all levels together accepted, the cheapest first."""
    passing = {
        name: [row for row in own if row.accepted]
        for name, own in _by_attack(attacked)
        if any(row.accepted for row in own)
    }
    of = Counter(row.attack for row in attacked if row.outcome != ERROR)
    cheapest = sorted(passing.items(), key=lambda item: min(row.step_share for row in item[1]))
    lines = [_passed(name, own, of[name]) for name, own in cheapest]
    if not lines and of:
        lines = [f"No attacked run was accepted by all levels: {_rate(0, of.total())}."]
    if broken := len(attacked) - of.total():
        lines.append(f"\n{broken} runs broke and are counted nowhere.")
    return "\n".join(lines)


def _passed(name: str, passed: Sequence[Row], trials: int) -> str:
    times, steps = (
        _span([getattr(row, k) for row in passed]) for k in ("time_share", "step_share")
    )
    cheap = sum(row.cheap for row in passed)
    note = next((row.note for row in passed if row.note), "")
    return (
        f"- **{name}: {_rate(len(passed), trials)} accepted by all levels, at {steps} of the "
        f"gradient steps and {times} of the time of honest training"
        + (f"; {cheap} of them cheap" if cheap else "")
        + "**"
        + (f". For instance: {note}." if note else "")
    )


def _futile(futile: Sequence[Row]) -> str:
    """Attacks that trained in full after all: what became of them says nothing about forgery."""
    tasks: dict[str, Counter[str]] = {}
    for row in futile:
        tasks.setdefault(row.attack, Counter())[row.task] += 1
    named = "; ".join(
        f"{name}, " + " and ".join(f"{count} on {task}" for task, count in own.items())
        for name, own in tasks.items()
    )
    accepted = sum(row.accepted for row in futile)
    return (
        f"In {len(futile)} further runs an attack found nothing to leave out and trained in full, "
        f"on the data it had chosen: {named}. {accepted} of them were accepted. They are no "
        "forgeries and count in no table."
    )


def _alarm(row: Row) -> str:
    case = f"{row.task}, {row.optimizer}, {row.schedule} rate, seed {row.seed}"
    return f"- **{case}: {row.outcome}** by {', '.join(row.faults)}."


def _table(attacked: Sequence[Row]) -> Table:
    head = (
        "attack", "time", "gradient steps", "accuracy − honest", *TERMS, "of them undecided",
        "95 % interval",
    )  # fmt: skip
    lines = []
    for name, own in _by_attack(attacked):
        cells = [str(sum(not row.accepted_by(*asked) for row in own)) for asked in TERMS.values()]
        rejected = sum(not row.accepted for row in own)
        cells[-1] = f"{rejected} of {len(own)}"
        text = f"**{name}**" if rejected < len(own) else name
        open_ = str(sum(row.outcome == UNDECIDED for row in own))
        lines.append((text, *_costs(own), *cells, open_, _interval(rejected, len(own))))
    return Table("Attack × level: rejected runs", head, lines)


def _costs(own: Sequence[Row]) -> tuple[str, str, str]:
    gains = [
        r.accuracy - r.honest_accuracy for r in own if r.accuracy is not None and r.honest_accuracy
    ]
    return (
        _span([row.time_share for row in own]),
        _span([row.step_share for row in own]),
        f"{100 * median(gains):+.1f} points" if gains else "–",
    )


def _honest(honest: Sequence[Row]) -> Table:
    judged = [row for row in honest if row.outcome != ERROR]
    kinds: dict[str, Callable[[Row], str]] = {
        "task": lambda row: row.task,
        "optimizer": lambda row: row.optimizer,
        "schedule": lambda row: row.schedule,
    }
    lines = [("all", *_alarms(judged))] if judged else []
    for kind, of in kinds.items():
        for value in dict.fromkeys(map(of, judged)):
            own = [row for row in judged if of(row) == value]
            lines.append((f"{kind} {value}", *_alarms(own)))
    head = ("honest runs", *TERMS, "95 % interval of false alarms", "work by `width`")
    return Table("Honest runs", head, lines)


def _alarms(own: Sequence[Row]) -> tuple[str, ...]:
    cells = [str(sum(not row.accepted_by(*asked) for row in own)) for asked in TERMS.values()]
    alarms = sum(not row.accepted for row in own)
    cells[-1] = f"{alarms} of {len(own)}"
    works = [row.work for row in own if row.work is not None]
    return (*cells, _interval(alarms, len(own)), _span(works) if works else "–")


def _checks(honest: Sequence[Row], attacked: Sequence[Row]) -> Table:
    """How often each check of start, progress and replay objects, to honest runs and to others."""
    names = sorted({fault for row in (*honest, *attacked) for fault in row.faults})
    lines = []
    for name in names:
        sides = [[row for row in side if row.outcome != ERROR] for side in (honest, attacked)]
        counts = [sum(name in row.faults for row in side) for side in sides]
        level, _, check = name.partition("/")
        rates = [
            _rate(hits, len(side)) if side else "–"
            for hits, side in zip(counts, sides, strict=True)
        ]
        lines.append((level, check, *rates))
    head = ("level", "check", "objects to honest runs", "objects to attacks")
    return Table("Error rates of single checks", head, lines)


def _cost(honest: Sequence[Row]) -> Table:
    head = (
        "task", "training", "waiting for the recorder", "prover's answer", "verifier, in all",
        "of it replay", "steps drawn",
    )  # fmt: skip
    lines = []
    for task in dict.fromkeys(row.task for row in honest):
        own = [row for row in honest if row.task == task and row.outcome != ERROR]
        if own:
            lines.append((task, *_times(own)))
    return Table("What it costs", head, lines)


def _times(own: Sequence[Row]) -> tuple[str, ...]:
    return (
        f"{median([row.seconds for row in own]):.2f} s",
        f"{median([row.waiting / row.seconds for row in own]):.1%}",
        f"{median([row.answering / row.seconds for row in own]):.0%} of training",
        f"{median([row.verifying / row.seconds for row in own]):.0%}",
        f"{median([row.replaying / row.seconds for row in own]):.0%}",
        f"{median([row.replayed / row.honest_steps for row in own]):.0%}",
    )


def attacks(found: Sequence[Recording]) -> Iterator[str]:
    """What every attack that was made does."""
    made = {line.settings["attack"] for recording in found for line in recording.lines}
    known = [attack for attack in ATTACKS if attack.name in made]
    lines = [(a.name, a.knowledge, a.data, a.budget, a.description) for a in known]
    yield "## The attacks"
    yield markdown(Table("", ("attack", "holds", "data", "spends", "what it does"), lines))


def _by_attack(attacked: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Runs that did not break, by attack; those that were accepted most often first."""
    judged = [row for row in attacked if row.outcome != ERROR]
    groups = {
        name: [row for row in judged if row.attack == name]
        for name in dict.fromkeys(row.attack for row in judged)
    }

    def accepted(item: tuple[str, list[Row]]) -> tuple[float, str]:
        return -sum(row.accepted for row in item[1]) / len(item[1]), item[0]

    return sorted(groups.items(), key=accepted)


def _rate(hits: int, trials: int) -> str:
    return f"{hits} of {trials} ({_interval(hits, trials)})"


def _interval(hits: int, trials: int) -> str:
    low, high = clopper_pearson(hits, trials)
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def _span(values: Sequence[float]) -> str:
    """Median, and from the least to the most."""
    low, high = min(values), max(values)
    text = f"{median(values):.1%}"
    return text if high - low < 0.0005 else f"{text} ({low:.1%} to {high:.1%})"

"""Shard rate, accuracy and time: every scheme and size on every pair, beside unmarked training."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once, part, percent, points, ratio, seconds, span
from polo_lab.experiments.paper.pairs import GRID, HEADLINE, LONG, PAIRS, QUICK
from polo_lab.experiments.paper.subject import (
    NONE,
    Marked,
    Marking,
    Subject,
    bare_tests,
    shown,
    subject_of,
    train_marked,
    train_plain,
    verified,
)
from polo_lab.experiments.statistics import median
from polo_lab.experiments.table import Table

SCHEMES = ("ednn", "riga", "fedipr-kernel", "fedipr")
PAPER = {"fedipr-kernel": "fedipr"}
"""FedIPR's marks lie in norm scales, of which few models have 8192; where they do not, its other
form, in kernels, stands beside."""

PACED = SCHEMES[:3]
"""Schemes that are pressed more seldom, too: those that fit the headline at the largest size."""

BITS = (2048, 1024, 512)
PACE = 8
"""Steps from press to press, beside one in every step: what makes marks cheap on a GPU."""


def units(quick: bool) -> Iterable[Settings]:
    """The headline at its full length first, then the largest size of all pairs, then the rest."""
    if quick:
        yield _unit(QUICK, NONE, 0, PAIRS[QUICK].epochs)
        for scheme in ("ednn", "fedipr"):
            yield _unit(QUICK, scheme, 128, PAIRS[QUICK].epochs)
        yield {**_unit(QUICK, PACED[0], 128, PAIRS[QUICK].epochs), "every": PACE}
        return
    yield _unit(HEADLINE, NONE, 0, LONG)
    for scheme in SCHEMES:
        yield _unit(HEADLINE, scheme, BITS[0], LONG)
    for pair in GRID:
        yield _unit(pair, NONE, 0, PAIRS[pair].epochs)
        for scheme in SCHEMES:
            yield _unit(pair, scheme, BITS[0], PAIRS[pair].epochs)
        if pair == HEADLINE:
            for scheme in PACED:
                yield {**_unit(pair, scheme, BITS[0], PAIRS[pair].epochs), "every": PACE}
    # The smaller sizes of a pair are neighbours, so that they share a bench and its compiled loop.
    for pair, bits, scheme in itertools.product(GRID, BITS[1:], SCHEMES):
        yield _unit(pair, scheme, bits, PAIRS[pair].epochs)


def _unit(pair: str, scheme: str, bits: int, epochs: int) -> Settings:
    return {"pair": pair, "scheme": scheme, "bits": bits, "epochs": epochs, "seed": 0}


def measure(settings: Settings, bench: Bench) -> Measured:
    """One training, and its verification; tables set a plain training of the same seed beside."""
    subject = subject_of(settings, bench)
    if settings["scheme"] == NONE:
        return _plainly(subject)
    marking = Marking(settings["scheme"], settings["bits"], every=settings.get("every"))
    return _judged(train_marked(subject, marking, bench.folder / "proof"))


def _plainly(subject: Subject) -> Measured:
    plain = train_plain(subject)
    tests = bare_tests(subject, plain.model)
    figures = {
        **shown(subject),
        "accuracy": plain.accuracy,
        "losses": [epoch.loss for epoch in plain.epochs],
        "compiled": plain.compiled,
        "problem": plain.problem,
        "test_passes": tests,
    }
    return Measured(figures, {"training": plain.seconds, "test": median(tests)})


def _judged(marked: Marked) -> Measured:
    tests = bare_tests(marked.subject, marked.model)
    found = {how: verified(marked, how) for how in ("none", "sample", "all")}
    before = [epoch.eta for epoch in marked.epochs if epoch.eta is not None]
    figures = {
        **shown(marked.subject),
        "accuracy": marked.accuracy,
        "shards": len(marked.etas),
        "shard_rate": marked.shard_rate,
        "reached": before,
        "sealed": marked.etas,
        "accepted": all(accepted for accepted, _ in found.values()),
        "precision": str(marked.subject.course.dtype(marked.subject.feed.device)),
        "compiled": marked.compiled,
        "problem": marked.problem,
        "test_passes": tests,
    }
    timings = {
        "training": marked.seconds,
        **marked.spent,
        "test": median(tests),
        **{f"verify_{how}": took for how, (_, took) in found.items()},
    }
    return Measured(figures, timings)


def wrong(line: Line) -> str:
    """An honest proof that was not accepted."""
    return "" if line.figures.get("accepted", True) else "an honest proof was not accepted"


def rows(recording: Recording, *, paced: bool = False) -> Iterator[dict[str, Any]]:
    """Values of marked runs, with those of the plain run of the same seed under `plain`.

    Args:
        recording: The lines.
        paced: Those that are pressed more seldom than their scheme usually is, and not the others.
    """
    plain = {_place(line): line for line in recording.done if line.settings["scheme"] == NONE}
    for line in recording.done:
        if line.settings["scheme"] != NONE and paced == ("every" in line.settings):
            beside = plain.get(_place(line))
            yield {**line.values, "at_once": at_once(line), "plain": _beside(line, beside)}


def _place(line: Line) -> tuple[Any, ...]:
    return tuple(line.settings[name] for name in ("pair", "epochs", "seed"))


def _beside(line: Line, plain: Line | None) -> dict[str, Any]:
    """Accuracy of a plain run; its seconds too, where both had the machine to the same extent."""
    if plain is None:
        return {}
    found = {"accuracy": plain.figures["accuracy"]}
    gpus = [own.machine["gpu"] if own.machine else "" for own in (line, plain)]
    if at_once(line) == at_once(plain) and len(set(gpus)) == 1:
        found["training"] = plain.timings["training"]
    return found


_HEAD = (
    "pair", "data", "scheme", "bits", "epochs", "|s|", "η by training alone", "accuracy",
    "less plain", "the paper's |s|", "its accuracy", "at once", "compiled", "training", "of plain",
    "marks verified", "of training", "with all tests", "bare tests", "of bare tests", "sampled",
)  # fmt: skip

_WORDS = """\
A shard may end after every epoch; |s| is shards for each epoch. Marks that training has not pressed
to η ≥ 0.99 by then are finished by an edit, as the paper finishes them by its perturbation δW. It
does not say how δW is computed, and has fewer shards than epochs; our edit is in closed form and
turns every bit that is left. What training alone reached stands beside. *Of plain*:
training without the tests of its shards, which plain training does not make, against plain training
that shared the machine with as many others.
Verifying marks is hashing, deriving and reading all of them. With tests the accuracy of every shard
is measured, too; *bare tests* are as many tests of a model that is there already, each the median
of five. *Compiled*: how steps were; *no* where they ran without. The paper's figures are from other
machines and, for CIFAR-100, other data. *At once*: how many runs shared the machine; where it is
more than one, times are longer than they need to be."""


def tables(recording: Recording) -> Iterator[Table]:
    """The paper's table of shard rates, ours beside it."""
    marked = [_cells(row) for row in rows(recording)]
    yield Table("Shard rate, accuracy and time", _HEAD, marked, _WORDS)
    yield Table(
        "Plain training",
        (
            "pair", "data", "weights", "epochs", "accuracy", "at once", "compiled", "training",
            "one test",
        ),
        [_plain(line) for line in recording.done if line.settings["scheme"] == NONE],
    )  # fmt: skip
    yield _paces(recording)


_PACES = """\
A press in every k-th step is k times as strong, so that a mark gets as much of a push, and there
are fewer of them. *Embedding* is what presses took of the host's time; of runs that share a machine
it says little."""


def _paces(recording: Recording) -> Table:
    """Runs that are pressed more seldom, each after the one that is pressed as usual."""
    usual = {_marks(row): row for row in rows(recording)}
    cells = []
    for row in rows(recording, paced=True):
        pairs = [(1, usual[_marks(row)])] if _marks(row) in usual else []
        for every, own in [*pairs, (row["every"], row)]:
            plain = own["plain"]
            cells.append((
                own["pair"], own["scheme"], str(own["bits"]), str(own["epochs"]), str(every),
                percent(own["shard_rate"]), span(own["reached"]), percent(own["accuracy"], 2),
                points(own["accuracy"] - plain["accuracy"] if plain else None), own["at_once"],
                seconds(own["training"]), seconds(own["embedding"]),
                ratio(own["training"] - own["tests"], plain.get("training")),
            ))  # fmt: skip
    head = (
        "pair", "scheme", "bits", "epochs", "pressed every … steps", "|s|",
        "η by training alone, median and range", "accuracy", "less plain", "at once", "training",
        "embedding", "of plain",
    )  # fmt: skip
    return Table("Marks that are pressed more seldom", head, cells, _PACES)


def _marks(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("pair", "scheme", "bits", "epochs", "seed"))


def _plain(line: Line) -> tuple[str, ...]:
    row = line.values
    return (
        row["pair"], row["data"], f"{row['weights']:,}", str(row["epochs"]),
        percent(row["accuracy"], 2), at_once(line), row["compiled"] or "no",
        seconds(row["training"]), seconds(row["test"]),
    )  # fmt: skip


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    theirs = {"pair": PAIRS[row["pair"]].paper, "bits": row["bits"]}
    theirs["scheme"] = PAPER.get(row["scheme"], row["scheme"])
    rate, accuracy = (
        published.figure("fidelity", what, **theirs) for what in ("shard_rate", "accuracy")
    )
    bare = row["test"] * row["shards"]
    reached = sum(row["reached"]) / len(row["reached"]) if row["reached"] else None
    plain = row["plain"].get("accuracy")
    return (
        row["pair"],
        row["data"],
        row["scheme"],
        str(row["bits"]),
        str(row["epochs"]),
        percent(row["shard_rate"]),
        percent(reached),
        percent(row["accuracy"], 2),
        points(None if plain is None else row["accuracy"] - plain),
        "–" if rate is None else f"{rate:.1f} %",
        "–" if accuracy is None else f"{accuracy:.2f} %",
        row["at_once"],
        row["compiled"] or "no",
        seconds(row["training"]),
        ratio(row["training"] - row["tests"], row["plain"].get("training")),
        seconds(row["verify_none"]),
        part(row["verify_none"], row["training"]),
        seconds(row["verify_all"]),
        seconds(bare),
        ratio(row["verify_all"], bare),
        seconds(row["verify_sample"]),
    )


EXPERIMENTS = (
    Experiment(
        name="fidelity",
        title="shard rate, accuracy and time of three schemes and three sizes on eight pairs",
        units=units,
        measure=measure,
        tables=tables,
        group=("pair", "epochs", "seed"),
        wrong=wrong,
        needs="POLO_DATA and a GPU",
        gpu=lambda settings: settings["pair"] != QUICK,
        ordered=True,
    ),
)

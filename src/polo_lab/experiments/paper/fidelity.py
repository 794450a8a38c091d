"""Shard rate, accuracy and time: every scheme and size on every pair, beside unmarked training."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once, part, percent, points, ratio, seconds
from polo_lab.experiments.paper.pairs import GRID, HEADLINE, LONG, PAIRS, QUICK
from polo_lab.experiments.paper.subject import (
    Marked,
    Marking,
    Plain,
    plain_of,
    shown,
    subject_of,
    train_marked,
    verified,
)
from polo_lab.experiments.table import Table

NONE = "none"
SCHEMES = ("ednn", "riga", "fedipr-kernel", "fedipr")
PAPER = {"fedipr-kernel": "fedipr"}
"""FedIPR's marks lie in norm scales, of which few models have 8192; where they do not, its other
form, in kernels, stands beside."""

BITS = (2048, 1024, 512)


def units(quick: bool) -> Iterable[Settings]:
    """The headline at its full length first, then the grid."""
    if quick:
        yield _unit(QUICK, NONE, 0, PAIRS[QUICK].epochs)
        for scheme in ("ednn", "fedipr"):
            yield _unit(QUICK, scheme, 128, PAIRS[QUICK].epochs)
        return
    yield _unit(HEADLINE, NONE, 0, LONG)
    for scheme in SCHEMES:
        yield _unit(HEADLINE, scheme, BITS[0], LONG)
    for pair in GRID:
        yield _unit(pair, NONE, 0, PAIRS[pair].epochs)
        for bits, scheme in itertools.product(BITS, SCHEMES):
            yield _unit(pair, scheme, bits, PAIRS[pair].epochs)


def _unit(pair: str, scheme: str, bits: int, epochs: int) -> Settings:
    return {"pair": pair, "scheme": scheme, "bits": bits, "epochs": epochs, "seed": 0}


def measure(settings: Settings, bench: Bench) -> Measured:
    """One training, and its verification."""
    subject = subject_of(settings, bench)
    plain = plain_of(subject, bench)
    about = {**shown(subject), "plain_accuracy": plain.accuracy}
    times = {"plain": plain.seconds, "test": plain.testing}
    if settings["scheme"] == NONE:
        figures = {
            **about,
            "accuracy": plain.accuracy,
            "losses": [e.loss for e in plain.epochs],
            "compiled": plain.compiled,
        }
        return Measured(figures, {**times, "training": plain.seconds})
    marking = Marking(settings["scheme"], settings["bits"])
    marked = train_marked(subject, marking, bench.folder / "proof")
    return _judged(marked, plain, about, times)


def _judged(
    marked: Marked, plain: Plain, about: dict[str, Any], times: dict[str, float]
) -> Measured:
    found = {how: verified(marked, how) for how in ("none", "sample", "all")}
    before = [epoch.eta for epoch in marked.epochs if epoch.eta is not None]
    figures = {
        **about,
        "accuracy": marked.accuracy,
        "shards": len(marked.etas),
        "shard_rate": marked.shard_rate,
        "reached": before,
        "sealed": marked.etas,
        "accepted": all(accepted for accepted, _ in found.values()),
        "precision": str(marked.subject.course.dtype(marked.subject.feed.device)),
        "compiled": marked.compiled,
    }
    timings = {
        **times,
        "training": marked.seconds,
        **marked.spent,
        **{f"verify_{how}": took for how, (_, took) in found.items()},
    }
    return Measured(figures, timings)


def wrong(line: Line) -> str:
    """An honest proof that was not accepted."""
    return "" if line.figures.get("accepted", True) else "an honest proof was not accepted"


_HEAD = (
    "pair", "data", "scheme", "bits", "epochs", "|s|", "η by training alone", "accuracy",
    "less plain", "the paper's |s|", "its accuracy", "at once", "training", "of plain",
    "marks verified", "of training", "with all tests", "of bare tests", "sampled",
)  # fmt: skip

_WORDS = """\
A shard may end after every epoch; |s| is shards for each epoch. Marks that training has not pressed
to η ≥ 0.99 by then are finished by a closed-form edit, which the paper does not have; what training
alone reached stands beside. Verifying marks is hashing, deriving and reading all of them. With
tests the accuracy of every shard is measured, too, which is compared with the bare tests. The
paper's figures are from other machines and, for CIFAR-100, other data. *At once*: how many runs
shared the machine; where it is more than one, times are longer than they need to be."""


def tables(recording: Recording) -> Iterator[Table]:
    """The paper's table of shard rates, ours beside it."""
    marked = [_cells(line) for line in recording.done if line.settings["scheme"] != NONE]
    yield Table("Shard rate, accuracy and time", _HEAD, marked, _WORDS)
    yield Table(
        "Plain training",
        ("pair", "data", "weights", "epochs", "accuracy", "at once", "training", "one test"),
        [_plain(line) for line in recording.done if line.settings["scheme"] == NONE],
    )


def _plain(line: Line) -> tuple[str, ...]:
    row = line.values
    return (
        row["pair"], row["data"], f"{row['weights']:,}", str(row["epochs"]),
        percent(row["accuracy"], 2), at_once(line), seconds(row["training"]),
        seconds(row["test"]),
    )  # fmt: skip


def _cells(line: Line) -> tuple[str, ...]:
    row = line.values
    theirs = {"pair": PAIRS[row["pair"]].paper, "bits": row["bits"]}
    theirs["scheme"] = PAPER.get(row["scheme"], row["scheme"])
    rate, accuracy = (
        published.figure("fidelity", what, **theirs) for what in ("shard_rate", "accuracy")
    )
    bare = row["test"] * row["shards"]
    reached = sum(row["reached"]) / len(row["reached"]) if row["reached"] else None
    return (
        row["pair"],
        row["data"],
        row["scheme"],
        str(row["bits"]),
        str(row["epochs"]),
        percent(row["shard_rate"]),
        percent(reached),
        percent(row["accuracy"], 2),
        points(row["accuracy"] - row["plain_accuracy"]),
        "–" if rate is None else f"{rate:.1f} %",
        "–" if accuracy is None else f"{accuracy:.2f} %",
        at_once(line),
        seconds(row["training"]),
        ratio(row["training"], row["plain"]),
        seconds(row["verify_none"]),
        part(row["verify_none"], row["training"]),
        seconds(row["verify_all"]),
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
    ),
)

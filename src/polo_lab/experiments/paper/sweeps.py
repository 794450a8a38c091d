"""Learning rate and η_G: how they change the shard rate and accuracy.

Every run is made twice: with the edit that ends a shard, which stands for the paper's δW, and
without it, where |s| says how fast training itself presses.
"""

from collections.abc import Callable, Iterable, Iterator

from polo_lab.experiments.chart import Chart, Series
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once, percent, points, seconds
from polo_lab.experiments.paper.pairs import HEADLINE, PAIRS, QUICK
from polo_lab.experiments.paper.subject import (
    Marking,
    plain_accuracy,
    shown,
    subject_of,
    train_marked,
)
from polo_lab.experiments.table import Table

RATES = {
    HEADLINE: (0.01, 0.1, 0.2),
    "textcnn/agnews": (0.0005, 0.005, 0.01),
    QUICK: (0.02, 0.1, 0.2),
}
"""The paper's rates; the text model has Adam here, whose rates are others."""

THRESHOLDS = (0.85, 0.95, 0.99)
SCHEME = "riga"
"""The paper does not name it; its rates here are those of RIGA at 1024 bits in its larger table."""

STRENGTH = 0.01
"""λ of the paper."""

SLOWER = (2, 4)
"""How many times as long shards take without δW, as the paper says where it defines it."""

_SMALL = 20
"""Epochs of digits, the last of the pairs, which need no GPU."""


def _rates(quick: bool) -> Iterable[Settings]:
    if quick:
        for rate in RATES[QUICK][:2]:
            yield from _units(QUICK, rate, 0.85, PAIRS[QUICK].epochs)
        return
    for pair, rates in RATES.items():
        for rate in rates:
            yield from _units(pair, rate, 0.99, _epochs(pair))


def _thresholds(quick: bool) -> Iterable[Settings]:
    if quick:
        usual = PAIRS[QUICK].task.course.rate
        for embed in THRESHOLDS[:2]:
            yield from _units(QUICK, usual, embed, PAIRS[QUICK].epochs)
        return
    for pair in RATES:
        for embed in THRESHOLDS:
            yield from _units(pair, PAIRS[pair].task.course.rate, embed, _epochs(pair))


def _epochs(pair: str) -> int:
    return _SMALL if pair == QUICK else PAIRS[pair].epochs


def _units(pair: str, rate: float, embed: float, epochs: int) -> Iterator[Settings]:
    """The same run with the finishing edit and without."""
    for finish in (True, False):
        yield {
            "pair": pair,
            "scheme": SCHEME,
            "bits": 256 if pair == QUICK else 1024,
            "rate": rate,
            "eta_g": embed,
            "finish": finish,
            "strength": STRENGTH,
            "epochs": epochs,
            "seed": 0,
        }


def measure(settings: Settings, bench: Bench) -> Measured:
    """One training; without the edit its shards end when training itself has pressed them."""
    subject = subject_of(settings, bench)
    marking = Marking(
        settings["scheme"],
        settings["bits"],
        embed=settings["eta_g"],
        finish=settings["finish"],
        strength=settings["strength"],
    )
    # First, since terms or capacity may refuse it.
    marked = train_marked(subject, marking, bench.folder / "proof")
    figures = {
        **shown(subject),
        "shards": len(marked.etas),
        "shard_rate": marked.shard_rate,
        "accuracy": marked.accuracy,
        "plain_accuracy": plain_accuracy(settings, subject, bench),
        "reached": [epoch.eta for epoch in marked.epochs if epoch.eta is not None],
    }
    return Measured(figures, {"training": marked.seconds, **marked.spent})


_HEAD = (
    "pair", "data", "rate", "η_G", "δW", "epochs", "shards", "|s|", "accuracy", "less plain",
    "at once", "training", "the paper's |s|", "its accuracy",
)  # fmt: skip

_WORDS = """\
*δW*: whether an edit may end a shard, as the paper's perturbation δW does. *With* it ours turns, in
closed form, every bit that training has not, so that any epoch may end a shard; the paper, which
does not say how δW is computed, has fewer. *Without*, a shard ends after an epoch in which training
alone has brought its mark to η_G; the paper says that this takes 2 to 4 times as long. Its rates
are those of a method with δW and stand beside such rows alone. λ is the paper's 0.01, marks are
RIGA's. Texts are trained with AdamW here and with SGD there, so that equal rates are not the same.
*At once*: how many runs shared the machine."""


def _tables(name: str, setting: str, title: str) -> Callable[[Recording], Iterator[Table]]:
    def tables(recording: Recording) -> Iterator[Table]:
        cells = [_cells(name, setting, line) for line in recording.done]
        yield Table(title, _HEAD, cells, _WORDS)

    return tables


def _cells(name: str, setting: str, line: Line) -> tuple[str, ...]:
    row = line.values
    key = "rate" if setting == "rate" else "eta_g"
    theirs = {"pair": PAIRS[row["pair"]].paper, key: row[setting]}
    rate, accuracy = (
        published.figure(name, what, **theirs) if row["finish"] else None
        for what in ("shard_rate", "accuracy")
    )
    return (
        row["pair"], row["data"], f"{row['rate']:g}", f"{row['eta_g']:g}", named(row["finish"]),
        str(row["epochs"]), str(row["shards"]), percent(row["shard_rate"]),
        percent(row["accuracy"], 2), points(row["accuracy"] - row["plain_accuracy"]),
        at_once(line), seconds(row["training"]),
        "–" if rate is None else f"{rate:.1f} %", "–" if accuracy is None else f"{accuracy:.2f} %",
    )  # fmt: skip


def named(finish: bool) -> str:
    """Whether a run had the edit, in a word."""
    return "with" if finish else "without"


def _charts(setting: str, across: str) -> Callable[[Recording], list[Chart]]:
    def charts(recording: Recording) -> list[Chart]:
        rows = [line.values for line in recording.done]
        series = []
        for pair, finish in dict.fromkeys((row["pair"], row["finish"]) for row in rows):
            found = (row for row in rows if (row["pair"], row["finish"]) == (pair, finish))
            own, how = sorted(found, key=lambda r: r[setting]), f"{pair} {named(finish)} δW"
            series += [
                Series(f"{how}, |s|", [(r[setting], r["shard_rate"]) for r in own]),
                Series(f"{how}, accuracy", [(r[setting], r["accuracy"]) for r in own]),
            ]
        title = f"Shard rate and accuracy over {across}"
        return [Chart(title, across, "part of one", series)] if rows else []

    return charts


EXPERIMENTS = tuple(
    Experiment(
        name=name,
        title=title,
        units=own,
        measure=measure,
        tables=_tables(name, setting, title[0].upper() + title[1:]),
        charts=_charts(setting, across),
        group=("pair", "epochs", "seed"),
        needs="POLO_DATA and a GPU, but for digits",
    )
    for name, title, own, setting, across in (
        ("learning-rate", "shard rate by learning rate", _rates, "rate", "learning rate"),
        ("eta-g", "shard rate by the threshold of embedding", _thresholds, "eta_g", "η_G"),
    )
)

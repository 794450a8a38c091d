"""Learning rate and η_G: how they change the shard rate and accuracy.

Every run is made twice: with the edit that ends a shard, which stands for the paper's δW, and
without it, where |s| says how fast training itself presses.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from polo_lab.experiments.chart import Chart, Series
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings, key_of
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once, percent, points, seconds, span
from polo_lab.experiments.paper.pairs import HEADLINE, PAIRS, QUICK
from polo_lab.experiments.paper.subject import (
    Marking,
    plain_accuracy,
    shown,
    subject_of,
    train_marked,
)
from polo_lab.experiments.statistics import median
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

_SMALL = 20
"""Epochs of digits, the last of the pairs, which need no GPU."""

SEEDS = 10
"""Runs of each setting on digits: marks and keys are drawn anew, and |s| without δW varies."""


def _rates(quick: bool) -> Iterable[Settings]:
    if quick:
        for rate in RATES[QUICK][:2]:
            yield from _units(QUICK, rate, 0.85, PAIRS[QUICK].epochs)
        return
    for pair, seed in _repeated():
        for rate in RATES[pair]:
            yield from _units(pair, rate, 0.99, _epochs(pair), seed)


def _thresholds(quick: bool) -> Iterable[Settings]:
    if quick:
        usual = PAIRS[QUICK].task.course.rate
        for embed in THRESHOLDS[:2]:
            yield from _units(QUICK, usual, embed, PAIRS[QUICK].epochs)
        return
    for pair, seed in _repeated():
        for embed in THRESHOLDS:
            yield from _units(pair, PAIRS[pair].task.course.rate, embed, _epochs(pair), seed)


def _repeated() -> Iterator[tuple[str, int]]:
    for pair in RATES:
        for seed in range(SEEDS if pair == QUICK else 1):
            yield pair, seed


def _epochs(pair: str) -> int:
    return _SMALL if pair == QUICK else PAIRS[pair].epochs


def _units(pair: str, rate: float, embed: float, epochs: int, seed: int = 0) -> Iterator[Settings]:
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
            "seed": seed,
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


@dataclass(frozen=True)
class Swept:
    """Runs that differ in their seeds alone.

    Attributes:
        settings: Their settings, without the seed.
        lines: Their lines.
    """

    settings: Settings
    lines: list[Line]

    @property
    def curve(self) -> tuple[str, bool]:
        """What is drawn as one line: the pair, and whether an edit may end a shard."""
        return self.settings["pair"], self.settings["finish"]

    @property
    def shard_rate(self) -> float:
        """Shards for each epoch, the median."""
        return median(self.all("shard_rate"))

    def all(self, name: str) -> list[Any]:
        """A value of every run."""
        return [line.values[name] for line in self.lines]


def swept(recording: Recording) -> list[Swept]:
    """Recorded runs, setting by setting."""
    found: dict[str, Swept] = {}
    for line in recording.done:
        settings = {name: value for name, value in line.settings.items() if name != "seed"}
        found.setdefault(key_of(settings), Swept(settings, [])).lines.append(line)
    return list(found.values())


_HEAD = (
    "pair", "data", "rate", "η_G", "δW", "epochs", "runs", "|s|", "accuracy", "less plain",
    "at once", "training", "the paper's |s|", "its accuracy",
)  # fmt: skip

_WORDS = """\
*δW*: whether an edit may end a shard, as the paper's perturbation δW does. *With* it ours turns, in
closed form, every bit that training has not, so that any epoch may end a shard; the paper, which
does not say how δW is computed, has fewer. *Without*, a shard ends after an epoch in which training
alone has brought its mark to η_G, which by the paper, too, takes several times as long. Its rates
are those of a method with δW and stand beside such rows alone. λ is the paper's 0.01, marks are
RIGA's. Texts are trained with AdamW here and with SGD there, so that equal rates are not the same.
Where there are several *runs*, each with a seed of its own, figures are medians, with the least and
the most of |s| and accuracy beside. *At once*: how many runs shared the machine."""


def _tables(name: str, setting: str, title: str) -> Callable[[Recording], Iterator[Table]]:
    def tables(recording: Recording) -> Iterator[Table]:
        cells = [_cells(name, setting, runs) for runs in swept(recording)]
        yield Table(title, _HEAD, cells, _WORDS)

    return tables


def _cells(name: str, setting: str, runs: Swept) -> tuple[str, ...]:
    row = runs.settings
    theirs = {"pair": PAIRS[row["pair"]].paper, setting: row[setting]}
    rate, accuracy = (
        published.figure(name, what, **theirs) if row["finish"] else None
        for what in ("shard_rate", "accuracy")
    )
    pairs = zip(runs.all("accuracy"), runs.all("plain_accuracy"), strict=True)
    return (
        row["pair"], runs.all("data")[0], f"{row['rate']:g}", f"{row['eta_g']:g}",
        named(row["finish"]), str(row["epochs"]), str(len(runs.lines)),
        _span(runs.all("shard_rate")), _span(runs.all("accuracy"), 2),
        points(median([own - plain for own, plain in pairs])),
        ", ".join(sorted({at_once(line) for line in runs.lines})),
        seconds(median(runs.all("training"))),
        "–" if rate is None else f"{rate:.1f} %", "–" if accuracy is None else f"{accuracy:.2f} %",
    )  # fmt: skip


def _span(values: list[float], digits: int = 1) -> str:
    return span(values, digits) if len(values) > 1 else percent(values[0], digits)


def named(finish: bool) -> str:
    """Whether a run had the edit, in a word."""
    return "with" if finish else "without"


def _charts(setting: str, across: str) -> Callable[[Recording], list[Chart]]:
    def charts(recording: Recording) -> list[Chart]:
        found, series = swept(recording), []
        for pair, finish in dict.fromkeys(runs.curve for runs in found):
            same = (runs for runs in found if runs.curve == (pair, finish))
            own, how = sorted(same, key=lambda r: r.settings[setting]), f"{pair} {named(finish)} δW"
            series += [
                Series(f"{how}, |s|", [(r.settings[setting], r.shard_rate) for r in own]),
                Series(
                    f"{how}, accuracy",
                    [(r.settings[setting], median(r.all("accuracy"))) for r in own],
                ),
            ]
        title = f"Shard rate and accuracy over {across}"
        return [Chart(title, across, "part of one", series)] if found else []

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
        gpu=lambda settings: settings["pair"] != QUICK,
    )
    for name, title, own, setting, across in (
        ("learning-rate", "shard rate by learning rate", _rates, "rate", "learning rate"),
        ("eta-g", "shard rate by the threshold of embedding", _thresholds, "eta_g", "η_G"),
    )
)

"""What an experiment is: units of work, how one is measured, and what is made of the lines."""

import math
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from polo_lab.experiments.chart import Chart
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.table import Table

Made = TypeVar("Made")

KEPT = Path(tempfile.gettempdir()) / f"polo-lab-kept-{os.getuid()}"
"""Where runs leave what a later call takes up."""


class Measured(NamedTuple):
    """What a run gave.

    Attributes:
        figures: What was measured.
        timings: Raw seconds, by name.
        note: What a reader should know.
    """

    figures: Mapping[str, Any]
    timings: Mapping[str, float] = {}
    note: str = ""

    @property
    def diverged(self) -> bool:
        """Whether a figure is no number."""
        return any(isinstance(v, float) and not math.isfinite(v) for v in self.figures.values())


class Refusal(Exception):  # noqa: N818
    """A run that cannot be: what was asked for does not fit. That is a result, and is recorded."""


@dataclass
class Bench:
    """What runs of one group share: a folder, and whatever is made once for all of them.

    Attributes:
        folder: A folder of the group's own; it goes when the group is done.
        quick: Whether the trimmed form of the experiment runs.
        results: Folder of recorded lines; None where nothing is recorded.
    """

    folder: Path
    quick: bool = False
    results: Path | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """What was made under this name, or is made now: a training that others compare with."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def recorded(self, name: str) -> Recording:
        """What is recorded of an experiment so far, by this call and by others."""
        from polo_lab.experiments import catalogue  # It imports experiments, which import this.

        return catalogue.recorded(name, self.results) if self.results else Recording()

    def kept(self, name: str) -> Path:
        """A folder that stays when the group is done; whoever needs it last removes it."""
        return KEPT / name


def _nothing(_: Recording) -> Sequence[Chart]:
    return ()


def _fine(_: Line) -> str:
    return ""


def _never(_: Settings) -> bool:
    return False


@dataclass(frozen=True)
class Experiment:
    """An experiment by name.

    Attributes:
        name: Its name.
        title: What it shows, in a few words.
        units: The settings of every run, headline first; those of the trimmed form if asked.
        measure: Measures one run.
        tables: Tables of recorded lines.
        charts: Charts of recorded lines.
        group: Settings that runs on one bench have in common.
        wrong: Why a line is as it must not be; empty if it is fine.
        workers: Processes of one thread each, by default; 0 measures in this one, as a GPU and
            whoever looks at the clock want it.
        needs: What its full form needs beside a processor.
        gpu: Whether a run of the full form needs a GPU; without one it is not begun.
        recorded: Name of the experiment that its lines are recorded under, if it is another view
            of the same runs.
        units_in: The settings of every run, where they come from what a folder has recorded.
        ordered: Whether runs keep the order of the units, so that only neighbours share a bench;
            otherwise all runs of a bench follow its first one.
    """

    name: str
    title: str
    units: Callable[[bool], Iterable[Settings]]
    measure: Callable[[Settings, Bench], Measured]
    tables: Callable[[Recording], Iterable[Table]]
    charts: Callable[[Recording], Sequence[Chart]] = _nothing
    group: tuple[str, ...] = ()
    wrong: Callable[[Line], str] = _fine
    workers: int = 0
    needs: str = ""
    gpu: Callable[[Settings], bool] = _never
    recorded: str = ""
    units_in: Callable[[Path], Iterable[Settings]] | None = None
    ordered: bool = False

    def units_of(self, quick: bool, results: Path) -> Iterable[Settings]:
        """The settings of every run, with lines in some folder."""
        return self.units(quick) if quick or not self.units_in else self.units_in(results)

    def names_of(self, results: Path) -> set[frozenset[str]]:
        """Names of settings that a run may have, those of either form."""
        units = (*self.units_of(False, results), *self.units(True))
        return {frozenset(unit) for unit in units}

    @property
    def lines(self) -> str:
        """Name of the file of its lines, without its ending."""
        return self.recorded or self.name

    def bench_of(self, settings: Settings) -> tuple[Any, ...]:
        """What tells the bench of a run from others."""
        return tuple(settings[name] for name in self.group)

"""Figures as files."""

from collections.abc import Sequence
from pathlib import Path

from polo.storage import atomic
from polo_lab.experiments.canvas import FORMATS
from polo_lab.experiments.chart import Chart


def names(name: str, count: int, form: str) -> list[str]:
    """Names of the files of an experiment's charts.

    >>> names("takeover", 2, "svg")
    ['takeover-1.svg', 'takeover-2.svg']
    """
    if count == 1:
        return [f"{name}.{form}"]
    return [f"{name}-{at}.{form}" for at in range(1, count + 1)]


def write(name: str, charts: Sequence[Chart], folder: Path, form: str) -> list[Path]:
    """Write the charts of an experiment; returns their paths.

    Args:
        name: The experiment, which files are named after.
        charts: The charts.
        folder: Where to write.
        form: `svg` or `png`.
    """
    paths = [folder / file for file in names(name, len(charts), form)]
    for path, chart in zip(paths, charts, strict=True):
        atomic.write(path, FORMATS[form](chart))
    return paths

"""The paper's own figures, from `results/paper.jsonl`; nothing of them was measured here."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polo_lab.experiments.lines import FOLDER


class Published(NamedTuple):
    """A row of a table of the paper.

    Attributes:
        table: The experiment that it belongs to.
        settings: What it is about.
        figures: What the paper says; rates and accuracies in percent, times in seconds.
    """

    table: str
    settings: Mapping[str, Any]
    figures: Mapping[str, float]


@functools.cache
def published(folder: Path = FOLDER) -> tuple[Published, ...]:
    """Everything that is kept of the paper."""
    path = folder / "paper.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    rows = (json.loads(line) for line in text.splitlines())
    return tuple(Published(row["table"], row["settings"], row["figures"]) for row in rows)


def table(name: str) -> list[Published]:
    """The rows of one table."""
    return [row for row in published() if row.table == name]


def figure(name: str, which: str, /, **settings: Any) -> float | None:
    """One figure of a table of the paper; None if it has none."""
    for row in table(name):
        if all(row.settings.get(key) == value for key, value in settings.items()):
            return row.figures.get(which)
    return None

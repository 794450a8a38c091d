"""Recorded results: every run as one short line of a JSON document under docs/recorded/."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from polo_lab.experiments import rows
from polo_lab.experiments.rows import Row

FOLDER = Path(__file__).parents[3] / "docs" / "recorded"
_PREFIX = "effort-"
_PARTS = ("chain", "start", "progress", "replay")
_ENDINGS = {word[0]: word for word in ("passed", "failed", "undecided")}
_COLUMNS = [field.name for field in fields(Row)]


class Recorded(NamedTuple):
    """An experiment that was recorded.

    Attributes:
        name: Its name.
        runs: Machine, command and time of every call that added to it.
        rows: Its runs.
    """

    name: str
    runs: list[dict[str, Any]]
    rows: list[Row]


def record(name: str, lines: Path, folder: Path = FOLDER) -> Path:
    """Keep the runs of a file of JSON lines."""
    headers, found = rows.read(lines)
    table = [_packed(row.to_json()) for row in rows.settled(found)]
    parts = ["{", f'"runs": {json.dumps(headers, ensure_ascii=False)},']
    parts += [f'"columns": {json.dumps(_COLUMNS)},', '"rows": [', ",\n".join(table)]
    path = folder / f"{_PREFIX}{name}.json"
    path.write_text("\n".join([*parts, "]", "}"]) + "\n", encoding="utf-8")
    return path


def _packed(values: dict[str, Any]) -> str:
    """A row on one line: a letter for how each level ended, and a note where it passed."""
    values["note"] = values["note"] if values["outcome"] == "accepted" else ""
    values["levels"] = "".join(values["levels"].get(part, "-")[0] for part in _PARTS)
    line = [values[name] for name in _COLUMNS]
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _unpacked(columns: Sequence[str], line: Sequence[Any]) -> Row:
    values = dict(zip(columns, line, strict=True))
    letters = zip(_PARTS, values["levels"], strict=True)
    values["levels"] = {part: _ENDINGS[letter] for part, letter in letters if letter != "-"}
    return Row.from_json(values)


def load(folder: Path = FOLDER) -> list[Recorded]:
    """Everything that was recorded; the experiments with most runs first."""
    found = [_loaded(path) for path in sorted(folder.glob(f"{_PREFIX}*.json"))]
    return sorted(found, key=lambda recorded: -len(recorded.rows))


def _loaded(path: Path) -> Recorded:
    value = json.loads(path.read_text(encoding="utf-8"))
    name = path.stem.removeprefix(_PREFIX)
    columns = value["columns"]
    return Recorded(name, value["runs"], [_unpacked(columns, line) for line in value["rows"]])

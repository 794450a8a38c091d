"""Recorded results: every run as one short line of a JSON document under docs/recorded/."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from polo_lab.experiments import rows
from polo_lab.experiments.rows import Row

FOLDER = Path(__file__).parents[3] / "docs" / "recorded"
_PREFIX = "effort-"


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
    """Keep the runs of a file of JSON lines; of repeated ones the last that did not break."""
    headers, found = rows.read(lines)
    last: dict[tuple[str, ...], Row] = {}
    for row in found:
        key = (row.task, row.optimizer, row.schedule, str(row.seed), row.attack)
        if key not in last or row.outcome != rows.ERROR:
            last[key] = row
    names = [field.name for field in fields(Row)]
    table = [[value[name] for name in names] for value in (row.to_json() for row in last.values())]
    parts = ["{", f'"runs": {json.dumps(headers, ensure_ascii=False)},']
    parts += [f'"columns": {json.dumps(names)},', '"rows": [']
    parts += [
        ",\n".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in table)
    ]
    path = folder / f"{_PREFIX}{name}.json"
    path.write_text("\n".join([*parts, "]", "}"]) + "\n", encoding="utf-8")
    return path


def load(folder: Path = FOLDER) -> list[Recorded]:
    """Everything that was recorded; the experiments with most runs first."""
    found = [_loaded(path) for path in sorted(folder.glob(f"{_PREFIX}*.json"))]
    return sorted(found, key=lambda recorded: -len(recorded.rows))


def _loaded(path: Path) -> Recorded:
    value = json.loads(path.read_text(encoding="utf-8"))
    named = [dict(zip(value["columns"], line, strict=True)) for line in value["rows"]]
    name = path.stem.removeprefix(_PREFIX)
    return Recorded(name, value["runs"], [Row.from_json(line) for line in named])

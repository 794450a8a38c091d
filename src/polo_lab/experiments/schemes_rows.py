"""One training with or without marks as a row: how it is recorded and read back."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from polo_lab.experiments import pool
from polo_lab.experiments.recorded import FOLDER

PLAIN = "none"
"""What stands for the scheme of a training without marks."""

_PREFIX = "schemes-"


@dataclass(frozen=True)
class Row:
    """One training and what was measured on its model.

    Attributes:
        task: Name of the course.
        scheme: Name of the scheme; `none` for training without marks.
        bits: Bits of each mark.
        load: Bits per weight of a block, in millionths.
        strength: λ, in millionths.
        share: Part of the carrier's blocks that one mark takes.
        seed: Seed of start and order.
        problem: Why there is nothing else; empty if there is.
        epochs: Epochs trained.
        shards: Shards sealed.
        accuracy: Accuracy of the finished model.
        plain_accuracy: That of training without marks from the same start.
        seconds: Training, sealing included.
        plain_seconds: Training without marks.
        reached: Detection rate at the end of an epoch before any finishing step, the mean.
        sealed: Detection rate of marks as they were sealed, the mean.
        edit: Largest edit of a finishing step, relative to its group's norm.
        residual_least: Weakest of all marks, read from the finished model.
        residual_mean: The mean of them.
        residual_log2_p: log2 p of all of them.
        thief_least: Weakest of the owner's marks after an overwriter's work.
        thief_mean: The mean of them.
        thief_log2_p: log2 p of all of them.
        thief_accuracy: Accuracy of the stolen model then.
        claimed: Whether `polo identify` still names the owner then.
        forge_edit: Size of a forger's edit, all bits turned, relative to the marked weights.
        forged: Accuracy after it.
        forged_estimated: The same with the statistics of batch-norm estimated anew, on inputs.
        least_edit: Size of the edit that turns just enough bits for a verifier.
        least_forged: Accuracy after that one.
        strict_edit: Size of the edit if the verifier asked for η ≥ 0.95.
        strict_forged: Accuracy after that one.
        told: A classifier's accuracy at telling marked from unmarked blocks.
        told_low: Lower end of its interval.
        told_high: Upper end.
        told_blocks: Blocks that it was tested on.
    """

    task: str
    scheme: str
    bits: int
    load: int
    strength: int
    seed: int
    share: float = 0.0
    problem: str = ""
    epochs: int = 0
    shards: int = 0
    accuracy: float | None = None
    plain_accuracy: float | None = None
    seconds: float | None = None
    plain_seconds: float | None = None
    reached: float | None = None
    sealed: float | None = None
    edit: float | None = None
    residual_least: float | None = None
    residual_mean: float | None = None
    residual_log2_p: float | None = None
    thief_least: float | None = None
    thief_mean: float | None = None
    thief_log2_p: float | None = None
    thief_accuracy: float | None = None
    claimed: bool | None = None
    forge_edit: float | None = None
    forged: float | None = None
    forged_estimated: float | None = None
    least_edit: float | None = None
    least_forged: float | None = None
    strict_edit: float | None = None
    strict_forged: float | None = None
    told: float | None = None
    told_low: float | None = None
    told_high: float | None = None
    told_blocks: int = 0

    @property
    def key(self) -> tuple[str, str, int, int, int, int]:
        """What was measured, and with which seed."""
        return (self.task, self.scheme, self.bits, self.load, self.strength, self.seed)

    def to_json(self) -> dict[str, Any]:
        """As plain values, rounded to what was measured."""
        values = dataclasses.asdict(self)
        return {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """From plain values."""
        return cls(**values)


class Recorded(NamedTuple):
    """An experiment that was recorded.

    Attributes:
        name: Its name.
        runs: Machine, command and time of every call that added to it.
        rows: Its trainings.
    """

    name: str
    runs: list[dict[str, Any]]
    rows: list[Row]


def read(path: Path) -> tuple[list[dict[str, Any]], list[Row]]:
    """Headers and rows of a file of JSON lines."""
    lines = list(pool.lines_of(path))
    found = [Row.from_json(line["row"]) for line in lines if "row" in line]
    return [line["run"] for line in lines if "run" in line], found


def settled(found: Iterable[Row]) -> list[Row]:
    """Each training once: of those that were repeated the last one that did not break."""
    last: dict[tuple[object, ...], Row] = {}
    for row in found:
        if row.key not in last or not row.problem:
            last[row.key] = row
    return list(last.values())


def record(name: str, lines: Path, folder: Path = FOLDER) -> Path:
    """Keep the rows of a file of JSON lines, each on one short line."""
    headers, found = read(lines)
    columns = [field.name for field in dataclasses.fields(Row)]
    table = [
        json.dumps([row.to_json()[column] for column in columns], separators=(",", ":"))
        for row in settled(found)
    ]
    parts = ["{", f'"runs": {json.dumps(headers, ensure_ascii=False)},']
    parts += [f'"columns": {json.dumps(columns)},', '"rows": [', ",\n".join(table), "]", "}"]
    path = folder / f"{_PREFIX}{name}.json"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path


def load(folder: Path = FOLDER) -> list[Recorded]:
    """Everything that was recorded, by name."""
    return [_loaded(path) for path in sorted(folder.glob(f"{_PREFIX}*.json"))]


def _loaded(path: Path) -> Recorded:
    value = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row.from_json(dict(zip(value["columns"], line, strict=True))) for line in value["rows"]]
    return Recorded(path.stem.removeprefix(_PREFIX), value["runs"], rows)

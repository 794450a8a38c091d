"""The part of docs/schemes.md about adapters of a language model."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polo_lab.experiments.recorded import FOLDER

RECORDED: Path = FOLDER / "lora.json"

Row = dict[str, Any]

_WORDS = """\
SmolLM2-135M, a pretrained language model, fine-tuned by LoRA on its query and value projections;
the proof covers the adapter, the terms name the base by its root. Accuracy is that of the next
token on held-out text. Each adapter is then merged into the base as PEFT does it, and
`polo identify --base` looks for the chain's marks in the full model, in float32 and bfloat16; and
in the model that an unmarked adapter was merged into, where it must name nobody."""

_HEAD = (
    "text", "scheme", "bits", "shards", "accuracy", "less unmarked", "η, verified",
    "η, merged", "log2 p", "η, bf16", "owner named", "stranger named",
    "step", "pressing", "verifying", "proof",
)  # fmt: skip


def record(lines: Path, path: Path) -> None:
    """Keep a file of JSON lines as a document; calls that added no row are left out."""
    runs: list[Row] = []
    rows: list[Row] = []
    header: Row | None = None
    for line in lines.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if "run" in found:
            header = found["run"]
        elif "row" in found:
            runs += [header] if header else []
            header = None
            rows.append(found["row"])
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    said = json.dumps(runs, ensure_ascii=False)
    path.write_text(f'{{\n"runs": {said},\n"rows": [\n{text}\n]\n}}\n', encoding="utf-8")


def load(path: Path) -> tuple[Sequence[Row], Sequence[Row]]:
    """Calls and rows that were recorded; none if there is no such document."""
    if not path.exists():
        return [], []
    value = json.loads(path.read_text(encoding="utf-8"))
    return value["runs"], value["rows"]


def sections(runs: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    """The part's text, piece by piece; nothing if nothing was recorded."""
    if not rows:
        return
    yield "## Adapters of a language model"
    yield _WORDS
    for run in runs:
        course = ", ".join(f"{name} {value:g}" for name, value in run["course"].items())
        yield (
            f"`{run['command']}` ({run['time'][:10]}) on {run['cpu']}, {run['cores']} cores"
            f"{', ' + run['gpu'] if run['gpu'] else ''}; {course}."
        )
    plain = {row["task"]: row for row in rows if not row["bits"]}
    for task, row in plain.items():
        yield (
            f"{task}: the base has {row['start']:.4f}, the unmarked adapter "
            f"{row['accuracy'][-1]:.4f}; a step takes {row['training']:.2f} s."
        )
    lines = [_HEAD, ("---",) * len(_HEAD)]
    lines += [_cells(row, plain.get(row["task"])) for row in rows if row["bits"]]
    yield "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(row: Row, plain: Row | None) -> tuple[str, ...]:
    merged, accuracy = row["merged"], row["accuracy"][-1] if row["accuracy"] else float("nan")
    named = sum(found["finding"] == "claim" for found in merged.values())
    lost = f"{100 * (accuracy - plain['accuracy'][-1]):+.1f} points" if plain else "–"
    return (
        row["task"],
        row["scheme"],
        str(row["bits"]),
        str(row["shards"]),
        f"{accuracy:.4f}",
        lost,
        f"{min(row['eta'], default=0.0):.3f}",
        f"{merged['float32']['eta']:.3f}",
        f"{merged['float32']['log2_p']:.0f}",
        f"{merged['bfloat16']['eta']:.3f}",
        f"{named} of {len(merged)}",
        "yes" if row["stranger"]["finding"] == "claim" else "no",
        f"{row['training']:.2f} s",
        f"{1000 * row['pressing']:.1f} ms",
        f"{row['verifying']:.0f} s",
        f"{row['proof_bytes'] / 1e6:.1f} MB",
    )

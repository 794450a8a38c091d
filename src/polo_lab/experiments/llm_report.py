"""The part of docs/schemes.md about adapters of a language model."""

from collections.abc import Iterator
from typing import Any

from polo_lab.experiments.lines import Recording
from polo_lab.experiments.origin import origins
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once
from polo_lab.experiments.table import Table, markdown
from polo_lab.models.shapes import TITLES

Row = dict[str, Any]

_WORDS = """\
Language models, fine-tuned by LoRA on their query and value projections; SmolLM2-135M is
pretrained. The proof covers the adapter, the terms name the base by its root. Accuracy is that of
the next token at {places} places of held-out text, where one more or less is {one:.2f} points:
differences of a few tenths mean nothing. Each adapter is then merged into the base as PEFT does it,
and `polo identify --base` looks for the chain's marks in the full model, in float32 and bfloat16;
and in the model that an unmarked adapter was merged into, where it must name nobody."""

_SHAPES = """\
These have random weights and say how long it takes, and nothing about accuracy: {shapes}. They are
in bfloat16 on a GPU, and no stranger is looked for in the large ones."""

_HEAD = (
    "model", "text", "scheme", "bits", "shards", "accuracy", "less unmarked", "η, verified",
    "η, merged", "log2 p", "η, bf16", "owner named", "stranger named", "at once",
    "step", "pressing", "verifying", "proof",
)  # fmt: skip

_COLUMNS = (
    "model", "text", "method", "bits", "loss", "steps", "at once", "training", "of it proving",
    "verifying", "marks alone", "one hash of the base",
)  # fmt: skip
_THEIRS = (
    "model", "text", "method", "bits", "loss", "|s|", "training", "of it proving", "verifying",
)  # fmt: skip
_MINUTES = ("training", "generation", "verification")

_TIMES = """\
*Verifying* is hashing the base that the terms name, reading all marks and testing all shards.
*Marks alone* leaves out base and tests; a verifier needs to hash a base only once, for all proofs
on it. Sealing hashes the base, too, to show that it stayed as it was, which is most of *proving*
where the base is large. A shard ends whenever it may, since the finishing step turns what training
has not: |s| would be 100 % in all rows, and is left out."""


def tables(recording: Recording) -> Iterator[Table]:
    """Adapters with marks beside adapters without."""
    rows = [{**line.values, "at_once": at_once(line)} for line in recording.done]
    plain = {(row["model"], row["task"]): row for row in rows if not row["bits"]}
    if not rows:
        return
    cells = [_cells(row, plain.get((row["model"], row["task"]))) for row in rows if row["bits"]]
    yield Table("Adapters of a language model", _HEAD, cells, _words(rows))
    yield _times(rows)
    yield _theirs()


def sections(recording: Recording) -> Iterator[str]:
    """The part's text, piece by piece; nothing if nothing was recorded."""
    found = list(tables(recording))
    if not found:
        return
    yield f"## {found[0].title}"
    yield found[0].words
    yield from origins(recording)
    for row in (line.values for line in recording.done):
        if not row["bits"]:
            yield (
                f"{_named(row)}, {row['task']}: the base has {row['start']:.4f}, the unmarked "
                f"adapter {row['accuracy'][-1]:.4f}; a step takes {row['training']:.3g} s."
            )
    yield markdown(found[0])
    for table in found[1:]:
        yield f"### {table.title}"
        yield from filter(None, (table.words, markdown(table)))


def _words(rows: list[Row]) -> str:
    from polo_lab.tasks.lora import HELD_OUT, WINDOW

    words = _WORDS.format(places=HELD_OUT * WINDOW, one=100 / (HELD_OUT * WINDOW))
    shapes = [_named(row) for row in rows if row["model"] in TITLES]
    told = _SHAPES.format(shapes="; ".join(dict.fromkeys(shapes)))
    return f"{words}\n{told}" if shapes else words


def _named(row: Row) -> str:
    return f"{row['model']} ({TITLES[row['model']]})" if row["model"] in TITLES else row["model"]


def _times(rows: list[Row]) -> Table:
    """The paper's columns: loss, and seconds of training, proving and verifying."""
    lines = []
    for row in rows:
        steps = row["shards"] * row["steps"]
        marked = bool(row["bits"])
        sealing = row["shards"] * row["sealing"] if marked else 0.0
        proving = steps * row["pressing"] + sealing
        lines.append(
            (
                row["model"],
                row["task"],
                row["scheme"] if marked else "full replay",
                str(row["bits"]) if marked else "–",
                f"{row['loss']:.4f}",
                str(steps),
                row["at_once"],
                f"{steps * row['training'] + sealing:.2f} s",
                f"{proving:.2f} s" if marked else "–",
                f"{row['verifying'] if marked else row['replaying']:.2f} s",
                f"{row['reading']:.2f} s" if marked and row.get("reading") else "–",
                f"{row['hashing']:.2f} s" if row.get("hashing") else "–",
            )
        )
    return Table("The same, in the paper's columns", _COLUMNS, lines, _TIMES)


def _theirs() -> Table:
    """What the paper says of its own models, on another machine."""
    lines = []
    for row in published.table("llm"):
        own, at = row.figures, row.settings
        lines.append(
            (
                at["model"],
                at["text"],
                "full replay" if at["method"] == "gd-pol" else at["method"],
                str(at["bits"] or "–"),
                f"{own['loss']:.4f}",
                f"{own['shard_rate']:.1f} %" if "shard_rate" in own else "–",
                *(f"{own[f'{what}_minutes']:.2f} min" for what in _MINUTES),
            )
        )
    return Table("The paper's own", _THEIRS, lines)


def _cells(row: Row, plain: Row | None) -> tuple[str, ...]:
    merged, accuracy = row["merged"], row["accuracy"][-1] if row["accuracy"] else float("nan")
    named = sum(found["finding"] == "claim" for found in merged.values())
    lost = f"{100 * (accuracy - plain['accuracy'][-1]):+.1f} points" if plain else "–"
    # Of models in bfloat16 there is no other form.
    whole, half = merged.get("float32"), merged["bfloat16"]
    return (
        row["model"],
        row["task"],
        row["scheme"],
        str(row["bits"]),
        str(row["sealed"]),
        f"{accuracy:.4f}",
        lost,
        f"{min(row['eta'], default=0.0):.3f}",
        f"{whole['eta']:.3f}" if whole else "–",
        f"{(whole or half)['log2_p']:.0f}",
        f"{half['eta']:.3f}",
        f"{named} of {len(merged)}",
        _stranger(row["stranger"]),
        row["at_once"],
        f"{row['training']:.2f} s",
        f"{1000 * row['pressing']:.1f} ms",
        f"{row['verifying']:.0f} s",
        f"{row['proof_bytes'] / 1e6:.1f} MB",
    )


def _stranger(found: Row) -> str:
    if not found:
        return "–"
    return "yes" if found["finding"] == "claim" else "no"

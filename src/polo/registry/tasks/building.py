"""What only the task's own code can tell: run as a program, in a process of its own. torch.

Reads a JSON object from standard input, `{"task": name, "bits": …, "options": {…}}`, and writes
one to standard output: the terms (without level receipts), the layout, and what the task is.
"""

import json
import sys
from typing import Any

from polo.errors import PoloError
from polo.protocol.canonical import encode


def build(asked: dict[str, Any]) -> dict[str, Any]:
    """Terms, layout and description of one task."""
    from polo import enrolment, tasks
    from polo.protocol.fields import Record
    from polo.tasks.training import HeldOut, Trainable
    from polo.weights.checkpoint import checkpoint_of

    task = tasks.load(asked["task"])
    options = {name: _option(value) for name, value in asked["options"].items()}
    terms = enrolment.make_terms(task, bits=asked["bits"], **options)
    if options.get("start") == "derived":
        from polo.evidence.start import drawn

        drawn(task.build_model(), bytes(32))
    levels = ["chain", "receipts", "uniqueness"]
    levels += ["progress"] * isinstance(task, HeldOut) + ["replay"] * isinstance(task, Trainable)
    columns: tuple[Record, ...] = getattr(task, "columns", ())
    return {
        "terms": terms.to_json(),
        "layout": checkpoint_of(task.build_model()).layout.to_json(),
        "levels": levels,
        "columns": [column.to_json() for column in columns],
    }


def _option(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def main() -> int:
    """Build what standard input asks for; 1 if the task refuses."""
    try:
        answer: dict[str, Any] = build(json.load(sys.stdin))
    except PoloError as error:
        answer = {"error": str(error), "advice": error.advice, "kind": type(error).__name__}
    # What a task prints while it is imported must not get between.
    sys.stdout.flush()
    sys.__stdout__.buffer.write(b"\n" + encode(answer) + b"\n")  # type: ignore[union-attr]
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main())

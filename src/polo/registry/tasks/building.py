"""What only the task's own code can tell: run as a program, in a process of its own. torch.

Reads a JSON object from standard input, `{"task": name, "bits": …, "options": {…}, "tested": …}`,
and writes one to standard output: the terms (without level receipts), the layout, and what the task
is. Where models of the task will be tested, its test data must be there.
"""

import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from polo.errors import PoloError, TaskError
from polo.protocol.canonical import encode

if TYPE_CHECKING:
    from polo.tasks import Task


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
    if asked["tested"]:
        check_data(task)
    levels = ["chain", "receipts", "uniqueness"]
    levels += ["progress"] * isinstance(task, HeldOut) + ["replay"] * isinstance(task, Trainable)
    columns: tuple[Record, ...] = getattr(task, "columns", ())
    return {
        "terms": terms.to_json(),
        "layout": checkpoint_of(task.build_model()).layout.to_json(),
        "levels": levels,
        "columns": [column.to_json() for column in columns],
    }


class _ReachedError(BaseException):
    """The test has its data: it was about to run the model on them."""


def check_data(task: "Task") -> None:
    """Refuse a task whose models cannot be tested here, for want of data, say.

    The test is begun and stopped when it runs the model: a whole one may take minutes.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    model = task.build_model()
    # On every module there is: tests may run parts of a model, or what an adapter lies on.
    hook = register_module_forward_pre_hook(_stop)
    try:
        task.evaluate(model)
    except _ReachedError:
        return
    except PoloError:
        raise
    except Exception as error:
        message = f"its models cannot be tested here: {type(error).__name__}: {error}"
        raise TaskError(message) from error
    finally:
        hook.remove()


def _stop(*_: object) -> NoReturn:
    raise _ReachedError


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

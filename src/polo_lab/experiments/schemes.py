"""Fidelity, stealth and load of every scheme: trainings with marks beside trainings without.

A unit of work is one training: a task, a scheme, bits, load and a seed. The training without marks
from the same start is made once for each task and seed and kept beside the recording.
"""

import itertools
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save

from polo.enrolment import millionths
from polo.errors import CapacityError, TermsError
from polo.protocol.detection import MILLION
from polo.storage import atomic
from polo.watermark.mark import carrier_of
from polo.watermark.schemes import scheme
from polo.weights.checkpoint import checkpoint_of
from polo_lab.effort.training import LabTask
from polo_lab.experiments import pool, schemes_rows
from polo_lab.experiments.schemes_rows import PLAIN, Row
from polo_lab.schemes.courses import COURSES
from polo_lab.schemes.measures import forging, found_in, overwritten, tensors_of, told_apart
from polo_lab.schemes.training import Marked, Plain, Setting, train_marked, train_plain

BITS = (256, 512, 1024, 2048)
SMALL = ("digits", "norms")
UNFIT = "does not fit: "


@dataclass(frozen=True)
class Unit:
    """One training.

    Attributes:
        row: What is known before: task, scheme, bits, load, strength and seed.
        plain: Folder of trainings without marks.
        thief: Whether an overwriter is let loose on the model.
    """

    row: Row
    plain: Path
    thief: bool = True


def units(
    *,
    tasks: Sequence[str],
    schemes: Sequence[str],
    bits: Sequence[int],
    loads: Sequence[float | None],
    strengths: Sequence[float | None],
    seeds: int,
    plain: Path,
    thief: bool = True,
) -> list[Unit]:
    """The work, seed by seed, so that whatever is done by a deadline is spread evenly.

    Args:
        tasks: Courses by name.
        schemes: Schemes by name.
        bits: Bits of marks.
        loads: Loads; None for the scheme's own.
        strengths: λ; None for the scheme's own.
        seeds: Number of seeds.
        plain: Folder of trainings without marks.
        thief: Whether an overwriter is let loose on every model.
    """
    found: dict[tuple[object, ...], Unit] = {}
    for seed, task in itertools.product(range(seeds), tasks):
        unmarked = Row(task, PLAIN, 0, 0, 0, seed)
        found[unmarked.key] = Unit(unmarked, plain)
        for name, size, load, strength in itertools.product(schemes, bits, loads, strengths):
            own = scheme(name).defaults
            row = Row(
                task,
                name,
                size,
                millionths(own.load if load is None else load),
                millionths(own.strength if strength is None else strength),
                seed,
            )
            found[row.key] = Unit(row, plain, thief)
    return list(found.values())


def run(work: Iterable[Unit], *, workers: int, out: Path, minutes: float = 0) -> int:
    """Measure what is not recorded yet; 1 if a training broke or something is left to do.

    Args:
        work: The units.
        workers: Processes; 0 for none but this one, as a GPU wants it.
        out: The file of JSON lines to add to.
        minutes: Begin no unit after so many minutes; 0 for no limit.
    """
    _, known = schemes_rows.read(out)
    done = {row.key for row in known if not row.problem or row.problem.startswith(UNFIT)}
    pending = [unit for unit in work if unit.row.key not in done]
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    broken, count = 0, 0
    pool.begin(out, workers)
    # Unmarked trainings first: all others are compared with them.
    for phase in (
        [unit for unit in pending if unit.row.scheme == PLAIN],
        [unit for unit in pending if unit.row.scheme != PLAIN],
    ):
        for row in pool.measured(measure, phase, workers=workers, deadline=deadline):
            pool.add(out, {"row": row.to_json()})
            print(_line(row), flush=True)
            broken += bool(row.problem) and not row.problem.startswith(UNFIT)
            count += 1
    if left := len(pending) - count:
        print(f"{left} trainings are left; run the same command again")
    return int(bool(broken or left))


def measure(unit: Unit) -> Row:
    """One training, and everything that is measured on its model."""
    row, course = unit.row, COURSES[unit.row.task]
    task = course.task()
    try:
        if row.scheme != PLAIN:
            row = replace(row, share=_share(task, row))
        plain = _plain(task, row, unit.plain)
        row = replace(row, plain_accuracy=plain.accuracy, plain_seconds=plain.seconds)
        if row.scheme == PLAIN:
            return replace(
                row, epochs=course.epochs, accuracy=plain.accuracy, seconds=plain.seconds
            )
        with tempfile.TemporaryDirectory(prefix="polo-lab-") as temporary:
            return _marked(task, row, plain, Path(temporary), thief=unit.thief)
    except (CapacityError, TermsError) as error:
        return replace(row, problem=f"{UNFIT}{error}"[:200])
    except Exception as error:
        # Whatever breaks in one training must not take the others with it.
        traceback.print_exc()
        return replace(row, problem=f"{type(error).__name__}: {error}"[:200])


def _marked(task: LabTask, row: Row, plain: Plain, folder: Path, *, thief: bool) -> Row:
    course = COURSES[row.task]
    marked = train_marked(task, course, _setting(row), row.seed, folder / "proof")
    row = replace(
        row,
        epochs=course.epochs,
        shards=len(marked.shards),
        accuracy=marked.accuracy,
        seconds=marked.seconds,
        reached=sum(marked.before) / len(marked.before) if marked.before else None,
        sealed=marked.sealed,
        edit=marked.edit,
    )
    row = replace(row, **_forged(task, row, marked))
    if not marked.shards:
        return row
    row = replace(row, **_found(task, row, marked, folder, thief=thief))
    told = told_apart(marked, plain, seed=row.seed)
    if told is None:
        return row
    return replace(
        row, told=told.accuracy, told_low=told.low, told_high=told.high, told_blocks=told.blocks
    )


def _forged(task: LabTask, row: Row, marked: Marked) -> dict[str, Any]:
    made = forging(task, COURSES[row.task], marked)
    return {
        "forge_edit": made.alone.whole.edit,
        "forged": made.alone.whole.metric,
        "forged_estimated": made.estimated,
        "least_edit": made.alone.least.edit,
        "least_forged": made.alone.least.metric,
        "strict_edit": made.strict.least.edit,
        "strict_forged": made.strict.least.metric,
    }


def _found(task: LabTask, row: Row, marked: Marked, folder: Path, *, thief: bool) -> dict[str, Any]:
    own = found_in(marked.model, marked, folder)
    values = {
        "residual_least": own.least,
        "residual_mean": own.mean,
        "residual_log2_p": own.log2_p,
    }
    if not thief:
        return values
    left = overwritten(task, COURSES[row.task], marked, folder)
    return values | {
        "thief_least": left.owner.least,
        "thief_mean": left.owner.mean,
        "thief_log2_p": left.owner.log2_p,
        "thief_accuracy": left.accuracy,
        "claimed": left.owner.claimed,
    }


def _setting(row: Row) -> Setting:
    return Setting(row.scheme, row.bits, row.load / MILLION, row.strength / MILLION)


def _share(task: LabTask, row: Row) -> float:
    """Part of the carrier that one mark takes; refuses what does not fit."""
    terms = _setting(row).terms(task)
    carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
    return terms.scheme.blocks / carrier.blocks


def _plain(task: LabTask, row: Row, folder: Path) -> Plain:
    """The training without marks: the kept one, or a new one, which is kept."""
    path = folder / f"{row.task}-{row.seed}.safetensors"
    if path.exists():
        model = task.build_model()
        model.load_state_dict(load_file(path))
        with safe_open(path, "pt") as file:
            kept = file.metadata()
        return Plain(model, float(kept["accuracy"]), float(kept["seconds"]))
    plain = train_plain(task, COURSES[row.task], row.seed)
    kept = {"accuracy": str(plain.accuracy), "seconds": str(plain.seconds)}
    atomic.write(path, save(tensors_of(plain.model), metadata=kept), unguessable=True)
    return plain


def _line(row: Row) -> str:
    about = f"{row.task} {row.scheme} {row.bits} bits at {row.load / MILLION:g}, seed {row.seed}: "
    if row.problem:
        return about + row.problem
    return about + f"accuracy {row.accuracy}, {row.shards} shards in {row.epochs} epochs"

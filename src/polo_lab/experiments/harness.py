"""Running an experiment: what is not recorded yet, group by group, each run written when done."""

import functools
import itertools
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polo.checks import counted
from polo.errors import CapacityError, FormatError, MissingError, PoloError, TermsError
from polo_lab.data import files
from polo_lab.experiments import lines, machine, pool, sharing
from polo_lab.experiments.catalogue import find, recorded
from polo_lab.experiments.experiment import Bench, Experiment, Refusal
from polo_lab.experiments.lines import Line, Settings
from polo_lab.training import DivergedError

QUICK = "quick"
"""Folder of lines of trimmed runs, which are no results."""

_WITHOUT_GPU = (
    "Run the same where there is a GPU; or give --quick for a trimmed form, or --anyway to run "
    "it on this processor, however long that takes."
)


@dataclass(frozen=True)
class Asked:
    """What to run, and how.

    Attributes:
        quick: The trimmed form, on a processor in seconds.
        rerun: Repeat what is recorded.
        only: Settings that units must have, as text; of several values one, between commas.
        workers: Processes; None for the experiment's own number.
        minutes: Begin nothing after so many minutes; 0 for no limit. What has begun goes on, so a
            call takes up to as long as this and its longest run together.
        folder: Where lines lie.
        anyway: Run on a processor what needs a GPU, where there is none.
    """

    quick: bool = False
    rerun: bool = False
    only: Mapping[str, str] | None = None
    workers: int | None = None
    minutes: float = 0.0
    folder: Path = lines.FOLDER
    anyway: bool = False

    @property
    def place(self) -> Path:
        """The folder of the form that was asked for."""
        return self.folder / QUICK if self.quick else self.folder


def run(experiment: Experiment, asked: Asked) -> int:
    """Measure what is not recorded yet; 1 if a run crashed, came out wrong, or is left to do.

    Raises:
        PoloError: No run has the settings that were asked for.
        MissingError: All that is left needs a GPU, and there is none.
    """
    out = lines.path_of(experiment.lines, asked.place)
    units = chosen(experiment, asked)
    if asked.only and not units:
        raise _unknown(experiment, asked)
    lines.check_writable(out)
    known = recorded(experiment.name, asked.place)
    lines.warn_of_broken(out, known)
    pending = units if asked.rerun else _missing(units, known.lines)
    workers = experiment.workers if asked.workers is None else asked.workers
    groups = _spread(_grouped(experiment, _possible(experiment, pending, asked)), workers)
    deadline = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    measuring = functools.partial(
        measure,
        experiment.name,
        out=out,
        quick=asked.quick,
        deadline=deadline,
        workers=min(workers, len(groups)),
    )
    found = pool.measured(measuring, groups, workers=workers, deadline=deadline)
    done = list(itertools.chain.from_iterable(found))
    if out.exists():
        whole = find(experiment.lines)
        every = (*whole.units_of(False, asked.folder), *whole.units(True))
        lines.tidy(out, [lines.key_of(unit) for unit in every])
    late = time.monotonic() > deadline
    return _summary(experiment, done, left=len(pending) - len(done), late=late)


def run_all(experiments: Iterable[Experiment], asked: Asked) -> int:
    """Run several; what one of them misses keeps none of the others from running, and gives 2."""
    codes = []
    for experiment in experiments:
        try:
            codes.append(run(experiment, asked))
        except MissingError as error:
            print(error.diagnostics(), file=sys.stderr)
            codes.append(2)
    return max(codes)


def chosen(experiment: Experiment, asked: Asked) -> list[Settings]:
    """The runs that have the settings that were asked for."""
    wanted = {name: (value, *value.split(",")) for name, value in (asked.only or {}).items()}
    return [
        unit
        for unit in experiment.units_of(asked.quick, asked.folder)
        if all(name in unit and str(unit[name]) in values for name, values in wanted.items())
    ]


def measure(
    name: str,
    group: Sequence[Settings],
    *,
    out: Path,
    quick: bool,
    deadline: float,
    workers: int = 0,
) -> list[Line]:
    """Measure the runs of one bench; each is written down when it is done."""
    experiment, found, missed = find(name), [], ""
    with tempfile.TemporaryDirectory(prefix="polo-lab-") as temporary:
        bench = Bench(Path(temporary), quick, out.parent)
        for settings in group:
            if time.monotonic() > deadline:
                break
            try:
                line = _line(experiment, settings, bench, workers)
            except MissingError as error:
                # Without data or a package nothing can be measured: that is no result.
                if str(error) != missed:
                    print(f"{lines.key_of(settings)}: {error.diagnostics()}", file=sys.stderr)
                missed = str(error)
                continue
            lines.add(out, line)
            print(_told(line), flush=True)
            found.append(line)
    return found


def _line(experiment: Experiment, settings: Settings, bench: Bench, workers: int) -> Line:
    began = datetime.now(UTC)
    with sharing.counted() as most:
        outcome = _outcome(experiment, settings, bench)
        at_once = most()
    return Line(
        experiment.lines,
        settings,
        command=machine.command(),
        began=began.isoformat(timespec="seconds"),
        machine=machine.describe(),
        # Of one call it is known; others may have measured beside it.
        workers=max(workers, at_once if at_once > 1 else 0),
        **outcome,
    )


def _outcome(experiment: Experiment, settings: Settings, bench: Bench) -> dict[str, Any]:
    """How a run ended, as a line says it."""
    clock = time.perf_counter()
    try:
        made = experiment.measure(settings, bench)
    except (CapacityError, TermsError, Refusal) as error:
        return {"ended": lines.REFUSED, "note": str(error)[:200]}
    except DivergedError as error:
        took = time.perf_counter() - clock
        return {"ended": lines.DIVERGED, "note": str(error), "took": took}
    except MissingError:
        raise
    except Exception as error:
        if lacking := _lacking(error):
            raise lacking from error
        # Whatever breaks in one run must not take the others with it; it is recorded and counts.
        traceback.print_exc()
        note = f"{type(error).__name__}: {error}".replace(str(bench.folder), "…")[:200]
        return {"ended": lines.CRASHED, "note": note, "took": time.perf_counter() - clock}
    return {
        "ended": lines.DIVERGED if made.diverged else lines.DONE,
        "figures": made.figures,
        "timings": made.timings,
        "note": made.note,
        "took": time.perf_counter() - clock,
    }


def _lacking(error: Exception) -> MissingError | None:
    """The same error if it is about data or packages of this machine, and not about the run."""
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("polo"):
        return MissingError(f"the package {error.name} is not here", advice="Install it.")
    data = str(files.folder())
    if isinstance(error, FormatError) and data != "." and error.place.startswith(data):
        return MissingError(f"data are broken: {error}", advice=error.advice)
    return None


def _unknown(experiment: Experiment, asked: Asked) -> PoloError:
    """The error for settings that no run has, with what there is."""
    wanted, values = asked.only or {}, dict[str, dict[str, None]]()
    for unit in experiment.units_of(asked.quick, asked.folder):
        for name, value in unit.items():
            values.setdefault(name, {})[str(value)] = None
    told = ", ".join(f"{name}={value}" for name, value in wanted.items())
    advice = f"its settings are {', '.join(values)}"
    if wanted.keys() <= values.keys():
        advice = "; ".join(f"{name} may be {_some(values[name])}" for name in wanted)
    return PoloError(f"no run of {experiment.name} has {told}", advice=advice)


def _some(values: Iterable[str], most: int = 20) -> str:
    shown = list(values)
    return ", ".join(shown[:most]) + (" and others" if len(shown) > most else "")


def _missing(units: Sequence[Settings], known: Sequence[Line]) -> list[Settings]:
    """What is not recorded yet; runs that crashed are tried again."""
    done = {line.key for line in known if line.ended != lines.CRASHED}
    return [unit for unit in units if lines.key_of(unit) not in done]


def _possible(
    experiment: Experiment, pending: Sequence[Settings], asked: Asked
) -> Sequence[Settings]:
    """What can be run here: on a processor some runs would take for ever, and count as done."""
    if asked.quick or asked.anyway or machine.has_gpu():
        return pending
    kept = [unit for unit in pending if not experiment.gpu(unit)]
    if len(kept) == len(pending):
        return kept
    skipped = f"{counted(len(pending) - len(kept), 'run')} of {experiment.name} not begun"
    told = f"{skipped}: a GPU is needed, and none is here"
    if not kept:
        raise MissingError(told, advice=_WITHOUT_GPU)
    print(told, file=sys.stderr)
    return kept


def _grouped(experiment: Experiment, units: Sequence[Settings]) -> list[list[Settings]]:
    """Runs by bench; the order of the units says which comes first."""
    if experiment.ordered:
        return [list(own) for _, own in itertools.groupby(units, experiment.bench_of)]
    groups: dict[tuple[object, ...], list[Settings]] = {}
    for at, unit in enumerate(units):
        own = experiment.bench_of(unit) if experiment.group else (at,)
        groups.setdefault(own, []).append(unit)
    return list(groups.values())


def _spread(groups: Sequence[list[Settings]], workers: int) -> list[list[Settings]]:
    """The groups, the longest in several parts if there are fewer than workers.

    Each part has a bench of its own, so that what its runs share is made once for each part.
    """
    parts = [1 for _ in groups]
    while sum(parts) < workers:
        lengths = [len(group) / part for group, part in zip(groups, parts, strict=True)]
        longest = max(lengths, default=1)
        if longest <= 1:
            break
        parts[lengths.index(longest)] += 1
    return [
        group[at::part] for group, part in zip(groups, parts, strict=True) for at in range(part)
    ]


def _told(line: Line) -> str:
    figures = ", ".join(_shown(line))
    return f"{line.key}: {line.ended}{f' ({line.note})' if line.note else ''}; {figures}"


def _shown(line: Line) -> Iterator[str]:
    for name, value in itertools.islice(line.figures.items(), 6):
        if isinstance(value, int | float | str) and value != "":
            yield f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
    yield f"{line.took:.1f} s"


def _summary(experiment: Experiment, done: Sequence[Line], *, left: int, late: bool) -> int:
    counts = Counter(line.ended for line in done)
    told = ", ".join(f"{count} {ended}" for ended, count in sorted(counts.items()))
    nothing = "nothing was done" if left else "nothing was left to do"
    print(f"{experiment.name}: {told or nothing}")
    wrong = [(line, why) for line in done if (why := _wrong(experiment, line))]
    for line, why in wrong:
        print(f"WRONG: {line.key}: {why}", file=sys.stderr)
    if left:
        when = "" if late else " when what they miss is there"
        print(f"{left} runs are left; run the same command again{when}")
    return int(bool(wrong or left))


def _wrong(experiment: Experiment, line: Line) -> str:
    if line.ended == lines.CRASHED:
        return line.note
    return experiment.wrong(line) if line.ended == lines.DONE else ""

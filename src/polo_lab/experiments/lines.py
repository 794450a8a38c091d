"""Recorded runs: one line of JSON for each, with its settings, seed, machine and raw timings.

A line says everything about its run, so that lines of several machines can stand in one file.
Whatever is shown anywhere is made of these lines and of nothing else.
"""

import fcntl
import json
import math
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polo.checks import counted
from polo.errors import FormatError, StoreError
from polo.storage import atomic

_CHECKOUT = Path(__file__).parents[3]
ROOT = _CHECKOUT if (_CHECKOUT / "pyproject.toml").exists() else Path()
"""The checkout; of an installed package the folder that the command runs in."""

FOLDER = ROOT / "results"
"""Where recorded runs lie."""

DONE = "done"
CRASHED = "crashed"
DIVERGED = "diverged"
REFUSED = "refused"

Settings = Mapping[str, Any]

_CALL = ("command", "machine", "workers")
"""What runs of one call share."""


def key_of(settings: Settings) -> str:
    """What tells a run from all others of its experiment.

    >>> key_of({"scheme": "ednn", "bits": 256, "seed": 0})
    'scheme=ednn bits=256 seed=0'
    """
    return " ".join(f"{name}={value}" for name, value in settings.items())


@dataclass(frozen=True)
class Line:
    """One run.

    Attributes:
        experiment: Name of the experiment.
        settings: What was asked for; its seed is one of them.
        ended: `done`; `refused` if terms or capacity do not allow it; `diverged` if a figure is no
            number; `crashed` if the run broke.
        figures: What was measured.
        timings: Raw seconds, by name.
        note: What a reader should know; why there are no figures, where there are none.
        command: The command that made the run.
        began: When it began, in UTC.
        took: Seconds of the whole run, everything around the measured parts included.
        machine: Processor, GPU and versions; None for runs that are older than this format, which
            ran on one of the machines of the file's calls.
        workers: Processes that measured at the same time, at most, which shared the machine,
            whichever call they belonged to; 0 if it was the only one.
    """

    experiment: str
    settings: Settings
    ended: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    command: str = ""
    began: str = ""
    took: float = 0.0
    machine: Mapping[str, Any] | None = None
    workers: int = 0

    @property
    def key(self) -> str:
        """What tells it from all others of its experiment."""
        return key_of(self.settings)

    @property
    def values(self) -> dict[str, Any]:
        """Settings, figures and timings together."""
        return {**self.settings, **self.figures, **self.timings}

    def to_json(self) -> dict[str, Any]:
        """As plain values, rounded to what was measured; numbers that are none are null."""
        rounded: dict[str, Any] = _rounded(asdict(self))
        return rounded


@dataclass(frozen=True)
class Recording:
    """The lines of an experiment.

    Attributes:
        lines: Each run once: of those that were repeated the last one that did not crash.
        calls: Commands and machines of runs that do not say theirs.
        broken: Lines that are cut or damaged, and left out.
        crashed: Repetitions that crashed, of runs that did not before; they stay in the file.
        strange: Lines by number whose settings no run has; they are left out and stay in the file.
    """

    lines: Sequence[Line] = ()
    calls: Sequence[Mapping[str, Any]] = ()
    broken: int = 0
    crashed: Sequence[Line] = ()
    strange: Mapping[int, Line] = field(default_factory=dict)

    @property
    def done(self) -> list[Line]:
        """Runs that have figures."""
        return [line for line in self.lines if line.ended == DONE]

    def sources(self) -> list[Mapping[str, Any]]:
        """Command, machine and first day of everything that added to it, each once."""
        found: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for call in (*self.calls, *map(_call, self.lines)):
            if call["machine"]:
                found.setdefault(tuple(str(call.get(part)) for part in _CALL), call)
        return list(found.values())


def path_of(name: str, folder: Path) -> Path:
    """The file of an experiment."""
    return folder / f"{name}.jsonl"


def read(path: Path, names: Container[frozenset[str]] | None = None) -> Recording:
    """A file of lines; those that are broken are counted, and nothing is found where there is none.

    Args:
        path: The file.
        names: Names of settings that a run may have; by default any, as long as a seed is there.

    Raises:
        FormatError: A line is whole, and no run.
    """
    texts = path.read_bytes().split(b"\n") if path.exists() else []
    numbered = [(number, text) for number, text in enumerate(texts, 1) if text.strip()]
    values = [(number, value) for number, text in numbered if (value := _value(text)) is not None]
    calls = [call for number, value in values for call in _calls(value, f"{path}, line {number}")]
    found = {number: _line(value, f"{path}, line {number}") for number, value in values}
    whole = {number: line for number, line in found.items() if line is not None}
    strange = {number: line for number, line in whole.items() if not _fits(line, names)}
    runs = [line for number, line in whole.items() if number not in strange]
    last, once = {line.key: line for line in runs}, settled(runs)
    again = [last[line.key] for line in once if last[line.key] is not line]
    return Recording(once, calls, len(numbered) - len(values), again, strange)


def check_writable(path: Path) -> None:
    """Refuse a file that lines cannot be added to, before anything is measured.

    Raises:
        StoreError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Alone: what another call has just added must not go with the empty file.
        with _alone(path.parent):
            with path.open("ab"):
                pass
            if not path.stat().st_size:
                path.unlink()
    except OSError as error:
        raise StoreError(
            f"lines cannot be written: {error.strerror}",
            place=str(path),
            advice="Give a folder that can be written to: --results FOLDER.",
        ) from error


def warn_of_broken(path: Path, known: Recording) -> None:
    """Say that lines of a file are cut or damaged, or are about no run that there is."""
    if known.broken:
        count = counted(known.broken, "broken line")
        print(f"{path}: {count} left out; a run moves them to {path.name}.broken", file=sys.stderr)
    for number, line in known.strange.items():
        told = f"left out; runs have other settings than {line.key or 'none'}"
        print(f"{path}, line {number}: {told}", file=sys.stderr)


def add(path: Path, line: Line) -> None:
    """Add a line to a file that several processes write; each goes out in one piece."""
    # A line that was cut must not swallow this one, which is why it begins with a line break.
    data = f"\n{_text(line.to_json())}\n".encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent), path.open("ab", buffering=0) as file:
        file.write(data)


def settled(found: Iterable[Line]) -> list[Line]:
    """Each run once: of those that were repeated the last one that did not crash."""
    last: dict[str, Line] = {}
    for line in found:
        if line.key not in last or line.ended != CRASHED:
            last[line.key] = line
    return list(last.values())


def tidy(path: Path, order: Sequence[str]) -> None:
    """Write a file again: each run once, those named first, which are the headline, at the top.

    A repetition that crashed stays behind the run that it did not replace.
    """
    places = {key: at for at, key in enumerate(dict.fromkeys(order))}
    with _alone(path.parent):
        recording = read(path)
        if recording.broken:
            # Somebody may be able to mend them.
            aside = path.with_name(f"{path.name}.broken")
            with aside.open("ab") as file:
                file.writelines(text + b"\n" for text in _broken(path))
        kept = (*recording.lines, *recording.crashed, *recording.strange.values())
        ordered = sorted(kept, key=lambda line: places.get(line.key, len(places)))
        parts: list[Mapping[str, Any]] = [{"calls": recording.calls}] if recording.calls else []
        parts += [line.to_json() for line in ordered]
        text = "".join(f"{_text(part)}\n" for part in parts)
        atomic.write(path, text.encode(), unguessable=True)


def _broken(path: Path) -> list[bytes]:
    texts = path.read_bytes().split(b"\n")
    return [text for text in texts if text.strip() and _value(text) is None]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other call writes lines into a folder meanwhile: whoever tidies could lose them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _value(text: bytes) -> dict[str, Any] | None:
    """What a line says; None if it was cut, perhaps within a letter."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _calls(value: dict[str, Any], place: str) -> list[Mapping[str, Any]]:
    calls = value.get("calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise FormatError("is no list of calls", place=place, advice="Take the line out.")
    return calls


def _line(value: dict[str, Any], place: str) -> Line | None:
    """A run; None for a line that is about runs, not one itself."""
    if "settings" not in value:
        return None
    kinds = {"experiment": str, "settings": dict, "ended": str, "figures": dict, "timings": dict}
    fits = all(isinstance(value.get(name, kind()), kind) for name, kind in kinds.items())
    fits = fits and isinstance(value.get("machine"), dict | None)
    try:
        if fits:
            return Line(**value)
    except TypeError:
        pass  # Named as below: it has what no line has, or lacks what each one has.
    raise FormatError("is no recorded run", place=place, advice="Take the line out, or mend it.")


def _fits(line: Line, names: Container[frozenset[str]] | None) -> bool:
    return "seed" in line.settings if names is None else frozenset(line.settings) in names


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _call(line: Line) -> Mapping[str, Any]:
    return {name: getattr(line, name) for name in (*_CALL, "began")}


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None

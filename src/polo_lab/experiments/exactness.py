"""Whether steps come out to the bit in another process: the ground that exact replay stands on."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polo.checks import counted
from polo_lab.effort.afresh import ANY, REPEATING, STAGES, last_step
from polo_lab.effort.catalogue import LARGE, SMALL, Key
from polo_lab.effort.plan import OPTIMIZERS
from polo_lab.experiments import machine
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.origin import origins
from polo_lab.experiments.table import Table, markdown

_HEAD = (
    "task", "optimizer", "where", "kernels", "steps", "killed after", "steps run again",
    "segments run again", "to the bit", "sealings run again", "verdict",
)  # fmt: skip

_WORDS = """\
Honest runs in four processes that share nothing but files: the first trains and is killed in the
middle of a shard, the second goes on from the last one that was sealed, the third computes again
what a challenge asks for, and the fourth verifies it. *Run again* is what was drawn, and not all of
a run. *Kernels* are those that a GPU was trained with: any that its libraries choose, or such that
repeat by their word (`cudnn.deterministic`). ResNet-18 trains in bfloat16, all else in float32."""


def units(quick: bool) -> Iterable[Settings]:
    """The large task first, then every optimizer on every small one."""
    if quick:
        yield _unit("cancer", "adam", ANY)
        return
    for task in LARGE:
        yield _unit(task, "momentum", ANY)
        yield _unit(task, "momentum", REPEATING)
        yield _unit(task, "adamw", ANY)
    for task in SMALL:
        for optimizer in OPTIMIZERS:
            yield _unit(task, optimizer, ANY)


def _unit(task: str, optimizer: str, kernels: str) -> Settings:
    return {"task": task, "optimizer": optimizer, "kernels": kernels, "seed": 0}


def measure(settings: Settings, bench: Bench) -> Measured:
    """One run, from its first process to its last."""
    key = Key(settings["task"], settings["optimizer"], "cosine", settings["seed"])
    folder = bench.folder / "-".join(str(value) for value in settings.values())
    case = key.case(folder)
    on_gpu, here = case.device.startswith("cuda"), machine.describe()
    where = here["gpu"] if on_gpu else f"{here['cpu']}, one thread"
    figures: dict[str, Any] = {"where": where, "on_gpu": on_gpu, "killed": last_step(case)}
    timings = {}
    for stage in STAGES:
        began = time.perf_counter()
        figures |= _done(stage, key, folder, settings["kernels"])
        timings[stage] = time.perf_counter() - began
    return Measured(figures, timings)


def _done(stage: str, key: Key, folder: Path, kernels: str) -> dict[str, Any]:
    """What a stage found, in a process of its own."""
    command = [sys.executable, "-m", "polo_lab.effort.afresh", stage, json.dumps(asdict(key))]
    process = subprocess.run(  # noqa: S603
        [*command, str(folder), kernels], capture_output=True, text=True, check=False
    )
    ends = -signal.SIGKILL if stage == "begin" else 0
    if process.returncode != ends:
        raise RuntimeError(f"{stage} ended with {process.returncode}: {process.stderr[-400:]}")
    # A task may print things of its own.
    found: dict[str, Any] = json.loads((process.stdout.splitlines() or ["{}"])[-1])
    return found


def wrong(line: Line) -> str:
    """A step that came out otherwise."""
    row = line.values
    exact = row["outcome"] == "accepted" and row["exact"] == row["run"]
    return "" if exact else f"an honest run did not come out to the bit: {row['headline']}"


def tables(recording: Recording) -> Iterator[Table]:
    """What came out to the bit."""
    if recording.done:
        rows = [_cells(line.values) for line in recording.done]
        yield Table("Steps run again in other processes", _HEAD, rows, _WORDS)


def sections(recording: Recording) -> Iterator[str]:
    """The part's text, piece by piece; nothing if nothing was recorded."""
    for table in tables(recording):
        yield f"## {table.title}"
        yield table.words
        yield from origins(recording)
        if missing := len(list(units(False))) - len(recording.done):
            yield f"Not run yet: {counted(missing, 'run')}."
        yield markdown(table)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["task"],
        row["optimizer"],
        row["where"],
        row["kernels"] if row["on_gpu"] else "–",
        f"{row['steps']:,}",
        f"{row['killed']:,}",
        f"{row['rerun']:,}",
        f"{row['run']} of {row['segments']}",
        str(row["exact"]),
        str(row["sealings"]),
        row["outcome"],
    )


EXPERIMENTS = (
    Experiment(
        name="exactness",
        title="whether steps come out to the bit in another process",
        units=units,
        measure=measure,
        tables=tables,
        group=("task", "optimizer", "kernels", "seed"),
        wrong=wrong,
        workers=2,
        needs="POLO_DATA and a GPU for ResNet-18",
        gpu=lambda settings: settings["task"] in LARGE,
    ),
)

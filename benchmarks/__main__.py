"""`python -m benchmarks [NAME …] [--quick] [--out FILE]`: run, print one table, record."""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.figures import Benchmark
from benchmarks.table import line, table

NAMES = (
    "root",
    "mark",
    "identify",
    "scan",
    "hook",
    "rare",
    "every",
    "recording",
    "replay",
    "registry",
    "streaming",
    "cli",
    "quickstart",
    "deltas",
    "noise",
    "terms",
    "cost",
    "robustness",
    "progress",
)
RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that were asked for; 1 if a target was missed."""
    asked = _parser().parse_args(arguments)
    done: dict[str, Any] = {}
    out = asked.out or (None if asked.quick else RESULTS / "latest.json")
    for name in asked.names or NAMES:
        benchmark: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
        print(f"{name}: {benchmark.title} …", file=sys.stderr, flush=True)
        for done[name] in runs(benchmark, asked.quick):
            # After each figure: a run that breaks off has not been in vain.
            if out:
                record(done, out)
    print(table(done))
    missed = any(figure["met"] is False for entry in done.values() for figure in entry["figures"])
    return int(missed)


def runs(benchmark: Benchmark, quick: bool) -> Iterator[dict[str, Any]]:
    """Run one benchmark; what is recorded of it, after each figure."""
    watch, began = machine.Watch(), time.monotonic()
    # A figure that comes again, with more samples, takes the place of the one before.
    figures: dict[str, Any] = {}
    for figure in benchmark.run(quick):
        figures[figure.name] = figure.to_json()
        print(f"  {line(benchmark.name, figures[figure.name])}", file=sys.stderr, flush=True)
        yield {
            "title": benchmark.title,
            "date": machine.now(),
            "quick": quick,
            "seconds": round(time.monotonic() - began, 1),
            "load": watch.seen(),
            "figures": list(figures.values()),
        }


def record(done: dict[str, Any], out: Path) -> None:
    """Write results; those of other benchmarks stay if they come from this very machine."""
    here = machine.describe()
    earlier: dict[str, Any] = {}
    if out.exists():
        found = json.loads(out.read_text())
        if found["machine"] == here:
            earlier = found["benchmarks"]
    merged = {**earlier, **done}
    ordered = {name: merged[name] for name in NAMES if name in merged}
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": here, "benchmarks": ordered}, indent=1, ensure_ascii=False)
    out.write_text(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME", help=str(NAMES))
    parser.add_argument("--quick", action="store_true", help="a smoke run; nothing is recorded")
    parser.add_argument("--out", type=Path, help="where to write; default results/latest.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())

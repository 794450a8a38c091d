"""`polo --help` against an empty Python process, and that nothing heavy is imported for it."""

from collections.abc import Iterator

from benchmarks import command
from benchmarks.figures import Benchmark, Figure, Target, amount_of, missing, time_of
from benchmarks.measure import interleave

HEAVY = ("numpy", "torch")
_SECONDS = Target("at most", 0.35)
_NONE = Target("at most", 0)


def run(quick: bool) -> Iterator[Figure]:
    """Time to help, and heavy modules among what `-X importtime` lists."""
    script = command.polo()
    help_text = command.python(str(script), "--help") if script else None
    if help_text is None or help_text.returncode or not help_text.stdout.strip():
        note = "`polo --help` prints nothing" if script else command.ABSENT
        yield missing("polo --help", "s", note, _SECONDS)
        return
    samples = interleave(
        {
            "python -c pass": lambda: command.python("-c", "pass"),
            "polo --help": lambda: command.python(str(script), "--help"),
        },
        3 if quick else 41,
    )
    yield time_of("polo --help", samples, "polo --help", "python -c pass", target=_SECONDS)
    imported = _imported(command.python("-X", "importtime", str(script), "--help").stderr)
    found = sorted(imported.intersection(HEAVY))
    yield amount_of(
        "heavy packages imported by polo --help",
        "packages",
        [len(found)],
        target=_NONE,
        note=f"of {', '.join(HEAVY)}" + (f"; found {', '.join(found)}" if found else ""),
        details={"modules": len(imported)},
    )


def _imported(report: str) -> set[str]:
    """Top names of all modules in what `-X importtime` prints."""
    lines = [line for line in report.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


BENCHMARK = Benchmark("cli", "starting the command line", run)

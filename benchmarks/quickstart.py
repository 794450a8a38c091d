"""`polo quickstart`, from nothing to a verdict."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import command
from benchmarks.figures import Benchmark, Figure, Target, missing, time_of
from benchmarks.measure import interleave

_SECONDS = Target("at most", 60.0)
_FLOOR = "python -c 'import torch'"


def run(quick: bool) -> Iterator[Figure]:
    """Wall time, against merely importing torch; a smoke run asks for the help alone."""
    script = command.polo()
    if script is None:
        yield missing("polo quickstart", "s", command.ABSENT, _SECONDS)
        return
    if command.python(str(script), "quickstart", "--help").returncode:
        yield missing("polo quickstart", "s", "there is no such command yet", _SECONDS)
        return
    if quick:
        yield missing("polo quickstart", "s", "left out of smoke runs", _SECONDS)
        return
    with tempfile.TemporaryDirectory() as folder:
        made = iter(range(1000))

        def start() -> None:
            where = str(Path(folder) / str(next(made)))
            done = command.python(str(script), "quickstart", "--dir", where)
            if done.returncode:
                raise RuntimeError(f"polo quickstart failed:\n{done.stdout}\n{done.stderr}")

        samples = interleave(
            {_FLOOR: lambda: command.python("-c", "import torch"), "polo quickstart": start}, 5
        )
    yield time_of("polo quickstart", samples, "polo quickstart", _FLOOR, target=_SECONDS)


BENCHMARK = Benchmark("quickstart", "the quickstart, from nothing to a verdict", run)

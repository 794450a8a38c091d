"""`python -m fuzz NAME … [--seconds N]`, `--all`, or `NAME --input FILE` to try one input again."""

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "canonical",
    "records",
    "header",
    "checkpoint",
    "opening",
    "samples",
    "replay_record",
    "challenge",
    "answer",
    "delta",
    "merkle",
    "note",
    "tile",
    "inclusions",
    "keys",
    "enrolment",
    "state",
    "proof",
    "bundle",
    "found",
    "sharded",
    "gguf",
)
"""All targets; each is a file in `fuzz/targets`."""

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FINDINGS = HERE / "findings"
_START_UP = 120


@dataclass(frozen=True)
class Run:
    """What came of fuzzing one target.

    Attributes:
        name: The target.
        runs: Inputs that were tried.
        coverage: Places in the code that were reached.
        features: Places and ways to reach them.
        fresh: Inputs that reached something new.
        slowest: Seconds of the slowest input.
        finding: The input that broke a promise; None if none did.
        log: All that libFuzzer said.
    """

    name: str
    runs: int
    coverage: int
    features: int
    fresh: int
    slowest: int
    finding: Path | None
    log: str

    @property
    def broken(self) -> bool:
        """Whether a promise broke, or the target did not run at all."""
        return self.finding is not None or not self.runs

    def line(self) -> str:
        """The run in one line."""
        result = "BROKEN" if self.broken else "ok"
        return (
            f"{self.name:<12}{self.runs:>10} runs  {self.coverage:>5} places  "
            f"{self.features:>6} features  {self.fresh:>5} new inputs  {result}"
        )


def fuzz(name: str, seconds: int, *, corpus: Path = CORPUS, findings: Path = FINDINGS) -> Run:
    """Run one target in a process of its own.

    Args:
        name: The target.
        seconds: How long.
        corpus: Where inputs that reached something new are kept for the next time.
        findings: Where inputs that broke a promise go.
    """
    findings.mkdir(parents=True, exist_ok=True)
    began = time.time()
    command = [sys.executable, "-m", "fuzz.driver", name, str(corpus / name)]
    command += [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/{name}-"]
    done = subprocess.run(
        command,
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds + _START_UP,
        check=False,
    )
    found = [path for path in findings.glob(f"{name}-*") if path.stat().st_mtime >= began - 1]
    shown = re.findall(r"cov: (\d+) ft: (\d+)", done.stdout) or [("0", "0")]
    ended_well = done.returncode == 0
    return Run(
        name,
        _stat(done.stdout, "number_of_executed_units") if ended_well or found else 0,
        int(shown[-1][0]),
        int(shown[-1][1]),
        _stat(done.stdout, "new_units_added"),
        _stat(done.stdout, "slowest_unit_time_sec"),
        max(found, key=lambda path: path.stat().st_mtime) if found else None,
        done.stdout,
    )


def _stat(log: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", log)
    return int(found[1]) if found else 0


def explain(run: Run) -> None:
    """Say what broke and how to see it again."""
    _, _, trace = run.log.partition("=== Uncaught Python exception: ===")
    trace, _, _ = trace.partition("\n==")
    print("\n".join((trace or run.log).strip().splitlines()[-40:]), file=sys.stderr)
    if run.finding:
        again = f"python -m fuzz {run.name} --input {run.finding}"
        print(f"{run.name}: input kept; to see it again: {again}", file=sys.stderr)


def again(name: str, path: Path) -> None:
    """Try one input as the fuzzer does, without it; what broke is raised."""
    from fuzz.driver import load
    from fuzz.promises import frugal

    target = load(name)
    with frugal(target.most_mib):
        target.check(path.read_bytes())
    print(f"{name}: {path} breaks no promise")


def main(arguments: list[str] | None = None) -> int:
    """Fuzz what was asked for; 1 if a promise broke."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--all", action="store_true", help="every target in turn")
    parser.add_argument("--seconds", type=int, default=60, help="how long each runs")
    parser.add_argument("--input", type=Path, help="try this one file, once")
    asked = parser.parse_args(arguments)
    names = NAMES if asked.all else asked.names
    if not names or set(names) - set(NAMES):
        parser.error(f"name targets, or --all; there are {', '.join(NAMES)}")
    if asked.input:
        again(names[0], asked.input)
        return 0
    broken = False
    for name in names:
        run = fuzz(name, asked.seconds)
        print(run.line(), flush=True)
        if run.broken:
            broken = True
            explain(run)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m polo_lab.experiments effort …`: run an experiment and record it."""

import argparse
import sys
from pathlib import Path

from polo_lab.effort.catalogue import SMALL, TASKS
from polo_lab.experiments import effort

QUICK = 4


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a run broke or an expectation was missed."""
    asked = _parser().parse_args(arguments)
    if asked.quick:
        asked.honest, asked.attacked, asked.per_attack = QUICK, QUICK, 1
    work = effort.units(
        asked.honest,
        asked.attacked,
        tasks=tuple(asked.task or SMALL),
        attacks=asked.attack or (),
        per_attack=asked.per_attack,
    )
    return effort.run(work, workers=asked.workers, out=asked.out, minutes=asked.minutes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polo_lab.experiments", description=__doc__)
    parser.add_argument("experiment", choices=["effort"])
    parser.add_argument("--honest", type=int, default=300, help="honest runs")
    parser.add_argument("--attacked", type=int, default=300, help="attacked runs, at least")
    parser.add_argument("--per-attack", type=int, default=30, help="runs of each attack, at least")
    parser.add_argument("--task", choices=TASKS, action="append", help="by default all small ones")
    parser.add_argument("--attack", action="append", help="by name; by default all")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; resumed if it exists")
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing later than this")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few cases")
    return parser


if __name__ == "__main__":
    sys.exit(main())

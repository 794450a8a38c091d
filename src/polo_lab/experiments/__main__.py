"""`python -m polo_lab.experiments effort|schemes|lora …`: run an experiment and record it."""

import argparse
import sys
from pathlib import Path

from polo.watermark.schemes import SCHEMES
from polo_lab.effort.catalogue import SMALL, TASKS
from polo_lab.experiments import effort, escapes, machine
from polo_lab.schemes.courses import COURSES

QUICK = 4


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a run broke or an expectation was missed."""
    asked = _parser().parse_args(arguments)
    known = {"effort": _effort, "escapes": _escapes, "lora": _lora, "schemes": _schemes}
    return known[asked.experiment](asked)


def _effort(asked: argparse.Namespace) -> int:
    if asked.quick:
        asked.honest, asked.attacked, asked.per_attack = QUICK, QUICK, 1
    work = effort.units(
        asked.honest,
        asked.attacked,
        tasks=tuple(asked.task or SMALL),
        attacks=asked.attack or (),
        per_attack=asked.per_attack,
        tolerance=asked.tolerance,
    )
    return effort.run(work, workers=asked.workers, out=asked.out, minutes=asked.minutes)


def _escapes(asked: argparse.Namespace) -> int:
    return escapes.run(
        machine.header(1),
        runs=asked.runs,
        challenges=asked.challenges,
        verified=asked.verified,
        out=asked.out,
    )


def _schemes(asked: argparse.Namespace) -> int:
    from polo_lab.experiments import schemes

    work = schemes.units(
        tasks=asked.task or schemes.SMALL,
        schemes=asked.scheme or tuple(SCHEMES),
        bits=asked.bits or schemes.BITS,
        loads=asked.load or (None,),
        strengths=asked.strength or (None,),
        seeds=asked.seeds,
        plain=asked.out.with_name(f"{asked.out.name}.plain"),
        thief=not asked.no_thief,
    )
    return schemes.run(work, workers=asked.workers, out=asked.out, minutes=asked.minutes)


def _lora(asked: argparse.Namespace) -> int:
    from polo_lab.experiments import lora

    course = lora.Course(asked.shards, asked.steps, asked.batch, asked.rate, asked.seed)
    return lora.run(asked.task, asked.scheme, asked.bits, course, out=asked.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polo_lab.experiments", description=__doc__)
    experiments = parser.add_subparsers(dest="experiment", required=True)
    one = experiments.add_parser("effort", help="honest trainings, and attacks on them")
    one.add_argument("--honest", type=int, default=300, help="honest runs")
    one.add_argument("--attacked", type=int, default=300, help="attacked runs, at least")
    one.add_argument("--per-attack", type=int, default=30, help="runs of each attack, at least")
    one.add_argument("--task", choices=TASKS, action="append", help="by default all small ones")
    one.add_argument("--attack", action="append", help="by name; by default all")
    one.add_argument(
        "--tolerance", type=int, default=0, help="allowance of the terms, in millionths of a move"
    )
    one.add_argument("--quick", action="store_true", help="a smoke run of a few cases")
    _escape_options(experiments.add_parser("escapes", help="what verdicts state, and draws show"))
    other = experiments.add_parser("schemes", help="what marks cost, and what they withstand")
    other.add_argument("--task", choices=COURSES, nargs="+", help="by default the small ones")
    other.add_argument("--scheme", nargs="+", help="by default all")
    other.add_argument("--bits", type=int, nargs="+", help="bits of marks")
    other.add_argument("--load", type=_or_default, nargs="+", help="numbers, or `default`")
    other.add_argument("--strength", type=_or_default, nargs="+", help="numbers, or `default`")
    other.add_argument("--seeds", type=int, default=3, help="trainings of each kind")
    other.add_argument("--no-thief", action="store_true", help="leave the overwriter out")
    _lora_options(experiments.add_parser("lora", help="adapters of a language model, merged"))
    for each in (one, other):
        _shared(each)
    return parser


def _escape_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=4, help="cases, one forgery of each kind")
    parser.add_argument("--challenges", type=int, default=300, help="challenges of each forgery")
    parser.add_argument("--verified", type=int, default=3, help="those answered and verified")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")


def _lora_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=["chat", "wikitext"], nargs="+", default=["wikitext"])
    parser.add_argument("--scheme", nargs="+", default=["plain", "ednn", "signed"])
    parser.add_argument("--bits", type=int, nargs="+", default=[512, 1024], help="bits of marks")
    parser.add_argument("--shards", type=int, default=3, help="shards of a run")
    parser.add_argument("--steps", type=int, default=20, help="steps of a shard")
    parser.add_argument("--batch", type=int, default=4, help="windows of a step")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; resumed if it exists")


def _shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; resumed if it exists")
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing later than this")


def _or_default(text: str) -> float | None:
    return None if text == "default" else float(text)


if __name__ == "__main__":
    sys.exit(main())

"""One target under atheris, in a process of its own: `python -m fuzz.driver NAME FOLDER …`.

The parent reads what libFuzzer prints; `fuzz/__main__.py` is the one to call by hand.
"""

import hashlib
import importlib
import random
import resource
import sys
from pathlib import Path

import atheris

from fuzz import promises
from fuzz.target import Target

SLOWEST = 10
"""Seconds that one input may take; on a busy machine a second is soon gone."""

ROOM_MIB = 1024
"""Address space that a process may grow by; threads reserve much of it and use none."""


def load(name: str) -> Target:
    """The target of a name; one with a dot is a module somewhere else."""
    module = name if "." in name else f"fuzz.targets.{name}"
    target: Target = importlib.import_module(module).TARGET
    return target


def plant(target: Target, corpus: Path) -> None:
    """Write the seeds into a corpus, each under its digest as libFuzzer names them."""
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        if len(seed) <= target.most_bytes:
            (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)


def main(name: str, corpus: str, *options: str) -> None:
    """Fuzz until the time is up or a promise breaks; does not return."""
    with atheris.instrument_imports(include=["polo"]):
        target = load(name)
        plant(target, Path(corpus))

    def check(data: bytes) -> None:
        with promises.frugal(target.most_mib):
            target.check(data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if not rng.randrange(4):
            return bytes(atheris.Mutate(data, most))
        changed = target.changed(data, rng)
        return changed if len(changed) <= most else bytes(atheris.Mutate(data, most))

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    arguments = [
        name,
        corpus,
        f"-timeout={SLOWEST}",
        f"-rss_limit_mb={used + ROOM_MIB}",
        f"-max_len={target.most_bytes}",
        "-print_final_stats=1",
        *options,
    ]
    atheris.Setup(arguments, check, custom_mutator=mutate)
    promises.limit_memory(ROOM_MIB)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])

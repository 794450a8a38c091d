"""How the registry's answers slow down as chains become many."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import chains, databases, upkeep
from benchmarks.figures import Figure, amount_of
from polo.registry.commitments import service as commitments
from polo.registry.commitments.rules import Submission
from polo.registry.context import Registry
from polo.registry.enrolments import service as enrolments
from polo.registry.log import service as log
from polo.registry.settings import Settings

SIZES = (100, 1_000, 10_000, 100_000)
_BATCH = 500
_TOGETHER = 32


def run(kind: str, folder: Path, quick: bool) -> Iterator[Figure]:
    """Times at each size, and how they grow from the smallest to the largest."""
    sizes, rounds = (SIZES[:2], 5) if quick else (SIZES, 41)
    times: dict[str, dict[int, list[float]]] = {}
    with databases.database(kind, folder) as url:
        registry = Registry.open(
            Settings(data=folder / "data", database=url, origin="bench.test"), migrate=True
        )
        try:
            loaded: list[chains.Prover] = []
            for size in sizes:
                load(registry, loaded, size)
                for name, side in _sides(registry, loaded).items():
                    side()
                    times.setdefault(name, {})[size] = [_timed(side) for _ in range(rounds)]
        finally:
            registry.close()
    for name, found in times.items():
        medians = {str(size): sorted(took)[len(took) // 2] * 1000 for size, took in found.items()}
        yield amount_of(
            f"{kind}: {name} at {sizes[-1]} chains",
            "ms",
            [second * 1000 for second in found[sizes[-1]]],
            details={f"ms_at_{size}": round(value, 3) for size, value in medians.items()},
            note=f"{medians[str(sizes[-1])] / medians[str(sizes[0])]:.2f} times that of {sizes[0]}",
        )
    if kind == "sqlite":
        yield from upkeep.run(folder, quick)


def load(registry: Registry, loaded: list[chains.Prover], size: int) -> None:
    """Bring the registry to so many chains, each with its start in the log."""
    while len(loaded) < size:
        new = chains.enrol(registry, min(_BATCH, size - len(loaded)))
        for at in range(0, len(new), _BATCH):
            registry.sequencer.settle(list(chains.submissions(registry, new[at : at + _BATCH], 0)))
        loaded += new


def _sides(registry: Registry, loaded: list[chains.Prover]) -> dict[str, Callable[[], object]]:
    drawing = random.Random(len(loaded))
    shards: dict[str, int] = {}

    def page() -> None:
        with registry.database.read() as connection:
            commitments.page(connection, drawing.choice(loaded).id)

    def listing() -> None:
        with registry.database.read() as connection:
            enrolments.page(connection, identity=None, after=drawing.choice(loaded).id, limit=50)

    def proof() -> None:
        with registry.database.read() as connection:
            size = log.current(connection).size
            log.inclusion(connection, drawing.randrange(size), size)

    def commit() -> None:
        group: list[Submission] = []
        for prover in drawing.sample(loaded, _TOGETHER):
            number = shards[prover.id] = shards.get(prover.id, _next(registry, prover)) + 1
            group += chains.submissions(registry, [prover], number - 1)
        registry.sequencer.settle(group)

    return {
        "a chain's commitments": page,
        "a page of 50 chains": listing,
        "a proof of inclusion": proof,
        f"{_TOGETHER} commitments in one group, signing them included": commit,
    }


def _next(registry: Registry, prover: chains.Prover) -> int:
    with registry.database.read() as connection:
        return len(commitments.page(connection, prover.id, limit=10_000))


def _timed(side: Callable[[], object]) -> float:
    began = time.perf_counter()
    side()
    return time.perf_counter() - began

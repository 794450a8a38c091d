"""What a registry's upkeep takes for each chain: bytes, audit, backup, and getting a scan ready.

Chains are loaded past the front door, as those of `growth` are, with as many marks as those that a
scan is measured with; then many enrolments more, without any. A full run writes the figures to a
file, from which docs/registry-scale.md says what very many chains would take.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text

from benchmarks import chains, machine
from benchmarks.figures import Figure, amount_of
from benchmarks.idle import MARKS
from polo.ownership.looking import SEED
from polo.registry.context import Registry
from polo.registry.operations import backup, figures
from polo.registry.operations.auditing import Audit
from polo.registry.pages import desk
from polo.registry.scans import child, marks
from polo.registry.schema import commitments
from polo.registry.settings import Settings

RESULT = Path(__file__).parent / "results" / "upkeep.json"
ORIGIN = "bench.test"
CHAINS, MORE = 200, 20_000
ROUNDS = 9
_GROUP = 32
_BATCH = 1000


def run(folder: Path, quick: bool) -> Iterator[Figure]:
    """Figures over SQLite, each for one chain, entry or mark."""
    count, shards, more = (64, 2, 500) if quick else (CHAINS, MARKS, MORE)
    watch = machine.Watch()
    settings = Settings(data=folder / "upkeep", origin=ORIGIN)
    registry = Registry.open(settings)
    try:
        load(registry, count, shards)
        found = [*_sizes(registry), *_operations(registry, folder), *_scanned(registry)]
        found += _desk(registry, count, more)
    finally:
        registry.close()
    if not quick:
        write(found, watch, chains=count, shards=shards)
    yield from found


def write(found: list[Figure], watch: machine.Watch, **loaded: int) -> None:
    """Record the figures."""
    said = {"machine": machine.describe(), "date": machine.now(), "load": watch.seen(), **loaded}
    said["figures"] = [figure.to_json() for figure in found]
    RESULT.write_text(json.dumps(said, indent=1) + "\n")


def load(registry: Registry, count: int, shards: int) -> None:
    """So many chains of so many shards, in groups as large as those of 32 busy provers."""
    provers = chains.enrol(registry, count)
    for number in range(shards + 1):
        for at in range(0, count, _GROUP):
            group = list(chains.submissions(registry, provers[at : at + _GROUP], number))
            registry.sequencer.settle(group)


def _sizes(registry: Registry) -> Iterator[Figure]:
    """Bytes in the database for each entry of the log, indexes and all."""
    with registry.database.begin() as connection:
        count, entry, receipt = connection.execute(
            select(
                func.count(),
                func.avg(func.length(commitments.c.record)),
                func.avg(func.length(commitments.c.receipt)),
            )
        ).one()
        pages = connection.execute(text("pragma page_count")).scalar_one()
        size = connection.execute(text("pragma page_size")).scalar_one()
    yield amount_of("bytes of an entry", "B", [float(entry)])
    yield amount_of("bytes of a receipt", "B", [float(receipt)])
    yield amount_of(
        "bytes of the database for an entry",
        "B",
        [pages * size / count],
        note=f"{count} entries, with enrolments, receipts, hashes and indexes",
    )


def _operations(registry: Registry, folder: Path) -> Iterator[Figure]:
    """A full audit, and a backup without files, for each entry."""
    size = _entries(registry)
    with registry.database.read() as connection:
        key = registry.vault.log_key(connection).public_key
        audit = Audit(connection, ORIGIN, key)
        yield _each("a full audit, for an entry", lambda: list(audit.faults()), size)
    made: list[backup.Made] = []

    def back_up() -> None:
        path = folder / f"backup-{len(made)}.tar"
        made.append(backup.backup(registry.settings, path))
        path.unlink()

    yield _each("a backup, for an entry", back_up, size)
    yield amount_of("bytes of a backup for an entry", "B", [made[-1].bytes / size])


def _scanned(registry: Registry) -> Iterator[Figure]:
    """What the registry does before a scan begins to look."""
    began = time.perf_counter()
    grown = marks.refresh(registry)
    took = time.perf_counter() - began
    with registry.database.read() as connection:
        seeds = sum(len(item.chain.seeds) for item in marks.known(registry, connection))
    yield amount_of("seeds of new marks, for a mark", "s", [took / (seeds // SEED)])
    yield _each("looking for chains that have grown", lambda: marks.refresh(registry), grown)

    def told() -> bytes:
        with registry.database.read() as connection:
            lots = marks.lots(connection, list(marks.known(registry, connection)))
        return child.packed(lots)

    yield _each("opening seeds and packing them, for a chain", told, grown)
    said = told()
    yield _each("unpacking them in the child, for a chain", lambda: child._unpacked(said), grown)


def _desk(registry: Registry, few: int, more: int) -> Iterator[Figure]:
    """The operator's page and the metrics, before and after many enrolments more."""
    sides: dict[str, Callable[[], object]] = {
        "the operator's page": lambda: _page(registry),
        "the figures of /metrics": lambda: figures.text(registry),
    }
    before = {name: _timed(side) for name, side in sides.items()}
    for _ in range(0, more, _BATCH):
        chains.enrol(registry, min(_BATCH, more))
    for name, side in sides.items():
        after = [seconds * 1000 for seconds in _timed(side)]
        # What others do on the machine only ever adds to a time.
        least = {"fewer": few, "ms_of_fewer": 1000 * min(before[name]), "ms": min(after)}
        details: dict[str, Any] = {**least, "enrolments": few + more}
        yield amount_of(f"{name} at {few + more} enrolments", "ms", after, details=details)


def _page(registry: Registry) -> None:
    with registry.database.read() as connection:
        desk.values(connection, with_tokens=True)


def _entries(registry: Registry) -> int:
    with registry.database.read() as connection:
        count: int = connection.execute(select(func.count()).select_from(commitments)).scalar_one()
    return count


def _each(name: str, side: Callable[[], object], count: int) -> Figure:
    """Seconds of something, for each of so many."""
    return amount_of(name, "s", [seconds / count for seconds in _timed(side)])


def _timed(side: Callable[[], object]) -> list[float]:
    side()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        side()
        took.append(time.perf_counter() - began)
    return took

"""What very many chains would take of a registry beside the scan itself, and what must change.

Every number comes from recorded runs: of `registry` how many commitments it takes a second, of
`upkeep` what an entry, a mark or a chain costs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import table, upkeep
from benchmarks.idle import MARKS
from polo.ownership.looking import SEED
from polo.ownership.scan import Chain, Kind, Lot
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import SchemeTerms
from polo.registry.scans import child
from polo.registry.scans.work import SECONDS
from polo.registry.settings import Settings

HASH = 32
GIB, TIB = 2**30, 2**40
DAY = 86_400
_KINDS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


@dataclass(frozen=True)
class Costs:
    """What was recorded of a registry's upkeep.

    Attributes:
        figures: Medians, by name.
        details: Further numbers, by name.
        date: When.
        others: Part of the cores that other processes used meanwhile.
    """

    figures: Mapping[str, float]
    details: Mapping[str, Mapping[str, Any]]
    date: str
    others: float | None

    def __getitem__(self, name: str) -> float:
        """A figure by the beginning of its name."""
        return next(value for key, value in self.figures.items() if key.startswith(name))

    def grown(self, name: str) -> Mapping[str, Any]:
        """How a page was measured: with few enrolments, and with many."""
        return next(value for key, value in self.details.items() if key.startswith(name))


def costs() -> Costs | None:
    """What is recorded; None if nothing is."""
    if not upkeep.RESULT.exists():
        return None
    said = json.loads(upkeep.RESULT.read_text())
    return Costs(
        {item["name"]: item["value"]["median"] for item in said["figures"]},
        {item["name"]: item["details"] for item in said["figures"] if item["details"]},
        said["date"],
        said["load"].get("others"),
    )


def told_bytes() -> int:
    """Bytes that a scan's process is told of each chain more."""
    layout = Layout(CHUNK_BYTES, (Tensor("weight", "F32", (64, 512)),), ())
    scheme = SchemeTerms("ednn", 128, 256, 125_000, "block", 1000, "sum", 1)
    chain = Chain("0" * 64, bytes(SEED * MARKS), True, "0" * 64)
    kind = Kind(layout, ("weight",), scheme)
    one, two = (len(child.packed([Lot(kind, [chain] * count)])) for count in (1, 2))
    return two - one


def job(found: Costs, chains: int) -> Iterator[str]:
    """What the registry's job adds to the call that was measured.

    Args:
        found: What is recorded.
        chains: For how many chains to give an example.
    """
    before = found["looking for chains"]
    packing = found["opening seeds"] + found["unpacking them"]
    each = before + packing
    yield (
        "These are times of the library call `polo.ownership.scan.scan`, whose chains are in "
        "memory. The registry's job does more: it derives seeds of new marks "
        f"({_micro(found['seeds of new marks'])} a mark, once), looks for chains that have grown "
        f"({_micro(before)} a chain), opens all seeds and hands them to a process of its own "
        f"({_micro(packing)} a chain of {MARKS} marks), which hashes the "
        "file first where it must have a committed root. "
        f"For {chains:,} chains that are up to date it adds {chains * each:.1f} s, the start of "
        "the process, and the copy of the model out of the file store."
    )


def rows(found: Costs, rates: Mapping[str, float], goal: int, wall: float) -> Iterator[list[str]]:
    """What everything but the look itself would take.

    Args:
        found: What is recorded of the upkeep.
        rates: Commitments a second, by database.
        goal: Chains.
        wall: Seconds that a scan takes for a chain more, where it was measured.
    """
    entries = goal * (MARKS + 1)
    entry, whole = found["bytes of an entry"], found["bytes of the database"]
    yield ["entries of the log", f"{entries:,}", f"{MARKS} shards and a start for each chain"]
    size = f"{entries * entry / TIB:.1f} TiB"
    yield ["the log itself", size, f"{entry:.0f} bytes an entry"]
    yield ["its hashes", f"{2 * entries * HASH / GIB:.0f} GiB", f"leaves and nodes of {HASH} bytes"]
    yield ["rows of the database", f"{3 * entries + 3 * goal:,}", _ROWS]
    size = f"{entries * whole / TIB:.1f} TiB"
    yield ["bytes of the database", size, f"{whole:.0f} bytes an entry, indexes and all (SQLite)"]
    for kind, rate in rates.items():
        name = f"taking the commitments, {_KINDS[kind]}"
        yield [name, f"{entries / rate / DAY:.0f} days", f"{rate:.0f} a second, without a pause"]
    audit, saved = found["a full audit"], found["a backup,"]
    took = f"{entries * audit / DAY:.0f} days"
    yield ["a full audit (`doctor --all`, `restore`)", took, f"{_micro(audit)} an entry, one core"]
    took = f"{entries * saved / DAY:.1f} days"
    yield ["a backup, without files", took, f"{_micro(saved)} an entry, in one transaction"]
    archive = found["bytes of a backup"]
    yield ["its tar", f"{entries * archive / TIB:.1f} TiB", f"{archive:.0f} bytes an entry"]
    seeds = found["seeds of new marks"]
    took = f"{goal * MARKS * seeds / DAY:.0f} days"
    yield ["seeds of all marks, the first time", took, f"{_micro(seeds)} a mark (`refresh`)"]
    look = found["looking for chains"]
    took = f"{goal * look / 60:.0f} minutes"
    yield ["`refresh` before each scan", took, "it joins all enrolments with all marks"]
    size = f"{goal * told_bytes() / GIB:.0f} GiB"
    yield ["seeds told to the child", size, f"one JSON on standard input, {told_bytes():,} a chain"]
    memory = Settings.verify_memory
    most = f"{memory / 2 / told_bytes():,.0f} at most"
    yield ["chains that the child can hold", most, f"it and its parts, in {memory // GIB} GiB"]
    most = f"{SECONDS / wall:,.0f}"
    yield [f"chains within the {SECONDS} s of a look", most, f"{_micro(wall)} a chain, as measured"]
    yield from _pages(found, goal)


def _pages(found: Costs, goal: int) -> Iterator[list[str]]:
    """What grows with the number of enrolments or identities where people look."""
    seen = found.grown("the figures of /metrics")
    each = (seen["ms"] - seen["ms_of_fewer"]) / 1000 / (seen["enrolments"] - seen["fewer"])
    took = f"{goal * max(0.0, each):.0f} s"
    yield ["`/metrics`, which counts them", took, f"{1e6 * max(0.0, each):.2f} µs an enrolment"]
    seen = found.grown("the operator's page")
    sizes = f"{seen['fewer']:,} and {seen['enrolments']:,} enrolments and identities"
    took = f"{seen['ms_of_fewer']:.1f} and {seen['ms']:.1f} ms"
    yield ["`/operator`", f"as now: {took}", f"measured with {sizes}; it reads along indexes"]


_ROWS = "commitments, leaves and nodes; enrolments, identities and marks"

CHANGES = """\
What must change, in the order in which it breaks:

1. **The seeds.** They go to the child as one JSON in memory. A range of chains must be read by
   the child itself, as bytes and not as hexadecimal, and only the marks that the look needs: a
   row a mark instead of a row a chain, so that the first look reads what it needs and no more.
2. **The look.** A scan is one job, and its process is ended after the seconds above. It must
   become many jobs, each over a range of ids, whose claims are joined and corrected for all
   chains at the end.
3. **Refresh.** It compares every enrolment with its marks before each scan. Commitments must
   note which chains have grown, when they are taken, so that only those are looked at.
4. **One sequencer.** Whoever appends holds the log's lock, so servers more do not make it
   faster. Either many logs, each with a lock, a key and an origin of its own, or larger groups
   from many front ends into one appender. Receipts name the log, so several logs need no new
   format.
5. **Audit and backup.** A full audit must be cut by tiles and go on from the last audited
   checkpoint, as `polo log audit --since` does from outside. One tar is no backup at this size:
   the database's own replication and incremental archive, and versions of the bucket, take its
   place.
6. **Tables.** Commitments, leaves and nodes want partitions by index, and complete tiles belong
   in the object store instead of rows.
7. **Counting.** `/metrics` counts enrolments by state each time it is asked; counts must be
   kept with the changes. Lists, a chain's page, proofs and `/operator` read along an index, and
   stay."""


def section(found: Costs, rates: Mapping[str, float], goal: int, wall: float) -> Iterator[str]:
    """What stands in the page about everything but the look; see `rows`."""
    busy = f", while others used {found.others:.0%} of the cores" if found.others else ""
    yield (
        f"Beside the look itself, from a recorded run of `upkeep` ({found.date}, over SQLite"
        f"{busy}; it is part of the benchmark `registry`):"
    )
    yield table.markdown(("what", "how much", "by"), list(rows(found, rates, goal, wall)))


def rates(recorded: Mapping[str, Any]) -> dict[str, float]:
    """Durable commitments a second, by database."""
    figures = recorded.get("benchmarks", {}).get("registry", {}).get("figures", [])
    named = {figure["name"]: figure["value"] for figure in figures}
    found = {kind: named.get(f"{kind}: durable commitments") for kind in _KINDS}
    return {kind: float(value["median"]) for kind, value in found.items() if value}


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} µs"

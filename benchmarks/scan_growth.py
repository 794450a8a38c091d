"""How a registry grows with the number of chains, and what 10^8 would take: the scan, and the rest.

Every number comes from recorded runs of `scan`, `registry` and `upkeep`; docs/registry-scale.md has
no other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import powers, registry_goal, registry_growth, table
from benchmarks.idle import MARKS
from polo.ownership.looking import SEED, STAGES
from polo.ownership.screen import screen_of

PAGE = Path(__file__).parent.parent / "docs" / "registry-scale.md"
DRAWING = PAGE.parent / "images" / "scan-growth.svg"
GOAL = 10**8
COMPARED, GOOD = 10_000, 5.0
"""What a scan is asked to do: so many chains in so many seconds."""

CORES = 64
GIB = 2**30

_TITLE = "Seconds of a core against the number of chains"

Point = tuple[int, float, float]
"""Chains, seconds, and seconds of a core."""


def points(recorded: Mapping[str, Any]) -> list[Point]:
    """What was measured, by number of chains."""
    figures = recorded.get("benchmarks", {}).get("scan", {}).get("figures", [])
    found = [
        (
            int(figure["details"]["chains"]),
            float(figure["value"]["median"]),
            float(figure["details"]["core_seconds"]),
        )
        for figure in figures
        if figure["name"].startswith("growth") and figure["value"]
    ]
    return sorted(found)


def slope(found: Sequence[Point]) -> float:
    """The exponent that fits from the second size on: 1 is linear.

    The smallest scan is mostly the reading of the model.
    """
    logs = [(math.log(chains), math.log(core)) for chains, _, core in found[1:]]
    mean = [sum(column) / len(logs) for column in zip(*logs, strict=True)]
    over = sum((x - mean[0]) * (y - mean[1]) for x, y in logs)
    fitted: float = over / sum((x - mean[0]) ** 2 for x, _ in logs)
    return fitted


def per_chain(found: Sequence[Point]) -> float:
    """Seconds of a core for one more chain, between the two largest sizes."""
    (fewer, _, less), (more, _, rest) = found[-2:]
    return (rest - less) / (more - fewer)


def wall_per_chain(found: Sequence[Point]) -> float:
    """Seconds for one more chain on all cores of the machine, between the two largest sizes."""
    (fewer, less, _), (more, rest, _) = found[-2:]
    return (rest - less) / (more - fewer)


def write(recorded: Mapping[str, Any]) -> None:
    """Write the page and its drawing, if a scan was recorded."""
    found = points(recorded)
    if len(found) > 2:
        PAGE.write_text("\n\n".join(_page(found, recorded)) + "\n")
        cores = [(chains, core) for chains, _, core in found]
        series = powers.Series("a scan", cores, per_chain(found))
        DRAWING.write_text(powers.drawing(_TITLE, [series], across="chains", unit="s"))


def _page(found: Sequence[Point], recorded: Mapping[str, Any]) -> Iterator[str]:
    machine, entry = recorded["machine"], recorded["benchmarks"]["scan"]
    yield "# A registry of a hundred million chains"
    yield (
        "Written by `python -m benchmarks.report` from a recorded run of `scan` "
        f"({entry['date']}, {machine['cpu']}, {machine['cores']} cores); do not edit. How a scan "
        "works is in [ownership.md](ownership.md)."
    )
    yield "## A scan"
    yield table.markdown(
        ("chains", "seconds", "seconds of a core", "of a core, per chain"),
        [
            (f"{chains:,}", table.number(wall), table.number(core), _micro(core / chains))
            for chains, wall, core in found
        ],
    )
    yield "![Seconds of a core against chains](images/scan-growth.svg)"
    yield (
        f"Core time grows as chains^{slope(found):.2f} from {found[1][0]:,} chains on; a further "
        f"chain takes {_micro(per_chain(found))}. What a scan takes at least is reading the model "
        "and, in a large one, the start of the processes."
    )
    yield from _others(recorded)
    costs = registry_goal.costs()
    if costs:
        yield from registry_goal.job(costs, found[-2][0])
    yield from registry_growth.write(recorded)
    yield f"## What {GOAL:,} chains would take"
    yield from _goal(per_chain(found))
    if costs:
        yield "### The rest of the registry"
        rates = registry_goal.rates(recorded)
        yield from registry_goal.section(costs, rates, GOAL, wall_per_chain(found))
    yield registry_goal.CHANGES


def _others(recorded: Mapping[str, Any]) -> Iterator[str]:
    """What marks of other schemes take."""
    figures = recorded["benchmarks"]["scan"]["figures"]
    named = [(figure, *figure["name"].split(" chains, scheme ")) for figure in figures]
    measured = [
        (scheme[0], int(chains), float(figure["value"]["median"]))
        for figure, chains, *scheme in named
        if scheme and figure["value"]
    ]
    if not measured:
        return
    yield "Other schemes, on the same model; the last column is by proportion, not measured:"
    yield table.markdown(
        ("scheme", "chains", "seconds", "per chain", f"seconds for {COMPARED:,}"),
        [
            (
                scheme,
                f"{chains:,}",
                table.number(seconds),
                _micro(seconds / chains),
                table.number(seconds / chains * COMPARED),
            )
            for scheme, chains, seconds in measured
        ],
    )
    slow = [scheme for scheme, chains, seconds in measured if seconds / chains * COMPARED > GOOD]
    if slow:
        yield (
            f"The goal of {GOOD:g} s for {COMPARED:,} chains holds for the usual scheme, ednn. By "
            f"these figures {', '.join(slow)} would miss it."
        )


def _goal(each: float) -> Iterator[str]:
    core = each * GOAL
    stored, looked = MARKS * SEED * GOAL / GIB, STAGES[0].marks * SEED * GOAL / GIB
    kept = GOAL * screen_of(STAGES[0].bits).false_pass
    yield table.markdown(
        ("what", "how much", "by"),
        [
            ("cores", f"{core / 3600:.1f} core hours", f"{_micro(each)} · {GOAL:,}"),
            (f"time on {CORES} cores", f"{core / CORES / 60:.0f} minutes", "the same, spread"),
            ("seeds at rest", f"{stored:.0f} GiB", f"{MARKS} marks a chain, {SEED} bytes each"),
            (
                "seeds that the first look needs",
                f"{looked:.1f} GiB",
                f"{STAGES[0].marks} marks of each chain",
            ),
            ("chains left after the first look", f"{kept:,.0f}", "computed, of strangers alone"),
            (
                "price in evidence",
                f"{math.log2(GOAL):.1f} bits",
                "log2 of the chains, by Bonferroni's bound",
            ),
        ],
    )
    yield (
        "No step of a scan looks at two chains at once, so the table of seeds can be cut by the "
        "chains' ids over machines, each of which has the model; what must change before that is "
        "in the list below. The price in evidence is small: a claim needs 64 bits after "
        "correction, and a single sealed mark has hundreds."
    )
    yield (
        "Chains of another architecture cost a look at names and shapes, once for each kind. A "
        "registry of many architectures is so many smaller ones."
    )


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs"

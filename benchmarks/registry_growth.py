"""How a registry's pages, proofs and commitments grow with the number of chains.

Every number comes from the recorded run of `registry`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import databases, powers, table

FOLDER = Path(__file__).parent.parent / "docs" / "images"
_AT = "ms_at_"
_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def series(recorded: Mapping[str, Any], kind: str) -> list[powers.Series]:
    """What was measured over one database: milliseconds by number of chains."""
    figures = recorded.get("benchmarks", {}).get("registry", {}).get("figures", [])
    found = []
    for figure in figures:
        name = figure["name"].removeprefix(f"{kind}: ").partition(" at ")[0].partition(",")[0]
        sizes = {key: value for key, value in figure["details"].items() if key.startswith(_AT)}
        if figure["name"].startswith(kind) and sizes:
            points = sorted((int(key.removeprefix(_AT)), value) for key, value in sizes.items())
            found.append(powers.Series(name, points))
    return found


def write(recorded: Mapping[str, Any]) -> Iterator[str]:
    """Draw the growth over either database, and give what stands about it in the page."""
    found = {kind: series(recorded, kind) for kind in databases.KINDS}
    if not any(found.values()):
        return
    entry, machine = recorded["benchmarks"]["registry"], recorded["machine"]
    yield "## Pages, proofs and commitments"
    yield f"From a recorded run of `registry` ({entry['date']}, {machine['cores']} cores)."
    for kind, measured in found.items():
        if measured:
            yield from _section(kind, measured)
    first, last = _ends([one for measured in found.values() for one in measured])
    yield (
        f"What grew as the logarithm of the chains would take "
        f"{math.log(last) / math.log(first):.1f} times as long at {last:,} as at {first:,}. "
        "These machines are noisy: sizes were measured one after the other, and a factor of two "
        "comes and goes between them."
    )


def _section(kind: str, measured: Sequence[powers.Series]) -> Iterator[str]:
    counted = [chains for chains, _ in measured[0].points]
    yield table.markdown(
        (f"ms, {_NAMES[kind]}", *(f"{chains:,}" for chains in counted), "last / first"),
        [
            (
                one.name,
                *(table.number(value) for _, value in one.points),
                f"{one.points[-1][1] / one.points[0][1]:.2f}",
            )
            for one in measured
        ],
    )
    title = f"Milliseconds against the number of chains, {_NAMES[kind]}"
    name = f"registry-growth-{kind}.svg"
    (FOLDER / name).write_text(powers.drawing(title, measured, across="chains", unit="ms"))
    yield f"![{title}](images/{name})"


def _ends(measured: Sequence[powers.Series]) -> tuple[int, int]:
    counted = [chains for one in measured for chains, _ in one.points]
    return min(counted), max(counted)

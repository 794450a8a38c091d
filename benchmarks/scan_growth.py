"""How a scan grows with the number of chains: a table, a drawing, and what 10^8 chains would take.

Every number comes from the recorded run of `scan`; the page docs/registry-scale.md has no other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.idle import MARKS
from polo.ownership.looking import SEED, STAGES
from polo.ownership.screen import screen_of

PAGE = Path(__file__).parent.parent / "docs" / "registry-scale.md"
DRAWING = PAGE.parent / "images" / "scan-growth.svg"
GOAL = 10**8
CORES = 64
GIB = 2**30

_WIDTH, _HEIGHT, _LEFT, _BELOW = 560, 300, 64, 44

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


def write(recorded: Mapping[str, Any]) -> None:
    """Write the page and its drawing, if a scan was recorded."""
    found = points(recorded)
    if len(found) > 2:
        PAGE.write_text("\n\n".join(_page(found, recorded)) + "\n")
        DRAWING.write_text(drawing(found))


def _page(found: Sequence[Point], recorded: Mapping[str, Any]) -> Iterator[str]:
    machine, entry = recorded["machine"], recorded["benchmarks"]["scan"]
    yield "# A registry of a hundred million chains"
    yield (
        "Written by `python -m benchmarks.report` from a recorded run of `scan` "
        f"({entry['date']}, {machine['cpu']}, {machine['cores']} cores); do not edit. How a scan "
        "works is in [ownership.md](ownership.md)."
    )
    yield "## Measured"
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
    yield f"## What {GOAL:,} chains would take"
    yield from _goal(per_chain(found))


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
        "chains' ids over machines, each of which has the model. Two things must change before "
        "that. A row holds all seeds of a chain in one sealed piece; it must hold one seed, so "
        "that the first look reads what it needs and no more. And one process holds the list of "
        "all chains; it must go through them in parts. The price in evidence is small: a claim "
        "needs 64 bits after correction, and a single sealed mark has hundreds."
    )
    yield (
        "Chains of another architecture cost a look at names and shapes, once for each kind. A "
        "registry of many architectures is so many smaller ones."
    )


def drawing(found: Sequence[Point]) -> str:
    """Core seconds against chains, both as powers of ten, and a straight line through the last."""
    scale = _Scale(found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#555">',
        "<title>Seconds of a core against the number of chains</title>",
        *scale.rules(),
        scale.line(per_chain(found)),
    ]
    for chains, _, core in found:
        x, y = scale.at(chains, core)
        lines.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="#2a6fb0"/>')
        lines.append(_text(x, _HEIGHT - 22, f"{chains:,}"))
    lines.append(_text(_WIDTH / 2, _HEIGHT - 6, "chains"))
    return "\n".join([*lines, "</svg>"]) + "\n"


class _Scale:
    """Where a point is drawn."""

    def __init__(self, found: Sequence[Point]) -> None:
        cores = [math.log10(core) for *_, core in found]
        self.first, self.last = found[0][0], found[-1][0]
        self.bottom, self.top = math.floor(min(cores)), math.ceil(max(cores))

    def at(self, chains: float, core: float) -> tuple[float, float]:
        across = math.log10(chains / self.first) / math.log10(self.last / self.first)
        up = (math.log10(core) - self.bottom) / (self.top - self.bottom)
        x = _LEFT + across * (_WIDTH - _LEFT - 40)
        return x, 16 + (1 - up) * (_HEIGHT - _BELOW - 24)

    def rules(self) -> Iterator[str]:
        """A line for every power of ten."""
        for power in range(self.bottom, self.top + 1):
            left, y = self.at(self.first, 10.0**power)
            right, _ = self.at(self.last, 10.0**power)
            yield f'<path d="M{left:.0f} {y:.0f}H{right:.0f}" stroke="#ddd"/>'
            yield _text(left - 8, y + 4, f"{10.0**power:g} s", "end")

    def line(self, each: float) -> str:
        """What every size would take at so much a chain."""
        first = max(self.first, 10.0**self.bottom / each)
        (x0, y0), (x1, y1) = self.at(first, each * first), self.at(self.last, each * self.last)
        way = f"M{x0:.0f} {y0:.0f}L{x1:.0f} {y1:.0f}"
        return f'<path d="{way}" stroke="#999" stroke-dasharray="4 4"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs"

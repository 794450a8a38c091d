"""Figures as rows, for the terminal and for the report."""

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("benchmark", "figure", "median (10th to 90th)", "ratio (95 % interval)", "target", "met")


def rows(benchmarks: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row of text for each figure."""
    return [_row(name, figure) for name, entry in benchmarks.items() for figure in entry["figures"]]


def line(name: str, figure: Mapping[str, Any]) -> str:
    """One figure as it comes."""
    return "  ".join(_row(name, figure))


def _row(name: str, figure: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        figure["name"],
        _value(figure),
        _ratio(figure),
        _target(figure),
        {True: "yes", False: "NO", None: "open" if figure["target"] else "–"}[figure["met"]],
    )


def table(benchmarks: Mapping[str, Any]) -> str:
    """A table for the terminal."""
    found = [HEAD, *rows(benchmarks)]
    widths = [max(len(row[at]) for row in found) for at in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in found
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(head: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    """A table for a page."""
    lines = [head, ["---"] * len(head), *found]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Four digits, without needless zeros.

    >>> number(0.00123456), number(1234.5), number(0.5)
    ('0.001235', '1234', '0.5')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _value(figure: Mapping[str, Any]) -> str:
    value = figure["value"]
    if value is None:
        return "not measured"
    text = f"{number(value['median'])} {figure['unit']}"
    if value["p10"] != value["p90"]:
        text += f" ({number(value['p10'])} to {number(value['p90'])})"
    return text


def _ratio(figure: Mapping[str, Any]) -> str:
    found = figure["ratio"] or (figure["value"] if figure["unit"] == "×" else None)
    if found is None:
        return "–"
    text = number(found["median"])
    # A single sample has no interval.
    if max(map(len, figure["samples"].values()), default=0) > 1:
        text += f" ({number(found['low'])} to {number(found['high'])})"
    return f"{text} of {figure['against']}" if figure["against"] else text


def _target(figure: Mapping[str, Any]) -> str:
    target = figure["target"]
    if target is None:
        return "–"
    return f"{target['relation']} {number(target['bound'])} {figure['unit']}"

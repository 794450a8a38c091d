"""`python -m benchmarks.report`: write docs/benchmarks.md from the recorded results.

No figure in that page is typed by hand: run the benchmarks again, then this.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import likeness, ownership, scan_growth, table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

Written by `python -m benchmarks.report` from a recorded run (`benchmarks/results/`); do not edit.
`benchmarks/README.md` says how to run them and how to read the ratios.

Every time was taken in turn with what it is compared with, round after round. A *ratio* is that
of the two medians, with its 95 % bootstrap interval over whole rounds; a figure whose unit is × is
itself a ratio, the median of the single rounds' ratios, likewise with its interval. The range after
a median goes from the 10th to the 90th percentile of the single samples. *Load* is the average
number of processes that ran or waited during the minute before and after, the benchmark itself
included."""


def main() -> None:
    """Write the page."""
    recorded = json.loads((RESULTS / "latest.json").read_text())
    attacked = [_recorded(name) for name in ("robustness.json", "robustness-gpu.json")]
    PAGE.parent.mkdir(exist_ok=True)
    found = [item for item in attacked if item]
    text = page(
        recorded,
        _recorded("noise.json"),
        found,
        progress=_recorded("progress.json"),
        effort=_recorded("effort-gpu.json"),
        newer=_recorded("newer.json"),
    )
    PAGE.write_text(text)
    scan_growth.write(recorded)


def _recorded(name: str) -> Mapping[str, Any] | None:
    path = RESULTS / name
    found: Mapping[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def page(
    recorded: Mapping[str, Any],
    noise: Mapping[str, Any] | None,
    attacked: Sequence[Mapping[str, Any]],
    progress: Mapping[str, Any] | None = None,
    effort: Mapping[str, Any] | None = None,
    newer: Mapping[str, Any] | None = None,
) -> str:
    """The page's text."""
    parts = [_INTRODUCTION, "## Machine", *_machine(recorded["machine"])]
    parts += ["## Results", table.markdown(table.HEAD, table.rows(recorded["benchmarks"]))]
    parts += ["## Notes", *_notes(recorded["benchmarks"])]
    if noise:
        parts += ["## Obfuscation and accuracy", *_noise(noise)]
    if attacked:
        parts.append("## Ownership after attacks")
    for at, found in enumerate(attacked):
        parts += ownership.sections(found, again=bool(at))
    if progress:
        parts += ["## Does it look like training?", *likeness.section(progress)]
    for title, other in (("Evidence of effort on a GPU", effort), ("On another machine", newer)):
        if other:
            parts += [f"## {title}", *_machine(other["machine"])]
            parts += [table.markdown(table.HEAD, table.rows(other["benchmarks"]))]
            parts += _notes(other["benchmarks"])
    return "\n\n".join(parts) + "\n"


def _machine(machine: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB memory, "
        f"{machine['system']}, Python {machine['python']}; {versions}."
    )


def _notes(benchmarks: Mapping[str, Any]) -> Iterator[str]:
    for name, entry in benchmarks.items():
        lines = [
            f"**{name}**: {entry['title']}. {entry['date']}, {entry['seconds']:.0f} s, "
            f"{_load(entry['load'])}"
        ]
        if "machine" in entry:
            lines[0] += f" On {' '.join(_machine(entry['machine']))}"
        for figure in entry["figures"]:
            said = [figure["note"]] if figure["note"] else []
            said += [_details(figure["details"])] if name != "noise" and figure["details"] else []
            rounds = max((len(values) for values in figure["samples"].values()), default=0)
            said.append(f"{rounds} samples a side" if len(figure["samples"]) > 1 else "")
            text = "; ".join(item for item in said if item)
            lines += [f"- {figure['name']}: {text}."] if text else []
        yield "\n".join([lines[0], "", *lines[1:]] if lines[1:] else lines)


def _load(load: Mapping[str, Any] | None) -> str:
    if load is None:
        return "load not noted."
    return f"load {load['before']:g} before and {load['after']:g} after" + _others(load)


def _others(load: Mapping[str, Any]) -> str:
    others = load.get("others")
    return "." if others is None else f"; others used {others:.0%} of the cores."


def _details(details: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {table.number(value)}" for name, value in details.items()
    )


def _noise(noise: Mapping[str, Any]) -> Iterator[str]:
    settings, proposal = noise["settings"], noise["proposal"]
    yield (
        f"Digits task, {settings['models']} models. Changes are means over models ± one standard "
        "error, in percentage points of test accuracy. σ is relative to each tensor's root mean "
        "square; columns are the part of the weights that gets noise."
    )
    yield (
        f"**Once**, on models trained {settings['epochs']} epochs, "
        f"{settings['noise_seeds']} draws of noise each:"
    )
    fractions = sorted({row["fraction"] for row in noise["once"]})
    cells = {(row["sigma"], row["fraction"]): row for row in noise["once"]}
    yield table.markdown(
        ("σ", *(f"{fraction:.0%}" for fraction in fractions)),
        [
            (f"{sigma:.1%}", *(_change(cells[sigma, fraction]) for fraction in fractions))
            for sigma in sorted({row["sigma"] for row in noise["once"]})
        ],
    )
    yield (
        f"**Chain**: noise at the end of each of {settings['shards']} shards of one epoch, against "
        "the same seeds without noise. η is the mean detection rate of the earlier marks in the "
        "last model; the last column is the norm of a shard's noise over that of its training."
    )
    yield table.markdown(
        ("σ", "of the weights", "change", "η", "η without noise", "noise to move"),
        [
            (
                f"{row['sigma']:.1%}",
                f"{row['fraction']:.0%}",
                _change(row),
                f"{row['eta_old']:.3f}",
                f"{row['eta_old_plain']:.3f}",
                f"{row['noise_to_move']:.3f}",
            )
            for row in noise["chain"]
        ],
    )
    yield (
        f"Proposed default: σ = {proposal['sigma']:.1%} on {proposal['fraction']:.0%} of the "
        f"weights ({proposal['rule']})."
    )


def _change(row: Mapping[str, Any]) -> str:
    return f"{100 * row['change']:+.2f} ± {100 * row['error']:.2f}"


if __name__ == "__main__":
    main()

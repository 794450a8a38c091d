"""The part of docs/results.md that sets ours beside the paper's figures."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from polo_lab.experiments import catalogue, lines
from polo_lab.experiments.figures import names
from polo_lab.experiments.lines import Recording
from polo_lab.experiments.origin import origins
from polo_lab.experiments.paper import claims, findings, targets, timing
from polo_lab.experiments.table import Table, markdown

NAMES = (
    "comparison", "fidelity", "timing", "ofa-wma", "attack-curves", "takeover", "learning-rate",
    "eta-g", "eta-ver", "llm", "cost",
)  # fmt: skip
FIGURES = "figures"

_WORDS = """\
The paper's figures are kept in `results/paper.jsonl`, as its tables print them. Ours are from other
machines, so that times are compared as ratios, and from other data where the paper's are not at
hand: every row names its data as what they are. A row that is not here was not run."""

_UNDONE = """\
Parts of the paper's tables wait for a GPU. Until they are run, whatever stands below about these
experiments is about the runs that are recorded, and about those alone:"""


def sections(results: Path) -> Iterator[str]:
    """The part's text, piece by piece."""
    found = {name: catalogue.recorded(name, results) for name in NAMES}
    yield "## Ours beside the paper's"
    yield _WORDS
    if undone := _listed(_undone(found, results)):
        yield "### What was not run yet"
        yield _UNDONE
        yield undone
    yield "### What does not hold in the paper itself"
    yield _listed(claims.of_the_paper())
    for title, sentences in (
        ("What was aimed at", targets.of_ours(found)),
        ("What our runs show", findings.of_ours(found)),
    ):
        if told := _listed(sentences):
            yield f"### {title}"
            yield told
    for name, recording in found.items():
        if recording.lines:
            yield from _section(name, recording)
        elif name == "timing":
            # What is cited needs no run.
            yield f"## {name}: {catalogue.find(name).title}"
            yield from _table(timing.cited())


def _undone(found: Mapping[str, Recording], results: Path) -> Iterator[str]:
    """Experiments that lack runs, and how many."""
    for name, recording in found.items():
        experiment = catalogue.find(name)
        if experiment.lines != name:
            continue  # Another view of the same lines.
        known = {line.key for line in recording.lines if line.ended != lines.CRASHED}
        units = {lines.key_of(unit) for unit in experiment.units_of(False, results)}
        if units - known:
            yield f"{name}: {len(units & known)} of {len(units)} runs; {experiment.title}"


def _section(name: str, recording: Recording) -> Iterator[str]:
    experiment = catalogue.find(name)
    yield f"## {name}: {experiment.title}"
    yield from origins(recording)
    for table in experiment.tables(recording):
        if table.rows:
            yield from _table(table)
    charts = experiment.charts(recording)
    for chart, file in zip(charts, names(name, len(charts), "svg"), strict=True):
        yield f"![{chart.title}](../results/{FIGURES}/{file})"
    others = [line for line in recording.lines if line.ended != lines.DONE]
    if others and not experiment.recorded:
        yield "Refused, diverged or crashed:"
        yield "\n".join(f"- {line.key}: {line.ended}. {line.note}" for line in others)


def _table(table: Table) -> Iterator[str]:
    yield f"### {table.title}"
    yield from filter(None, (table.words, markdown(table)))


def _listed(sentences: Iterator[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)

"""The pages that are made of recorded lines: docs/results.md and docs/schemes.md.

No figure on them is typed by hand: run an experiment again, then `polo-lab docs`.
"""

from pathlib import Path

from polo.errors import PoloError
from polo_lab.experiments import (
    catalogue,
    effort_report,
    escapes,
    exactness,
    lines,
    llm_report,
    schemes_report,
)
from polo_lab.experiments.figures import write as write_figures
from polo_lab.experiments.lines import Recording
from polo_lab.experiments.paper import page

FOLDER = lines.ROOT / "docs"
_EFFORT = {"small": "effort", "tolerance": "effort-tolerance", "resnet18": "effort-resnet18"}
_SCHEMES = {"Small tasks": "schemes", "ResNet-18": "schemes-resnet18"}

_INTRODUCTION = """\
# Results

Written by `polo-lab docs` from recorded runs (`results/*.jsonl`); do not edit. First the paper's
tables and figures, ours beside them; then attacks on evidence of effort. Schemes have a page of
their own: `docs/schemes.md`. `polo-lab run NAME` runs an experiment again, `polo-lab list` names
all."""


def write(results: Path = lines.FOLDER, out: Path = FOLDER) -> list[Path]:
    """Write all pages, and the figures that they show; returns their paths."""
    if not any(results.glob("*.jsonl")):
        raise PoloError(
            "no recorded runs are there", place=str(results), advice="polo-lab run NAME"
        )
    for name in catalogue.NAMES:
        if catalogue.find(name).lines == name:  # Others are views of the same lines.
            path = lines.path_of(name, results)
            lines.warn_of_broken(path, catalogue.recorded(name, results))
    pages = {out / "results.md": results_page(results), out / "schemes.md": schemes_page(results)}
    out.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return [*pages, *_figures(results)]


def _figures(results: Path) -> list[Path]:
    found = []
    for name in page.NAMES:
        experiment = catalogue.find(name)
        recording = catalogue.recorded(name, results)
        if recording.lines and (charts := experiment.charts(recording)):
            found += write_figures(name, charts, results / page.FIGURES, "svg")
    return found


def results_page(results: Path = lines.FOLDER) -> str:
    """The text of docs/results.md."""
    parts = [_INTRODUCTION, *page.sections(results), *_effort(results)]
    return "\n\n".join(parts) + "\n"


def schemes_page(results: Path = lines.FOLDER) -> str:
    """The text of docs/schemes.md."""
    found = _found(results, _SCHEMES)
    adapters = llm_report.sections(catalogue.recorded("llm", results))
    return schemes_report.page(found, tuple(adapters))


def _effort(results: Path) -> list[str]:
    found = _found(results, _EFFORT)
    parts = ["# Evidence of effort", effort_report.WORDS, effort_report.retried(0.5, 10, 2)]
    for name, recording in found.items():
        parts += effort_report.sections(name, recording)
    parts += escapes.sections(catalogue.recorded("escapes", results))
    parts += exactness.sections(catalogue.recorded("exactness", results))
    parts += effort_report.attacks(list(found.values()))
    return parts


def _found(results: Path, names: dict[str, str]) -> dict[str, Recording]:
    """What was recorded, by the name that a page gives it; what was not is left out."""
    read = {title: catalogue.recorded(name, results) for title, name in names.items()}
    return {title: recording for title, recording in read.items() if recording.lines}

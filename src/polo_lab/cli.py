"""The laboratory's command: `polo-lab list | run | table | figure | docs`.

Exit codes: 0 done; 1 a run crashed, came out as it must not, or is left to do; 2 could not be done,
or not understood; 130 stopped by hand.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, validators

from polo._version import __version__
from polo.checks import counted
from polo.errors import PoloError
from polo_lab.experiments import catalogue, lines

app = App(
    name="polo-lab",
    help="Run PoLO's experiments, and make tables and figures of what was recorded.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)

Results = Annotated[Path, Parameter(help="Folder of recorded lines.")]
Count = Annotated[int | None, Parameter(validator=validators.Number(gte=0))]
Number = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]
Minutes = Annotated[float, Parameter(validator=validators.Number(gte=0))]


@app.command(name="list")
def list_(*, results: Results = lines.FOLDER) -> None:
    """All experiments, and how many of their runs are recorded."""
    for name in catalogue.NAMES:
        experiment = catalogue.find(name)
        known = lines.read(lines.path_of(experiment.lines, results)).lines
        done = {line.key for line in known if line.ended != lines.CRASHED}
        units = [lines.key_of(unit) for unit in experiment.units_of(False, results)]
        needs = f" (needs {experiment.needs})" if experiment.needs else ""
        count = f"{sum(key in done for key in units)} of {len(units)} runs"
        print(f"{name:18} {count:18} {experiment.title}{needs}")


@app.command
def run(
    name: str,
    *,
    quick: bool = False,
    rerun: bool = False,
    only: tuple[str, ...] = (),
    workers: Count = None,
    minutes: Minutes = 0.0,
    anyway: bool = False,
    results: Results = lines.FOLDER,
) -> int:
    """Run what is not recorded yet of an experiment; each run is one line, written when it is done.

    Parameters
    ----------
    name
        An experiment, or `all`.
    quick
        A trimmed form, on a processor in seconds; its lines go into a folder of their own.
    rerun
        Repeat what is recorded.
    only
        Runs with this setting alone, such as bits=2048 or bits=1024,2048; several must all hold.
    workers
        Processes of one thread each; 0 for none but this one. Where they are more than there are
        benches, runs that could share one are spread over several.
    minutes
        Begin nothing after so many minutes; leave room for the longest run, which is not stopped.
        The same command takes up what is left.
    anyway
        Run on this processor what needs a GPU, however long it takes.
    results
        Folder of recorded lines.
    """
    from polo_lab.experiments import harness

    wanted = dict(_pair(text) for text in only)
    if len(wanted) < len(only):
        raise PoloError(
            "--only names a setting twice",
            advice="write several values with commas, such as bits=1024,2048",
        )
    asked = harness.Asked(quick, rerun, wanted, workers, minutes, results, anyway)
    found = [catalogue.find(one) for one in (catalogue.NAMES if name == "all" else (name,))]
    if name == "all" and wanted:
        found = [one for one in found if harness.chosen(one, asked)]
    if not found:
        told = ", ".join(only)
        raise PoloError(f"no experiment has runs with {told}", advice="polo-lab run NAME --only …")
    return harness.run_all(found, asked) if name == "all" else harness.run(found[0], asked)


@app.command
def table(
    name: str,
    *,
    format: Literal["md", "csv", "latex"] = "md",
    only_table: Number = None,
    quick: bool = False,
    results: Results = lines.FOLDER,
) -> None:
    """The tables of an experiment, from its recorded lines.

    Parameters
    ----------
    name
        An experiment.
    format
        How to write them.
    only_table
        One of them alone, by its number from 1.
    quick
        Those of the trimmed form.
    results
        Folder of recorded lines.
    """
    from polo_lab.experiments.table import FORMATS

    found = list(catalogue.find(name).tables(_recorded(name, results, quick)))
    if only_table and only_table > len(found):
        raise PoloError(f"{name} has {counted(len(found), 'table')}, and no number {only_table}")
    shown = found[only_table - 1 : only_table] if only_table else found
    print("\n\n".join(FORMATS[format](one) for one in shown))


@app.command
def figure(
    name: str,
    *,
    format: Literal["svg", "png"] = "svg",
    quick: bool = False,
    results: Results = lines.FOLDER,
    out: Path | None = None,
) -> None:
    """The figures of an experiment, from its recorded lines.

    Parameters
    ----------
    name
        An experiment.
    format
        How to write them; PNG needs Pillow.
    quick
        Those of the trimmed form.
    results
        Folder of recorded lines.
    out
        Folder to write into; by default `figures` in that of the lines.
    """
    from polo_lab.experiments.figures import write

    charts = catalogue.find(name).charts(_recorded(name, results, quick))
    if not charts:
        raise PoloError(f"{name} has no figure", advice=f"polo-lab table {name}")
    for path in write(name, charts, out or _place(results, quick) / "figures", format):
        print(path)


@app.command
def docs(*, results: Results = lines.FOLDER, out: Path | None = None) -> None:
    """Write docs/results.md and docs/schemes.md, with their figures, from recorded lines.

    Parameters
    ----------
    results
        Folder of recorded lines.
    out
        Folder to write pages into; by default the documents of this checkout. Figures lie with
        the lines that they are drawn from.
    """
    from polo_lab.experiments import pages

    for path in pages.write(results, out or pages.FOLDER):
        print(path)


def main(arguments: list[str] | None = None) -> None:
    """Run the command, and exit with its code."""
    sys.exit(answer(arguments))


def answer(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        result = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        return 2
    except PoloError as error:
        print(f"polo-lab: {error.diagnostics()}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("polo-lab: stopped; what was done is recorded", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        told = f"{error.filename or 'the system'}: {error.strerror or error}"
        print(f"polo-lab: {told}", file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


def _recorded(name: str, results: Path, quick: bool) -> lines.Recording:
    folder = _place(results, quick)
    path = lines.path_of(catalogue.find(name).lines, folder)
    found = catalogue.recorded(name, folder)
    lines.warn_of_broken(path, found)
    if not found.lines:
        trimmed = " --quick" if quick else ""
        raise PoloError(f"nothing of {name} is recorded", advice=f"polo-lab run {name}{trimmed}")
    return found


def _place(results: Path, quick: bool) -> Path:
    from polo_lab.experiments.harness import QUICK

    return results / QUICK if quick else results


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise PoloError(f"{text!r} is no setting", advice="write it like bits=2048")
    return name, value

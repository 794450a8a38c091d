"""What it costs in USD: recorded seconds, times a stated price of the machine.

Nothing is trained for it. Every run takes one recorded run of another experiment and prices it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from polo.errors import MissingError
from polo_lab.baselines import chain
from polo_lab.experiments import lines
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.pairs import PAIRS, QUICK
from polo_lab.experiments.paper.subject import NONE
from polo_lab.experiments.table import Table

PRICES = {"NVIDIA H200": 3.50, "": 0.05}
"""USD for an hour of a machine by its GPU, or for one core without one: an assumption, stated."""

_OF = ("fidelity", "ofa-wma")
_PARTS = {
    "training": "training with PoLO",
    "plain": "plain training",
    "verify_all": "verification, all shards tested",
    "verify_none": "verification, marks alone",
    "attack_seconds": "the attack",
}


def units(quick: bool) -> Iterable[Settings]:
    """One for each run that is recorded; the trimmed form trains for itself."""
    if quick:
        yield {"of": "polo", "run": QUICK, "seed": 0}
        return
    yield from units_in(lines.FOLDER)


def units_in(results: Path) -> Iterable[Settings]:
    """One for each run that is recorded in a folder."""
    # Who names all experiments imports this module when it is asked for.
    from polo_lab.experiments import catalogue

    for name in _OF:
        for line in catalogue.recorded(name, results).done:
            # Seconds of a machine that several runs shared say nothing about its price.
            if line.workers <= 1:
                seed = line.settings["seed"]
                yield {"of": name, "run": line.key, "began": line.began, "seed": seed}


def measure(settings: Settings, bench: Bench) -> Measured:
    """Price one run."""
    if bench.quick:
        took = chain.run(PAIRS[settings["run"]].job(1, settings["seed"]))
        gpu, times = "", {"training": sum(took["seconds"].values())}
        return Measured(_priced(gpu, times), times)
    line = _recorded(settings["of"], settings["run"], settings["began"], bench)
    gpu = str(line.machine["gpu"]) if line.machine else ""
    times = {name: line.timings[name] for name in _PARTS if name in line.timings}
    if line.settings["scheme"] == NONE:
        times = {"plain": times["training"]}
    return Measured({"pair": line.settings["pair"], **_priced(gpu, times)}, times)


def _recorded(name: str, key: str, began: str, bench: Bench) -> Line:
    for line in bench.recorded(name).done:
        if (line.key, line.began) == (key, began):
            return line
    raise MissingError(f"{name} has no run {key}", advice=f"polo-lab run {name}")


def _priced(gpu: str, times: dict[str, float]) -> dict[str, Any]:
    if gpu not in PRICES:
        raise MissingError(f"there is no price for {gpu}", advice="state one in paper/cost.py")
    price = PRICES[gpu]
    usd = {name: took * price / 3600 for name, took in times.items()}
    return {"gpu": gpu, "usd_per_hour": price, "usd": usd}


def tables(recording: Recording) -> Iterator[Table]:
    """USD by run and part, and the paper's."""
    head = ("experiment", "run", "what", "seconds", "USD")
    rows = [
        (line.settings["of"], line.settings["run"], _PARTS[name], f"{took:.3g}",
         f"{line.figures['usd'][name]:.4f}")
        for line in newest(recording)
        for name, took in line.timings.items()
    ]  # fmt: skip
    stated = ", ".join(f"{p:g} USD an hour for {gpu or 'a core'}" for gpu, p in PRICES.items())
    words = (
        f"Prices are assumed: {stated}. The paper's USD and seconds for VGG-16 come to "
        f"{paper_price():.3f} USD an hour, of two V100."
    )
    yield Table("Cost", head, rows, words)


def newest(recording: Recording) -> list[Line]:
    """Of runs that were repeated and priced again, the last."""
    found: dict[tuple[str, str], Line] = {}
    for line in recording.done:
        last = found.setdefault((line.settings["of"], line.settings["run"]), line)
        # Of one run, as the trimmed form trains it, there is nothing earlier.
        if line.settings.get("began", "") > last.settings.get("began", ""):
            found[line.settings["of"], line.settings["run"]] = line
    return list(found.values())


def paper_price() -> float:
    """USD an hour that the paper's own figures come to."""
    found = published.table("cost")
    total = sum(row.figures["usd"] for row in found)
    return 3600 * total / (sum(row.figures["seconds"] for row in found) or 1)


EXPERIMENTS = (
    Experiment(
        name="cost",
        title="USD of recorded runs, at a stated price",
        units=units,
        measure=measure,
        tables=tables,
        units_in=units_in,
    ),
)

"""The sweep of η_ver that the paper left open: who is accepted at which threshold.

Marks are read in the owner's own checkpoints, in the finished model, after every attack, and in
models that never carried them; and the thief's own marks in what it forged. For every threshold the
lines then say which part of each kind is accepted.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polo_lab.attacks import ofa, takeover, wma
from polo_lab.attacks.victim import Victim
from polo_lab.baselines import plain
from polo_lab.experiments.chart import Chart, Series
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import percent, span
from polo_lab.experiments.paper.forgery import victim_of
from polo_lab.experiments.paper.pairs import HEADLINE, QUICK
from polo_lab.experiments.table import Table
from polo_lab.schemes.training import Setting

KINDS = {
    "sealed": "the owner's marks, each in its own checkpoint",
    "kept": "the owner's marks, all in the finished model",
    "ofa": "the owner's marks after OFA",
    "wma": "the owner's marks after WMA",
    "wma-least": "the owner's marks after WMA by the least edit",
    "takeover": "the owner's marks after takeover",
    "forged-ofa": "the thief's marks, by OFA",
    "forged-wma": "the thief's marks, by WMA",
    "stranger": "the owner's marks in a model that never had them",
}
SCHEMES = ("ednn", "riga")
SEEDS = 3
MOST = 10
"""Epochs of a takeover for each shard; `takeover` has what twice as many do."""


def units(quick: bool) -> Iterable[Settings]:
    """Chains of a few schemes and sizes; digits on a processor, the headline on a GPU."""
    if quick:
        yield _unit(QUICK, "ednn", 256, 1, 0)
        return
    for pair, sizes, epochs, seeds in ((HEADLINE, (2048,), 10, 1), (QUICK, (512,), 6, SEEDS)):
        for scheme in SCHEMES:
            for bits in sizes:
                for seed in range(seeds):
                    yield _unit(pair, scheme, bits, epochs, seed)


def _unit(pair: str, scheme: str, bits: int, epochs: int, seed: int) -> Settings:
    return {"pair": pair, "scheme": scheme, "bits": bits, "epochs": epochs, "seed": seed}


def measure(settings: Settings, bench: Bench) -> Measured:
    """Train a chain, attack it in every way, and read all marks."""
    victim, folder = victim_of(settings, bench), bench.folder
    times = {"training": victim.seconds}
    found: dict[str, Sequence[float]] = {"kept": _kept(victim, folder)}
    for name, row in _attacked(victim, folder, quick=bench.quick):
        found[name] = [stage["owner_eta"] for stage in row["stages"]]
        times[name] = row["attack_seconds"]
        if name in ("ofa", "wma"):
            found["sealed"] = [stage["owner_eta_before"] for stage in row["stages"]]
            found[f"forged-{name}"] = [stage["thief_eta"] for stage in row["stages"]]
    other = plain.prove(victim.job)
    times["plain"] = sum(other.seconds.values())
    shards = range(1, victim.shards + 1)
    found["stranger"] = [victim.reading(shard, other.model).eta for shard in shards]
    figures = {"etas": found, "shards": victim.shards, "accuracy": victim.made.accuracy}
    return Measured(figures, times)


def _kept(victim: Victim, folder: Path) -> list[float]:
    etas: list[float] = victim.claim(victim.made.model, folder / "kept")["etas"]
    return etas


def _attacked(victim: Victim, folder: Path, *, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    thief = Setting(victim.setting.scheme, victim.setting.bits)
    yield "ofa", ofa.attack(victim, ofa.Attack(thief, rounds=int(quick)), folder / "ofa")
    for name, way in (("wma", "overwrite"), ("wma-least", "least")):
        yield name, wma.attack(victim, wma.Attack(thief, way), folder / name)
    most = takeover.Attack(thief, shards=1, most=1) if quick else takeover.Attack(thief, most=MOST)
    yield "takeover", takeover.attack(victim, most, folder / "takeover")


def pooled(recording: Recording) -> dict[str, list[float]]:
    """All η of each kind, of every run."""
    return {
        kind: [eta for line in recording.done for eta in line.figures["etas"].get(kind, ())]
        for kind in KINDS
    }


def accepted(etas: Sequence[float], threshold: float) -> float | None:
    """Part that is accepted at a threshold."""
    return sum(eta >= threshold for eta in etas) / len(etas) if etas else None


THRESHOLDS = [round(0.5 + step / 50, 2) for step in range(26)]
_SHOWN = (0.50, 0.54, 0.60, 0.64, 0.70, 0.74, 0.80, 0.84, 0.90, 0.94, 0.96, 0.98, 1.0)


def tables(recording: Recording) -> Iterator[Table]:
    """Acceptance of every kind by threshold, and how the kinds read."""
    found = pooled(recording)
    head = ("what is read", "marks", "η", *(f"{at:g}" for at in _SHOWN))
    rows = [
        (
            KINDS[kind], str(len(etas)), span(etas),
            *(percent(accepted(etas, at), 0) for at in _SHOWN),
        )
        for kind, etas in found.items()
        if etas
    ]  # fmt: skip
    yield Table("Accepted, by η_ver", head, rows, _words(found))


def _words(found: dict[str, list[float]]) -> str:
    chosen = published.figure("eta-ver", "eta_ver", what="threshold") or 0.7
    parts = []
    if found["sealed"] and found["stranger"]:
        low, high = max(found["stranger"]), min(found["sealed"])
        apart = "between them any threshold tells" if low < high else "no threshold tells"
        parts.append(
            f"Honest marks in their own checkpoints read at least {high:.3f}, strangers at most "
            f"{low:.3f}: {apart} one from the other."
        )
    attacked = [eta for kind in ("ofa", "wma", "takeover") for eta in found[kind]]
    if attacked:
        below = sum(eta < chosen for eta in attacked)
        parts.append(
            f"At the paper's {chosen:g}, {below} of {len(attacked)} attacked marks of the owner "
            "are no longer read."
        )
    forged = [eta for kind in ("forged-ofa", "forged-wma") for eta in found[kind]]
    if forged:
        passing = sum(eta >= chosen for eta in forged)
        least = min(found["sealed"], default=1.0)
        alike = sum(eta >= least for eta in forged)
        parts.append(
            f"{passing} of {len(forged)} forged marks pass it, and {alike} read as well as the "
            "weakest honest one, which no threshold on η alone keeps out."
        )
    return " ".join(parts)


def charts(recording: Recording) -> list[Chart]:
    """Part accepted over the threshold, a line for each kind."""
    found = pooled(recording)
    series = [
        Series(KINDS[kind], [(at, accepted(etas, at)) for at in THRESHOLDS], steps=True)
        for kind, etas in found.items()
        if etas
    ]
    return [Chart("Who is accepted at which threshold", "η_ver", "part accepted", series)]


EXPERIMENTS = (
    Experiment(
        name="eta-ver",
        title="acceptance of honest, attacked and forged marks by threshold",
        units=units,
        measure=measure,
        tables=tables,
        charts=charts,
        group=("pair", "scheme", "bits", "seed"),
        needs="POLO_DATA and a GPU for the headline",
        gpu=lambda settings: settings["pair"] != QUICK,
    ),
)

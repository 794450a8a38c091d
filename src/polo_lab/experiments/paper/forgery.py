"""The paper's forgeries, OFA and WMA, on every checkpoint of a chain: time, η and accuracy.

`attack-curves` is the same runs shard by shard.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polo_lab.attacks import ofa, wma
from polo_lab.attacks.victim import Victim
from polo_lab.baselines.job import Job
from polo_lab.experiments.chart import Chart, Series
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once, percent, points, ratio, seconds
from polo_lab.experiments.paper.pairs import GRID, HEADLINE, PAIRS, QUICK
from polo_lab.experiments.table import Table
from polo_lab.schemes.training import Setting

ATTACKS = ("ofa", "wma", "wma-least")
BITS = (2048, 1024, 512)
EPOCHS = {HEADLINE: 10}
_SHORT = 4
"""Epochs of the owner's chain where it is not the headline's: OFA takes five times as long, and
its time is set against that of the same chain."""

SMALL = (512, 6, 3)
"""Bits, epochs and seeds of what a processor attacks."""


def units(quick: bool) -> Iterable[Settings]:
    """All attacks on all pairs, the headline first; last on digits, which need no GPU."""
    if quick:
        for attack in ATTACKS:
            yield _unit(QUICK, 256, attack, 2)
        return
    for bits in BITS:
        for pair in GRID:
            for attack in ATTACKS:
                yield _unit(pair, bits, attack, EPOCHS.get(pair, _SHORT))
    bits, epochs, seeds = SMALL
    for seed in range(seeds):
        for attack in ATTACKS:
            yield _unit(QUICK, bits, attack, epochs, seed)


def _unit(pair: str, bits: int, attack: str, epochs: int, seed: int = 0) -> Settings:
    return {
        "pair": pair,
        "bits": bits,
        "attack": attack,
        "scheme": "riga",
        "epochs": epochs,
        "seed": seed,
    }


def victim_of(settings: Settings, bench: Bench) -> Victim:
    """The owner's chain that all attacks of a bench are made on."""

    def make() -> Victim:
        job = Job.of(PAIRS[settings["pair"]].job(settings["epochs"], settings["seed"]))
        setting = Setting(settings["scheme"], settings["bits"])
        return Victim.train(job, setting, bench.folder / "owner")

    return bench.once("victim", make)


def measure(settings: Settings, bench: Bench) -> Measured:
    """One attack on every checkpoint."""
    victim = victim_of(settings, bench)
    row = _attacked(settings["attack"], victim, bench.folder / settings["attack"])
    timings = {name: row.pop(name) for name in ("honest_seconds", "attack_seconds")}
    headline = row.pop("thief_headline", "")
    row = {"data": PAIRS[settings["pair"]].task.data.title, **row, "honest_eta": _honest(row)}
    return Measured({k: v for k, v in row.items() if k not in settings}, timings, headline)


def _attacked(name: str, victim: Victim, folder: Path) -> dict[str, Any]:
    thief = Setting("riga", victim.setting.bits)
    if name == "ofa":
        return ofa.attack(victim, ofa.Attack(thief), folder)
    way = "least" if name == "wma-least" else "overwrite"
    return wma.attack(victim, wma.Attack(thief, way), folder)


def _honest(row: dict[str, Any]) -> float:
    before = [stage["owner_eta_before"] for stage in row["stages"]]
    return sum(before) / len(before) if before else 0.0


_HEAD = (
    "pair", "data", "bits", "seed", "attack", "shards", "sealed", "at once", "time", "of honest",
    "η of the owner", "least", "η of the thief", "accuracy, last", "less its checkpoint", "mean",
    "worst", "thief's proof", "owner named", "owner first", "the paper's time", "its η",
    "its accuracy, less honest",
)  # fmt: skip

_WORDS = """\
Every checkpoint of an owner's chain is attacked, with RIGA's marks as in the paper. Owner and thief
have marks of the same size here; in the paper the owner's have 2048 bits, whatever the thief's. OFA
fine-tunes all weights with the training data at a tenth of the learning rate, five rounds
for 2048 bits and three for fewer; WMA overwrites the weights that the thief's mark sits in, without
data; *least* is WMA moving them as little as the mark asks for, which the paper does not have. A
mark that cannot be pressed ends an attack early. η is that of the owner's mark of each shard
afterwards, on average. Every forged checkpoint is set against the owner's that it was made of:
the last one, the mean of all, and the one that loses most; those whose mark could not be pressed to
η_G are not *sealed* into the thief's proof. *Thief's proof*: whether level chain alone accepts it,
whose floor of accuracy for these tasks, {floor}, lets ruined checkpoints pass; a verifier who asks
for the accuracy of honest shards rejects those. *At once*: how many runs shared the machine."""


def tables(recording: Recording) -> Iterator[Table]:
    """The paper's table of attacks, ours beside it."""
    cells = [_cells(line) for line in recording.done]
    floors = dict.fromkeys(PAIRS[line.settings["pair"]].task.floor[-1] for line in recording.done)
    words = _WORDS.replace("{floor}", " or ".join(f"{floor:g}" for floor in sorted(floors)))
    yield Table("Forging a chain: OFA and WMA", _HEAD, cells, words)


def lost(row: Mapping[str, Any]) -> list[float]:
    """Accuracy that each forged checkpoint lost against the one that it was made of."""
    return [stage["accuracy_before"] - stage["accuracy"] for stage in row["stages"]]


def _cells(line: Line) -> tuple[str, ...]:
    row = line.values
    who = row["attack"].partition("-")[0]
    where = {"pair": PAIRS[row["pair"]].paper, "bits": row["bits"]}
    time, eta, accuracy, honest, generation = (
        published.figure("ofa-wma", what, **where)
        for what in (
            f"{who}_seconds", f"{who}_eta", f"{who}_accuracy", "polo_accuracy", "polo_seconds",
        )
    )  # fmt: skip
    theirs = row["attack"] in ("ofa", "wma") and time is not None
    losses = lost(row)
    changes = (-losses[-1], -sum(losses) / len(losses), -max(losses)) if losses else [None] * 3
    return (
        row["pair"],
        row["data"],
        str(row["bits"]),
        str(row["seed"]),
        row["attack"],
        f"{row['attacked_shards']} of {row['honest_shards']}",
        str(row["thief_shards"]),
        at_once(line),
        seconds(row["attack_seconds"]),
        ratio(row["attack_seconds"], row["honest_seconds"]),
        percent(row["owner_eta_mean"]),
        percent(row["owner_eta_least"]),
        percent(row["thief_eta_mean"]),
        percent(row["accuracy_last"], 2),
        *map(points, changes),
        "accepted" if row["thief_accepted"] else "rejected",
        "yes" if row["claim"]["claimed"] else "no",
        "yes" if row["owner_first"] else "no",
        ratio(time, generation) if theirs else "–",
        f"{eta:.1f} %" if theirs else "–",
        f"{accuracy - honest:+.1f}" if theirs and accuracy and honest else "–",
    )


def charts(recording: Recording) -> list[Chart]:
    """Accuracy after every shard: the owner's, and each attack's."""
    found = []
    rows = [line.values for line in _shown(recording)]
    for pair, bits in dict.fromkeys((row["pair"], row["bits"]) for row in rows):
        own = [row for row in rows if (row["pair"], row["bits"]) == (pair, bits)]
        honest = list(enumerate(own[0]["honest_accuracies"], 1))
        series = [Series("PoLO, honest", honest)]
        series += [
            Series(row["attack"], [(s["shard"], s["accuracy"]) for s in row["stages"]])
            for row in own
        ]
        found.append(Chart(f"{pair}, {bits} bits", "shard", "accuracy", series))
    return found


def curve_tables(recording: Recording) -> Iterator[Table]:
    """What every attack left of each shard."""
    lines = [
        (
            line.settings["pair"], str(line.settings["bits"]), line.settings["attack"],
            str(stage["shard"]), percent(stage["accuracy_before"], 2),
            percent(stage["accuracy"], 2), percent(stage["owner_eta"]),
            percent(stage["thief_eta"]), at_once(line), seconds(stage["seconds"]),
        )
        for line in _shown(recording)
        for stage in line.figures["stages"]
    ]  # fmt: skip
    head = (
        "pair", "bits", "attack", "shard", "accuracy, honest", "accuracy", "η of the owner",
        "η of the thief", "at once", "time",
    )  # fmt: skip
    yield Table("Attacks shard by shard", head, lines)


def _shown(recording: Recording) -> list[Line]:
    """Runs of each pair's largest size and first seed, as the paper's figure has them."""
    most: dict[str, int] = {}
    for line in recording.done:
        pair, bits = line.settings["pair"], line.settings["bits"]
        most[pair] = max(bits, most.get(pair, 0))
    return [
        line
        for line in recording.done
        if line.settings["bits"] == most[line.settings["pair"]] and not line.settings["seed"]
    ]


def _curves(quick: bool) -> Iterable[Settings]:
    if quick:
        return (unit for unit in units(quick) if unit["attack"] != "ofa")
    largest = {QUICK: SMALL[0]}
    return (
        unit
        for unit in units(quick)
        if unit["bits"] == largest.get(unit["pair"], BITS[0]) and not unit["seed"]
    )


_GROUP = ("pair", "bits", "epochs", "seed")
EXPERIMENTS = (
    Experiment(
        name="ofa-wma",
        title="forging a chain by fine-tuning (OFA) and by editing weights (WMA)",
        units=units,
        measure=measure,
        tables=tables,
        group=_GROUP,
        needs="POLO_DATA and a GPU, but for digits",
        gpu=lambda settings: settings["pair"] != QUICK,
    ),
    Experiment(
        name="attack-curves",
        title="accuracy over shards under OFA and WMA",
        units=_curves,
        measure=measure,
        tables=curve_tables,
        charts=charts,
        group=_GROUP,
        needs="POLO_DATA and a GPU, but for digits",
        gpu=lambda settings: settings["pair"] != QUICK,
        recorded="ofa-wma",
    ),
)

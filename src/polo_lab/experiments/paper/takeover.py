"""Multi-shard takeover: what an attacker must do to one checkpoint after the other."""

from collections.abc import Iterable, Iterator
from typing import Any

from polo.protocol.detection import MILLION
from polo_lab.attacks import takeover
from polo_lab.experiments.chart import Chart, Series
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper.cells import at_once, percent, points, ratio, seconds
from polo_lab.experiments.paper.forgery import victim_of
from polo_lab.experiments.paper.pairs import PAIRS, QUICK
from polo_lab.experiments.table import Table
from polo_lab.schemes.training import Setting

PAPER = ("efficientnet/cifar10", "resnet18/tinyimagenet100")
"""The paper's pairs; TinyImageNet-100/32 stands for CIFAR-100."""

BITS = 256
"""As in the paper's figure."""


def units(quick: bool) -> Iterable[Settings]:
    """One takeover for each pair; the last is that of digits, which needs no GPU."""
    for pair in (QUICK,) if quick else (*PAPER, QUICK):
        yield {
            "pair": pair,
            "bits": BITS,
            "scheme": "riga",
            "epochs": 2 if quick else 6 if pair == QUICK else 10,
            "shards": 2 if quick else takeover.SHARDS,
            "most": 2 if quick else 20,
            "seed": 0,
        }


def measure(settings: Settings, bench: Bench) -> Measured:
    """Take over the first shards of a chain."""
    victim = victim_of(settings, bench)
    how = takeover.Attack(
        Setting("riga", settings["bits"]), shards=settings["shards"], most=settings["most"]
    )
    row = takeover.attack(victim, how, bench.folder / "takeover")
    timings = {name: row.pop(name) for name in ("honest_seconds", "attack_seconds")}
    row = {
        "data": PAIRS[settings["pair"]].task.data.title,
        "eta_ver": victim.made.terms.thresholds.verify / MILLION,
        "honest_etas": [s.matches / settings["bits"] for s in victim.made.proof.manifest.shards],
        **row,
    }
    return Measured({k: v for k, v in row.items() if k not in settings}, timings)


_HEAD = (
    "pair", "data", "shard", "epochs", "η of the owner", "erased", "η of the thief", "accuracy",
    "less honest", "at once", "time", "of an honest shard",
)  # fmt: skip

_WORDS = """\
From every checkpoint the attacker fine-tunes by the paper's equations 7 and 8, with λ_blind =
{blind}, until its own mark has settled and the owner's reads below {eta_ver}, or for {most} epochs.
It cannot read the owner's mark; who measures can, and lets it stop when it would if it could. *At
once*: how many runs shared the machine."""


def tables(recording: Recording) -> Iterator[Table]:
    """What became of every shard."""
    rows = [line.values for line in recording.done]
    told = {
        name: " or ".join(dict.fromkeys(f"{row[name]:g}" for row in rows))
        for name in ("blind", "eta_ver", "most")
    }
    cells = [one for line in recording.done for one in _cells(line)]
    yield Table("Multi-shard takeover", _HEAD, cells, _WORDS.format(**told))


def _cells(line: Line) -> Iterator[tuple[str, ...]]:
    row = line.values
    honest = row["honest_seconds"] / row["honest_shards"] if row["honest_shards"] else None
    for stage, erased in zip(row["stages"], row["erased"], strict=True):
        epochs = max(p["epoch"] for p in row["curve"] if p["shard"] == stage["shard"])
        yield (
            row["pair"], row["data"], str(stage["shard"]), str(epochs),
            percent(stage["owner_eta"]), "yes" if erased else "no", percent(stage["thief_eta"]),
            percent(stage["accuracy"], 2), points(stage["accuracy"] - stage["accuracy_before"]),
            at_once(line), seconds(stage["seconds"]), ratio(stage["seconds"], honest),
        )  # fmt: skip


def charts(recording: Recording) -> list[Chart]:
    """Both marks and accuracy, epoch by epoch; lines stand where a shard was done."""
    found = []
    for row in (line.values for line in recording.done):
        curve = row["curve"]
        shards = [point["shard"] for point in curve]
        ends = [at for at, two in enumerate(zip(shards, [*shards[1:], 0], strict=True), 1)
                if two[0] != two[1]]  # fmt: skip
        series = [
            Series(name, _broken(curve, key, ends))
            for name, key in (
                ("η of the owner", "owner_eta"),
                ("η of the thief", "thief_eta"),
                ("accuracy", "accuracy"),
            )
        ]
        title, limits = f"Takeover of {row['pair']}, {row['bits']} bits", {"η_ver": row["eta_ver"]}
        found.append(Chart(title, "epochs of fine-tuning", "part of one", series, limits, ends))
        honest = [
            Series("η of the owner, sealed", list(enumerate(row["honest_etas"], 1))),
            Series("accuracy", list(enumerate(row["honest_accuracies"], 1))),
        ]
        found.append(Chart(f"Honest training of {row['pair']}", "shard", "part of one", honest))
    return found


def _broken(
    curve: list[dict[str, Any]], key: str, ends: list[int]
) -> list[tuple[float, float | None]]:
    """Points of a curve, with a gap after every shard."""
    points: list[tuple[float, float | None]] = []
    for at, point in enumerate(curve, 1):
        points.append((at, point[key]))
        if at in ends:
            points.append((at + 0.5, None))
    return points


EXPERIMENTS = (
    Experiment(
        name="takeover",
        title="multi-shard takeover, epoch by epoch",
        units=units,
        measure=measure,
        tables=tables,
        charts=charts,
        group=("pair", "seed"),
        needs="POLO_DATA and a GPU, but for digits",
        gpu=lambda settings: settings["pair"] != QUICK,
    ),
)

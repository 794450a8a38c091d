"""Generation and verification: PoLO, both proofs of learning by replay, and bare training.

All methods train through the same stepper on the same data, so that what one takes beyond plain
training is its own.
"""

import functools
import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from polo_lab.baselines import chain, plain, pol_hash, pol_vanilla, watermark_only, zk
from polo_lab.baselines.job import Job
from polo_lab.baselines.rows import PARTS, PROVING, unproved
from polo_lab.experiments import machine
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.cells import at_once, part, percent, ratio, seconds
from polo_lab.experiments.paper.pairs import GRID, HEADLINE, LONG, PAIRS, QUICK
from polo_lab.experiments.table import Table

METHODS = {m.METHOD: m for m in (plain, chain, pol_vanilla, pol_hash, watermark_only)}
REPLAYED = {m.METHOD: m for m in (pol_vanilla, pol_hash)}
"""Methods whose long runs are taken apart: each part takes as long as training."""

_LONGEST = (plain.METHOD, chain.METHOD, pol_vanilla.METHOD)
"""What is run at the full length: training, ours, and whoever runs all of it again."""

BITS = (2048, 1024, 512)
_SHORT = 3
"""Epochs of the grid: verification by replay takes as long again, twice for two methods."""

_KEY = ("pair", "method", "bits", "scheme", "epochs", "seed")


def units(quick: bool) -> Iterable[Settings]:
    """All methods, the headline at its full length first, then all pairs, the largest size first.

    Bits matter to those with marks alone, and of those the paper has one at every size.
    """
    if quick:
        yield from _methods(QUICK, 2, 256)
        return
    yield from (one for one in _methods(HEADLINE, LONG, BITS[0]) if one["method"] in _LONGEST)
    for pair in GRID:
        yield from _methods(pair, _SHORT, BITS[0])
    # The smaller sizes of a pair are neighbours, so that its data are read once for both.
    for pair, bits in itertools.product(GRID, BITS[1:]):
        yield from (one for one in _methods(pair, _SHORT, bits) if one["method"] == chain.METHOD)


def _methods(pair: str, epochs: int, bits: int) -> Iterator[Settings]:
    for method in METHODS:
        marked = method in (chain.METHOD, watermark_only.METHOD)
        unit = {
            "pair": pair,
            "method": method,
            "bits": bits if marked else 0,
            "scheme": "ednn" if marked else "none",
            "epochs": epochs,
            "seed": 0,
        }
        apart = method in REPLAYED and epochs >= LONG
        yield from ({**unit, "part": name} for name in PARTS) if apart else (unit,)


def measure(settings: Settings, bench: Bench) -> Measured:
    """Prove and verify by one method.

    Raises:
        MissingError: A part is asked for whose trajectory is not here. It is said before anything
            is trained: proving anew would take longer than a call may.
    """
    if settings.get("part", PROVING) != PROVING:
        method = settings["method"]
        if not REPLAYED[method].kept(_kept(settings, bench)):
            raise unproved(method)
    pair = PAIRS[settings["pair"]]
    asked = {**pair.job(settings["epochs"], settings["seed"]), **_marks(settings)}
    if settings["epochs"] >= LONG:
        # Four checkpoints of an epoch, as proofs by replay keep them, would fill a disk; with fewer
        # than two there would be nothing to choose from.
        asked["every"] = Job.of(asked).pass_steps // 2
    bench.once("warm", functools.partial(_warm, asked))
    row = _part(settings, asked, bench) if "part" in settings else _whole(settings, asked, bench)
    timings = {f"proving_{phase}": took for phase, took in row.pop("seconds", {}).items()}
    for name in [key for key in row if key.endswith("_seconds")]:
        timings[name] = row.pop(name)
    for name in [key for key in row if key.startswith("verify_")]:
        timings[name] = row[name].pop("total_seconds")
    figures = {"data": pair.task.data.title, **row}
    return Measured({k: v for k, v in figures.items() if k not in settings}, timings)


def _whole(settings: Settings, asked: dict[str, Any], bench: Bench) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as own:
        row: dict[str, Any] = METHODS[settings["method"]].run(asked, Path(own))
    return row


def _part(settings: Settings, asked: dict[str, Any], bench: Bench) -> dict[str, Any]:
    """One part; the trajectory stays for the next ones, which another call may measure."""
    folder = _kept(settings, bench)
    row: dict[str, Any] = REPLAYED[settings["method"]].run_part(asked, folder, settings["part"])
    if settings["part"] == PARTS[-1]:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def _kept(settings: Settings, bench: Bench) -> Path:
    """Where the parts of a run leave their trajectory."""
    name = "-".join(str(settings[key]).replace("/", "-") for key in _KEY)
    # What another version made, or another device, is not what this one would verify.
    name += "-" + hashlib.sha256(repr(machine.describe()).encode()).hexdigest()[:12]
    return bench.kept(f"timing-{name}")


def _marks(settings: Settings) -> dict[str, Any]:
    """The size of marks, where the method has any."""
    if not settings["bits"]:
        return {}
    return {"scheme": settings["scheme"], "bits": settings["bits"]}


def _warm(asked: dict[str, Any]) -> None:
    """A first step of everything, so that nobody pays for kernels being chosen."""
    plain.run({**asked, "epochs": 1})


def wrong(line: Line) -> str:
    """An honest proof that was not accepted."""
    bad = [k for k, v in line.figures.items() if k in _VERDICTS and not v["accepted"]]
    return f"an honest proof was not accepted: {', '.join(bad)}" if bad else ""


_VERDICTS = ("verify_all", "verify_sampled", "verify_marks")
_HEAD = (
    "pair", "data", "epochs", "method", "bits", "accuracy", "at once", "compiled",
    "training + proof",
    "of plain", "stored", "verified in full", "of plain", "sampled", "marks alone",
    "the paper's training + proof, of plain", "its verification, of plain",
)  # fmt: skip

_WORDS = """\
*Verified in full*: for proofs by replay every segment is run again; for PoLO all marks are derived
and read and every shard is tested; for the others the model is tested. *Sampled*: the largest
update of each epoch (vanilla), a quarter of the segments (hash), the accuracy of O(log S) shards
(PoLO). *Marks alone*: hashing, deriving and reading, no test. Vanilla's thresholds are calibrated
beforehand, which is not counted. All train with kernels that come out the same every time, images
with SGD, their steps compiled, and texts with AdamW. Compiling is not counted. *At once*: how many
runs shared the machine."""


def rows(recording: Recording) -> list[dict[str, Any]]:
    """Values of every method's run, its parts together, with the GPU of the last one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in recording.done:
        row = found.setdefault(tuple(line.settings[name] for name in _KEY), {"at_once": "1"})
        shared = max(row["at_once"], at_once(line), key=int)
        gpu = line.machine["gpu"] if line.machine else ""
        row |= {**line.values, "at_once": shared, "gpu": gpu}
    return list(found.values())


def tables(recording: Recording) -> Iterator[Table]:
    """The paper's table of times, ours beside it, and what zero-knowledge takes, cited."""
    own = rows(recording)
    bare = {(r["pair"], r["epochs"]): _total(r) for r in own if r["method"] == plain.METHOD}
    cells = [_cells(row, bare.get((row["pair"], row["epochs"]))) for row in own]
    yield Table("Generation and verification", _HEAD, cells, _WORDS)
    yield cited()


def _total(row: dict[str, Any]) -> float | None:
    """Seconds of training with all that is proved; None if that part was not run."""
    phases = [took for name, took in row.items() if name.startswith("proving_")]
    return float(sum(phases)) if phases else None


def _cells(row: dict[str, Any], bare: float | None) -> tuple[str, ...]:
    method, pair = row["method"], PAIRS[row["pair"]].paper
    theirs = {"polo": "polo", "pol-vanilla": "vanilla", "pol-hash": "hash"}.get(method, "")
    where = {"pair": pair, "bits": row["bits"] or BITS[0]}
    made, checked, plainly = (
        published.figure("timing", what, **where)
        for what in (f"{theirs}_generation", f"{theirs}_verification", "training")
    )
    return (
        row["pair"],
        row["data"],
        str(row["epochs"]),
        method,
        str(row["bits"] or "–"),
        percent(row.get("accuracy"), 2),
        row["at_once"],
        row.get("compiled") or "no",
        seconds(_total(row)),
        ratio(_total(row), bare),
        f"{row['bytes_stored'] / 1e6:.1f} MB" if "bytes_stored" in row else "–",
        seconds(_took(row, "verify_all")),
        part(_took(row, "verify_all"), bare),
        seconds(_took(row, "verify_sampled")),
        seconds(_took(row, "verify_marks")),
        ratio(made, plainly),
        part(checked, plainly, 1),
    )


def _took(row: dict[str, Any], name: str) -> float | None:
    """Seconds; the verdict of the same name is a figure, and timings come last."""
    value = row.get(name)
    return value if isinstance(value, float | int) else None


def cited() -> Table:
    """What others say about proofs of training in zero knowledge; none of it was measured here."""
    head = (
        "model", "weights, as cited", "batch", "seconds to prove a step", "to verify", "memory",
        "source",
    )  # fmt: skip
    lines = [
        (
            one.model,
            f"{one.weights:,}" if one.weights else "–",
            str(one.batch),
            " to ".join(f"{value:g}" for value in dict.fromkeys(one.seconds)),
            f"{one.verification:g} s" if one.verification else "–",
            f"{one.memory:g} GiB" if one.memory else "–",
            one.source,
        )
        for one in zk.FIGURES
    ]
    return Table("Zero-knowledge proof of training, cited", head, lines)


EXPERIMENTS = (
    Experiment(
        name="timing",
        title="generation and verification against proofs of learning by replay",
        units=units,
        measure=measure,
        tables=tables,
        group=("pair", "epochs", "seed"),
        wrong=wrong,
        needs="POLO_DATA and a GPU",
        gpu=lambda settings: settings["pair"] != QUICK,
        ordered=True,
    ),
)

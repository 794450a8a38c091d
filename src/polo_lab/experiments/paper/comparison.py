"""The paper's table of methods and properties, every tick with the run behind it."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polo_lab.attacks.effort import ATTACKS
from polo_lab.attacks.victim import Victim
from polo_lab.baselines import chain, pol_hash, pol_vanilla, watermark_only, zk
from polo_lab.baselines.job import Job
from polo_lab.effort.case import Attempt, Case
from polo_lab.effort.catalogue import Key
from polo_lab.effort.judging import Judgement, judge
from polo_lab.effort.training import respond
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Recording, Settings
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.pairs import PAIRS, QUICK
from polo_lab.experiments.table import Table
from polo_lab.schemes.training import Setting

PROPERTIES = {
    "ownership": "the owner is told from whoever holds a copy",
    "reconstruction": "a way back from a finished model is rejected",
    "synthetic": "a made-up trajectory is rejected",
    "loophole": "cheating where the verifier does not look is rejected",
    "no-data": "verifying shows no training data",
    "generation": "proving takes at most a tenth of training",
    "verification": "verifying takes at most a tenth of training",
}
CHEAP = 0.1
REPLAYED = {
    "reconstruction": ("other_start", "straight"),
    "synthetic": ("skipped", "wrong_data"),
    "loophole": ("small_moves", "swapped"),
}
"""Cheats of proofs by replay that stand for a property."""

CHAINED = {
    "reconstruction": ("inflation from a stolen start", "interpolation, straight"),
    "synthetic": ("inflation from a drawn start", "skipping 50%, ahead"),
    "loophole": ("spoofed replay, small", "single graft, denied"),
}
"""Attacks on PoLO that stand for it."""

CANCER = {"task": "lab-cancer", "epochs": 3, "batch": 32, "rate": 0.05}
"""The job of the trimmed form."""

METHODS = ("watermark-only", "pol-vanilla", "pol-hash", "pol-zk", "polo, chain", "polo, all levels")
Found = dict[str, dict[str, Any]]


def units(quick: bool) -> Iterable[Settings]:
    """Every method once."""
    for method in METHODS:
        yield {
            "method": method,
            "pair": "cancer" if quick else QUICK,
            "scheme": "ednn",
            "bits": 128 if quick else 256,
            "epochs": 3 if quick else 6,
            "seed": 0,
        }


def measure(settings: Settings, bench: Bench) -> Measured:
    """All runs behind one method's row."""
    method = settings["method"]
    if method == zk.METHOD:
        return Measured({"properties": {}, "cited": True}, note=zk.PUBLISHED)
    asked = {**_job(settings), "scheme": settings["scheme"], "bits": settings["bits"]}
    asked["cheats"] = True
    if method == watermark_only.METHOD:
        return Measured({"properties": _watermark(asked)})
    if method in (pol_vanilla.METHOD, pol_hash.METHOD):
        return Measured({"properties": _replayed(method, asked, bench.folder / method)})
    return Measured({"properties": _polo(settings, bench, alone=method == "polo, chain")})


def _job(settings: Settings) -> dict[str, Any]:
    if settings["pair"] == "cancer":
        return {**CANCER, "epochs": settings["epochs"], "seed": settings["seed"]}
    return PAIRS[settings["pair"]].job(settings["epochs"], settings["seed"])


def _held(held: bool, why: str) -> dict[str, Any]:
    return {"held": held, "why": why}


def _watermark(asked: Mapping[str, Any]) -> Found:
    row = watermark_only.run(asked)
    owner, other = row["verify_all"]["accepted"], row["verify_other_secret"]["accepted"]
    training = sum(row["seconds"].values())
    return {
        "ownership": _held(owner and not other, f"owner accepted: {owner}, another: {other}"),
        "no-data": _held(not row["verify_all"]["data_bytes_shown"], "the model alone is read"),
        **_times(row["generation_seconds"], row["verify_all"]["total_seconds"], training),
    }


def _replayed(method: str, asked: Mapping[str, Any], folder: Path) -> Found:
    module = pol_vanilla if method == pol_vanilla.METHOD else pol_hash
    row = module.run(asked, folder)
    training = sum(row["seconds"].values())
    found = {name: _cheated(row["cheats"], cheats) for name, cheats in REPLAYED.items()}
    copied, shown = _copied(method, asked, folder), row["verify_all"]["data_bytes_shown"]
    return {
        "ownership": _held(not copied, f"a copy under another's name accepted: {copied}"),
        **found,
        "no-data": _held(not shown, f"{shown:,} bytes of data shown to run all steps again"),
        **_times(row["generation_seconds"], row["verify_all"]["total_seconds"], training),
    }


def _copied(method: str, asked: Mapping[str, Any], folder: Path) -> bool:
    """Whether somebody else passes with a copy of the proof: nothing in it names anybody."""
    job, copy = Job.of(asked), folder.with_name(f"{folder.name}-copy")
    if method == pol_hash.METHOD:
        made = pol_hash.prove(job, folder.with_name(f"{folder.name}-own"))
        shutil.copytree(made.path, copy)
        return pol_hash.verify(copy, job, made.head, pol_hash.Options(1)).accepted
    shutil.copytree(folder / method, copy)
    return pol_vanilla.verify(copy, job, pol_vanilla.Options(1)).accepted


def _cheated(cheats: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Whether all of some cheats were rejected, by whoever samples as the method does."""
    passed = [name for name in names if cheats[name]["accepted_sampled"]]
    whole = [name for name in names if cheats[name]["accepted_all"]]
    sampled, full = (", ".join(some) or "none" for some in (passed, whole))
    return _held(not passed, f"accepted when sampled: {sampled}; in full: {full}")


def _polo(settings: Settings, bench: Bench, *, alone: bool) -> Found:
    case: Case = bench.once("case", lambda: _case(bench))
    setting = Setting(settings["scheme"], settings["bits"])
    victim: Victim = bench.once(
        "victim",
        lambda: Victim.train(Job.of(_job(settings)), setting, bench.folder / "owner"),
    )
    claim = victim.claim(victim.made.model, bench.folder / "claim")["claimed"]
    honest = _judged(case, bench, "")
    shown = 0 if alone else honest.replayed
    if alone:
        checked = chain.verify(victim.made, victim.job, "all").total
        times = _times(sum(victim.made.spent.values()), checked, victim.seconds)
    else:
        # Whoever is challenged takes steps again to answer: that is proving, too.
        proving = case.victim.proving + honest.answering
        times = _times(proving, honest.verifying, case.victim.seconds)
    levels = ("chain",) if alone else ("chain", "start", "progress", "replay")
    return {
        "ownership": _held(claim, f"the owner is named in the model: {claim}"),
        **{name: _rejected(case, bench, names, levels) for name, names in CHAINED.items()},
        "no-data": _held(not shown, f"samples of {shown} steps shown"),
        **times,
    }


def _rejected(
    case: Case, bench: Bench, names: Iterable[str], levels: Iterable[str]
) -> dict[str, Any]:
    """Whether some levels reject all of some attacks; the trimmed form makes the first alone."""
    tried = list(names)[: 1 if bench.quick else None]
    judged = {name: _judged(case, bench, name) for name in tried}
    passed = [
        name
        for name, found in judged.items()
        if all(found.levels.get(level) == "passed" for level in levels)
    ]
    return _held(not passed, f"accepted: {', '.join(passed) or 'none'}")


def _case(bench: Bench) -> Case:
    task = "cancer" if bench.quick else "digits-mlp"
    return Key(task, "adam", "constant", 0).case(bench.folder / "case")


def _judged(case: Case, bench: Bench, name: str) -> Judgement:
    """What the verifier says of an attack, or of the honest run; each is made once."""

    def make() -> Judgement:
        folder = bench.folder / f"judged-{name or 'honest'}"
        if not name:
            attempt = Attempt(case.victim.proof, respond(case.task, case.victim), 0.0, 0)
        else:
            attack = next(one for one in ATTACKS if one.name == name)
            attempt = attack.run(case, folder / "proof")
        return judge(case, attempt, folder / "answer")

    return bench.once(("judged", name), make)


def _times(proving: float, verifying: float, training: float) -> Found:
    return {
        "generation": _held(proving <= CHEAP * training, f"{proving / training:.1%} of training"),
        "verification": _held(
            verifying <= CHEAP * training, f"{verifying / training:.1%} of training"
        ),
    }


_WORDS = """\
Ticks come from runs: a property holds if every attack that stands for it was rejected by a verifier
who samples as the method says; the second table names what was accepted. The paper's ticks stand
behind ours. On models of seconds, times are mostly those of files and checks: `timing` has them at
size. Leaks of gradients were not run and are left out. Zero-knowledge proofs were not run either
and have the paper's ticks alone."""


def tables(recording: Recording) -> Iterator[Table]:
    """Methods by properties, and the reasons."""
    rows = recording.done
    yield Table(
        "Methods and properties",
        ("method", *PROPERTIES),
        [
            (line.settings["method"], *_ticks(line.settings["method"], line.figures))
            for line in rows
        ],
        _WORDS,
    )
    reasons = [
        (line.settings["method"], PROPERTIES[name], own["why"])
        for line in rows
        for name, own in line.figures["properties"].items()
    ]
    yield Table("What ticks and crosses rest on", ("method", "property", "run"), reasons)


def ticks(method: str) -> Mapping[str, Any]:
    """What the paper says of a method, by property."""
    short = method.partition(",")[0]
    rows = (row for row in published.table("comparison") if row.settings["method"] == short)
    return next((row.figures for row in rows), {})


def _ticks(method: str, figures: Mapping[str, Any]) -> Iterator[str]:
    theirs = ticks(method)
    for name in PROPERTIES:
        own = figures["properties"].get(name)
        mine = "–" if own is None else "✓" if own["held"] else "✗"
        yield f"{mine} (paper {'✓' if theirs[name] else '✗'})" if name in theirs else mine


EXPERIMENTS = (
    Experiment(
        name="comparison",
        title="methods and properties, each tick backed by a run",
        units=units,
        measure=measure,
        tables=tables,
        group=("pair", "seed"),
    ),
)

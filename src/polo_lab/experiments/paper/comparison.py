"""The paper's table of methods and properties, every tick with the run behind it."""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polo.evidence.replay.order import Order
from polo.protocol.digest import tagged, u64
from polo_lab.attacks.effort import ATTACKS
from polo_lab.attacks.victim import Victim
from polo_lab.baselines import chain, plain, pol_hash, pol_vanilla, watermark_only, zk
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
    "generation": "proving takes at most a tenth of plain training",
    "verification": "verifying takes at most a tenth of plain training",
}
CHEAP = 0.1
REPLAYED = {
    "reconstruction": ("other_start", "straight"),
    "synthetic": ("made_up",),
    "loophole": ("small_moves", "swapped", "skipped", "wrong_data"),
}
"""Cheats of proofs by replay that stand for a property; one that passes is enough for a cross."""

CHAINED = {
    "reconstruction": ("inflation from a stolen start", "interpolation, straight"),
    "synthetic": ("inflation from a drawn start", "skipping 50%, ahead"),
    "loophole": ("spoofed replay, small", "single graft, denied"),
}
"""Attacks on PoLO that stand for it."""

CANCER = {"task": "lab-cancer", "epochs": 3, "batch": 32, "rate": 0.05}
"""The job of the trimmed form."""

ALONE = "polo, chain"
METHODS = ("watermark-only", "pol-vanilla", "pol-hash", "pol-zk", ALONE, "polo, all levels")
NAMELESS = {
    pol_vanilla.METHOD: "signatures and time stamps of the original are left out here",
    pol_hash.METHOD: "nothing in it names anybody, as it is built here",
}
"""Why a copy of a proof by replay passes."""

Found = dict[str, dict[str, Any]]
Times = dict[str, float]
"""Raw seconds, by name."""


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
    took: float = bench.once("plain", lambda: _plain(asked))
    if method == watermark_only.METHOD:
        found, times = _watermark(asked, took)
    elif method in (pol_vanilla.METHOD, pol_hash.METHOD):
        found, times = _replayed(method, asked, bench.folder / method, took)
    else:
        return _polo(settings, bench, took)
    return Measured({"properties": _on(_task(settings), found)}, times)


def _job(settings: Settings) -> dict[str, Any]:
    if settings["pair"] == "cancer":
        return {**CANCER, "epochs": settings["epochs"], "seed": settings["seed"]}
    return PAIRS[settings["pair"]].job(settings["epochs"], settings["seed"])


def _task(settings: Settings) -> str:
    """What a method's own job trains, for the table."""
    job = Job.of(_job(settings))
    return f"{settings['pair']}, {job.optimizer}, {job.epochs} epochs"


def _plain(asked: Mapping[str, Any]) -> float:
    """Seconds of the same training with nothing proved; an epoch before it warms things up."""
    plain.run({**asked, "epochs": 1})
    return plain.prove(Job.of(asked)).seconds["training"]


def _held(held: bool, why: str) -> dict[str, Any]:
    return {"held": held, "why": why}


def _on(task: str, found: Found) -> Found:
    """The same, each with the task that it was run on."""
    return {name: {**own, "on": task} for name, own in found.items()}


def _watermark(asked: Mapping[str, Any], took: float) -> tuple[Found, Times]:
    row = watermark_only.run(asked)
    owner, other = row["verify_all"]["accepted"], row["verify_other_secret"]["accepted"]
    times = _spent(row, took)
    return {
        "ownership": _held(owner and not other, f"owner accepted: {owner}, another: {other}"),
        "no-data": _held(not row["verify_all"]["data_bytes_shown"], "the model alone is read"),
        **_judged_times(times),
    }, times


def _replayed(
    method: str, asked: Mapping[str, Any], folder: Path, took: float
) -> tuple[Found, Times]:
    module = pol_vanilla if method == pol_vanilla.METHOD else pol_hash
    row = module.run(asked, folder)
    found = {name: _cheated(row["cheats"], cheats) for name, cheats in REPLAYED.items()}
    copied, shown = _copied(method, asked, folder), row["verify_all"]["data_bytes_shown"]
    times = {**_spent(row, took), "verifying_sampled": row["verify_sampled"]["total_seconds"]}
    return {
        "ownership": _held(
            not copied, f"a copy under another's name accepted: {copied}; {NAMELESS[method]}"
        ),
        **found,
        "no-data": _held(not shown, f"{shown:,} bytes of data shown to run all steps again"),
        **_judged_times(times),
    }, times


def _spent(row: Mapping[str, Any], took: float) -> Times:
    """Raw seconds of a baseline's run beside those of plain training."""
    return {
        "plain": took,
        "training": sum(row["seconds"].values()),
        "proving": row["generation_seconds"],
        "verifying": row["verify_all"]["total_seconds"],
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
    passed = [_drawn(name, cheats[name]) for name in names if cheats[name]["accepted_sampled"]]
    whole = [name for name in names if cheats[name]["accepted_all"]]
    sampled, full = (", ".join(some) or "none" for some in (passed, whole))
    return _held(not passed, f"accepted when sampled: {sampled}; in full: {full}")


def _drawn(name: str, cheat: Mapping[str, Any]) -> str:
    """A cheat that was accepted, and in how many draws, if there were several."""
    accepted, draws = cheat["accepted_draws"]
    return name if draws == 1 else f"{name} in {accepted} of {draws} draws"


def _polo(settings: Settings, bench: Bench, took: float) -> Measured:
    """Ownership and the chain's times are of the method's own job, the attacks of a case."""
    case: Case = bench.once("case", lambda: _case(bench))
    alone = settings["method"] == ALONE
    setting = Setting(settings["scheme"], settings["bits"])
    victim: Victim = bench.once(
        "victim",
        lambda: Victim.train(Job.of(_job(settings)), setting, bench.folder / "owner"),
    )
    claim = victim.claim(victim.made.model, bench.folder / "claim")["claimed"]
    honest = _judged(case, bench, "")
    shown = 0 if alone else honest.replayed
    times = _chain_times(victim, took) if alone else _case_times(case, honest, bench)
    levels = ("chain",) if alone else ("chain", "start", "progress", "replay")
    attacked = {name: _rejected(case, bench, names, levels) for name, names in CHAINED.items()}
    attacked["no-data"] = _held(not shown, f"samples of {shown} steps shown")
    own, other = _task(settings), _case_task(case)
    named = _held(claim, f"the owner is named in the model: {claim}")
    found = {
        **_on(own, {"ownership": named}),
        **_on(other, attacked),
        **_on(own if alone else other, _judged_times(times)),
    }
    return Measured({"properties": found}, times)


def _chain_times(victim: Victim, took: float) -> Times:
    return {
        "plain": took,
        "training": victim.seconds,
        "proving": sum(victim.made.spent.values()),
        "verifying": chain.verify(victim.made, victim.job, "all").total,
    }


def _case_times(case: Case, honest: Judgement, bench: Bench) -> Times:
    """The same of a case; whoever is challenged takes steps again: that is proving, too."""
    return {
        "plain": bench.once("plain case", lambda: _plain_case(case)),
        "training": case.victim.seconds,
        "answering": honest.answering,
        "proving": case.victim.proving + honest.answering,
        "verifying": honest.verifying,
    }


def _plain_case(case: Case) -> float:
    """Seconds of a case's steps with nothing proved."""
    source, model = case.victim.who.source, case.task.build_model()
    optimizer = case.plan.recipe(source.samples).optimizer(model)
    order = Order(tagged("lab/order", u64(case.seed)), source.samples, case.plan.batch)
    began = time.perf_counter()
    for step in range(case.victim.steps):
        case.task.train_step(model, optimizer, source.batch(order.batch(step)))
    return time.perf_counter() - began


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


def _case_task(case: Case) -> str:
    passes = case.plan.shards * case.plan.passes
    return f"{case.task.name}, {case.plan.optimizer}, {passes} epochs"


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


def _judged_times(times: Times) -> Found:
    """What proving and verifying take, as parts of training without any proof."""
    parts = {
        "generation": times["proving"] / times["plain"],
        "verification": times["verifying"] / times["plain"],
    }
    return {
        name: _held(part <= CHEAP, f"{part:.1%} of plain training") for name, part in parts.items()
    }


_WORDS = """\
Ticks come from runs: a property holds if every attack that stands for it was rejected by a verifier
who samples as the method says; the second table names what was accepted, and on what it was run.
A tick says no more than that: attacks that were not run may pass. The paper's ticks stand behind
ours. Proofs by replay name nobody as they are built here, and pol-vanilla is without the signatures
and time stamps of the original: their crosses for ownership rest on that. PoLO is attacked on
another task than the one that its marks are looked for in. Times are parts of plain training of
the same task; on models of seconds they are mostly those of files and checks, and `timing` has them
at size. Leaks of gradients were not run and are left out. Zero-knowledge proofs were not run either
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
        (line.settings["method"], PROPERTIES[name], own.get("on", "–"), own["why"])
        for line in rows
        for name, own in line.figures["properties"].items()
    ]
    head = ("method", "property", "task", "run")
    yield Table("What ticks and crosses rest on", head, reasons)


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

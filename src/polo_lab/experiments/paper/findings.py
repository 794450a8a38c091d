"""What our runs say against the paper, or for it, in sentences; every number is a recorded one."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polo_lab.experiments.lines import CRASHED, DIVERGED, REFUSED, Recording
from polo_lab.experiments.paper import (
    comparison,
    eta_ver,
    fidelity,
    forgery,
    published,
    sweeps,
)
from polo_lab.experiments.paper.pairs import PAIRS
from polo_lab.experiments.paper.targets import MARKS, TESTS

RUINED = 0.02
"""A checkpoint that loses more than two points is another one."""

SAME = 0.1
"""Times that are less than a tenth apart count as equal."""

LARGEST = fidelity.BITS[0]

CLOSE = 0.005
"""Accuracy within half a point of plain training counts as kept."""

Row = Mapping[str, Any]


def of_ours(found: Mapping[str, Recording]) -> Iterator[str]:
    """Everything that recorded runs show; nothing where there are none."""
    yield from _compared(found["comparison"])
    marked = list(fidelity.rows(found["fidelity"]))
    yield from _fidelity(marked)
    yield from _refused(found["fidelity"])
    yield from _shards(marked)
    yield from _overhead(marked)
    yield from _verified(marked)
    yield from _uncompiled([line.values for line in found["fidelity"].done])
    yield from _forged([line.values for line in found["ofa-wma"].done])
    yield from _taken([line.values for line in found["takeover"].done])
    yield from _swept("learning-rate", "rate", "raises", found)
    yield from _swept("eta-g", "eta_g", "lowers", found)
    yield from _thresholds(found["eta-ver"])
    yield from _language_models([line.values for line in found["llm"].done])
    yield from _failed(found)


_ATTACKED = ("ownership", "reconstruction", "synthetic", "loophole", "no-data")
"""Properties that do not depend on how large a model is."""


def _compared(recording: Recording) -> Iterator[str]:
    """Ticks and crosses of the paper that came out the other way."""
    for line in recording.done:
        method, own = line.settings["method"], line.figures["properties"]
        theirs = comparison.ticks(method)
        other = [
            name for name in _ATTACKED if name in own and theirs.get(name, own[name]["held"])
            is not own[name]["held"]
        ]  # fmt: skip
        lost = [f"{comparison.PROPERTIES[n]} ({own[n]['why']})" for n in other if theirs[n]]
        won = [f"{comparison.PROPERTIES[n]} ({own[n]['why']})" for n in other if not theirs[n]]
        if lost:
            yield f"{method}: the paper's ticks do not reproduce: {'; '.join(lost)}."
        if won:
            yield (
                f"{method}: crosses of the paper that nothing here shows: {'; '.join(won)}. That "
                "refutes none of them: stronger attacks of the literature were not run."
            )
    yield from _chained({x.settings["method"]: x.figures["properties"] for x in recording.done})


def _chained(by: Mapping[str, Row]) -> Iterator[str]:
    """Why a chain alone is not enough, and what is."""
    alone, every = (by.get(f"polo, {levels}", {}) for levels in ("chain", "all levels"))
    names = ("reconstruction", "synthetic", "loophole")
    fails = [name for name in names if name in alone and not alone[name]["held"]]
    if fails:
        holds = [name for name in fails if name in every and every[name]["held"]]
        yield (
            "Marks are pressed by an edit in closed form, and so can a chain of them be without "
            f"any training: the chain alone does not reject {', '.join(fails)}. The levels start, "
            f"progress and replay beside it reject {', '.join(holds) or 'none of them'}, at the "
            "price of showing samples of the steps that are drawn."
        )


def _fidelity(rows: Sequence[Row]) -> Iterator[str]:
    lost = [(r["plain"]["accuracy"] - r["accuracy"], r) for r in rows if r["plain"]]
    if not lost:
        return
    kept = sum(loss <= CLOSE for loss, _ in lost)
    yield f"Accuracy is at most half a point below plain training in {kept} of {len(lost)} rows."
    for loss, row in sorted(lost, key=lambda one: -one[0]):
        if loss > CLOSE:
            yield (
                f"{row['pair']}, {row['scheme']}, {row['bits']} bits, {row['epochs']} epochs: "
                f"{100 * loss:.1f} points are lost."
            )


def _refused(recording: Recording) -> Iterator[str]:
    """Marks that fit into no model here, and rates that the paper gives for them all the same."""
    found: dict[tuple[str, str, int], float | None] = {}
    refused = (line.settings for line in recording.lines if line.ended == REFUSED)
    for own in (settings for settings in refused if settings["scheme"] == "fedipr"):
        where = {"pair": PAIRS[own["pair"]].paper, "scheme": own["scheme"], "bits": own["bits"]}
        key = own["pair"], own["scheme"], own["bits"]
        found[key] = published.figure("fidelity", "shard_rate", **where)
    for (pair, scheme, bits), theirs in found.items():
        if theirs is not None:
            yield (
                f"{pair}, {scheme}: {bits} bits do not fit into the norm scales at this load, and "
                f"no run is made. The paper reports shards in {theirs:g} % of epochs there; where "
                "its marks lie it does not say. The same scheme in kernels stands beside."
            )


def _overhead(rows: Sequence[Row]) -> Iterator[str]:
    """What a proof adds to training, and where that goes."""
    cells = [row.figures for row in published.table("timing")]
    alone = [row for row in rows if row["at_once"] == "1" and row["plain"].get("training")]
    if not cells or not alone:
        return
    said = [100 * (cell["polo_generation"] / cell["training"] - 1) for cell in cells]
    ratios = [(row["training"] - row["tests"]) / row["plain"]["training"] for row in alone]
    comes = "comes" if 100 * (max(ratios) - 1) <= max(said) else "does not come"
    one = max(alone, key=lambda row: row["training"])
    plain, sealing = one["plain"]["training"], one["sealing"] - one["tests"]
    rest = one["training"] - one["tests"] - plain - sealing - one["embedding"]
    yield (
        f"That a proof adds {min(said):.1f} to {max(said):.1f} % to training {comes} out: "
        f"with it, and without the tests of shards, training takes {min(ratios):.2f} to "
        f"{max(ratios):.2f} times as long in {len(alone)} rows. The trainer here is fast, and a "
        f"shard is sealed about once an epoch. The longest, {one['pair']} with {one['scheme']} of "
        f"{one['bits']} bits, adds to {plain:.1f} s of plain training {sealing:.1f} s of sealing "
        f"{one['shards']} shards, {one['embedding']:.1f} s of pressing and {rest:.1f} s of all "
        "else."
    )
    yield from _alike(alone)


def _alike(rows: Sequence[Row]) -> Iterator[str]:
    """Whether schemes take equally long, as the paper says."""
    for epochs in dict.fromkeys(row["epochs"] for row in rows):
        for pair in dict.fromkeys(row["pair"] for row in rows):
            own = {
                row["scheme"]: row["training"] - row["tests"]
                for row in rows
                if (row["epochs"], row["pair"], row["bits"]) == (epochs, pair, LARGEST)
            }
            if len(own) > 1 and max(own.values()) > (1 + SAME) * min(own.values()):
                told = ", ".join(f"{scheme} {took:.0f} s" for scheme, took in own.items())
                yield (
                    f"That schemes take equally long does not come out on {pair} with {LARGEST} "
                    f"bits and {epochs} epochs: {told}."
                )


def _shards(rows: Sequence[Row]) -> Iterator[str]:
    every = sum(row["shard_rate"] >= 1 for row in rows)
    if every:
        yield (
            f"The paper's shard rates do not come out: every epoch ends in a shard in {every} of "
            f"{len(rows)} rows. Both finish a mark by an edit, the paper's δW; it does not say how "
            "δW is computed, and ours turns in closed form whatever training has not. "
            "`learning-rate` and `eta-g` are measured with that edit and without."
        )


def _verified(rows: Sequence[Row]) -> Iterator[str]:
    alone = [row for row in rows if row["at_once"] == "1"]
    if not alone:
        return
    cheap = sum(row["verify_none"] <= MARKS * row["training"] for row in alone)
    near = sum(row["verify_all"] <= TESTS * row["test"] * row["shards"] for row in alone)
    shares = [100 * row["verify_all"] / row["training"] for row in alone]
    low, high = (
        published.figure("text", which, what="verification, part of generation") or 0.0
        for which in ("low", "high")
    )
    yield (
        f"Verification with the tests of all shards takes {min(shares):.1f} to {max(shares):.1f} % "
        f"of generation; the paper says {low:g} to {high:g} %."
    )
    yield (
        f"Of {len(alone)} rows that had the machine to themselves, hashing, deriving and reading "
        f"all marks takes at most {MARKS:.0%} of training in {cheap}; with the tests of all shards "
        f"it takes at most {TESTS:g} times the bare tests in {near}."
    )


def _uncompiled(rows: Sequence[Row]) -> Iterator[str]:
    failed = [row["problem"] for row in rows if row["problem"]]
    if failed:
        yield (
            f"Steps could not be compiled in {len(failed)} of {len(rows)} runs of fidelity, which "
            f"took longer for it. The first said: {failed[0].splitlines()[0]}"
        )


def _forged(rows: Sequence[Row]) -> Iterator[str]:
    on = ", ".join(dict.fromkeys(row["data"] for row in rows))
    for attack in dict.fromkeys(row["attack"] for row in rows):
        own = [row for row in rows if row["attack"] == attack]
        passed = sum(row["thief_accepted"] for row in own)
        named = sum(row["claim"]["claimed"] for row in own)
        costs = [row["attack_seconds"] / row["honest_seconds"] for row in own]
        yield (
            f"Forging by {attack} ({len(own)} runs: {on}) costs {min(costs):.2f} to "
            f"{max(costs):.2f} times honest training; level chain alone accepts {passed} of "
            f"{len(own)} forged proofs, and the owner is still named in {named} of the models."
        )
    yield from _fluctuating([row for row in rows if row["attack"] == "wma"])
    least = [row for row in rows if row["attack"] == "wma-least" and row["thief_accepted"]]
    if least:
        lost = max(max(forgery.lost(row)) for row in least)
        first = sum(row["owner_first"] for row in least)
        yield (
            "That forging is impractical does not reproduce for the chain alone: an edit of the "
            f"least size forges it without data ({on}), at {100 * lost:.1f} points of accuracy at "
            "most, over all checkpoints. "
            "Effort is shown by the levels progress and replay and by receipts; `polo compare` "
            f"names the owner first in {first} of {len(least)}."
        )


def _fluctuating(rows: Sequence[Row]) -> Iterator[str]:
    """Whether overwriting weights makes accuracy fluctuate, as the paper says."""
    losses = [loss for row in rows for loss in forgery.lost(row)]
    ruined = [loss for loss in losses if loss > RUINED]
    if ruined:
        yield (
            f"That accuracy fluctuates under wma comes out: {len(ruined)} of {len(losses)} "
            f"checkpoints lose more than {100 * RUINED:g} points, up to {100 * max(ruined):.1f}; "
            "the last one may hide it."
        )
    elif losses:
        yield (
            f"That accuracy fluctuates under wma does not come out: of {len(losses)} checkpoints "
            f"none loses more than {100 * max(losses):.1f} points."
        )


def _taken(rows: Sequence[Row]) -> Iterator[str]:
    for row in (row for row in rows if row["attacked_shards"]):
        erased = sum(row["erased"])
        honest = row["honest_seconds"] / row["honest_shards"]
        cost = row["attack_seconds"] / row["attacked_shards"] / honest
        yield (
            f"Takeover of {row['pair']}: {erased} of {len(row['erased'])} owner's marks are "
            f"erased, at {cost:.1f} times an honest shard each{_patience(row)}; accuracy is "
            f"{100 * (row['accuracy_last'] - row['honest_accuracies'][-1]):+.1f} points from the "
            "owner's last."
        )


def _patience(row: Row) -> str:
    """Whether the attack took as long as it may, since nothing ended it."""
    return "" if all(row["erased"]) else ", which is as long as an attempt may take"


def _swept(name: str, setting: str, does: str, found: Mapping[str, Recording]) -> Iterator[str]:
    """Whether shard rates go the way that the paper says, and what its δW does to them."""
    all_runs = sweeps.swept(found[name])
    for pair, finish in dict.fromkeys(runs.curve for runs in all_runs):
        same = (runs for runs in all_runs if runs.curve == (pair, finish))
        own = sorted(same, key=lambda runs: runs.settings[setting])
        rates = [runs.shard_rate for runs in own]
        if len(rates) < 2:
            continue
        right = sorted(rates, reverse=does == "lowers") == rates and rates[0] != rates[-1]
        told = ", ".join(f"{runs.shard_rate:.0%} at {runs.settings[setting]:g}" for runs in own)
        yield (
            f"{name}, {pair} {sweeps.named(finish)} δW: that more {does} |s| "
            f"{'comes' if right else 'does not come'} out, {_runs_each(own)}: {told}."
        )
    yield from _slower(name, setting, all_runs)


def _runs_each(several: Sequence[sweeps.Swept]) -> str:
    counts = [len(runs.lines) for runs in several]
    if max(counts) == 1:
        return "by one run each"
    few = "" if min(counts) == max(counts) else f"{min(counts)} to "
    return f"by the median of {few}{max(counts)} runs each"


def _slower(name: str, setting: str, all_runs: Sequence[sweeps.Swept]) -> Iterator[str]:
    """How many times as long shards take where no edit ends them."""
    by = {(*runs.curve, runs.settings[setting]): runs for runs in all_runs}
    said = [
        published.figure("text", which, what="shards without δW, times as long") or 0.0
        for which in ("low", "high")
    ]
    for pair in dict.fromkeys(runs.settings["pair"] for runs in all_runs):
        both = [
            (by[pair, True, at], runs)
            for (own, finish, at), runs in by.items()
            if own == pair and not finish and (pair, True, at) in by
        ]
        times = [edited.shard_rate / alone.shard_rate for edited, alone in both if alone.shard_rate]
        never = len(both) - len(times)
        told = [f"{min(times):.1f} to {max(times):.1f} times as long"] if times else []
        told += [f"for ever in {never} of {len(both)} settings, which end no shard"] * bool(never)
        if told:
            yield (
                f"{name}, {pair}: without δW shards take {', and '.join(told)}, by setting and "
                f"{_runs_each([alone for _, alone in both])}; the paper says "
                f"{said[0]:g} to {said[1]:g} times."
                f"{_varying([alone for _, alone in both])}"
            )


def _varying(several: Sequence[sweeps.Swept]) -> str:
    """How far runs of one setting are apart: marks and keys are drawn anew in each."""
    rates = max((runs.all("shard_rate") for runs in several), key=lambda own: max(own) - min(own))
    if len(rates) == 1:
        return " Marks and keys are drawn anew in every run, and another one may end more or fewer."
    return (
        " Marks and keys are drawn anew in every run: of one and the same setting one run ends "
        f"{min(rates):.0%} and another {max(rates):.0%} shards an epoch."
    )


def _thresholds(recording: Recording) -> Iterator[str]:
    """What is left of the owner's marks, and what a threshold lets in."""
    pooled = eta_ver.pooled(recording)
    attacked = [eta for kind in ("ofa", "wma", "takeover") for eta in pooled[kind]]
    forged = [eta for kind in ("forged-ofa", "forged-wma") for eta in pooled[kind]]
    chosen = published.figure("eta-ver", "eta_ver", what="threshold")
    least = published.figure("text", "least", what="rate after attacks")
    if attacked and least is not None:
        below = sum(100 * eta <= least for eta in attacked)
        yield (
            f"eta-ver: marks are said to keep over {least:g} % after attacks; {below} of "
            f"{len(attacked)} of ours do not, the lowest reads {min(attacked):.1%}."
        )
    if forged and chosen is not None:
        passing = sum(eta >= chosen for eta in forged)
        yield (
            f"eta-ver: no threshold on η keeps forgers out, since whoever has the weights can "
            f"press marks of their own: {passing} of {len(forged)} forged marks pass {chosen:g}, "
            "those included that their forger had not pressed to η_G."
        )


def _language_models(rows: Sequence[Row]) -> Iterator[str]:
    """How much faster than replay a language model's adapter is verified."""
    said = _said_ratios()
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        replays = {row["task"]: row["replaying"] for row in own if not row["bits"]}
        ratios = [
            replays[row["task"]] / row["verifying"]
            for row in own
            if row["bits"] and row["task"] in replays
        ]
        steps = max(row["shards"] * row["steps"] for row in own)
        if ratios and said:
            yield (
                f"llm, {model}: full replay takes {min(ratios):.1f} to {max(ratios):.1f} times as "
                f"long as verification, in the paper's table {min(said):.0f} to {max(said):.0f} "
                f"times. Here a run has {steps:,} steps, and verification takes "
                f"{_seconds(own, 'verifying')}: {_seconds(own, 'hashing')} of it goes into hashing "
                f"the base, which terms name, {_seconds(own, 'reading')} into reading marks, and "
                "the rest into tests of all shards and files."
            )


def _seconds(rows: Sequence[Row], name: str) -> str:
    """Median seconds of what is timed in runs with marks."""
    return f"{statistics.median(row[name] for row in rows if row['bits']):.2g} s"


def _said_ratios() -> list[float]:
    """The same of the paper's own table."""
    table = published.table("llm")
    replays = {
        row.settings["model"]: row.figures["verification_minutes"]
        for row in table
        if row.settings["method"] == "gd-pol"
    }
    return [
        replays[row.settings["model"]] / row.figures["verification_minutes"]
        for row in table
        if row.settings["method"] == "polo"
    ]


def _failed(found: Mapping[str, Recording]) -> Iterator[str]:
    for name, recording in found.items():
        for line in recording.lines:
            # Some experiments are another view of the same lines.
            if name == line.experiment and line.ended in (CRASHED, DIVERGED):
                yield f"{name}, {line.key}: {line.ended}. {line.note}".strip()

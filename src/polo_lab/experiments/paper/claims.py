"""What the paper says and does not hold, in sentences; every number comes from recorded lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from polo_lab.experiments.lines import CRASHED, DIVERGED, Recording
from polo_lab.experiments.paper import published
from polo_lab.experiments.paper.pairs import LONG

CLOSE = 0.005
"""Accuracy within half a point of plain training counts as kept."""

MARKS, TESTS, FULL, SAMPLED = 0.02, 1.3, 15.0, 50.0
"""What is aimed at: marks verified in a part of training; all tests in a multiple of bare ones; and
how many times faster than full replay."""

_ROUNDED = 0.1
"""Points that a rate may be off by rounding."""


def of_the_paper() -> Iterator[str]:
    """What its own tables say against its text."""
    timing, attacks = published.table("timing"), published.table("ofa-wma")
    if not timing or not attacks:
        return
    yield _subtracted([row.figures for row in timing])
    yield _verification([row.figures for row in timing])
    yield from _attacked([row.figures for row in attacks])
    yield _priced()
    yield from _slips([row.figures for row in timing])


def _subtracted(cells: list[Mapping[str, float]]) -> str:
    gaps = [
        abs(c["vanilla_verification"] - (c["vanilla_generation"] - c["polo_verification"]))
        for c in cells
    ]
    near = sum(gap < 1 for gap in gaps)
    return (
        "Its times of vanilla verification are, to within a second, those of vanilla generation "
        f"less PoLO's verification in {near} of {len(cells)} cells. Whoever runs all steps again "
        "takes as long as training, whatever PoLO takes."
    )


def _verification(cells: list[Mapping[str, float]]) -> str:
    shares = [100 * c["polo_verification"] / c["polo_generation"] for c in cells]
    low, high, most = (
        _said("verification, part of generation", k) for k in ("low", "high", "most")
    )
    below = sum(share <= high for share in shares)
    return (
        f"Verification is said to take {low:g} to {high:g} % of generation, and under {most:g} %. "
        f"In its table it takes {min(shares):.1f} to {max(shares):.1f} %, and at most {high:g} % "
        f"in {below} of {len(cells)} cells."
    )


def _said(what: str, which: str) -> float:
    return published.figure("text", which, what=what) or 0.0


def _attacked(cells: list[Mapping[str, float]]) -> Iterator[str]:
    chosen = published.figure("eta-ver", "eta_ver", what="threshold") or 0.0
    below = [c["ofa_eta"] for c in cells if c["ofa_eta"] < 100 * chosen]
    said = _said("lowest rate after OFA", "eta")
    yield (
        f"Its threshold η_ver = {chosen:.2f} lies above {len(below)} of its own {len(cells)} rates "
        f"after OFA; the lowest is {min(below):.2f} %, not {said} %."
    )
    costs = [c["ofa_seconds"] / c["polo_seconds"] for c in cells]
    low, high = (_said("cost of OFA, times generation", k) for k in ("low", "high"))
    yield (
        f"OFA costs {min(costs):.2f} to {max(costs):.2f} times generation in its table, not "
        f"{low:g} to {high:g}."
    )
    least = _said("rate after attacks", "least")
    weak = sum(c["ofa_eta"] <= least for c in cells)
    yield f"Marks are said to keep over {least:g} % after attacks; after OFA {weak} of them do not."
    ends = 100 * (published.figure("eta-ver", "eta_g", what="threshold") or 0.0)
    for cell in (c for c in cells if c["polo_eta"] < ends):
        yield (
            f"One of its honest marks reads {cell['polo_eta']:.2f} %, although shards are said to "
            f"end at {ends:g} %; after OFA it is said to read {cell['ofa_eta']:.2f} %."
        )


def _priced() -> str:
    rows = published.table("cost")
    prices = sorted(3600 * row.figures["usd"] / row.figures["seconds"] for row in rows)
    return (
        f"Its two prices in USD come to {prices[0]:.4f} and {prices[-1]:.4f} USD an hour of the "
        "same machine."
    )


def _slips(cells: list[Mapping[str, float]]) -> Iterator[str]:
    """Single cells that cannot be."""
    for cell in (c for c in cells if c["hash_generation"] < c["training"]):
        yield (
            f"Training takes {cell['training']:.2f} s in one cell, and with a proof by hashes on "
            f"top {cell['hash_generation']:.2f} s."
        )
    for row in (*published.table("learning-rate"), *published.table("eta-g")):
        own = row.figures
        rate = 100 * own["shards"] / own["epochs"]
        if abs(rate - own["shard_rate"]) > _ROUNDED:
            yield (
                f"{own['shards']:g} shards in {own['epochs']:g} epochs are {rate:.2f} %, not "
                f"{own['shard_rate']:.2f} %; that cell's accuracy is {own['accuracy']:.2f} %."
            )


def of_ours(found: Mapping[str, Recording]) -> Iterator[str]:
    """What our runs say against the paper, or against what is aimed at; and for it."""
    marked = [x.values for x in found["fidelity"].done if x.settings["scheme"] != "none"]
    yield from _fidelity(marked)
    yield from _shards(marked)
    yield from _verified(marked)
    yield from _replayed([x.values for x in found["timing"].done])
    yield from _forged([x.values for x in found["ofa-wma"].done])
    yield from _taken([x.values for x in found["takeover"].done])
    yield from _failed(found)


def _fidelity(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    lost = [(row["plain_accuracy"] - row["accuracy"], row) for row in rows]
    kept = sum(loss <= CLOSE for loss, _ in lost)
    yield f"Accuracy is at most half a point below plain training in {kept} of {len(rows)} rows."
    for loss, row in sorted(lost, key=lambda one: -one[0]):
        if loss > CLOSE:
            yield (
                f"{row['pair']}, {row['scheme']}, {row['bits']} bits, {row['epochs']} epochs: "
                f"{100 * loss:.1f} points are lost."
            )


def _shards(rows: list[dict[str, Any]]) -> Iterator[str]:
    every = sum(row["shard_rate"] >= 1 for row in rows)
    if every:
        yield (
            f"The paper's shard rates do not come out: every epoch ends in a shard in {every} of "
            f"{len(rows)} rows, since the finishing step turns what training has not. "
            "`learning-rate` and `eta-g` are without that step."
        )


def _verified(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    cheap = sum(row["verify_none"] <= MARKS * row["training"] for row in rows)
    near = sum(row["verify_all"] <= TESTS * row["test"] * row["shards"] for row in rows)
    yield (
        f"Hashing, deriving and reading all marks takes at most {MARKS:.0%} of training in {cheap} "
        f"of {len(rows)} rows; with the tests of all shards it takes at most {TESTS:g} times the "
        f"bare tests in {near}."
    )


def _replayed(rows: list[dict[str, Any]]) -> Iterator[str]:
    """PoLO's verification against full replay, where a run is long enough to count."""
    by = {(r["pair"], r["epochs"], r["method"], r["bits"]): r for r in rows}
    for (pair, epochs, method, bits), row in by.items():
        replay = by.get((pair, epochs, "pol-vanilla", 0))
        if method != "polo" or epochs < LONG or replay is None:
            continue
        full = replay["verify_all"] / row["verify_all"]
        sampled = replay["verify_all"] / row["verify_sampled"]
        yield (
            f"{pair}, {bits} bits, {epochs} epochs: full replay takes {full:.1f} times as long as "
            f"PoLO's verification of all shards (aimed at: {FULL:g}) and {sampled:.1f} times as "
            f"long as a sampled one (aimed at: {SAMPLED:g})."
        )


def _forged(rows: list[dict[str, Any]]) -> Iterator[str]:
    for attack in dict.fromkeys(row["attack"] for row in rows):
        own = [row for row in rows if row["attack"] == attack]
        passed = sum(row["thief_accepted"] for row in own)
        named = sum(row["claim"]["claimed"] for row in own)
        costs = [row["attack_seconds"] / row["honest_seconds"] for row in own]
        yield (
            f"Forging by {attack} costs {min(costs):.2f} to {max(costs):.2f} times honest "
            f"training; level chain alone accepts {passed} of {len(own)} forged proofs, and the "
            f"owner is still named in {named} of the models."
        )
    least = [row for row in rows if row["attack"] == "wma-least" and row["thief_accepted"]]
    if least:
        lost = max(row["honest_accuracy"] - row["accuracy_last"] for row in least)
        first = sum(row["owner_first"] for row in least)
        yield (
            "That forging is impractical does not reproduce for the chain alone: an edit of the "
            f"least size forges it without data, at {100 * lost:.1f} points of accuracy at most. "
            "Effort is shown by the levels progress and replay and by receipts; `polo compare` "
            f"names the owner first in {first} of {len(least)}."
        )


def _taken(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in (row for row in rows if row["attacked_shards"]):
        erased = sum(row["erased"])
        honest = row["honest_seconds"] / row["honest_shards"]
        cost = row["attack_seconds"] / row["attacked_shards"] / honest
        yield (
            f"Takeover of {row['pair']}: {erased} of {len(row['erased'])} owner's marks are "
            f"erased, at {cost:.1f} times an honest shard each; accuracy is "
            f"{100 * (row['accuracy_last'] - row['honest_accuracies'][-1]):+.1f} points from the "
            "owner's last."
        )


def _failed(found: Mapping[str, Recording]) -> Iterator[str]:
    for name, recording in found.items():
        for line in recording.lines:
            # Some experiments are another view of the same lines.
            if name == line.experiment and line.ended in (CRASHED, DIVERGED):
                yield f"{name}, {line.key}: {line.ended}. {line.note}".strip()

"""From the numbers of a run to checks. Every sentence says that it is a heuristic."""

import math
from collections.abc import Iterator

from polo.checks import Check, Status
from polo.evidence.progress.rules import LEVEL, Rules
from polo.evidence.progress.survey import Findings, ShardFigures

_PARENT = " After a start from a parent that may be honest: little was left to learn."
_HELD_OUT = (
    "Verify with a task that has a method held_out_loss (polo.tasks.training.HeldOut) and can "
    "run it."
)


def judge(
    findings: Findings, rules: Rules, *, parent: bool = False, trouble: str = ""
) -> Iterator[Check]:
    """The checks of the level, then the numbers of each shard as notes.

    Args:
        findings: The numbers.
        rules: The thresholds.
        parent: Whether training started from a model that the terms name. Then nothing is
            rejected for want of learning: it ends in "could not decide".
        trouble: Why held-out loss is not known, if so.
    """
    weak = Status.UNDECIDED if parent else Status.FAILED
    yield _downhill(findings, rules, weak, trouble)
    yield _movement(findings, rules, weak)
    yield _path(findings, rules)
    yield _loss(findings, rules, weak, trouble)
    for shard in findings.shards:
        yield _of_shard(shard)


def _downhill(findings: Findings, rules: Rules, weak: Status, trouble: str) -> Check:
    early, whole = findings.early, findings.whole
    if early is None or whole is None:
        return _unknown("downhill", trouble)
    count = findings.early_shards
    first = "shard" if count == 1 else f"{count} shards"
    detail = (
        f"a heuristic: in the first {first} weights went down the slope of held-out loss rather "
        f"than up, z = {early:.1f}, at least {rules.downhill:g} asked; chance gives 0 ± 1. All "
        f"shards together: {whole:.1f}"
    )
    figures = {
        "z": early, "least": rules.downhill, "whole": whole, "shards": findings.early_shards
    }  # fmt: skip
    return _check("downhill", early >= rules.downhill, weak, detail, figures)


def _movement(findings: Findings, rules: Rules, weak: Status) -> Check:
    moved = findings.moved
    if moved is None:
        detail = "every weight that was looked at carries a mark, so movement cannot be told"
        advice = "Enrol with fewer bits, fewer shards or more carrier tensors."
        return Check("movement", Status.UNDECIDED, detail, advice=advice, level=LEVEL)
    detail = (
        f"a heuristic: outside the marks the weights moved with {moved:.2f} times the energy of "
        f"the declared noise, at least {rules.moved:g} asked"
    )
    figures = {"moved": moved, "least": rules.moved}
    return _check("movement", moved >= rules.moved, weak, detail, figures)


def _path(findings: Findings, rules: Rules) -> Check:
    moved, straight = findings.moved or 0.0, findings.straight
    if straight is None or moved < rules.clear:
        why = "there are too few shards, or too few weights without a mark"
        if straight is not None:
            why = (
                f"the weights moved with {moved:.2f} times the energy of the noise, which hides it"
            )
        detail = f"a heuristic: whether the path is a straight line cannot be told; {why}"
        return Check("path", Status.NOTE, detail, level=LEVEL)
    detail = (
        f"a heuristic: over {findings.legs} parts of the run the way as the crow flies is "
        f"{straight:.3f} of the way gone, noise taken off; from {rules.straight:g} on it counts as "
        "a straight line between two models"
    )
    figures = {"straight": straight, "below": rules.straight, "parts": findings.legs}
    return _check("path", straight < rules.straight, Status.FAILED, detail, figures)


def _loss(findings: Findings, rules: Rules, weak: Status, trouble: str) -> Check:
    start = findings.start_loss
    losses = [shard.loss for shard in findings.shards if shard.loss is not None]
    if start is None or len(losses) < len(findings.shards):
        return _unknown("loss", trouble)
    if not all(map(math.isfinite, (start, *losses))):
        detail = "held-out loss is no finite number at some checkpoint"
        return Check("loss", Status.FAILED, detail, level=LEVEL)
    if findings.fall is None:
        detail = (
            f"held-out loss is {start:.4g} at the start; how far it fell is told of a positive one"
        )
        return _unknown("loss", detail)
    detail = (
        f"a heuristic: held-out loss went from {start:.4g} to {losses[-1]:.4g}, at its lowest "
        f"{min(losses):.4g}; it fell by {findings.fall:.1%}, at least {rules.fall:.1%} asked"
    )
    figures = {"start": start, "last": losses[-1], "fall": findings.fall, "least": rules.fall}
    return _check("loss", findings.fall >= rules.fall, weak, detail, figures)


def _check(
    name: str, held: bool, otherwise: Status, detail: str, figures: dict[str, float]
) -> Check:
    status = Status.PASSED if held else otherwise
    said = detail + (f".{_PARENT}" if status is Status.UNDECIDED else "")
    return Check(name, status, said, figures=_finite(figures), level=LEVEL)


def _unknown(name: str, trouble: str) -> Check:
    return Check(name, Status.UNDECIDED, trouble, advice=_HELD_OUT, level=LEVEL)


def _of_shard(shard: ShardFigures) -> Check:
    figures = {"outside": shard.outside, "inside": shard.inside, "noise": shard.noise}
    detail = (
        f"moved by {shard.outside:.3%} outside the mark (noise alone {shard.noise:.3%}) and by "
        f"{shard.inside:.3%} inside"
    )
    if shard.z is not None and shard.loss is not None:
        figures |= {"z": shard.z, "loss": shard.loss}
        detail += f"; z = {shard.z:.1f}; held-out loss {shard.loss:.4g} at its end"
    return Check(
        "movement", Status.NOTE, detail, shard=shard.shard, figures=_finite(figures), level=LEVEL
    )


def _finite(figures: dict[str, float]) -> dict[str, float | str]:
    """Figures as JSON can hold them: weights may be so large that their squares are not."""
    return {
        name: value if math.isfinite(value) else "not finite" for name, value in figures.items()
    }

"""One training with or without marks as a row, made of a recorded line."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from polo.watermark.schemes import Defaults, scheme
from polo_lab.experiments import lines
from polo_lab.experiments.lines import Line

PLAIN = "none"
"""What stands for the scheme of a training without marks."""

DENSE = "ednn-dense"
"""What stands for EDNN with one key over all weights of a mark, which no terms call a scheme."""

BARE = "riga-bare"
"""What stands for RIGA without its discriminator, as under replay."""

_OF = {DENSE: "ednn", BARE: "riga"}

UNFIT = "does not fit: "
SETTINGS = ("task", "scheme", "bits", "load", "strength", "budget", "seed")
TIMINGS = ("seconds", "plain_seconds")


def defaults_of(name: str) -> Defaults:
    """What suits a scheme by the name that rows have for it."""
    return scheme(scheme_of(name)).defaults


def scheme_of(name: str) -> str:
    """The scheme that terms name for it."""
    return _OF.get(name, name)


@dataclass(frozen=True)
class Row:
    """One training and what was measured on its model.

    Attributes:
        task: Name of the course.
        scheme: Name of the scheme; `none` for training without marks.
        bits: Bits of each mark.
        load: Bits per weight of a block, in millionths.
        strength: λ, in millionths.
        budget: Largest edit of the finishing step, relative to a block's norm, in millionths.
        share: Part of the carrier's blocks that one mark takes.
        seed: Seed of start and order.
        problem: Why there is nothing else; empty if there is.
        epochs: Epochs trained.
        shards: Shards sealed.
        accuracy: Accuracy of the finished model.
        plain_accuracy: That of training without marks from the same start.
        seconds: Training, sealing included.
        plain_seconds: Training without marks.
        reached: Detection rate at the end of an epoch before any finishing step, the mean.
        sealed: Detection rate of marks as they were sealed, the mean.
        edit: Largest edit of a finishing step, relative to its group's norm.
        residual_least: Weakest of all marks, read from the finished model.
        residual_mean: The mean of them.
        residual_log2_p: log2 p of all of them.
        thief_least: Weakest of the owner's marks after an overwriter's work.
        thief_mean: The mean of them.
        thief_log2_p: log2 p of all of them.
        thief_accuracy: Accuracy of the stolen model then.
        claimed: Whether `polo identify` still names the owner then.
        forge_edit: Size of a forger's edit, all bits turned, relative to the marked weights.
        forged: Accuracy after it.
        forged_estimated: The same with the statistics of batch-norm estimated anew, on inputs.
        least_edit: Size of the edit that turns just enough bits for a verifier.
        least_forged: Accuracy after that one.
        strict_edit: Size of the edit if the verifier asked for η ≥ 0.95.
        strict_forged: Accuracy after that one.
        told: A classifier's accuracy at telling marked from unmarked blocks.
        told_low: Lower end of its interval.
        told_high: Upper end.
        told_blocks: Blocks that it was tested on.
    """

    task: str
    scheme: str
    bits: int
    load: int
    strength: int
    seed: int
    budget: int = 0
    share: float = 0.0
    problem: str = ""
    epochs: int = 0
    shards: int = 0
    accuracy: float | None = None
    plain_accuracy: float | None = None
    seconds: float | None = None
    plain_seconds: float | None = None
    reached: float | None = None
    sealed: float | None = None
    edit: float | None = None
    residual_least: float | None = None
    residual_mean: float | None = None
    residual_log2_p: float | None = None
    thief_least: float | None = None
    thief_mean: float | None = None
    thief_log2_p: float | None = None
    thief_accuracy: float | None = None
    claimed: bool | None = None
    forge_edit: float | None = None
    forged: float | None = None
    forged_estimated: float | None = None
    least_edit: float | None = None
    least_forged: float | None = None
    strict_edit: float | None = None
    strict_forged: float | None = None
    told: float | None = None
    told_low: float | None = None
    told_high: float | None = None
    told_blocks: int = 0

    @property
    def key(self) -> tuple[str, str, int, int, int, int, int]:
        """What was measured, and with which seed."""
        own = (self.task, self.scheme, self.bits, self.load, self.strength, self.budget)
        return (*own, self.seed)

    def settings(self) -> dict[str, Any]:
        """What was asked for."""
        return {name: getattr(self, name) for name in SETTINGS}

    def timings(self) -> dict[str, float]:
        """Raw seconds."""
        return {name: getattr(self, name) for name in TIMINGS}

    def figures(self) -> dict[str, Any]:
        """Everything else that was measured."""
        apart = (*SETTINGS, *TIMINGS, "problem")
        values = dataclasses.asdict(self)
        return {k: v for k, v in values.items() if k not in apart and v is not None}

    @classmethod
    def of(cls, line: Line) -> Self:
        """The row of a recorded line."""
        problem = "" if line.figures else line.note
        return cls(
            **line.values, problem=UNFIT + problem if line.ended == lines.REFUSED else problem
        )

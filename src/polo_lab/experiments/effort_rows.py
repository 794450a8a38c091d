"""One honest run or one attack as a row, made of a recorded line."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from polo_lab.experiments import lines
from polo_lab.experiments.lines import Line

HONEST = "honest"
ERROR = "error"
UNDECIDED = "undecided"
CHEAP = 0.5
"""An attack that takes less than this part of honest training's gradients must be rejected."""

SETTINGS = ("task", "optimizer", "schedule", "seed", "attack", "tolerance")
TIMINGS = ("seconds", "honest_seconds", "waiting", "answering", "verifying", "replaying")


@dataclass(frozen=True)
class Row:
    """One honest run or one attack, and what the verifier said of it.

    Attributes:
        task: Name of the task.
        optimizer: Its optimizer.
        schedule: Its schedule.
        seed: Seed of the case.
        attack: Name of the attack, or `honest`.
        outcome: `accepted`, `rejected` or `undecided`; `error` if the run broke.
        levels: How the own checks of each level, and of the start, ended.
        faults: Checks that failed or could not be decided, as `level/name`.
        seconds: What the run took, sealing and recording included, answering not.
        steps: Gradient steps that it took, counted in full batches.
        honest_seconds: What honest training of the same case took.
        honest_steps: Its optimizer steps.
        waiting: Seconds of an honest run in which training waited for the recorder.
        answering: Seconds that the answer took.
        verifying: Seconds that the verifier took, replay included.
        replaying: Seconds of them that replay took.
        replayed: Steps that were drawn.
        accuracy: Accuracy of the last model, as the verifier measured it.
        honest_accuracy: That of the honest run.
        note: What a reader should know.
        tolerance: Largest deviation that the terms allowed where platforms differ, in millionths.
        possible: Whether the attack found anything to leave out; else it trained in full.
        work: Part of the work that check `width` found left; None if it was not reached.
    """

    task: str
    optimizer: str
    schedule: str
    seed: int
    attack: str
    outcome: str
    levels: dict[str, str] = dataclasses.field(default_factory=dict)
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    steps: float = 0
    honest_seconds: float = 0.0
    honest_steps: int = 0
    waiting: float = 0.0
    answering: float = 0.0
    verifying: float = 0.0
    replaying: float = 0.0
    replayed: int = 0
    accuracy: float | None = None
    honest_accuracy: float | None = None
    note: str = ""
    tolerance: int = 0
    possible: bool = True
    work: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the verifier accepted, by all levels."""
        return self.outcome == "accepted"

    def accepted_by(self, *levels: str) -> bool:
        """Whether the chain and these alone, out of start, progress and replay, had accepted."""
        return all(self.levels.get(level) == "passed" for level in ("chain", *levels))

    @property
    def time_share(self) -> float:
        """Seconds as a part of honest training."""
        return self.seconds / self.honest_seconds if self.honest_seconds else 0.0

    @property
    def step_share(self) -> float:
        """Gradient steps as a part of honest training."""
        return self.steps / self.honest_steps if self.honest_steps else 0.0

    @property
    def cheap(self) -> bool:
        """Whether it took less than half of the gradients of honest training.

        In runs of a second, time is mostly that of files and checks, which forgers do without;
        gradients are the work itself, on every machine.
        """
        return self.step_share < CHEAP

    @property
    def wrong(self) -> bool:
        """Whether an honest run was not accepted, or a cheap attack was; or the run broke."""
        if self.outcome == ERROR:
            return True
        return not self.accepted if self.attack == HONEST else self.accepted and self.cheap

    def settings(self) -> dict[str, Any]:
        """What was asked for."""
        return {name: getattr(self, name) for name in SETTINGS}

    def timings(self) -> dict[str, float]:
        """Raw seconds."""
        return {name: getattr(self, name) for name in TIMINGS}

    def figures(self) -> dict[str, Any]:
        """Everything else."""
        apart = (*SETTINGS, *TIMINGS, "note")
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in apart}

    @classmethod
    def of(cls, line: Line) -> Self:
        """The row of a recorded line."""
        if line.ended != lines.DONE:
            return cls(**line.settings, outcome=ERROR, note=line.note)
        values = line.values
        return cls(**{**values, "faults": tuple(values["faults"])}, note=line.note)

"""Reuse: states of real training that belong elsewhere."""

from collections.abc import Sequence
from pathlib import Path

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.keeping import Again
from polo_lab.effort.case import Attempt, Case

KINDS = ("own", "other")


class Reuse:
    """Real segments, trained once and shown again.

    Args:
        kind: `own` trains one shard and repeats its segments in all others; `other` takes all
            segments from a run of its own under another enrolment, which it has sold already.
    """

    knowledge = "the task"
    data = "the task's own"

    def __init__(self, kind: str = "own") -> None:
        self._kind = kind
        self.name = f"reused segments, {kind}"
        self.budget = "one shard" if kind == "own" else "no gradients beyond the run that was sold"
        self.description = {
            "own": "trains the first shard, and shows its segments again in all others",
            "other": "transplants states and records of another run of its own, marks pressed anew",
        }[kind]

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        return self._own(case, folder) if self._kind == "own" else self._other(case, folder)

    def _own(self, case: Case, folder: Path) -> Attempt:
        forgery = Forgery(case, folder)
        forgery.begin()
        states = [forgery.keep(forgery.train()) for _ in range(forgery.segments)]
        forgery.seal()
        for _ in range(1, forgery.shards):
            _show(forgery, states)
        return forgery.finish()

    def _other(self, case: Case, folder: Path) -> Attempt:
        # What the other run took was paid for there; it is not counted here.
        first = Forgery(case, folder.with_name(folder.name + "-first"), who=case.enrol("seller"))
        first.begin()
        shards: list[list[Again]] = []
        for _ in range(first.shards):
            shards.append([first.keep(first.train()) for _ in range(first.segments)])
            first.seal()
        forgery = Forgery(case, folder)
        forgery.begin()
        for states in shards:
            _show(forgery, states)
        return forgery.finish("the other run's training is not counted")


def _show(forgery: Forgery, states: Sequence[Again]) -> None:
    """Fill a shard with states that were trained elsewhere."""
    for again in states[:-1]:
        forgery.jump(again(), again=again)
    forgery.jump(forgery.pressed(states[-1]()))
    forgery.seal()

"""A few real steps in every shard, so that it goes downhill, and the rest of it made up."""

from pathlib import Path

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import between
from polo_lab.attacks.effort.walking import reestimate, walk
from polo_lab.effort.case import Attempt, Case


class FewSteps:
    """Real segments at the start of every shard, then a made-up path towards a stolen model.

    Args:
        share: Part of the segments that are real.
    """

    knowledge = "a finished model of the task"
    data = "the task's own"

    def __init__(self, share: float = 0.2) -> None:
        self._share = share
        self.name = f"few real steps, {share:.0%}"
        self.budget = f"{share:.0%} of the steps"
        self.description = (
            f"trains {share:.0%} of every shard, and makes up the rest on the way to the stolen "
            "weights"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        stolen = case.victim.state
        forgery = Forgery(case, folder)
        origin = forgery.begin().model
        for number in range(1, forgery.shards + 1):
            forgery.train(max(1, round(self._share * forgery.segments)))
            line = between(origin, stolen, number / forgery.shards)
            walk(forgery, reestimate(case, line), rough=0.002)
            forgery.seal()
        return forgery.finish()

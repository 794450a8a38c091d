"""A single graft: real training, but for one place where the weights become somebody else's."""

from functools import partial
from pathlib import Path

from polo.evidence.replay.state import MOVE_ONE, trained_names
from polo_lab.attacks.effort.carrying import can_carry, loaded
from polo_lab.attacks.effort.forging import Claim, Forgery
from polo_lab.attacks.effort.snapshot import Snapshot, between, length
from polo_lab.attacks.state import State
from polo_lab.effort.case import Attempt, Case

KINDS = ("denied", "admitted", "momentum", "sealing", "hops")
NEARLY = 0.8
"""Part of the recorded moves that a hop makes use of."""


class Graft:
    """Everything is trained, except that one segment or sealing leads to the stolen weights.

    Args:
        kind: `denied` claims an ordinary move for the jump, `admitted` the true one; `momentum`
            makes up an optimizer's state that carries the weights over; `sealing` hides the jump
            in finishing step and noise; `hops` jumps at the end of every shard, no farther than
            the moves that it claims.
    """

    knowledge = "a finished model of the task"
    data = "the task's own"
    budget = "all steps but those of a segment or a few"

    def __init__(self, kind: str = "denied") -> None:
        self._kind = kind
        self.name = f"single graft, {kind}"
        how = {
            "denied": "in one segment, for which an ordinary move is claimed",
            "admitted": "in one segment, for which the true move is claimed",
            "momentum": "by a made-up state of the optimizer, which honest steps then follow",
            "sealing": "in one sealing, for which an ordinary move is claimed",
            "hops": "in one segment of every shard, no farther than the recorded moves",
        }
        self.description = f"trains all steps, but goes to the stolen weights {how[kind]}"

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        stolen = case.victim.state
        forgery = Forgery(case, folder)
        forgery.begin()
        if self._kind == "hops":
            return _hop(forgery, stolen)
        place = max(1, forgery.shards // 2)
        kind = self._kind
        if kind == "momentum" and not can_carry(forgery):
            kind = "denied"
        for number in range(1, forgery.shards + 1):
            if number != place:
                forgery.train(forgery.segments)
                forgery.seal()
            elif kind == "sealing":
                forgery.train(forgery.segments)
                forgery.seal(hidden=forgery.now.with_model(stolen))
            else:
                forgery.train(forgery.segments // 2)
                self._graft(forgery, kind)
                forgery.train(forgery.segments - forgery.segment)
                forgery.seal()
        return forgery.finish("" if kind == self._kind else "this optimizer has no momentum")

    def _graft(self, forgery: Forgery, kind: str) -> None:
        stolen = forgery.case.victim.state
        if kind == "momentum":
            steps = forgery.steps - (forgery.segment + 1) * forgery.recipe.every
            forgery.train_and_edit(partial(loaded, forgery, stolen, steps), usual(forgery))
            return
        claim = usual(forgery) if kind == "denied" else None
        target: Snapshot = forgery.now.with_model(stolen)
        forgery.jump(forgery.pressed(target), claim)


def _hop(forgery: Forgery, stolen: State) -> Attempt:
    """Train, and end every shard as near the stolen weights as its recorded moves allow."""
    trained = trained_names(forgery.engine.model)
    for _ in range(forgery.shards):
        origin = forgery.now.model
        forgery.train(forgery.segments - 1)
        claim = usual(forgery) if forgery.claims else None
        far = NEARLY * sum(model for model, _ in (*forgery.claims, claim or (0, 0))) / MOVE_ONE
        shares = [at / 32 for at in range(33)]
        targets = (between(forgery.now.model, stolen, share) for share in reversed(shares))
        near = (target for target in targets if length(target, origin, trained) <= far)
        target = next(near, forgery.now.model)
        forgery.jump(forgery.pressed(forgery.now.with_model(target)), claim)
        forgery.seal()
    left = length(forgery.now.model, stolen, trained)
    return forgery.finish(f"it ends {left:.3g} from the stolen weights")


def usual(forgery: Forgery) -> Claim:
    """The middle of the moves so far in the shard, which nobody looks at twice."""
    middle = [sorted(kind)[len(kind) // 2] for kind in zip(*forgery.claims, strict=True)]
    return middle[0], middle[1]

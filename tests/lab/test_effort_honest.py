"""Honest runs that come near to what level replay refuses."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from polo.evidence.replay import live
from polo.evidence.replay.answer import answer
from polo.evidence.replay.challenge import draw_from
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.timeline import Timeline
from polo.storage.folder import ProofFolder
from polo_lab.effort.case import Case
from polo_lab.effort.plan import Plan
from polo_lab.tasks import Cancer

LEAF = bytes(range(32))


@dataclass(frozen=True)
class Falling(Plan):
    """A rate that falls to a thousandth, by tenths."""

    def recipe(self, samples: int) -> Recipe:
        """See `Plan`."""
        steps = self.steps(samples)
        drops = tuple(int(steps * part) for part in (0.3, 0.6, 0.8))
        return super().recipe(samples).changed(schedule="steps", milestones=drops, gamma=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        Plan("sgd", "cosine", 0.05, shards=4, passes=10, batch=32, every=16),
        Falling("sgd", "constant", 0.05, shards=4, passes=10, batch=32, every=16),
    ],
    ids=["cosine", "falling"],
)
def test_a_registry_takes_the_last_shard_of_a_rate_that_comes_down(
    plan: Plan, tmp_path: Path
) -> None:
    """It judges each shard by itself, and the last one hardly moves."""
    case = Case(Cancer(), plan, 0, tmp_path / "case")
    trained = case.victim
    folder = ProofFolder(trained.proof)
    manifest = folder.manifest()
    challenge = draw_from(Timeline.load(folder, manifest, leaf=LEAF), ends=False)
    out = tmp_path / "answer"
    means = {"task": case.task, "data": trained.who.source, "key": trained.who.key}
    answer(trained.proof, challenge, out=out, leaf=LEAF, **means)
    checks = list(live.replayed(folder, manifest, challenge, out, task=case.task, leaf=LEAF))
    assert live.objection(checks) is None
    assert any(check.name == "width" for check in checks)

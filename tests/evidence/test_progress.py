"""Level progress: what it says of whole proofs, honest and forged."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import polo
from polo.checks import Check, Status
from polo.embedding.placement import parameters_of
from polo.evidence.progress.check import Progress, measure
from polo.evidence.progress.heldout import HeldOutLoss, held_out_loss_of
from polo.evidence.progress.sample import Sample
from polo.protocol import chain
from polo.protocol.carrier import Carrier
from polo.storage.folder import ProofFolder, nonce_path
from polo.verifier import Outcome
from polo.watermark.mark import carrier_of, derive
from polo.weights.checkpoint import checkpoint_of

ASKED = {"progress": True, "budget": 1.0}
NAMES = ("downhill", "movement", "path", "loss")


def of_level(verdict: polo.Verdict) -> dict[str, Check]:
    """The level's checks on the whole run, by name."""
    found = [check for check in verdict.checks if check.level == "progress" and not check.shard]
    return {check.name: check for check in found}


def statuses(verdict: polo.Verdict) -> dict[str, Status]:
    return {name: check.status for name, check in of_level(verdict).items()}


Move = Callable[[int], None]


@dataclass
class Run:
    """A proof whose shards are made by whatever one likes, and its checkpoints."""

    path: Path
    enrolment: polo.OfflineEnrolment
    issuer: polo.Identity
    task: Any
    model: Any
    optimizer: Any
    states: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def seal(self, key: polo.Identity, shards: int, move: Move, **options: Any) -> None:
        """Seal shards, each after `move`; a step at rate 0 makes the prover believe in one."""
        prover = polo.Prover(self.enrolment, key=key, store=self.path, **options)
        evaluate = partial(self.task.evaluate, self.model)
        self._keep()
        with prover.attach(self.model, self.optimizer, evaluate=evaluate):
            for shard in range(1, shards + 1):
                move(shard)
                rates = [group["lr"] for group in self.optimizer.param_groups]
                for group in self.optimizer.param_groups:
                    group["lr"] = 0.0
                self.task.train_step(self.model, self.optimizer, self._batch())
                for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                prover.end_epoch()
                self._keep()
        prover.finish()

    def verify(self, **options: Any) -> polo.Verdict:
        options = {"task": self.task, **options}
        return polo.verify(self.path, trust=self.issuer.public_key, **options)

    def train(self, _: int) -> None:
        """An honest epoch."""
        self.task.train_epoch(self.model, self.optimizer)

    def _batch(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(v) for name, v in self.task.train_columns().items()}

    def _keep(self) -> None:
        self.states.append(copy.deepcopy(dict(self.model.state_dict())))


@pytest.fixture
def begin(
    tmp_path: Path, task: Any, issuer: polo.Identity, enrol: Callable[..., polo.OfflineEnrolment]
) -> Callable[..., Run]:
    def make(seed: int = 0, name: str = "proof", **terms: Any) -> Run:
        torch.manual_seed(seed)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        enrolment = enrol(**{**ASKED, **terms})
        return Run(tmp_path / name, enrolment, issuer, task, model, optimizer)

    return make


@pytest.fixture
def loot(task: Any) -> dict[str, torch.Tensor]:
    """Somebody else's finished model."""
    torch.manual_seed(77)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(8):
        task.train_epoch(model, optimizer)
    return copy.deepcopy(dict(model.state_dict()))


def test_an_honest_run_passes(begin: Callable[..., Run], alice: polo.Identity) -> None:
    run = begin()
    run.seal(alice, 8, run.train)
    verdict = run.verify()
    assert verdict.outcome is Outcome.ACCEPTED
    assert statuses(verdict) == dict.fromkeys(NAMES, Status.PASSED)
    assert len(verdict.per_shard("movement")) == 8
    assert "progress" in verdict.headline()


def test_the_laboratory_measures_what_a_verifier_measures(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin()
    run.seal(alice, 4, run.train)
    manifest = ProofFolder(run.path).manifest()
    states = [checkpoint_of(state) for state in run.states]
    carrier = carrier_of(manifest.terms, states[0].layout)
    seeds = [
        chain.seed_of(manifest.enrolment, nonce, previous=manifest.root_before(nonce.shard))
        for nonce in run.enrolment.drawn[:4]
    ]
    marks = [derive(manifest.terms, carrier, seed).blocks for seed in seeds]
    found = measure(manifest.terms, carrier, marks, states, run.task)
    said = of_level(run.verify())
    assert said["downhill"].figures["z"] == found.early
    assert said["movement"].figures["moved"] == found.moved
    assert said["loss"].figures["fall"] == found.fall


def inflation(run: Run, loot: dict[str, torch.Tensor], rough: float = 0.0) -> Move:
    """Start from the stolen model and press in marks; noise where one likes."""
    run.model.load_state_dict(loot)

    @torch.no_grad()
    def move(_: int) -> None:
        for weights in run.model.parameters():
            weights += torch.randn_like(weights) * rough * weights.square().mean().sqrt()

    return move


def line(run: Run, loot: dict[str, torch.Tensor], shards: int) -> Move:
    """From the start straight to the stolen model."""
    weights = parameters_of(run.model)
    way = {name: (loot[name] - value).detach() / shards for name, value in weights.items()}

    @torch.no_grad()
    def move(_: int) -> None:
        for name, value in weights.items():
            value += way[name]

    return move


FORGERIES: dict[str, tuple[Callable[[Run, dict[str, torch.Tensor]], Move], set[str]]] = {
    "inflation": (inflation, {"downhill", "movement"}),
    "inflation with noise": (partial(inflation, rough=0.05), {"downhill"}),
    "line": (partial(line, shards=8), {"downhill", "path"}),
}
"""How to forge, and which checks tell."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_careless_forgery_fails(
    name: str, begin: Callable[..., Run], alice: polo.Identity, loot: dict[str, torch.Tensor]
) -> None:
    run = begin(seed=5)
    make, wrong = FORGERIES[name]
    run.seal(alice, 8, make(run, loot))
    verdict = run.verify()
    assert verdict.outcome is Outcome.REJECTED
    failed = {check.name for check in verdict.of(Status.FAILED)}
    # Noise may let the loss of a model that was trained for too long fall, too.
    assert failed - {"loss"} == wrong


def test_the_same_chains_pass_where_the_level_is_not_asked_for(
    begin: Callable[..., Run], alice: polo.Identity, loot: dict[str, torch.Tensor]
) -> None:
    run = begin(seed=5, progress=False)
    run.seal(alice, 3, inflation(run, loot))
    assert run.verify().outcome is Outcome.ACCEPTED


def test_checkpoints_and_nonces_that_are_missing_leave_it_undecided(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin()
    run.seal(alice, 4, run.train)
    shutil.copytree(run.path, other := run.path.with_name("other"))
    checkpoints = sorted((run.path / "checkpoints").iterdir())
    checkpoints[1].unlink()
    verdict = run.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    found = of_level(verdict)
    assert list(found) == ["evidence"]
    assert "checkpoint 1 is not here" in found["evidence"].detail
    (other / nonce_path(2)).unlink()
    verdict = polo.verify(other, trust=run.issuer.public_key, task=run.task)
    found = of_level(verdict)
    assert found["evidence"].status is Status.UNDECIDED
    assert "shard 2" in found["evidence"].detail
    assert found["evidence"].advice


class Without:
    """A task that holds nothing out."""

    def __init__(self, task: Any) -> None:
        self.name, self.version, self.metric = task.name, task.version, task.metric
        self.floor, self.build_model, self.evaluate = task.floor, task.build_model, task.evaluate


class Broken(Without):
    """A task whose held-out loss cannot be taken."""

    def held_out_loss(self, model: Any) -> Any:
        """Fails."""
        raise RuntimeError("no data today")


class Flat(Without):
    """A task whose held-out loss has no gradient."""

    def held_out_loss(self, model: Any) -> Any:
        """Says nothing about the model."""
        return torch.tensor(1.0)


class Endless(Without):
    """A task whose held-out loss is no number."""

    def held_out_loss(self, model: Any) -> Any:
        """Not a number."""
        return sum(weights.sum() for weights in model.parameters()) * torch.nan


def test_stored_statistics_of_batch_norm_play_no_part(task: Any) -> None:
    torch.manual_seed(0)
    model = task.build_model()
    sample = Sample(Carrier(checkpoint_of(model).layout, ("0.weight", "3.weight"), 256))
    measuring = held_out_loss_of(task)
    assert measuring is not None
    loss, slope = measuring.at(checkpoint_of(model), sample)
    model[1].running_mean += 3
    model[1].running_var *= 50
    again, same = measuring.at(checkpoint_of(model), sample)
    assert loss == again
    assert np.abs(slope).sum() > 0
    assert (slope == same).all()
    with pytest.raises(RuntimeError, match="no data"):
        HeldOutLoss(Broken(task), model).at(checkpoint_of(model), sample)
    assert model[1].running_mean.mean() == 3


@pytest.mark.parametrize(
    ("holding", "words"),
    [(Without, "no held_out_loss"), (Broken, "no data today"), (Flat, "checkpoint 3")],
)
def test_without_held_out_loss_half_of_it_is_undecided(
    holding: type[Without], words: str, begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin()
    run.seal(alice, 3, run.train)
    verdict = run.verify(task=holding(run.task))
    assert verdict.outcome is Outcome.UNDECIDED
    found = of_level(verdict)
    for name in ("downhill", "loss"):
        assert found[name].status is Status.UNDECIDED
        assert words in found[name].detail
        assert "held_out_loss" in found[name].advice
    assert found["movement"].status is Status.PASSED


def test_a_loss_that_is_no_number_fails(begin: Callable[..., Run], alice: polo.Identity) -> None:
    run = begin()
    run.seal(alice, 3, run.train)
    found = of_level(run.verify(task=Endless(run.task)))
    assert found["loss"].status is Status.FAILED
    assert found["downhill"].status is Status.FAILED
    assert found["downhill"].figures["z"] == 0


def test_bad_settings_in_signed_terms_are_named(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin(progress=SimpleNamespace(to_settings=lambda: {"uphill": "6"}))
    run.seal(alice, 3, run.train)
    verdict = run.verify()
    assert verdict.outcome is not Outcome.ACCEPTED
    found = of_level(verdict)["evidence"]
    assert "uphill" in found.place


def test_a_chain_without_shards_decides_nothing(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin(fewest_shards=1)
    run.seal(alice, 0, run.train)
    folder = ProofFolder(run.path)
    level = Progress(
        folder.manifest(), carrier_of(folder.manifest().terms, folder.layout()), {}, run.task
    )
    assert [check.status for check in level.opening()] == [Status.UNDECIDED]
    assert list(level.closing()) == []

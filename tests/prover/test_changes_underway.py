"""What a trainer may do to model and optimizer under way: each is told, and no shard is harmed.

Every test here trains for real, seals two shards, does something, and gets an error that names the
place and says what to do. Then the store must hold both shards, go on from them, and verify.
"""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_script import EASY, Enrol, Run

import polo
from polo.errors import CapacityError, ChainError, TermsError, WeightsError
from polo.prover import EmbeddingWarning
from polo.prover.training import Training
from polo.storage.folder import ProofFolder


def add_parameter(model: nn.Module) -> None:
    model.late = nn.Parameter(torch.zeros(3))


def add_buffer(model: nn.Module) -> None:
    model.register_buffer("late", torch.zeros(3))


def freeze(model: nn.Module) -> None:
    model[3].weight.requires_grad_(False)


def tie(model: nn.Module) -> None:
    model[3].bias = model[0].bias


def cast_in_place(model: nn.Module) -> None:
    model[3].weight.data = model[3].weight.data.double()


def swap(model: nn.Module) -> None:
    model[3].weight = nn.Parameter(model[3].weight.detach().clone())


def assign(model: nn.Module) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def move(model: nn.Module) -> None:
    model[3].to("meta")


def remove(model: nn.Module) -> None:
    model[3].register_parameter("bias", None)


CHANGES: dict[str, tuple[Callable[[nn.Module], None], str, str]] = {
    "added": (add_parameter, "late", "was added to the model"),
    "removed": (remove, "3.bias", "is not in the model any more"),
    "a buffer added": (add_buffer, "", "no longer those"),
    "frozen": (freeze, "3.weight", "was frozen after attach"),
    "tied": (tie, "", "is tied to"),
    "cast": (cast_in_place, "3.weight", r"type has changed from torch.float32 to torch.float64"),
    "replaced": (swap, "3.weight", "was replaced after attach"),
    "assigned": (assign, "0.weight", "was replaced after attach"),
    "moved": (move, "", "replaced after attach|device has changed from cpu to meta"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_attach_and_step_is_told_before_the_step(run: Run, change: str) -> None:
    do, place, words = CHANGES[change]
    do(run.model)
    # As the loop calls it: the gradients are there already, and the step has not been made.
    with pytest.raises(WeightsError, match=words) as caught:
        run.optimizer.step()
    assert not place or caught.value.place == place
    assert caught.value.advice
    with pytest.raises(WeightsError, match=words):
        run.prover.end_epoch()
    assert run.prover.shards == 2


@pytest.mark.parametrize("change", ["frozen", "replaced", "assigned", "a buffer added"])
def test_a_change_in_the_middle_of_an_epoch_is_told_at_its_end(run: Run, change: str) -> None:
    do, place, words = CHANGES[change]
    # After step 5 of 8 nobody looks until the end of the epoch.
    batches = run.task.batches()
    for at, (points, labels) in enumerate(batches):
        run.task.train_step(run.model, run.optimizer, {"label": labels, "point": points})
        if at == 5:
            do(run.model)
    with pytest.raises(WeightsError, match=words) as caught:
        run.prover.end_epoch()
    assert not place or caught.value.place == place
    assert run.prover.shards == 2


def test_undoing_the_change_is_enough_to_go_on(run: Run) -> None:
    run.model[3].weight.requires_grad_(False)
    with pytest.raises(WeightsError, match="frozen"):
        run.optimizer.step()
    run.model[3].weight.requires_grad_(True)
    assert run.epoch().sealed


def accepted(run: Run, issuer: polo.Identity) -> bool:
    verdict = polo.verify(run.path, trust=issuer.public_key, task=run.task)
    return verdict.outcome is polo.Outcome.ACCEPTED


def test_attaching_again_takes_replaced_parameters(loose: Run, issuer: polo.Identity) -> None:
    assert loose.epoch().sealed
    assign(loose.model)
    with pytest.raises(WeightsError, match="replaced"):
        loose.optimizer.step()
    loose.optimizer = torch.optim.SGD(loose.model.parameters(), lr=0.05, momentum=0.9)
    loose.attach()
    assert loose.epoch().sealed
    assert loose.prover.finish().shards == 2
    assert accepted(loose, issuer)


def test_freezing_what_carries_no_mark_is_no_matter_and_it_gets_no_noise(
    loose: Run, issuer: polo.Identity
) -> None:
    assert loose.epoch().sealed
    loose.model[0].bias.requires_grad_(False)
    loose.optimizer.zero_grad()
    before = loose.model[0].bias.detach().clone()
    assert loose.epoch().sealed
    assert torch.equal(before, loose.model[0].bias)
    loose.model[0].bias.requires_grad_(True)
    assert loose.epoch().sealed
    assert not torch.equal(before, loose.model[0].bias)
    assert loose.prover.finish().shards == 3
    assert accepted(loose, issuer)


def test_a_carrier_taken_from_the_optimizer(run: Run) -> None:
    group = run.optimizer.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not run.model[3].weight]
    with pytest.raises(WeightsError, match="does not hold it any more") as caught:
        run.optimizer.step()
    assert caught.value.place == "3.weight"


def test_buffers_that_are_cast_with_the_model(run: Run) -> None:
    run.model[1].running_mean = run.model[1].running_mean.double()
    with pytest.raises(WeightsError, match="no longer those"):
        run.prover.end_epoch()


# A run that diverges.


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_never_sealed(run: Run, bad: float) -> None:
    points, labels = run.task.batches()[0]
    run.optimizer.zero_grad()
    (nn.functional.cross_entropy(run.model(points), labels) * bad).backward()
    run.optimizer.step()
    with pytest.raises(WeightsError, match="not finite") as caught:
        run.prover.end_epoch()
    assert caught.value.place == "0.bias"
    assert "in shard 3 after epoch 3, 17 steps in all" in caught.value.message
    assert "diverged" in caught.value.advice
    assert "goes back to the last sealed shard" in caught.value.advice
    assert run.prover.shards == 2


def test_a_single_spoilt_value_far_from_the_mark_is_found_though_nothing_was_to_be_sealed(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    hopeless = enrol(budget=0.0, strength=1e-6)
    run = Run(task, hopeless, alice, tmp_path / "other")
    run.attach()
    task.train_epoch(run.model, run.optimizer)
    run.model[1].running_var[7] = float("inf")
    with pytest.raises(WeightsError, match="not finite") as caught:
        run.prover.end_epoch()
    assert caught.value.place == "1.running_var"
    run.prover.close()


def test_finish_does_not_seal_a_tail_that_diverged(run: Run) -> None:
    run.task.train_epoch(run.model, run.optimizer)
    with torch.no_grad():
        run.model[5].bias[0] = float("nan")
    with pytest.raises(WeightsError, match="not finite"):
        run.prover.finish()


# Two provers, and copies.


@pytest.mark.parametrize("shared", ["optimizer", "model"])
def test_two_provers_are_refused(
    run: Run, enrol: Enrol, alice: polo.Identity, tmp_path: Path, shared: str
) -> None:
    second = polo.Prover(enrol(**EASY), key=alice, store=tmp_path / "second")
    optimizer = run.optimizer
    if shared == "model":
        optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05)
    with pytest.raises(ChainError, match=f"another prover is attached to this {shared}") as caught:
        second.attach(run.model, optimizer)
    assert "close()" in caught.value.advice
    assert second.shards == 0
    assert not (tmp_path / "second" / "manifest.json").exists()
    assert len(run.optimizer._optimizer_step_pre_hooks) == 1
    second.close()
    assert run.epoch().sealed


def test_one_after_the_other_is_fine(
    loose: Run, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    assert loose.epoch().sealed
    loose.prover.finish()
    loose.prover = polo.Prover(enrol(**EASY), key=alice, store=tmp_path / "second")
    loose.path = tmp_path / "second"
    loose.attach()
    assert loose.epoch().sealed
    loose.prover.finish()
    assert accepted(loose, issuer)


def test_two_models_with_a_prover_each_do_not_disturb_each_other(
    loose: Run, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    other = Run(loose.task, enrol(**EASY), alice, tmp_path / "second")
    other.attach()
    for _ in range(2):
        assert loose.epoch().sealed
        assert other.epoch().sealed
    for one in (loose, other):
        assert one.prover.finish().shards == 2
        assert accepted(one, issuer)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_prover_is_not_copied(run: Run, how: Callable[[Any], Any]) -> None:
    with pytest.raises(ChainError, match="cannot be copied") as caught:
        how(run.prover)
    assert "attach(model, optimizer) again" in caught.value.advice


def test_a_copied_optimizer_has_no_hook_and_the_original_keeps_its_one(run: Run) -> None:
    model, optimizer = copy.deepcopy((run.model, run.optimizer))
    assert not optimizer._optimizer_step_pre_hooks
    assert len(run.optimizer._optimizer_step_pre_hooks) == 1
    steps = run.prover._current.total
    run.task.train_epoch(model, optimizer)
    assert run.prover._current.total == steps


# Schemes that do not fit, and replay.


def test_a_carrier_that_the_scheme_cannot_use(
    task: Any, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    """Terms that this library would not make; somebody else's may."""
    terms = polo.make_terms(task, block=64, bits=64, load=0.125, fewest_shards=1)
    terms = dataclasses.replace(terms, carrier=("0.weight", "1.weight", "3.weight"))
    enrolment = polo.enrol(terms, identity=alice.public_key, issuer=issuer)
    run = Run(task, enrolment, alice, tmp_path / "proof")
    with pytest.raises(CapacityError, match="the scheme 'ednn' cannot use it") as caught:
        run.attach()
    assert caught.value.place == "1.weight"
    assert "polo validate" in caught.value.advice
    assert not (run.path / "manifest.json").exists()
    run.prover.close()


# What it costs.


def test_changes_are_looked_for_ever_more_seldom(loose: Run, monkeypatch: Any) -> None:
    looked, judged = [], []
    glance, check = Training.glance, Training.check
    monkeypatch.setattr(Training, "glance", lambda self: looked.append(1) or glance(self))
    monkeypatch.setattr(Training, "check", lambda self: judged.append(1) or check(self))
    for _ in range(64):
        loose.optimizer.step()
    # At 0, 1, 2, 4, …, 32 steps of the shard.
    assert (len(looked), len(judged)) == (7, 0)


def test_terms_are_not_harmed_by_unknown_errors_in_the_hook(run: Run, monkeypatch: Any) -> None:
    """An error of the press itself comes through as it is when nothing has changed."""

    def broken(_: Any) -> None:
        raise TermsError("out of order")

    monkeypatch.setattr(run.prover._current._embedder, "add_gradient", broken)
    with pytest.raises(TermsError, match="out of order"):
        run.optimizer.step()
    monkeypatch.undo()


@pytest.mark.parametrize("way", ["detach", "end of the block", "an exception"])
def test_nothing_is_sealed_that_nobody_watched(run: Run, way: str) -> None:
    if way == "detach":
        run.prover.detach()
    elif way == "end of the block":
        with run.attach():
            run.task.train_epoch(run.model, run.optimizer)
    else:
        with pytest.raises(RuntimeError, match="power"), run.attach():
            raise RuntimeError("power cut")
    run.task.train_epoch(run.model, run.optimizer)
    for seal in (run.prover.end_epoch, run.prover.check):
        with pytest.raises(ChainError, match="no optimizer is watched any more") as found:
            seal()
        assert "attach() again" in found.value.advice
    assert len(ProofFolder(run.path).manifest().shards) == 2


def test_unwatched_steps_leave_the_tail_outside(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    run = Run(task, enrol(**EASY), alice, tmp_path / "proof")
    with run.attach():
        assert run.epoch().sealed
        run.task.train_epoch(run.model, run.optimizer)
    run.task.train_epoch(run.model, run.optimizer)
    with pytest.warns(EmbeddingWarning, match="changed after the block of attach"):
        proof = run.prover.finish()
    assert (proof.shards, proof.outside) == (1, 8)
    verdict = polo.verify(run.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


@pytest.mark.parametrize("between", ["within a shard", "after a sealing", "in a copy"])
def test_attaching_again_does_not_take_steps_that_nobody_watched(run: Run, between: str) -> None:
    with run.attach():
        run.task.train_epoch(run.model, run.optimizer)
        if between == "after a sealing":
            assert run.prover.end_epoch().sealed
    if between == "in a copy":
        run.model, run.optimizer = copy.deepcopy((run.model, run.optimizer))
    run.task.train_epoch(run.model, run.optimizer)
    shards = run.prover.shards
    with pytest.raises(ChainError, match="changed while no optimizer was watched") as caught:
        run.attach()
    assert "goes back to the last sealed shard" in caught.value.advice
    assert "finish()" in caught.value.advice
    assert run.prover.shards == shards


def test_attaching_again_goes_on_where_weights_are_the_same(loose: Run) -> None:
    with loose.attach():
        loose.task.train_epoch(loose.model, loose.optimizer)
    loose.model, loose.optimizer = copy.deepcopy((loose.model, loose.optimizer))
    with loose.attach():
        assert loose.epoch().sealed.steps == 16


def test_a_copy_that_was_trained_elsewhere_does_not_take_the_hook(loose: Run) -> None:
    model, optimizer = copy.deepcopy((loose.model, loose.optimizer))
    loose.task.train_epoch(model, optimizer)
    with pytest.raises(ChainError, match="changed while no optimizer was watched"):
        loose.prover.attach(model, optimizer)
    assert loose.epoch().sealed


@pytest.mark.parametrize("spoilt", ["in the block", "after it"])
def test_a_tail_that_diverged_is_told_after_the_block_as_it_is_in_it(run: Run, spoilt: str) -> None:
    with run.attach():
        run.task.train_epoch(run.model, run.optimizer)
        if spoilt == "in the block":
            run.model[5].bias.data[0] = float("nan")
    if spoilt == "after it":
        run.model[5].bias.data[0] = float("nan")
    with pytest.raises(WeightsError, match="not finite") as caught:
        run.prover.finish()
    assert caught.value.place == "5.bias"
    assert not ProofFolder(run.path).manifest().finished


def test_the_tail_is_sealed_after_the_block(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    run = Run(task, enrol(**EASY), alice, tmp_path / "proof")
    with run.attach():
        run.task.train_epoch(run.model, run.optimizer)
    proof = run.prover.finish()
    assert (proof.shards, proof.outside) == (1, 0)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_that_maximises_presses_all_the_same(
    optimizer: Any, task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    run = Run(task, enrol(budget=0.1, strength=0.05), alice, tmp_path / "proof")
    rate = {"lr": 0.05} if optimizer is torch.optim.SGD else {"lr": 0.003}
    run.optimizer = optimizer(run.model.parameters(), maximize=True, **rate)
    etas = []
    with run.attach():
        for _ in range(3):
            for points, labels in task.batches():
                run.optimizer.zero_grad()
                (-nn.functional.cross_entropy(run.model(points), labels)).backward()
                run.optimizer.step()
            etas.append(run.prover.end_epoch().reading.eta)
    # By chance one half; pressed the other way round it would be far below.
    assert min(etas) > 0.65


def test_carriers_that_go_both_ways_are_refused(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    run = Run(task, enrol(**EASY), alice, tmp_path / "proof")
    first, *others = run.model.parameters()
    groups = [{"params": [first], "maximize": True}, {"params": others}]
    run.optimizer = torch.optim.SGD(groups, lr=0.05)
    with pytest.raises(ChainError, match="maximize=True, and others are not"):
        run.attach()


@pytest.mark.parametrize("first", [False, True])
def test_an_optimizer_that_turns_round_is_told_before_the_step(
    first: bool, task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    run = Run(task, enrol(**EASY), alice, tmp_path / "proof")
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.001, maximize=first)
    group = run.optimizer.param_groups[0]
    with run.attach():
        run.task.train_epoch(run.model, run.optimizer)
        group["maximize"] = not first
        words = "was switched on since" if group["maximize"] else "was switched off since"
        for act in (run.optimizer.step, run.prover.end_epoch):
            with pytest.raises(ChainError, match=words) as caught:
                act()
        assert "turn the sign of the loss" in caught.value.advice
        group["maximize"] = first
        assert run.epoch().sealed
    run.prover.close()


@pytest.mark.parametrize("also", [{"x": 3}, [3], {1: torch.nn.Linear(1, 1)}, {"x": None}])
def test_what_also_takes_is_said(run: Run, also: Any) -> None:
    with pytest.raises(ChainError, match=r"`also` takes objects with state_dict\(\)") as caught:
        run.prover.attach(run.model, run.optimizer, also=also)
    assert "scheduler" in caught.value.advice


class Lookup(nn.Module):
    """A table whose gradients are sparse, and a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 32, sparse=True)
        self.idle = nn.Linear(64, 64)
        self.last = nn.Linear(16 * 32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (x * 20 + 128).long().clamp(0, 255)
        found: torch.Tensor = self.last(self.table(places).flatten(1))
        return found


@pytest.mark.parametrize("carrier", ["table.weight", "idle.weight"])
def test_a_carrier_that_gets_no_gradient_is_named(
    carrier: str, task: Any, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    own = type(task)(Lookup)
    terms = polo.make_terms(own, bits=64, carrier=[carrier], budget=0.1, fewest_shards=1)
    enrolment = polo.enrol(terms, identity=alice.public_key, issuer=issuer)
    run = Run(own, enrolment, alice, tmp_path / "proof")
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05)
    with run.attach():
        for _ in range(2):
            assert not run.epoch().sealed
        with pytest.warns(EmbeddingWarning, match=f"pressed into {carrier}: no gradient"):
            run.epoch()


@pytest.mark.parametrize("given", ["nothing", "no optimizer", "the other way round"])
def test_what_is_no_model_or_no_optimizer_is_refused(run: Run, given: str) -> None:
    model, optimizer = run.model, run.optimizer
    wrong: Any = {
        "nothing": (None, optimizer), "no optimizer": (model, None),
        "the other way round": (optimizer, model),
    }[given]  # fmt: skip
    with pytest.raises(
        ChainError, match=r"takes a torch\.nn\.Module and a torch\.optim\.Optimizer"
    ):
        run.prover.attach(*wrong)

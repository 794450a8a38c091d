"""Attaching to optimizers: every kind of loop, and nothing left behind."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import polo
from polo.embedding.ednn import EdnnPress
from polo.embedding.hook import StepHook, inner
from polo.protocol import derivation
from polo.protocol.records import identity_of
from polo.watermark import carrier_of, derive, values_of
from polo.weights import checkpoint_of

Enrol = Callable[..., polo.OfflineEnrolment]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=2, history_size=2),
}


class Calls:
    """Counts what a hook reports, and what it finds in the gradients."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.scales: list[Any] = []
        self.found: list[torch.Tensor | None] = []
        self.done = 0

    def before(self, scale: Any) -> None:
        self.scales.append(scale if isinstance(scale, float) else float(scale))
        grad = self.parameter.grad
        self.found.append(None if grad is None else grad.clone())

    def after(self) -> None:
        self.done += 1


@pytest.fixture
def line() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.arange(12.0).reshape(3, 4)).square().mean()


def gradient_of(model: nn.Linear) -> torch.Tensor:
    return torch.autograd.grad(loss_of(model), model.weight)[0]


@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if kind != "LBFGS"])
def test_one_call_before_and_one_after_every_step(line: nn.Linear, kind: str) -> None:
    optimizer = OPTIMIZERS[kind](line.parameters())
    calls = Calls(line.weight)
    StepHook(optimizer, calls.before, calls.after)
    for step in range(1, 4):
        optimizer.zero_grad()
        loss_of(line).backward()
        expected = gradient_of(line)
        optimizer.step()
        assert calls.done == len(calls.scales) == step
        assert torch.equal(calls.found[-1], expected)
    assert set(calls.scales) == {1.0}


@pytest.mark.parametrize("how", ["position", "keyword"])
def test_closures_are_followed_by_the_mark_and_their_loss_is_handed_on(
    line: nn.Linear, how: str
) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.0)
    calls = Calls(line.weight)
    StepHook(optimizer, calls.before, calls.after)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses.append(loss_of(line))
        losses[-1].backward()
        return losses[-1]

    for _ in range(2):
        found = optimizer.step(closure) if how == "position" else optimizer.step(closure=closure)
        assert found is losses[-1]
        # Gradients of this closure, and not what an earlier step left.
        assert torch.equal(calls.found[-1], gradient_of(line))
    assert (len(losses), len(calls.scales), calls.done) == (2, 2, 2)


@pytest.mark.parametrize("arguments", [((None,), {}), ((), {"closure": None})])
def test_no_closure_by_name_is_no_closure(line: nn.Linear, arguments: Any) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    calls = Calls(line.weight)
    StepHook(optimizer, calls.before, calls.after)
    loss_of(line).backward()
    optimizer.step(*arguments[0], **arguments[1])
    assert (len(calls.scales), calls.done) == (1, 1)


def test_every_evaluation_of_a_line_search_sees_the_mark(line: nn.Linear) -> None:
    optimizer = torch.optim.LBFGS(line.parameters(), max_iter=4)
    calls, evaluations = Calls(line.weight), []
    StepHook(optimizer, calls.before, calls.after)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(line)
        loss.backward()
        evaluations.append(line.weight.grad.clone())
        return loss

    optimizer.step(closure)
    assert len(evaluations) > 1
    assert len(calls.found) == len(evaluations)
    assert all(map(torch.equal, calls.found, evaluations))
    assert calls.done == 1


def test_an_exception_in_a_closure_counts_no_step_and_leaves_the_hook_in_place(
    line: nn.Linear,
) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    calls = Calls(line.weight)
    StepHook(optimizer, calls.before, calls.after)

    def closure() -> torch.Tensor:
        raise RuntimeError("data loader died")

    with pytest.raises(RuntimeError, match="data loader died"):
        optimizer.step(closure)
    assert (calls.scales, calls.done) == ([], 0)
    loss_of(line).backward()
    optimizer.step()
    assert calls.done == 1


def test_clipping_comes_before_the_mark(line: nn.Linear) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    calls = Calls(line.weight)
    StepHook(optimizer, calls.before, calls.after)
    loss_of(line).backward()
    nn.utils.clip_grad_norm_(line.parameters(), 0.01)
    clipped = line.weight.grad.clone()
    optimizer.step()
    assert torch.equal(calls.found[0], clipped)
    assert float(clipped.norm()) <= 0.01


def test_a_scaler_with_a_plain_optimizer_unscales_first_and_skips_by_itself(
    line: nn.Linear,
) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.0)
    calls = Calls(line.weight)
    hook = StepHook(optimizer, calls.before, calls.after)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss_of(line)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert calls.scales == [1.0]
    assert torch.allclose(calls.found[0], gradient_of(line))
    line.weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    assert (len(calls.scales), calls.done, hook.skipped_steps()) == (1, 1, 0)


@pytest.mark.parametrize("unscale", [False, True])
def test_a_scaler_with_a_fused_optimizer_tells_the_scale_and_the_skipped_steps(
    line: nn.Linear, unscale: bool
) -> None:
    optimizer = torch.optim.AdamW(line.parameters(), lr=0.01, fused=True)
    calls = Calls(line.weight)
    hook = StepHook(optimizer, calls.before, calls.after)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = 0
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(line)).backward()
        expected = gradient_of(line)
        if step in (1, 2):
            line.weight.grad[0, 0] = float("inf")
            skipped += 1
        if unscale:
            scaler.unscale_(optimizer)
        before, scale = line.weight.detach().clone(), scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        assert calls.scales[-1] == (1.0 if unscale else scale)
        assert torch.equal(line.weight, before) == (step in (1, 2))
        if step not in (1, 2):
            assert torch.allclose(calls.found[-1] / calls.scales[-1], expected)
    assert calls.done == 4
    assert (hook.skipped_steps(), hook.skipped_steps()) == (skipped, 0)


class Wrapping:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_wrappers_are_looked_through(line: nn.Linear) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    assert inner(optimizer) is optimizer
    assert inner(Wrapping(optimizer=optimizer)) is optimizer
    assert inner(Wrapping(optimizer=Wrapping())) is not optimizer
    assert inner(Wrapping(original_optimizer=optimizer)) is optimizer


def test_detaching_leaves_no_hook(line: nn.Linear) -> None:
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    calls = Calls(line.weight)
    hook = StepHook(optimizer, calls.before, calls.after)
    hook.detach()
    hook.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    loss_of(line).backward()
    optimizer.step()
    assert calls.done == 0


# With a whole prover.


def epoch_of(kind: str, task: Any, model: nn.Module, optimizer: Any, scaler: Any = None) -> int:
    """One epoch in the manner of `kind`; returns how many real steps it made."""
    steps = 0
    batches = task.batches()
    model.train()
    for at, (points, labels) in enumerate(batches):
        if kind == "accumulating":
            if at % 4 == 0:
                optimizer.zero_grad()
            (cross_entropy(model(points), labels) / 4).backward()
            if at % 4 == 3:
                optimizer.step()
                steps += 1
            continue
        if kind.startswith("closure"):

            def closure(points: Any = points, labels: Any = labels) -> torch.Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(points), labels)
                loss.backward()
                return loss

            if kind == "closure by name":
                optimizer.step(closure=closure)
            else:
                optimizer.step(closure)
            steps += 1
            continue
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)
        if scaler is None:
            loss.backward()
            if kind == "clipping":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            continue
        scaler.scale(loss).backward()
        if at == 2:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        steps += at != 2
    return steps


def prove(
    task: Any,
    enrolment: polo.OfflineEnrolment,
    alice: polo.Identity,
    store: Path,
    optimizer_of: Callable[[Any], torch.optim.Optimizer],
    kind: str = "plain",
    scaler: Any = None,
    epochs: int = 3,
) -> tuple[polo.Proof, list[int]]:
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = optimizer_of(model.parameters())
    prover = polo.Prover(enrolment, key=alice, store=store)
    steps = []
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(epochs):
            steps.append(epoch_of(kind, task, model, optimizer, scaler))
            assert prover.end_epoch().sealed
    return prover.finish(), steps


# So large a budget that every epoch is sealed; what is tested here is the loop.
EASY = {"budget": 1.0, "strength": 0.05}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_proof_made_with_any_optimizer_is_accepted(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path,
    optimizer: str,
) -> None:  # fmt: skip
    kind = "closure by position" if optimizer == "LBFGS" else "plain"
    proof, steps = prove(
        task, enrol(**EASY), alice, tmp_path / "proof", OPTIMIZERS[optimizer], kind
    )
    assert [shard.steps for shard in proof.manifest.shards] == steps == [8, 8, 8]
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


@pytest.mark.parametrize(
    ("kind", "optimizer", "scaled"),
    [
        ("accumulating", "SGD", False),
        ("clipping", "SGD with momentum", False),
        ("closure by position", "Adam", False),
        ("closure by name", "Adam", False),
        ("scaler", "SGD", True),
        ("scaler", "AdamW", True),
        ("scaler, fused", "AdamW fused", True),
    ],
)
def test_a_proof_made_in_any_loop_counts_real_steps_and_is_accepted(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path,
    kind: str, optimizer: str, scaled: bool,
) -> None:  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if scaled else None
    proof, steps = prove(
        task, enrol(**EASY), alice, tmp_path / "proof", OPTIMIZERS[optimizer], kind, scaler
    )
    assert [shard.steps for shard in proof.manifest.shards] == steps
    assert steps == [{"accumulating": 2, "scaler": 7, "scaler, fused": 7}.get(kind, 8)] * 3
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


class ConvTask:
    """Images in channels-last memory, as convolutions like them."""

    name, version, metric, floor = "conv", 1, "accuracy", ()

    def __init__(self, task: Any) -> None:
        self._task = task
        self.evaluate, self.batches = task.evaluate, task.batches

    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Flatten(),
            nn.Linear(512, 4),
        )
        return model.to(memory_format=torch.channels_last)


def test_a_proof_of_channels_last_weights_is_accepted(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    conv = ConvTask(task)
    assert not conv.build_model()[3].weight.is_contiguous()
    proof, _ = prove(
        conv, enrol(task=conv, **EASY), alice, tmp_path / "proof", OPTIMIZERS["SGD with momentum"]
    )
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=conv)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def still_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step of plain SGD with no gradient but the mark's."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def mark_of(prover: polo.Prover, enrolment: polo.OfflineEnrolment, root: bytes) -> Any:
    """The mark of shard 1, derived as a verifier does."""
    seed = derivation.seed(
        root=root,
        shard=1,
        nonce=enrolment.drawn[0].nonce,
        identity=identity_of(enrolment.record.identity),
        terms=enrolment.record.terms.digest,
    )
    return derive(enrolment.record.terms, prover._training.carrier, seed)


def test_attaching_again_adds_the_gradient_once(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    enrolment = enrol()
    root = polo.weights.commit(checkpoint_of(model)).root
    prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
    for _ in range(3):
        prover.attach(model, optimizer)
    mark = mark_of(prover, enrolment, root)
    carrier = carrier_of(enrolment.record.terms, checkpoint_of(model).layout)
    before = torch.from_numpy(values_of(mark, carrier, checkpoint_of(model)))
    pressing = EdnnPress(mark, enrolment.record.terms, torch.device("cpu"))
    others = {n: p.detach().clone() for n, p in model.named_parameters() if n not in carrier.names}
    still_step(model, optimizer)
    after = torch.from_numpy(values_of(mark, carrier, checkpoint_of(model)))
    # lr = 1 and no other gradient: the step is the mark's gradient, to the last bit.
    assert torch.equal(after, before - pressing.gradient(before))
    for name, parameter in model.named_parameters():
        if name in others:
            assert torch.equal(parameter, others[name])
    prover.close()


def test_every_fourth_step_presses_four_times_as_hard(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    moved = {}
    for every in (1, 4):
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        enrolment = enrol(every=every)
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / str(every))
        prover.attach(model, optimizer)
        moved[every] = []
        for _ in range(6):
            before = [p.detach().clone() for p in model.parameters()]
            still_step(model, optimizer)
            pairs = zip(before, model.parameters(), strict=True)
            moved[every].append(sum(float((a - b.detach()).abs().sum()) for a, b in pairs))
        prover.close()
    assert all(moved[1])
    assert [bool(m) for m in moved[4]] == [True, False, False, False, True, False]
    assert moved[4][0] == pytest.approx(4 * moved[1][0], rel=0.2)


def plain_run(task: Any, epochs: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        task.train_epoch(model, optimizer)
    return [value.clone() for value in model.state_dict().values()]


def test_after_detaching_training_is_as_if_there_had_been_no_prover(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    prover = polo.Prover(enrol(), key=alice, store=tmp_path / "proof")
    torch.manual_seed(3)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with prover.attach(model, optimizer):
        assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    for _ in range(2):
        task.train_epoch(model, optimizer)
    prover.close()
    found = list(model.state_dict().values())
    assert all(map(torch.equal, found, plain_run(task, 2)))


def test_attaching_draws_nothing_from_the_users_generators(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrol(**EASY), key=alice, store=tmp_path / "proof")
    before = torch.get_rng_state()
    prover.attach(model, optimizer)
    still_step(model, optimizer)
    assert prover.end_epoch().sealed
    assert torch.equal(torch.get_rng_state(), before)
    prover.close()


def test_model_and_optimizer_are_not_wrapped(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    modules = {id(module): (type(module), set(vars(module))) for module in model.modules()}
    parameters = {name: id(p) for name, p in model.named_parameters()}
    held = set(vars(optimizer))
    hooks = [len(getattr(m, h)) for m in model.modules() for h in vars(m) if h.endswith("_hooks")]
    prover = polo.Prover(enrol(**EASY), key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer):
        task.train_epoch(model, optimizer)
        assert prover.end_epoch().sealed
        assert "step" not in vars(optimizer)
        assert type(optimizer) is torch.optim.Adam
        assert set(vars(optimizer)) == held
    assert {id(m): (type(m), set(vars(m))) for m in model.modules()} == modules
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    assert hooks == [
        len(getattr(m, h)) for m in model.modules() for h in vars(m) if h.endswith("_hooks")
    ]
    assert not any(getattr(p, "_backward_hooks", None) for p in model.parameters())
    prover.close()


@pytest.mark.parametrize("how", ["deepcopy", "state dict"])
def test_copies_lose_the_hook_and_take_it_up_again(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path, how: str
) -> None:
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(enrol(**EASY), key=alice, store=tmp_path / "proof")
    prover.attach(model, optimizer)
    task.train_epoch(model, optimizer)
    assert prover.end_epoch().sealed
    task.train_epoch(model, optimizer)  # in the middle of shard 2
    old = optimizer
    if how == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    else:
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model.load_state_dict(prover._training.model.state_dict())
        optimizer.load_state_dict(old.state_dict())
    assert not optimizer._optimizer_step_pre_hooks
    with prover.attach(model, optimizer):
        assert not old._optimizer_step_pre_hooks
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        task.train_epoch(model, optimizer)
        progress = prover.end_epoch()
        assert (progress.shard, progress.sealed.steps) == (2, 16)
    proof = prover.finish()
    assert proof.shards == 2
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def test_steps_without_gradients_do_no_harm(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrol(), key=alice, store=tmp_path / "proof")
    prover.attach(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    prover.close()


@pytest.mark.parametrize("outside", [True, False])
def test_steps_skipped_in_the_tail_are_not_counted(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path, outside: bool
) -> None:
    """The tail is counted after the `with` block took the hook off."""
    terms = {"budget": 0.0, "strength": 1e-6} if outside else EASY
    prover = polo.Prover(enrol(**terms), key=alice, store=tmp_path / "proof")
    model = task.build_model()
    optimizer = OPTIMIZERS["AdamW fused"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with prover.attach(model, optimizer):
        steps = epoch_of("scaler", task, model, optimizer, scaler)
    proof = prover.finish()
    assert proof.shards == (0 if outside else 1)
    counted = proof.outside if outside else proof.manifest.shards[0].steps
    assert counted == steps == 7

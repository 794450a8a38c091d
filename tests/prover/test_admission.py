"""What would end in a proof that nobody accepts is said while there is something to be done."""

import contextlib
import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.errors import ChainError, TermsError, WeightsError
from polo.prover import EmbeddingWarning

Enrol = Callable[..., polo.OfflineEnrolment]
EASY: dict[str, Any] = {"budget": 1.0, "strength": 0.05, "fewest_shards": 1}


class Wide(nn.Module):
    """A network around the tiny one, to be spoilt by tests."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, points: torch.Tensor) -> Any:
        return self.inner(points)


class Copying(Wide):
    """Its state dict hands out copies."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        return type(found)((name, value.clone()) for name, value in found.items())


class Counting(Wide):
    """It keeps a tensor beside parameters and buffers."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(1)

    def set_extra_state(self, state: torch.Tensor) -> None:
        pass


class Masked(Wide):
    """It has a mask of minus infinity in its state dict."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))


class Transposed(Wide):
    """One layer's weights are another's, the other way round."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.back = nn.Linear(64, 16)
        self.back.weight = nn.Parameter(inner[0].weight.t())


@pytest.fixture
def begin(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> Callable[..., tuple[Any, polo.Prover]]:
    """A tiny model and a prover for it, under terms that are easy to meet."""

    def make(own: Any = None, **options: Any) -> tuple[Any, polo.Prover]:
        torch.manual_seed(0)
        own = own or task
        enrolment = enrol(task=own, **{**EASY, **options})
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
        return own.build_model(), prover

    return make


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def judged(path: Path, issuer: polo.Identity, task: Any) -> Any:
    return polo.verify(path, trust=issuer.public_key, task=task)


@pytest.mark.parametrize("value", [94.1, -0.2, {"accuracy": 1.7}])
def test_a_metric_that_is_no_rate_is_never_signed(begin: Any, task: Any, value: Any) -> None:
    model, prover = begin()
    with prover.attach(model, optimizer := sgd(model)):
        task.train_epoch(model, optimizer)
        with pytest.raises(TermsError, match="a rate from 0 to 1") as caught:
            prover.end_epoch(evaluate=lambda: value)
        assert "by another name" in caught.value.advice
        done = prover.end_epoch(evaluate=lambda: {"accuracy": 0.5, "loss": 17.0})
        assert done.sealed.metrics == {"accuracy": 500_000, "loss": 17_000_000}
        assert prover.epoch == 1


@pytest.mark.parametrize("given", [0.93, 0.0, "accuracy"])
def test_a_number_is_no_way_to_measure(begin: Any, task: Any, given: Any) -> None:
    model, prover = begin()
    with prover.attach(model, optimizer := sgd(model)):
        task.train_epoch(model, optimizer)
        with pytest.raises(TermsError, match="not a function"):
            prover.end_epoch(evaluate=given)


def test_a_shard_below_its_floor_waits_until_the_model_is_as_good(
    begin: Any, task: Any, issuer: polo.Identity, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own = copy.copy(task)
    own.floor = (0.1, 0.6)
    model, prover = begin(own)
    told = iter([0.2, 0.3, 0.3, 0.3, 0.9])
    before = None
    with prover.attach(model, optimizer := sgd(model)):
        for epoch in range(5):
            task.train_epoch(model, optimizer)
            if epoch == 1:
                before = [p.detach().clone() for p in model.parameters()]
            watch = pytest.warns(EmbeddingWarning, match="0.3000, and the terms ask for 0.6000")
            with watch if epoch == 3 else contextlib.nullcontext():
                done = prover.end_epoch(evaluate=lambda: next(told))
            assert bool(done.sealed) == (epoch in (0, 4))
            if epoch == 1:
                after = zip(before, model.parameters(), strict=True)
                assert all(torch.equal(*pair) for pair in after), "nothing is edited while it waits"
    assert "shard 2 is not sealed yet: accuracy is 0.3000" in caplog.text
    proof = prover.finish()
    assert [shard.epochs for shard in proof.manifest.shards] == [1, 4]


def test_who_forgets_evaluation_mode_signs_the_right_number(
    begin: Any, task: Any, issuer: polo.Identity, tmp_path: Path
) -> None:
    model, prover = begin()
    seen = []

    def careless() -> float:
        seen.append((model.training, model[1].training))
        return float(task.evaluate(model))

    with prover.attach(model, optimizer := sgd(model)):
        for _ in range(2):
            task.train_epoch(model, optimizer)
            model.train()
            model[1].eval()
            assert prover.end_epoch(evaluate=careless).sealed
            assert (model.training, model[1].training) == (True, False), "as the loop left it"
    prover.finish()
    assert seen == [(False, False)] * 2, "whatever the loop has left"
    assert judged(tmp_path / "proof", issuer, task).outcome is polo.Outcome.ACCEPTED


@pytest.mark.parametrize("spoilt", [Copying, Counting])
def test_a_state_dict_of_copies_is_refused_at_once(begin: Any, task: Any, spoilt: Any) -> None:
    own = type(task)(lambda: spoilt(task.build_model()))
    model, prover = begin(own)
    with pytest.raises(WeightsError, match="hands out a copy") as caught:
        prover.attach(model, sgd(model))
    assert "hooks of state_dict()" in caught.value.advice


def test_steps_without_any_gradient_are_not_sealed(begin: Any, task: Any) -> None:
    model, prover = begin()
    with prover.attach(model, optimizer := sgd(model)):
        net = copy.deepcopy(model)
        mine = sgd(net)
        mine.register_step_post_hook(lambda *_: optimizer.step())
        task.train_epoch(net, mine)
        with pytest.raises(ChainError, match="nothing that it holds has a gradient"):
            prover.end_epoch()
        task.train_epoch(model, optimizer)
        assert prover.end_epoch().sealed


def test_too_few_shards_are_said_at_the_end(begin: Any, task: Any, tmp_path: Path) -> None:
    model, prover = begin(fewest_shards=3)
    with prover.attach(model, optimizer := sgd(model)):
        task.train_epoch(model, optimizer)
        assert prover.end_epoch().sealed
    with pytest.warns(EmbeddingWarning, match="only 1 shard sealed, and the terms ask for 3"):
        prover.finish()


def test_an_epoch_that_is_ended_twice_counts_once(begin: Any, task: Any) -> None:
    model, prover = begin()
    with prover.attach(model, optimizer := sgd(model)):
        task.train_epoch(model, optimizer)
        model[3].weight.requires_grad_(False)
        with pytest.raises(WeightsError, match="frozen"):
            prover.end_epoch()
        assert prover.epoch == 0
        model[3].weight.requires_grad_(True)
        assert prover.end_epoch().sealed.epochs == 1


@pytest.mark.parametrize("scheme", ["ednn", "ednn-mean", "riga", "signed", "fedipr-kernel"])
def test_deterministic_kernels_and_inference_mode_do_no_harm(
    begin: Any, task: Any, scheme: str
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model, prover = begin(scheme=scheme, bits=64, log2_p=-32)
        with prover.attach(model, optimizer := sgd(model)):
            for _ in range(2):
                task.train_epoch(model, optimizer)
                with torch.inference_mode():
                    assert prover.end_epoch(evaluate=lambda: task.evaluate(model)).sealed
    finally:
        torch.use_deterministic_algorithms(False)


def test_other_defaults_of_torch_do_no_harm(begin: Any, task: Any) -> None:
    model, prover = begin(scheme="riga", bits=64, log2_p=-32)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        with prover.attach(model, optimizer := sgd(model)):
            torch.set_default_device(None)
            task.train_epoch(model, optimizer)
            torch.set_default_device("meta")
            assert prover.end_epoch().sealed
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


class Lookahead(torch.optim.Optimizer):
    """Steps of another optimizer, drawn back every second time to weights that follow slowly."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self.count = optimizer, 0
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.optimizer.step(closure)
        self.count += 1
        if self.count % 2 == 0:
            fast = [p for g in self.param_groups for p in g["params"]]
            for slow, p in zip(self.slow, fast, strict=True):
                p.copy_(slow.lerp_(p, 0.5))

    def state_dict(self) -> Any:
        return {"inner": self.optimizer.state_dict(), "slow": dict(enumerate(self.slow))}

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state["inner"])
        self.slow = [state["slow"][at].clone() for at in range(len(self.slow))]


def test_what_a_wrapper_keeps_beside_its_optimizer_is_put_back(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment, kept = enrol(**EASY), []
    for begun in (False, True):
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
        model = task.build_model()
        optimizer = Lookahead(sgd(model))
        with prover.attach(model, optimizer):
            if begun:
                assert all(map(torch.equal, optimizer.slow, kept))
            task.train_epoch(model, optimizer)
            assert prover.end_epoch().sealed
        kept = [slow.clone() for slow in optimizer.slow]
        prover.close()


def test_what_is_trained_beside_the_model_is_named(begin: Any) -> None:
    model, prover = begin()
    head = nn.Linear(4, 4)
    both = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    with pytest.warns(EmbeddingWarning, match="2 tensors outside the model"):
        prover.attach(model, both)
    prover.attach(model, both, also={"head": head})


def test_minus_infinity_in_a_mask_is_refused_before_terms_are_made(enrol: Enrol, task: Any) -> None:
    with pytest.raises(WeightsError, match="before any step") as caught:
        enrol(task=type(task)(lambda: Masked(task.build_model())))
    assert "persistent=False" in caught.value.advice


def test_a_start_that_is_no_number_is_not_called_divergence(begin: Any) -> None:
    model, prover = begin()
    with torch.no_grad():
        model[0].weight[3, 3] = torch.nan
    with pytest.raises(WeightsError, match="before any step") as caught:
        prover.attach(model, sgd(model))
    assert "initialised" in caught.value.advice


def test_carriers_that_share_memory_the_other_way_round_are_refused(begin: Any, task: Any) -> None:
    own = type(task)(lambda: Transposed(task.build_model()))
    model, prover = begin(own)
    with pytest.raises(WeightsError, match=r"shares memory with .*, in another shape"):
        prover.attach(model, sgd(model))


def test_lazy_layers_must_have_a_shape(enrol: Enrol, task: Any) -> None:
    with pytest.raises(WeightsError, match="has no shape yet"):
        enrol(task=type(task)(lambda: nn.Sequential(nn.LazyLinear(64), nn.Linear(64, 4))))


def test_a_tied_tensor_goes_by_its_first_name(task: Any) -> None:
    def build() -> nn.Module:
        model = task.build_model()
        model.add_module("out", nn.Linear(64, 64, bias=False))
        model.out.weight = model[3].weight
        return model

    with pytest.raises(TermsError, match=r"is tied to 3\.weight") as caught:
        polo.make_terms(type(task)(build), bits=16, carrier=["out.weight"])
    assert "3.weight" in caught.value.advice

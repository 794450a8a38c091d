"""Steps of baselines and attacks, compiled once for all models of a pair."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from polo_lab import data
from polo_lab.baselines import chain, plain, pol_hash
from polo_lab.baselines.job import Job
from polo_lab.models import ResNet
from polo_lab.schemes.training import Setting
from polo_lab.tasks import pair as module
from polo_lab.tasks.pair import Pair
from polo_lab.tasks.pairs import agnews_textcnn
from polo_lab.training import Augmentation, Course

COURSE = Course(
    epochs=1,
    rate=0.05,
    batch=64,
    smoothing=0.1,
    augmentation=Augmentation(pad=1, mirror=False),
    compile="aot_eager",
)
"""A compiler that a processor has; what a GPU's would make is tried on one."""


def _net() -> nn.Module:
    return ResNet(channels=1, width=8, blocks=(1, 1))


def _pair(course: Course) -> Pair:
    source = data.source("digits")
    return Pair("made-digits", source, _net, course, data=source.read().small(160, 80))


COMPILED, PLAIN = _pair(COURSE), _pair(replace(COURSE, compile=""))
"""160 samples in batches of 64: two whole ones, and what is left over."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    module._shared_loss.cache_clear()
    yield
    module._shared_loss.cache_clear()


def job(name: str, **settings: object) -> Job:
    kind = {"epochs": 2, "batch": 64, "rate": 0.05, "device": "cpu"}
    return Job.of({"task": f"{__name__}:{name}", **kind, **settings})


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of this file, by name."""
    found = {f"{__name__}:COMPILED": COMPILED, f"{__name__}:PLAIN": PLAIN}
    monkeypatch.setattr("polo_lab.baselines.job.tasks.load", found.__getitem__)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.usefixtures("own")
def test_all_models_share_what_was_compiled_once(tmp_path: Path) -> None:
    before = graphs()
    asked = job("COMPILED")
    first = plain.prove(asked)
    assert graphs() == before + 1
    again = plain.prove(asked)
    marked = chain.prove(asked, Setting("ednn", 64), tmp_path / "proof")
    assert graphs() == before + 1
    assert torch.equal(weights(first.model), weights(again.model))
    assert not torch.equal(weights(first.model), weights(marked.model))
    assert asked.how_compiled() == "aot_eager"


@pytest.mark.usefixtures("own")
def test_compiled_steps_are_the_same_steps() -> None:
    compiled, usual = (plain.prove(job(name)).model for name in ("COMPILED", "PLAIN"))
    assert torch.allclose(weights(compiled), weights(usual), atol=1e-4)
    assert job("PLAIN").how_compiled() == ""


@pytest.mark.usefixtures("own")
def test_compiled_steps_run_again_to_the_bit(tmp_path: Path) -> None:
    asked = job("COMPILED")
    made = pol_hash.prove(asked, tmp_path / "hash")
    found = pol_hash.verify(made.path, asked, made.head)
    assert found.accepted, found.reasons


@pytest.mark.usefixtures("own")
def test_who_asks_for_none_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "compile")
    asked = job("COMPILED", compiled=False)
    assert plain.prove(asked).accuracy > 0
    assert asked.how_compiled() == ""


@pytest.mark.usefixtures("own")
def test_a_compiler_that_fails_is_done_without_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(torch, "compile", failing)
    asked = job("COMPILED")
    usual = plain.prove(job("PLAIN")).model
    assert torch.equal(weights(plain.prove(asked).model), weights(usual))
    assert asked.how_compiled() == "RuntimeError: no C compiler"


def test_random_numbers_are_left_as_they_are() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with COMPILED.compiled(64, "cpu") as shared:
        assert shared is not None
        assert shared.compiled == "aot_eager"
        assert torch.equal(torch.get_rng_state(), before)


def test_only_whole_batches_of_training_are_compiled() -> None:
    inputs, labels = COMPILED.train_part
    model = COMPILED.build_model()
    with COMPILED.compiled(64, "cpu"):
        before = graphs()
        COMPILED.loss(model.train(), inputs[:32], labels[:32]).backward()
        COMPILED.loss(model.eval(), inputs[:64], labels[:64])
        assert graphs() == before


def test_steps_on_texts_and_on_a_processor_are_not_compiled() -> None:
    with agnews_textcnn.compiled(64, "cpu") as shared:
        assert shared is None
    with _pair(replace(COURSE, compile="reduce-overhead")).compiled(64, "cpu") as shared:
        assert shared is not None
        assert (shared.compiled, shared.problem) == ("", "")

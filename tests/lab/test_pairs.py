"""Tasks made of a data set and a model."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import polo
from polo.errors import MissingError
from polo.evidence.replay.data import DataSource
from polo.tasks import GROUP, Task, load
from polo.tasks.inputs import example_inputs
from polo.tasks.training import HeldOut, Screening, Trainable
from polo_lab import data, models, training
from polo_lab.data import Dataset, Part, Source
from polo_lab.tasks.pair import Pair
from polo_lab.tasks.pairs import PAIRS, SMALL_IMAGES, digits_resnet_thin
from polo_lab.training import Augmentation, Course

ROOT = Path(__file__).parents[2]
LIGHT = ("lab-agnews-textcnn", "lab-cifar10-alexnet", "lab-digits-resnet-thin")


@pytest.fixture(params=LIGHT)
def task(request: pytest.FixtureRequest) -> Pair:
    """A few tasks, on a little of the data that stand in for theirs."""
    pair = PAIRS[request.param]
    return pair.on(pair.source.stand_in().small(24, 16))


def test_all_are_registered_under_their_own_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = project["entry-points"][GROUP]
    for name, pair in PAIRS.items():
        assert load(offered[name]) is pair
        assert pair.name == name


def test_no_data_are_read_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLO_DATA", raising=False)
    for pair in PAIRS.values():
        for kind in (Task, Trainable, HeldOut, Screening):
            assert isinstance(pair, kind)
    with pytest.raises(MissingError, match="CIFAR-10 is not here"):
        PAIRS["lab-cifar10-resnet18"].train_columns()


def test_every_pair_of_the_paper_is_there() -> None:
    wanted = {
        "cifar10-alexnet", "cifar10-resnet18", "cifar100-resnet18", "cifar100-wideresnet",
        "tinyimagenet-vgg16", "tinyimagenet-resnet34", "agnews-textcnn", "agnews-minibert",
    }  # fmt: skip
    assert {f"lab-{pair}" for pair in wanted} <= set(PAIRS)


def test_columns_are_those_of_the_data(task: Pair) -> None:
    source = DataSource(task.train_columns(), bytes(32))
    assert source.columns == task.columns
    assert source.samples == 24
    assert task.refused(source.batch(range(8))) == ""


def test_a_step_learns_and_depends_on_the_seed_alone(task: Pair) -> None:
    batch = DataSource(task.train_columns(), bytes(32)).batch(range(16))
    ends = []
    for seed in (5, 5, 6):
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(seed)
        task.train_step(model, optimizer, batch)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2]), "images are varied, and there is dropout"


def test_held_out_loss_has_a_gradient_and_is_not_smoothed(task: Pair) -> None:
    model = task.build_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss = task.held_out_loss(model)
    loss.backward()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    harsher = Pair(
        task.name, task.source, task.build_model, replace(task.course, smoothing=0.9),
        data=task.data,
    )  # fmt: skip
    assert torch.equal(harsher.held_out_loss(model), loss)


def test_accuracy_is_that_of_the_test_part(task: Pair) -> None:
    model = task.build_model()
    found = task.evaluate(model)
    assert found == training.evaluate(model, task.feed(device="cpu"), task.course)
    guesses = model.eval()(next(task.feed(device="cpu").test(task.course))[0]).argmax(1)
    assert found == pytest.approx(float((guesses.numpy() == task.data.test.labels).mean()))
    assert example_inputs(task, model)[0].shape == (2, *task.data.shape)


def test_its_model_carries_marks(task: Pair) -> None:
    assert polo.capacity_of(task.build_model()).objection(128, 125_000) == ""


def test_other_data_give_another_name() -> None:
    pair = PAIRS["lab-cifar10-resnet18"]
    other = pair.stand_in()
    assert other.name == "lab-cifar10-resnet18-on-cifar10-digits"
    assert "in the place of CIFAR-10" in other.data.title


def test_own_data_and_model_go_the_same_way(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = (80 * labels[:, None, None, None] + random.integers(0, 40, (120, 1, 8, 8))).astype(
        "u1"
    )
    own = Dataset("mine", "three shades", 3, lambda _: Part(images, labels))
    source = Source(lambda: own, lambda: own, (1, 8, 8), 3, ((100.0,), (70.0,)))
    task = Pair(
        "my-shades", source, lambda: models.ResNet(1, 8, (1, 1), 3),
        Course(epochs=3, rate=0.1, batch=20, augmentation=Augmentation(1)), (0.3,),
    )  # fmt: skip
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    terms = polo.make_terms(task, bits=64, strength=0.05, fewest_shards=1)
    issued = polo.enrol(terms, identity=trainer.public_key, issuer=issuer)
    torch.manual_seed(0)
    model = task.build_model()
    prover = polo.Prover(issued, key=trainer, store=tmp_path / "proof")
    training.train(
        model, task.feed(), task.course, prover=prover, metric=lambda: task.evaluate(model)
    )
    proof = prover.finish()
    assert task.evaluate(model) == 1.0
    assert polo.verify(proof.path, trust=issuer.public_key, task=task).outcome.name == "ACCEPTED"


@pytest.mark.slow
def test_a_pair_learns() -> None:
    task = digits_resnet_thin
    torch.manual_seed(0)
    model = task.build_model()
    training.train(model, task.feed(), replace(task.course, epochs=2))
    assert task.evaluate(model) > 0.7


def test_the_headline_course_is_a_cycle_with_varied_images() -> None:
    assert SMALL_IMAGES.rate_at(0) == 0
    assert SMALL_IMAGES.rate_at(0.15) == SMALL_IMAGES.rate
    assert SMALL_IMAGES.rate_at(1) == 0
    assert {name for name, pair in PAIRS.items() if pair.source.images} == {
        name for name, pair in PAIRS.items() if pair.course.augmentation
    }
    assert all(data.source(name).images == (name not in ("agnews", "wikitext2"))
               for name in data.names())  # fmt: skip

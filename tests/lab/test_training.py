"""The fast trainer: what it feeds, how it steps, and that a prover changes nothing else."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import polo
from polo_lab import training
from polo_lab.data import digits
from polo_lab.data.dataset import Dataset, Part
from polo_lab.models import ConvNet, ResNet
from polo_lab.tasks import DigitsConv
from polo_lab.tasks.pairs import cifar10_resnet18
from polo_lab.training import Augmentation, Course, DivergedError, Feed, Loop, Scale

PLAIN = Course(epochs=6, rate=0.05, batch=64, rise=0.2)
VARIED = replace(PLAIN, augmentation=Augmentation(pad=1, mirror=False))


@pytest.fixture(scope="module")
def feed() -> Feed:
    return Feed.of(digits.load(), device="cpu", seed=3)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return ResNet(channels=1, width=8, blocks=(1, 1))


def numbered(count: int, side: int = 6, channels: int = 3) -> Feed:
    """Images of which each pixel tells where it comes from: no two are alike."""
    images = np.arange(count * channels * side * side).reshape(count, channels, side, side)
    part = Part((images % 251 + 1).astype(np.uint8), np.arange(count))
    return both(part, seed=1)


def both(part: Part, **options: object) -> Feed:
    """A feed of one part, for training and for testing."""
    return Feed(Dataset("made", "made", 10, lambda _: part), device="cpu", **options)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def test_digits_are_learnt_and_the_test_part_was_never_seen(feed: Feed) -> None:
    model = net()
    done = training.train(model, feed, VARIED)
    assert training.evaluate(model, feed, VARIED) > 0.93
    assert [epoch.number for epoch in done.epochs] == list(range(6))
    assert done.epochs[-1].loss < done.epochs[0].loss / 2
    assert done.steps == 6 * (1347 // 64)
    assert done.precision == "float32"


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(feed: Feed) -> None:
    course = replace(VARIED, epochs=1)
    ends = [weights(training.train(net(), feed, course).model) for _ in range(2)]
    other = Feed.of(digits.load(), device="cpu", seed=4)
    ends.append(weights(training.train(net(), other, course).model))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_steps_can_be_taken_again_from_the_middle_across_epochs(feed: Feed) -> None:
    course = replace(VARIED, epochs=2)
    loop = Loop(net(), feed, course)
    kept = {}

    def keep(done: int) -> None:
        if done == 15:
            kept["model"] = {k: v.clone() for k, v in loop.model.state_dict().items()}
            kept["optimizer"] = loop.optimizer.state_dict()
            state = kept["optimizer"]["state"]
            for at in state:
                state[at] = {k: v.clone() for k, v in state[at].items() if v is not None}

    loop.run(0, 30, keep)
    again = Loop(net(1), feed, course)
    again.model.load_state_dict(kept["model"])
    again.optimizer.load_state_dict(kept["optimizer"])
    again.run(15, 30)
    assert torch.equal(weights(again.model), weights(loop.model))


def test_an_epoch_shows_every_sample_at_most_once_and_other_epochs_another_order() -> None:
    feed, course = numbered(100), Course(epochs=1, rate=1.0, batch=32)
    orders = [torch.cat([labels for _, labels in feed.batches(course, at)]) for at in (0, 0, 1)]
    assert [len(order.unique()) for order in orders] == [96] * 3
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


@pytest.mark.parametrize("filling", ["reflect", "constant"])
def test_each_image_is_a_window_of_its_padded_self_mirrored_or_not(filling: str) -> None:
    feed = numbered(400)
    course = Course(epochs=1, rate=1.0, batch=400, augmentation=Augmentation(2, filling))
    inputs, labels = next(feed.batches(course, 0))
    plain = next(feed.batches(replace(course, augmentation=None), 0))
    whole = plain[0][plain[1].argsort()]
    padded = nn.functional.pad(whole.float(), (2,) * 4, filling).byte()
    seen = set()
    for image, which in zip(inputs, labels, strict=True):
        for down, across, mirror in itertools.product(range(5), range(5), (False, True)):
            window = padded[which, :, down : down + 6, across : across + 6]
            if torch.equal(image, window.flip(-1) if mirror else window):
                seen.add((down, across, mirror))
                break
        else:
            pytest.fail("an image that is no window of its own")
    assert len(seen) == 50, "five shifts down, five across, mirrored or not"


def test_scaled_images_have_mean_zero_and_deviation_one_with_channels_last() -> None:
    random = np.random.default_rng(0)
    images = random.normal(100, [[[20]], [[30]], [[5]]], (64, 3, 8, 8)).round().clip(0, 255)
    part = Part(images.astype(np.uint8), np.zeros(64, np.int64))
    feed = both(part, scale=Scale.of(part.inputs))
    course = Course(epochs=1, rate=1.0, batch=64, precision="float32")
    inputs, _ = next(feed.batches(course, 0))
    assert inputs.shape == (64, 3, 8, 8)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(inputs.mean((0, 2, 3)), torch.zeros(3), atol=0.01)
    assert torch.allclose(inputs.std((0, 2, 3)), torch.ones(3), atol=0.01)
    other, _ = next(feed.batches(replace(course, channels_last=False, precision="bf16"), 0))
    assert other.is_contiguous()
    assert other.dtype == torch.bfloat16


def test_tokens_are_fed_as_they_are() -> None:
    codes = np.arange(40 * 5).reshape(40, 5)
    part = Part(codes, codes + 1)
    feed = both(part)
    inputs, labels = next(feed.batches(VARIED, 0))
    assert inputs.shape == (40, 5)
    assert torch.equal(inputs + 1, labels)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("linear", [0, 0.5, 1, 0.5, 0]),
        ("cosine", [0, 0.5, 1, 0.5, 0]),
        ("constant", [0, 0.5, 1, 1, 1]),
    ],
)
def test_rates_rise_and_fall(schedule: str, rates: list[float]) -> None:
    course = Course(epochs=1, rate=1.0, schedule=schedule, rise=0.2)
    found = [course.rate_at(done) for done in (0, 0.1, 0.2, 0.6, 1)]
    assert found == pytest.approx(rates)


def test_steps_fall_by_ten_every_thirty_epochs() -> None:
    course = Course(epochs=100, rate=0.1, schedule="steps")
    found = [course.rate_at(epoch / 100) for epoch in (0, 29, 31, 59, 61, 91)]
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.0001])


def test_what_is_unknown_is_refused() -> None:
    for wrong in ({"schedule": "x"}, {"optimizer": "x"}, {"precision": "x"}):
        with pytest.raises(ValueError, match="is none of"):
            Course(epochs=1, rate=1.0, **wrong)
    with pytest.raises(ValueError, match="is none of"):
        Augmentation(filling="x")


def test_preparing_leaves_the_model_and_the_generator_as_they_were(feed: Feed) -> None:
    model = net()
    before, drawn = weights(model), torch.get_rng_state()
    loop = Loop(model, feed, VARIED)
    assert torch.equal(weights(model), before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None for p in model.parameters())
    assert loop.preparing > 0


@pytest.mark.slow
def test_compiled_steps_are_the_same_steps(feed: Feed) -> None:
    course = replace(PLAIN, epochs=1, compile="aot_eager")
    done = training.train(net(), feed, course)
    plain = training.train(net(), feed, replace(course, compile=""))
    assert (done.compiled, done.problem) == ("aot_eager", "")
    assert torch.allclose(weights(done.model), weights(plain.model), atol=1e-4)


@pytest.mark.parametrize("how", ["", "aot_eager"])
def test_a_loop_that_trains_again_comes_out_the_same_and_is_compiled_once(
    how: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **b: made.append(a) or compiler(*a, **b))
    loop = Loop(net(), feed, replace(VARIED, epochs=1, compile=how))
    first = {name: value.clone() for name, value in loop.model.state_dict().items()}
    ends = []
    for _ in range(2):
        loop.restart(first)
        ends.append(weights(training.train_in(loop).model))
    fresh = training.train(net(), feed, replace(VARIED, epochs=1)).model
    assert torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], weights(fresh), atol=1e-4)
    assert len(made) == (1 if how else 0)


def test_a_compiler_that_fails_is_done_without_and_said(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("no C compiler")

    course = replace(PLAIN, epochs=1)
    plain = training.train(net(), feed, course)
    monkeypatch.setattr(torch, "compile", failing)
    done = training.train(net(), feed, replace(course, compile="aot_eager"))
    assert (done.compiled, done.problem) == ("", "RuntimeError: no C compiler")
    assert torch.equal(weights(done.model), weights(plain.model))


def test_a_processor_does_without_compiling(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "compile")
    assert cifar10_resnet18.course.compile
    done = training.train(net(), feed, replace(PLAIN, epochs=1, compile="reduce-overhead"))
    assert (done.compiled, done.problem) == ("", "")


def test_a_loss_that_is_no_number_ends_the_training(feed: Feed) -> None:
    with pytest.raises(DivergedError, match="the loss is nan after epoch"):
        training.train(net(), feed, replace(PLAIN, rate=1e12))


def test_bfloat16_trains_too(feed: Feed) -> None:
    done = training.train(net(), feed, replace(PLAIN, epochs=1, precision="bf16"))
    assert done.precision == "bfloat16"
    assert done.epochs[0].loss < 2.3
    assert {p.dtype for p in done.model.parameters()} == {torch.float32}


def test_augmentation_is_few_launches_and_nothing_waits(feed: Feed) -> None:
    """An eager step on a GPU is bound by launches: the feed must not add to them."""
    steps = feed.steps(VARIED)
    list(feed.batches(VARIED, 0))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        list(feed.batches(VARIED, 1))
    views = ("slice", "select", "split", "narrow", "as_strided", "permute", "unsqueeze", "expand")
    counts = {e.key: e.count for e in seen.key_averages() if e.key.startswith("aten::")}
    real = {key: n for key, n in counts.items() if not any(view in key for view in views)}
    assert sum(real.values()) < 4 * steps
    assert "aten::item" not in counts
    assert counts["aten::index"] == 1


def test_a_step_asks_the_device_nothing(feed: Feed) -> None:
    loop = Loop(net(), feed, VARIED)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        loop.run(0, 5)
    counts = {e.key: e.count for e in seen.key_averages()}
    assert "aten::item" not in counts
    assert "aten::_local_scalar_dense" not in counts
    # One list operation for all parameters together, not one operation for each.
    assert counts["aten::_foreach_add_"] <= 4 * 5


def test_a_prover_seals_epochs_and_its_proof_holds(feed: Feed, tmp_path: Path) -> None:
    task = DigitsConv()
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    terms = polo.make_terms(task, bits=128, strength=0.02, fewest_shards=1)
    issued = polo.enrol(terms, identity=trainer.public_key, issuer=issuer)
    torch.manual_seed(0)
    model = task.build_model()
    prover = polo.Prover(issued, key=trainer, store=tmp_path / "proof")
    seen: list[int] = []
    own = Part(*task.train_columns().values())
    done = training.train(
        model, both(own, seed=3), replace(PLAIN, epochs=3), prover=prover,
        metric=lambda: task.evaluate(model), on_epoch=lambda epoch: seen.append(epoch.number),
    )  # fmt: skip
    proof = prover.finish()
    assert seen == [0, 1, 2]
    assert len(proof.manifest.shards) == 3
    assert all(epoch.eta and epoch.eta > 0.6 for epoch in done.epochs)
    assert polo.verify(proof.path, trust=issuer.public_key, task=task).outcome.name == "ACCEPTED"


def test_channels_last_weights_are_learnt_alike(feed: Feed) -> None:
    torch.manual_seed(0)
    model = ConvNet()
    loop = Loop(model, feed, PLAIN)
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    other = Loop(net(), feed, replace(PLAIN, channels_last=False))
    assert all(p.is_contiguous() for p in other.model.parameters())
    assert loop.run(0, 10) < loop.run(0, 0) + 10 * 2.4


def test_a_training_that_was_killed_goes_on_from_its_last_shard(tmp_path: Path) -> None:
    task = DigitsConv()
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    terms = polo.make_terms(task, bits=64, strength=0.05, fewest_shards=1)
    issued = polo.enrol(terms, identity=trainer.public_key, issuer=issuer)
    own = Part(*task.train_columns().values())
    course = replace(PLAIN, epochs=3)

    def attempt(stop: int) -> list[int]:
        torch.manual_seed(0)
        model = task.build_model()
        prover = polo.Prover(issued, key=trainer, store=tmp_path / "proof")

        def interrupt(epoch: training.Epoch) -> None:
            if epoch.number == stop:
                raise KeyboardInterrupt

        try:
            done = training.train(
                model, both(own), course, prover=prover, on_epoch=interrupt,
                metric=lambda: task.evaluate(model),
            )  # fmt: skip
        except KeyboardInterrupt:
            prover.close()
            return []
        prover.finish()
        return [epoch.number for epoch in done.epochs]

    attempt(stop=0)
    assert attempt(stop=9) == [1, 2], "the first epoch is not trained again"
    found = polo.verify(tmp_path / "proof", trust=issuer.public_key, task=task)
    assert found.outcome.name == "ACCEPTED", found.headline()

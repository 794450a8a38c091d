"""Level replay where the verifier rounds otherwise than the prover: close is close enough."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polo
from polo.evidence.replay import calibration, platform
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.rerun import Rerun
from polo.evidence.replay.shown import State
from polo.evidence.replay.state import digest_of, rest_layout
from polo.evidence.replay.timeline import Timeline
from polo.protocol.challenge import Answer, Challenge, Place, sealing_file
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome, Status
from polo.watermark.mark import carrier_of
from polo.weights import dtypes
from polo.weights.checkpoint import HeldCheckpoint, MemoryCheckpoint, checkpoint_of
from polo.weights.files import FileCheckpoint, write_checkpoint
from polo.weights.hashing import commit

DRAWN = Place(2, 1)


def held_from(path: Path, layout: Any) -> HeldCheckpoint:
    with FileCheckpoint.canonical(path, layout) as file:
        return file.held()


def reordered(task: Any, *, skew: float = 0.0) -> Any:
    """The same task on a machine that sums batches from the other end."""

    class Reordered(type(task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            turned = {name: values.flip(0) for name, values in batch.items()}
            turned["point"] = turned["point"] * (1 + skew)
            super().train_step(model, optimizer, turned)

    return Reordered(task.build_model)


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on this machine is another one."""
    real = platform.describe

    def make() -> None:
        monkeypatch.setattr(platform, "describe", lambda device: {**real(device), "name": "abacus"})

    return make


@pytest.fixture
def elsewhere(lean: Any, move: Callable[[], None]) -> None:
    """This machine is another one than `lean` was trained on."""
    move()


def segments(verdict: polo.Verdict) -> list[Any]:
    return [check for check in verdict.checks if check.name == "segment"]


def test_another_platform_that_rounds_alike_is_exact(
    lean: Any, asked: tuple[Challenge, Path], elsewhere: None
) -> None:
    verdict = lean.verify(replace(asked[0], ends=False), asked[1])
    assert verdict.outcome is Outcome.REJECTED, "the answer is to the challenge with ends"
    verdict = lean.verify(*asked)
    assert verdict.outcome is Outcome.ACCEPTED
    assert not any("distance" in check.figures for check in segments(verdict))


def test_ends_are_asked_for_where_the_platform_is_another_one(
    lean: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not challenges.draw(lean.path).ends
    assert challenges.draw(lean.path, ends=True).ends
    real = platform.describe
    monkeypatch.setattr(platform, "describe", lambda device: {**real(device), "torch": "1.0"})
    assert challenges.draw(lean.path).ends
    assert not challenges.draw(lean.path, ends=False).ends


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_honest_runs_are_close(
    optimizer: str,
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path: Path,
    move: Callable[[], None],
) -> None:
    rate = {"sgd": 0.05, "adam": 0.003}[optimizer]
    made = train(tmp_path / "proof", recipe=recipe_of(optimizer=optimizer, rate=rate))
    challenge = made.everything(ends=True)
    answer = made.answer(challenge, tmp_path / "answer")
    move()
    verdict = made.verify(challenge, answer, task=reordered(made.task))
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    (draw,) = (check for check in verdict.checks if check.name == "draw")
    assert draw.figures["exact"] < draw.figures["run"] == 6
    for check in segments(verdict):
        if "distance" in check.figures:
            assert 0 < check.figures["distance"] <= check.figures["allowed"]
            # Adam makes full steps of gradients that are all rounding, such as a bias's before
            # a normalisation; there the terms' own bound is what counts.
            assert check.figures["allowed"] < {"sgd": 2e-5, "adam": 0.020001}[optimizer]
            assert "on another platform" in check.detail


def test_without_the_ends_nothing_is_decided(lean: Any, tmp_path: Path, elsewhere: None) -> None:
    challenge = replace(lean.everything(), segments=(Place(1, 0), DRAWN))
    answer = lean.answer(challenge, tmp_path / "answer")
    verdict = lean.verify(challenge, answer, task=reordered(lean.task))
    assert verdict.outcome is Outcome.UNDECIDED
    assert all("abacus" in check.detail for check in segments(verdict))
    assert all("--ends" in check.advice for check in segments(verdict))


def test_a_platform_that_is_not_exact_with_itself(lean: Any, asked: tuple[Challenge, Path]) -> None:
    """Kernels whose sums come out otherwise each time are no fault of the prover's."""
    real, turned = lean.task, reordered(lean.task)

    class Wavering(type(real)):  # type: ignore[misc]
        calls = 0

        def train_step(self, *arguments: Any) -> None:
            self.calls += 1
            (turned if self.calls % 4 else real).train_step(*arguments)

    verdict = lean.verify(*asked, task=Wavering())
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert any("distance" in check.figures for check in segments(verdict))


def test_no_tolerance_means_to_the_bit(
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path: Path,
    move: Callable[[], None],
) -> None:
    made = train(tmp_path / "proof", recipe=recipe_of(tolerance=0), epochs=1)
    challenge = made.everything(ends=True)
    answer = made.answer(challenge, tmp_path / "answer")
    move()
    assert made.verify(challenge, answer).outcome is Outcome.ACCEPTED
    verdict = made.verify(challenge, answer, task=reordered(made.task))
    assert verdict.outcome is Outcome.UNDECIDED
    assert "the terms allow no deviation" in verdict.headline()


@pytest.mark.parametrize("skew", [1e-2, 1e-4])
def test_steps_that_are_a_little_other_are_refused(
    skew: float, lean: Any, asked: tuple[Challenge, Path], elsewhere: None
) -> None:
    verdict = lean.verify(*asked, task=reordered(lean.task, skew=skew))
    assert verdict.outcome is Outcome.REJECTED
    for check in segments(verdict):
        assert check.status is Status.FAILED
        assert "of its move away from what was recorded" in check.detail
        assert "honest repetitions differ by" in check.detail


def test_where_rounding_alone_goes_beyond_the_terms_nothing_is_decided(
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path: Path,
    move: Callable[[], None],
) -> None:
    recipe = recipe_of(optimizer="adam", rate=0.003, tolerance=10)
    made = train(tmp_path / "proof", recipe=recipe, epochs=1)
    challenge = made.everything(ends=True)
    answer = made.answer(challenge, tmp_path / "answer")
    move()
    verdict = made.verify(challenge, answer, task=reordered(made.task))
    assert verdict.outcome is Outcome.UNDECIDED
    assert "platform like the prover's" in next(iter(verdict.problems())).advice
    verdict = made.verify(challenge, answer, task=reordered(made.task, skew=0.1))
    assert verdict.outcome is Outcome.REJECTED


def changed(path: Path, like: Any, name: str, change: Callable[[Any], Any]) -> bytes:
    """Change a tensor, or all of whose name begins so, in a shown state; its new digest."""
    held = held_from(path, like)
    state = {}
    for at, tensor in enumerate(like.tensors):
        kind = dtypes.numpy_dtype(tensor.dtype)
        values = np.frombuffer(held.read(at, 0, tensor.size), dtype=kind).reshape(tensor.shape)
        state[tensor.name] = np.asarray(change(values)) if tensor.name.startswith(name) else values
    with path.open("wb") as file:
        write_checkpoint(MemoryCheckpoint(state), file.write)
    return digest_of(held_from(path, like))


LIES: dict[str, tuple[str, str, Callable[[Any], Any], str]] = {
    "a hundredth of the move": ("model", "", lambda w: w, "(weights)"),
    "made-up momentum": ("rest", "momentum_buffer", lambda m: m * 2, "(momentum_buffer)"),
    "made-up statistics": ("model", "1.running_mean", lambda m: m + 0.1, "(buffers)"),
    "made-up count": ("model", "1.num_batches", lambda n: n + 1, "1.num_batches_tracked"),
    "no number": ("model", "3.weight", lambda w: w * np.nan, "not finite: 3.weight"),
    "endless": (
        "rest",
        "momentum_buffer",
        lambda m: m * np.float32(np.inf),
        "not finite: momentum",
    ),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("how", LIES)
def test_ends_that_are_made_up_are_refused(
    how: str, lean: Any, asked: tuple[Challenge, Path], tmp_path: Path, elsewhere: None
) -> None:
    """With another platform as an excuse, each part of the state must still be close."""
    part, name, change, message = LIES[how]
    made = lean.copied(tmp_path)
    model = made.task.build_model()
    layouts = {
        "model": checkpoint_of(model).layout,
        "rest": rest_layout(model, made.recipe.optimizer(model)),
    }
    challenge, answer = asked[0], Path(shutil.copytree(asked[1], tmp_path / "answer"))
    if how.startswith("a hundredth"):
        start = held_from(answer / DRAWN.file("model"), layouts["model"])
        end = held_from(answer / DRAWN.file("end-model"), layouts["model"])
        gaps = [_values(end, at) - _values(start, at) for at in range(len(end.layout.tensors))]
        shifts = iter([0.01 * gap for gap in gaps])
        name, change = "", lambda w: (w + next(shifts).reshape(w.shape)).astype(w.dtype)
    digest = changed(answer / DRAWN.file(f"end-{part}"), layouts[part], name, change)
    record = made.record(2)
    boundaries = list(record.boundaries)
    boundaries[2] = replace(boundaries[2], **{part: digest})
    made.rewrite(2, replace(record, boundaries=tuple(boundaries)).encode())
    challenge = replace(challenge, proof=made.manifest.digest)
    made.resign(answer, challenge=challenge.digest)
    verdict = made.verify(challenge, answer, task=reordered(made.task))
    assert verdict.outcome is Outcome.REJECTED
    (failed,) = verdict.of(Status.FAILED)
    assert (failed.name, failed.shard, failed.figures["segment"]) == ("segment", 2, 1)
    assert message in failed.detail


def _values(checkpoint: Any, at: int) -> Any:
    tensor = checkpoint.layout.tensors[at]
    data = checkpoint.read(at, 0, tensor.size)
    if tensor.dtype != "F32":
        return np.zeros(1, dtype=np.int64)
    return dtypes.to_float(data, tensor.dtype).astype(np.float64)


def convolving() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 4),
    )  # fmt: skip


def test_other_kernels_of_the_same_machine(
    task: Any, train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prover's convolutions are oneDNN's, the verifier's are not."""
    made = train(tmp_path / "proof", task=type(task)(convolving), epochs=1)
    challenge = made.everything(ends=True)
    answer = made.answer(challenge, tmp_path / "answer")
    assert made.verify(challenge, answer).outcome is Outcome.ACCEPTED, "settings are taken over"

    @contextlib.contextmanager
    def kept(text: str) -> Iterator[None]:
        yield

    monkeypatch.setattr(platform, "adopted", kept)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    verdict = made.verify(challenge, answer)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    found = [
        check.figures["distance"] for check in segments(verdict) if "distance" in check.figures
    ]
    assert found, "some segment came out otherwise"
    assert max(found) < 1e-3


def test_a_jittered_start_differs_in_the_last_digit() -> None:
    weights = torch.linspace(-2, 2, 999)
    for kind, digits in ((torch.float32, 24), (torch.float64, 53), (torch.bfloat16, 8)):
        # A mean of squares that is zero must not turn negative.
        still = {"step/w": torch.ones(3), "n": torch.arange(4), "zero": torch.zeros(9, dtype=kind)}
        state = {"w": weights.to(kind), **still}
        one = MemoryCheckpoint(state)
        for number in range(2):
            other = calibration.Jittered(one, number)
            for at, tensor in enumerate(one.layout.tensors):
                same = bytes(one.read(at, 0, tensor.size)) == bytes(other.read(at, 0, tensor.size))
                assert same == (tensor.name != "w")
            at = one.layout.index["w"]
            size = one.layout.tensors[at].size
            name = one.layout.tensors[at].dtype
            before, after = (dtypes.to_float(each.read(at, 0, size), name) for each in (one, other))
            gap = np.abs(after - before) / np.maximum(np.abs(before), 1e-9)
            assert 0.4 < np.mean(gap > 0) < 0.9
            assert gap.max() <= 2.0 ** (1 - digits)


def test_the_part_that_comes_off_worst_is_named() -> None:
    one = MemoryCheckpoint({"w": torch.zeros(4), "b": torch.zeros(2)})
    moved = MemoryCheckpoint({"w": torch.ones(4), "b": torch.ones(2)})
    off = MemoryCheckpoint({"w": torch.ones(4), "b": torch.ones(2) * 1.01})
    parts = calibration.parts_of(one.layout, None, {"w"})
    found = calibration.calibrate(
        State(moved, None), State(one, None), lambda _: State(moved, None),
        shown=State(off, None), parts=parts, most=0.005,
    )  # fmt: skip
    assert (found.part, found.close, found.allowed) == ("buffers", False, calibration.LEAST)
    assert found.distance == pytest.approx(0.01, rel=1e-3)


def sealed_as(
    lean: Any, asked: tuple[Challenge, Path], name: str, change: Callable[[Any], Any]
) -> Any:
    """The sealing of shard 2, done again, where W_2 is another one than it was."""
    folder = ProofFolder(lean.path)
    layout = folder.layout()
    state = {}
    with folder.checkpoint(2, layout) as stored:
        for at, tensor in enumerate(layout.tensors):
            kind = dtypes.numpy_dtype(tensor.dtype)
            values = np.frombuffer(stored.read(at, 0, tensor.size), kind).reshape(tensor.shape)
            state[tensor.name] = np.asarray(change(values)) if tensor.name == name else values
    after = MemoryCheckpoint(state)
    first, second = lean.manifest.shards
    manifest = replace(lean.manifest, shards=(first, replace(second, root=commit(after).root)))
    rerun = Rerun(
        manifest,
        Timeline(manifest, lean.recipe, {1: lean.record(1), 2: lean.record(2)}),
        carrier_of(manifest.terms, layout),
        {2: folder.nonce(2)},
        lean.task,
        None,
    )
    before = held_from(asked[1] / sealing_file(2), layout)
    answer = Answer.from_bytes((asked[1] / "answer.json").read_bytes(), "answer")
    return rerun.sealing(2, before, after, answer.secrets[1].secret)


@pytest.mark.parametrize("far", [False, True], ids=["same platform", "another"])
def test_sealings_may_differ_by_rounding_and_in_weights_alone(
    far: bool, lean: Any, asked: tuple[Challenge, Path], move: Callable[[], None]
) -> None:
    if far:
        move()
    changes: dict[str, tuple[str, Callable[[Any], Any], bool]] = {
        "nothing": ("3.weight", lambda w: w, True),
        "rounding": ("3.weight", lambda w: w * np.float32(1 + 1.2e-7), far),
        "a jump": ("3.weight", lambda w: w + np.float32(1e-3), False),
        "statistics": ("1.running_mean", lambda m: m * np.float32(1 + 1e-6), False),
        "a count": ("1.num_batches_tracked", lambda n: n + 1, False),
    }
    for what, (name, change, fine) in changes.items():
        check = sealed_as(lean, asked, name, change)
        assert (check.status is Status.PASSED) == fine, what
        assert check.shard == 2

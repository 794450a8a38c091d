"""Samples on which steps cost less than they seem to: near copies, and labels that are none."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polo.checks import Check
from polo.evidence.replay import platform
from polo.evidence.replay.check import spread
from polo.evidence.replay.contrast import share
from polo.evidence.replay.engine import Engine
from polo.evidence.replay.likeness import (
    EXACT,
    FORGIVEN,
    Likeness,
    _Sketch,
    likeness,
    nearest,
)
from polo.evidence.replay.motion import Motion
from polo.evidence.replay.rerun import Rerun
from polo.evidence.replay.teaching import Teaching, Width
from polo.protocol.challenge import Place
from polo.protocol.effort import Column
from polo.tasks.training import inputs_of
from polo.verifier import Outcome, Status

FAMILIES = 8


class Variant:
    """The tiny task, with something else about it."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class Copies(Variant):
    """Eight samples, each many times, with their last bits changed."""

    relabelled = False

    def train_columns(self) -> dict[str, np.ndarray]:
        columns = self._task.train_columns()
        of = np.arange(len(columns["label"])) % FAMILIES
        drawn = np.random.default_rng(0).integers(-2, 3, (len(of), 16))
        points = columns["point"][of]
        points = (points + drawn * np.spacing(np.abs(points))).astype(np.float32)
        labels = columns["label"] if self.relabelled else columns["label"][of]
        if self.relabelled:
            labels = np.random.default_rng(1).permutation(labels)
        return {"label": labels, "point": points}


class Relabelled(Copies):
    """The same under labels that have nothing to do with them: each teaches something else."""

    relabelled = True


class Silent(Variant):
    """Nine of ten samples are next to nothing, and swallowed by the first layer's sums."""

    def train_columns(self) -> dict[str, np.ndarray]:
        columns = self._task.train_columns()
        drawn = np.random.default_rng(0)
        silent = drawn.random(256) < 0.9
        points = columns["point"].copy()
        points[silent] = 0
        points[silent, 0] = 1e-20 * (1 + drawn.random(silent.sum()))
        return {"label": columns["label"], "point": points}


class Swallowed(Variant):
    """Many samples, but a fifth of what a large batch has, repeated with a trace."""

    def train_columns(self) -> dict[str, np.ndarray]:
        columns = self._task.train_columns()
        of = np.arange(256) % 51
        points = columns["point"][of]
        points[:, 0] = 1e-20 * (1 + np.random.default_rng(0).random(256))
        return {"label": columns["label"][of], "point": points}


class Numbered(Copies):
    """Eight samples, of each of which something else is asked every time."""

    def train_columns(self) -> dict[str, np.ndarray]:
        return {**super().train_columns(), "label": np.arange(256)}

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        wanted = torch.nn.functional.one_hot(batch["label"] % 4, 4) * (1 + batch["label"][:, None])
        torch.nn.functional.mse_loss(model(batch["point"]), wanted / 256).backward()
        optimizer.step()


class Halves(Variant):
    """Samples in two columns, each of which holds few values; together they are all different."""

    columns = (
        Column("label", "I64", ()), Column("left", "F32", (8,)), Column("right", "F32", (8,))
    )  # fmt: skip

    def train_columns(self) -> dict[str, np.ndarray]:
        columns, at = self._task.train_columns(), np.arange(256)
        left, right = columns["point"][at // 16, :8], columns["point"][at % 16, 8:]
        return {"label": columns["label"], "left": left.copy(), "right": right.copy()}

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        point = torch.cat([batch["left"], batch["right"]], 1)
        self._task.train_step(model, optimizer, {"label": batch["label"], "point": point})


class Whole(Variant):
    """A step that takes batches of one size only."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        assert len(batch["label"]) == 32
        self._task.train_step(model, optimizer, batch)


class Reordered(Variant):
    """A machine that sums batches from the other end."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        self._task.train_step(model, optimizer, {k: v.flip(0) for k, v in batch.items()})


class Lenient(Variant):
    """A prover's own step, which makes the best of labels that are none."""

    def train_columns(self) -> dict[str, np.ndarray]:
        columns = self._task.train_columns()
        columns["label"] = np.where(np.arange(256) == 0, 77, columns["label"])
        return dict(columns)

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        self._task.train_step(model, optimizer, {**batch, "label": batch["label"].clamp(max=3)})


class Strict(Variant):
    """A task that knows its labels."""

    def refused(self, batch: Any) -> str:
        return "a label that is no class" if bool((batch["label"] > 3).any()) else ""


class Short(Variant):
    """A machine that has no memory left."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        raise MemoryError("none left")


class Broken(Variant):
    """A step that fails on whatever it is given."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        raise IndexError("out of order")


def named(verdict: Any, name: str) -> list[Any]:
    return [check for check in verdict.checks if check.name == name]


@pytest.fixture
def judged(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """Trains a task, and verifies with another one, as on another machine."""

    def make(trained: Any, verifier: Any) -> Any:
        made = train(tmp_path / "proof", task=trained)
        challenge = made.everything(ends=True)
        answer = made.answer(challenge, tmp_path / "answer")
        real = platform.describe
        monkeypatch.setattr(platform, "describe", lambda device: {**real(device), "name": "abacus"})
        return made.verify(challenge, answer, task=verifier)

    return make


@pytest.mark.parametrize("chosen", [Copies, Relabelled])
def test_near_copies_are_refused_where_rounding_is_forgiven(
    chosen: Any, task: Any, judged: Callable[..., Any]
) -> None:
    verdict = judged(chosen(task), Reordered(task))
    (copies,) = named(verdict, "copies")
    assert (verdict.outcome, copies.status) == (Outcome.REJECTED, Status.FAILED)
    assert copies.figures["different"] <= FAMILIES < copies.figures["tried"] == 32
    # Not one of the other checks sees them.
    assert [check.name for check in verdict.of(Status.FAILED)] == ["copies"]


def test_samples_of_their_own_are_told_apart(task: Any, judged: Callable[..., Any]) -> None:
    verdict = judged(task, Reordered(task))
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    (copies,) = named(verdict, "copies")
    assert copies.figures["different"] >= 0.9 * copies.figures["tried"]
    (effect,) = named(verdict, "effect")
    assert effect.figures["clear"] > 0.5


@pytest.mark.parametrize("chosen", [Copies, Relabelled, Silent])
def test_copies_are_refused_where_nothing_is_forgiven_too(
    chosen: Any, task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    """Rows that the first layer cannot tell apart share a pass, and come out to the bit."""
    made = train(tmp_path / "proof", task=chosen(task))
    verdict = made.replayed(tmp_path / "answer")
    (copies,) = named(verdict, "copies")
    assert (verdict.outcome, copies.status) == (Outcome.REJECTED, Status.FAILED)
    seen = {check.name for check in verdict.of(Status.FAILED)} - {"copies"}
    assert seen <= ({"effect"} if chosen is Silent else set())


def test_samples_of_their_own_pass_to_the_bit(honest: Any, tmp_path: Path) -> None:
    (copies,) = named(honest.replayed(tmp_path / "answer"), "copies")
    assert copies.status is Status.PASSED
    assert copies.figures["different"] >= 0.9 * copies.figures["tried"]


@pytest.mark.parametrize("chosen", [Swallowed, Numbered])
def test_copies_are_refused_in_batches_of_any_size_and_whatever_is_asked_of_them(
    chosen: Any,
    task: Any,
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Many families in a large batch save as much as few in a small one; labels are no inputs."""
    recipe = recipe_of(batch=256, rate=0.01) if chosen is Swallowed else recipe_of(rate=0.01)
    made = train(tmp_path / "proof", task=chosen(task), recipe=recipe)
    challenge = made.everything()
    answer = made.answer(challenge, tmp_path / "answer")
    for _ in range(3):
        (copies,) = named(made.verify(challenge, answer), "copies")
        assert copies.status is Status.FAILED
        assert copies.figures["share"] < 0.3


@pytest.mark.parametrize("chosen", [Halves, Whole])
def test_samples_that_differ_as_a_whole_pass(
    chosen: Any, task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    verdict = train(tmp_path / "proof", task=chosen(task)).replayed(tmp_path / "answer")
    (copies,) = named(verdict, "copies")
    assert copies.status is Status.PASSED
    assert copies.figures["share"] > 0.9


def test_short_batches_at_the_end_of_the_data_hide_nothing(
    task: Any, train: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = recipe_of(batch=127, every=1)  # Each pass ends in a batch of two samples.
    made = train(tmp_path / "proof", task=Copies(task), recipe=recipe)
    challenge = made.everything()
    answer = made.answer(challenge, tmp_path / "answer")
    for _ in range(5):
        (copies,) = named(made.verify(challenge, answer), "copies")
        assert copies.status is Status.FAILED


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("rows", [64, 256, 1024])
def test_the_part_that_stands_for_itself_is_estimated(size: int, rows: int) -> None:
    """From half of a batch, or a quarter, families are counted about right, and never too high."""
    found = [drawn_from(np.arange(rows) // size, seed).share for seed in range(20)]
    assert 0.6 / size <= np.mean(found) <= 1.15 / size


def test_one_family_among_many_samples_leaves_the_others() -> None:
    families = np.where(np.arange(256) < 115, 0, np.arange(256))
    found = [drawn_from(families, seed).share for seed in range(20)]
    assert 0.4 < min(found) <= np.mean(found) < 0.65


def drawn_from(families: np.ndarray, seed: int) -> Likeness:
    """What is seen of a batch if half of it is compared, at most 256 samples."""
    seen = np.random.default_rng(seed).permutation(families)[: min(256, len(families) // 2)]
    return Likeness(len(families), tuple(np.unique(seen, return_counts=True)[1].tolist()))


@pytest.mark.parametrize("bounds", [EXACT, FORGIVEN])
@pytest.mark.parametrize("rows", [48, 128, 512, 2048])
def test_copies_that_save_half_show_among_the_samples_that_are_compared_first(
    bounds: Any, rows: int
) -> None:
    free = np.arange(bounds.first(rows)) * (bounds.family - 1)
    chances = 1 - free / (rows - np.arange(len(free)))
    assert np.prod(np.clip(chances, 0, 1)) < 1.5e-5


@pytest.mark.parametrize(("size", "taken"), [(1, 1 + 32), (4, 1 + 64)])
def test_the_others_are_compared_where_the_first_are_not_all_different(
    size: int, taken: int
) -> None:
    lessons, calls = torch.randn(128, 50), []

    def slopes(batch: Any) -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"w": lessons[batch["input"] // size].sum(0)}

    batch = {"input": torch.arange(128), "label": torch.zeros(128)}
    found = likeness(slopes, batch, ("input",), tolerance=0.0, drawing=random.Random(1))
    assert found is not None
    assert len(calls) == taken
    assert found.share == pytest.approx(1 / size, rel=0.4)


def test_what_goes_into_a_model_is_all_but_its_targets(task: Any) -> None:
    assert inputs_of(task) == ("point",)
    assert inputs_of(Halves(task)) == ("left", "right")
    own = Halves(task)
    own.targets = ("left",)
    assert inputs_of(own) == ("label", "right")
    own.targets = ("label", "left", "right")
    assert inputs_of(own) == ("label", "left", "right")


def test_sparse_gradients_are_summed_up_like_dense_ones() -> None:
    dense = torch.zeros(64, 3)
    dense[5:9] = 1.0
    found = [_Sketch(random.Random(3))({"w": slope}) for slope in (dense, dense.to_sparse())]
    assert torch.equal(*found)
    assert found[0].norm() > 0


class Dropping(Variant):
    """A step that leaves half of its rows out, always the same ones for one seed."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        kept = torch.rand(len(batch["label"])) < 0.5
        kept[torch.randint(len(kept), ())] = True
        self._task.train_step(model, optimizer, {name: own[kept] for name, own in batch.items()})


def test_a_step_that_leaves_rows_out_is_no_copy(
    task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    """Some place of the batch matters, and is found."""
    made = train(tmp_path / "proof", task=Dropping(task))
    challenge = made.everything()
    answer = made.answer(challenge, tmp_path / "answer")
    for _ in range(6):
        (copies,) = named(made.verify(challenge, answer), "copies")
        assert copies.status is Status.PASSED


def test_the_nearest_that_counts_grows_with_what_is_allowed() -> None:
    assert nearest(1e-4) == pytest.approx(0.02)
    assert nearest(0) == nearest(1e-6) == nearest(1e-4) < nearest(1e-3) < nearest(1) == 0.5


@pytest.mark.parametrize(("verifier", "words"), [(Strict, "no class"), (Variant, "no step can be")])
def test_labels_that_are_none_are_the_provers_fault(
    verifier: Any, words: str, task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", task=Lenient(task))
    challenge = made.everything()
    answer = made.answer(challenge, tmp_path / "answer")
    verdict = made.verify(challenge, answer, task=verifier(task))
    failed = verdict.of(Status.FAILED)
    assert verdict.outcome is Outcome.REJECTED
    # One sample is bad, and every pass takes it once.
    assert [(check.name, check.shard) for check in failed] == [("segment", 1), ("segment", 2)]
    assert all(words in check.detail and "segment" in check.figures for check in failed)
    assert not named(verdict, "draw")


@pytest.mark.parametrize("verifier", [Short, Broken])
def test_what_the_verifier_cannot_run_is_left_open(
    verifier: Any, task: Any, lean: Any, asked: tuple[Any, Path]
) -> None:
    verdict = lean.verify(*asked, task=verifier(task))
    assert verdict.outcome is Outcome.UNDECIDED, verdict.headline()
    assert all("could not run it" in check.detail for check in named(verdict, "segment"))


def test_a_state_astray_leaves_no_draw_passed(
    lean: Any, asked: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [check.status for check in named(lean.verify(*asked), "draw")] == [Status.PASSED]
    monkeypatch.setattr(Motion, "astray", lambda *_: lambda *_: "lies where no move leads")
    verdict = lean.verify(*asked)
    assert verdict.outcome is Outcome.REJECTED
    assert not named(verdict, "draw")


@pytest.mark.parametrize(
    ("widths", "share", "forgiven", "start", "status"),
    [
        ([1.0, 0.5, 0.35], None, False, "derived", Status.PASSED),
        ([1.0, 0.45, 0.3], None, False, "derived", Status.FAILED),
        ([0.3], None, False, "free", Status.UNDECIDED),
        ([0.9], 0.52, False, "derived", Status.PASSED),
        # Neither alone leaves too little of the work.
        ([0.8], 0.52, False, "derived", Status.FAILED),
        ([0.95], 0.65, True, "derived", Status.PASSED),
        ([0.85], 0.65, True, "derived", Status.FAILED),
    ],
)
def test_all_that_changes_nothing_must_leave_most_of_the_work(
    widths: list[float], share: float | None, forgiven: bool, start: str, status: Status,
    lean: Any, recipe_of: Callable[..., Any],
) -> None:  # fmt: skip
    terms = replace(lean.manifest.terms, start=replace(lean.manifest.terms.start, kind=start))
    teaching = Teaching(terms, recipe_of())
    if share is not None:
        teaching.compare(Place(1, 0), SimpleNamespace(share=share, families=[], tried=0))
    if forgiven:
        passed = Check("segment", Status.PASSED, "", figures={"distance": 0, "allowed": 0.01})
        teaching.judged(Place(1, 0), passed)
    # Rounding swallows a tenth of what is left, or silent units leave as much out to begin with.
    teaching.measure([Width(min(1.0, deep / 0.9), deep, deep) for deep in widths])
    [found] = [check for check in teaching.checks() if check.name == "width"]
    assert found.status is status
    assert bool(found.advice) == (status is not Status.PASSED)


Widths = Callable[[Callable[[Place], Width]], Any]


@pytest.fixture
def judged_by(lean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Widths:
    """What a verdict of all of `lean` says of width, whatever some function measures."""
    challenge = lean.everything()
    answer = lean.answer(challenge, tmp_path / "answer")

    def judge(measured: Callable[[Place], Width]) -> list[Check]:
        def width(_: Rerun, place: Place, *rest: Any, **options: Any) -> Width:
            return measured(place)

        monkeypatch.setattr(Rerun, "width", width)
        return [check for check in lean.verify(challenge, answer).checks if check.name == "width"]

    return judge


@pytest.mark.parametrize(("found", "points"), [(0.95, 8), (0.85, 16)])
def test_half_of_the_points_are_enough_where_they_leave_no_doubt(
    found: float, points: int, judged_by: Widths
) -> None:
    places: list[Place] = []
    [check] = judged_by(lambda place: (places.append(place), Width(1.0, found, found))[1])
    assert (check.status, check.figures["measured"]) == (Status.PASSED, points)
    assert len(set(places)) == len(places) <= 6


def test_points_are_drawn_by_steps_and_not_by_segments() -> None:
    """Else a run of long segments and short ones could have nothing but the short ones seen."""
    for _ in range(20):
        found = spread([223, 1] * 16, 16)
        assert found == sorted(found)
        assert {at // 2 for at in found} == set(range(16))
        assert sum(at % 2 for at in found) <= 4
        assert all(at // 2 == part for part, at in enumerate(spread([5] * 32, 16)))
    assert spread([7], 16) == [0] * 16
    assert spread([], 16) == []


def test_nobody_knows_the_points_beforehand() -> None:
    assert len({tuple(spread([5] * 64, 16)) for _ in range(8)}) > 1


def test_no_part_of_a_run_is_nobodys(judged_by: Widths) -> None:
    """Whoever works in every other sixteenth of a run is seen in the others by the first points."""
    seen = set()
    for _ in range(40):
        points = spread([1] * 64, 8)
        assert [point // 8 for point in points] == list(range(8))
        seen |= {point // 4 for point in points}
    assert seen == set(range(16))
    # Of three and three and two steps, those in the middle are too few, wherever points lie.
    [check] = judged_by(lambda at: Width(1.0, *[float(at.segment == 1)] * 2))
    assert (check.status, check.figures["measured"]) == (Status.FAILED, 16)


def test_what_may_be_guessed_on_another_platform_alone_is_undecided(judged_by: Widths) -> None:
    """A lie there may be none: only somebody on the prover's platform can tell."""
    [check] = judged_by(lambda place: Width(1.0, 0.8, 0.5))
    assert check.status is Status.UNDECIDED
    assert "50% by guessing within what is forgiven" in check.detail
    assert "like the prover's" in check.advice
    [check] = judged_by(lambda place: Width(1.0, 0.5, 0.0))
    assert check.status is Status.FAILED


def test_a_verdict_leaves_out_what_rounding_swallows(
    lean: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quarter(_: Engine, *given: Any, **options: Any) -> tuple[dict[str, float], bool]:
        return dict.fromkeys(given[3], 0.25), False

    monkeypatch.setattr(Engine, "depths", quarter)
    [check] = [check for check in lean.verify(*asked).checks if check.name == "width"]
    assert check.status is Status.FAILED
    assert check.figures["width"] > 0.9
    assert check.figures["depth"] == pytest.approx(check.figures["width"] / 4)


def test_what_was_measured_counts_though_one_segment_cannot_be(judged_by: Widths) -> None:
    def measured(place: Place) -> Width:
        if place.shard == 2:
            raise RuntimeError("no kernel for this")
        return Width(1.0, 0.1, 0.1)

    found = judged_by(measured)
    assert [check.status for check in found] == [Status.UNDECIDED, Status.FAILED]
    assert "no kernel for this" in found[0].detail


@pytest.mark.parametrize(("effect", "status"), [(2e-4, Status.PASSED), (1e-4, Status.FAILED)])
def test_exchanges_that_drown_in_what_is_forgiven_do_not_count(
    effect: float, status: Status, recipe_of: Callable[..., Any], lean: Any
) -> None:
    teaching = Teaching(lean.manifest.terms, recipe_of(batch=25))
    figures: dict[str, float | int | str] = {"distance": 1e-4, "allowed": 7e-4}
    for number in range(4):
        teaching.note(Place(1, number), effect)
        teaching.judged(Place(1, number), Check("segment", Status.PASSED, "", figures=figures))
    (check,) = teaching.checks()
    assert (check.name, check.status) == ("effect", status)
    assert check.figures["changed"] == 1


def test_an_exchange_that_ends_in_no_number_shows_nothing() -> None:
    here, before = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    assert share(here, {"w": torch.tensor([1.0, torch.nan])}, before) == 0
    assert share(here, {"w": torch.tensor([1.0, torch.inf])}, before) == 0
    assert share(here, {"w": torch.tensor([1.0, 2.0])}, before) == pytest.approx(0.5**0.5)

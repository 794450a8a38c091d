"""Level replay does not reject who trained honestly, whatever their loops and models do besides."""

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset

import polo
from polo.errors import ChainError, TermsError, WeightsError
from polo.evidence.replay import platform
from polo.evidence.replay.motion import Motion
from polo.evidence.rules import Constant
from polo.prover.monitor import EmbeddingWarning
from polo.verifier import Outcome, Status

Train = Callable[..., Any]


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 4),
    )  # fmt: skip


def changed(task: Any, **methods: Any) -> Any:
    """A task of the same kind with other methods."""
    return type("Changed", (type(task),), methods)


def is_exact(verdict: polo.Verdict) -> bool:
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    return all(
        c.status is Status.PASSED for c in verdict.checks if c.name in ("segment", "sealing")
    )


class Rows(Dataset[dict[str, Any]]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: value[0] for name, value in self.source.batch([index]).items()}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_test_between_two_steps_draws_what_it_likes(
    workers: int | None, task: Any, train: Train, tmp_path: Path
) -> None:
    """The last steps of an epoch, too, of which a loader with workers has the batches already."""

    def loop(run: Any) -> None:
        batches: Any = (run.source.batch(numbers) for numbers in run.prover.sampler)
        if workers is not None:
            forked = {"multiprocessing_context": "fork"} if workers else {}
            batches = DataLoader(
                Rows(run.source), batch_sampler=run.prover.sampler, num_workers=workers, **forked
            )
        for batch in batches:
            run.task.train_step(run.model, run.optimizer, batch)
            run.model.eval()
            for points in DataLoader(torch.randn(8, 16), batch_size=4, shuffle=True):
                run.model(points)
            np.random.rand()

    made = train(tmp_path / "proof", task=type(task)(dropping), loop=loop)
    assert is_exact(made.replayed(tmp_path / "answer"))


def test_a_loop_may_fetch_the_next_batch_before_it_steps(
    task: Any, train: Train, tmp_path: Path
) -> None:
    def loop(run: Any) -> None:
        batches = (run.source.batch(numbers) for numbers in run.prover.sampler)
        batch = next(batches)
        while batch is not None:
            run.model.train()
            run.optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(batch["point"]), batch["label"]).backward()
            batch = next(batches, None)
            run.optimizer.step()

    made = train(tmp_path / "proof", task=type(task)(dropping), loop=loop)
    assert is_exact(made.replayed(tmp_path / "answer"))


def test_a_loop_may_look_at_gradients_after_the_step(
    task: Any, train: Train, tmp_path: Path
) -> None:
    norms = []

    def loop(run: Any) -> None:
        plain_loop_with(run, lambda: norms.append(run.model[0].weight.grad.norm().item()))

    made = train(tmp_path / "proof", task=type(task)(dropping), loop=loop)
    assert min(norms) > 0
    assert is_exact(made.replayed(tmp_path / "answer"))


def plain_loop_with(run: Any, after: Callable[[], object]) -> None:
    for numbers in run.prover.sampler:
        run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
        after()


def test_gradients_may_stay_in_the_same_memory(task: Any, train: Train, tmp_path: Path) -> None:
    """As those of a captured graph do, which torch does not see written."""

    def loop(run: Any) -> None:
        parameters = list(run.model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for numbers in run.prover.sampler:
            batch = run.source.batch(numbers)
            run.model.train()
            loss = nn.functional.cross_entropy(run.model(batch["point"]), batch["label"])
            for parameter, found in zip(
                parameters, torch.autograd.grad(loss, parameters), strict=True
            ):
                parameter.grad.data.copy_(found)
            run.optimizer.step()

    made = train(tmp_path / "proof", task=type(task)(dropping), loop=loop)
    assert is_exact(made.replayed(tmp_path / "answer"))


def test_batches_may_be_fetched_by_another_thread(task: Any, train: Train, tmp_path: Path) -> None:
    def loop(run: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            batches = iter(run.prover.sampler)
            coming = pool.submit(next, batches, None)
            while (numbers := coming.result()) is not None:
                # In the middle of the step: it has drawn already, and will draw again.
                def forward(points: Any) -> Any:
                    nonlocal coming
                    coming = pool.submit(next, batches, None)
                    coming.exception()
                    return run.model(points)

                run.task.train_step(
                    Detour(run.model, forward), run.optimizer, run.source.batch(numbers)
                )

    def twice(self: Any, model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        model.train()
        scores = model(batch["point"] * (1 + 0.01 * torch.rand(())))
        nn.functional.cross_entropy(scores, batch["label"]).backward()
        optimizer.step()

    made = train(tmp_path / "proof", task=changed(task, train_step=twice)(dropping), loop=loop)
    assert is_exact(made.replayed(tmp_path / "answer"))


class Detour:
    """A model with another way forward."""

    def __init__(self, model: nn.Module, forward: Callable[[Any], Any]) -> None:
        self.train = model.train
        self.forward = forward

    def __call__(self, points: torch.Tensor) -> Any:
        return self.forward(points)


def normalised(self: Any, model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> None:
    batch["point"].sub_(3.0).div_(0.25)
    model.train()
    optimizer.zero_grad()
    points, labels = batch.pop("point"), batch.pop("label")
    nn.functional.cross_entropy(model(points), labels).backward()
    optimizer.step()


def test_a_step_may_change_the_batch_that_it_is_given(
    task: Any, train: Train, tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", task=changed(task, train_step=normalised)())
    with torch.no_grad():
        assert is_exact(made.replayed(tmp_path / "answer"))


class Skipping(nn.Module):
    """Leaves a layer out in some steps, but not in the first one of all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.head = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def start_rules() -> dict[str, Any]:
        return {"calls": Constant(0)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        if self.training:
            self.calls += 1
        # Of eight steps a shard, in segments of three: first ones of segments, and another.
        if not self.training or int(self.calls) == 1 or int(self.calls) % 8 not in (1, 4, 5):
            x = x + self.other(x).relu()
        found: torch.Tensor = self.head(x)
        return found


def zeroing(self: Any, model: Any, optimizer: Any, batch: Any) -> None:
    model.train()
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(model(batch["point"]), batch["label"]).backward()
    optimizer.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_that_are_zeroed_and_layers_that_are_left_out(
    momentum: float, task: Any, train: Train, recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = recipe_of(momentum=momentum, decay=1e-2)
    skipping = changed(task, train_step=zeroing)(Skipping)
    made = train(tmp_path / "proof", task=skipping, recipe=recipe, epochs=3)
    assert is_exact(made.replayed(tmp_path / "answer"))


class Shortened(nn.Module):
    """Shortens the rows of its embedding whenever they are looked up, in a test, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 32, max_norm=1.0)
        self.hidden, self.head = nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = x @ self.embedding(torch.arange(16))
        found: torch.Tensor = self.head(self.hidden(mixed).relu())
        return found


def test_what_a_test_does_to_the_sealed_weights_is_undone(
    task: Any, train: Train, tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", task=type(task)(Shortened))
    assert is_exact(made.replayed(tmp_path / "answer"))


def test_a_test_that_leaves_other_weights_in_is_refused(
    training: Callable[..., Any], tmp_path: Path
) -> None:
    run = training(tmp_path / "proof")

    def evaluate() -> float:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.add_(torch.randn_like(parameter))
        return float(run.task.evaluate(run.model))

    with run.prover.attach(run.model, run.optimizer, evaluate=evaluate):
        plain_loop_with(run, lambda: None)
        with pytest.raises(ChainError, match="changes the weights, and measures them otherwise"):
            run.prover.end_epoch()
    assert run.prover.shards == 0
    run.prover.close()


def test_a_setting_may_be_put_back_before_a_shard_ends(
    task: Any, train: Train, tmp_path: Path
) -> None:
    def loop(run: Any) -> None:
        with sdpa_kernel(SDPBackend.MATH):
            plain_loop_with(run, lambda: None)

    made = train(tmp_path / "proof", task=type(task)(dropping), loop=loop)
    assert is_exact(made.replayed(tmp_path / "answer"))


def test_a_verifiers_own_settings_are_no_fault_of_the_provers(
    task: Any, train: Train, tmp_path: Path
) -> None:
    turns = itertools.count()

    def moving(self: Any, model: Any, optimizer: Any, batch: Any) -> None:
        type(task).train_step(self, model, optimizer, batch)
        torch.use_deterministic_algorithms(next(turns) % 2 == 0, warn_only=True)

    made = train(tmp_path / "proof")
    challenge = made.everything()
    answer = made.answer(challenge, tmp_path / "answer")
    try:
        verdict = made.verify(challenge, answer, task=changed(task, train_step=moving)())
    finally:
        torch.use_deterministic_algorithms(False)
    assert verdict.outcome is not Outcome.REJECTED, verdict.headline()


class Large(nn.Module):
    """A single number that is larger than all weights together."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.scale = dropping(), nn.Parameter(torch.tensor(100.0))

    @staticmethod
    def start_rules() -> dict[str, Any]:
        return {"scale": Constant(100.0)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x) * (self.scale / 100)
        return found


def test_noise_of_a_single_number_may_go_far(
    task: Any, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is beyond what the noise of many numbers does once in hundreds of sealings."""
    seen: list[tuple[float, float]] = []
    real = Motion._sealing

    def noted(self: Motion, number: int, values: Any, seed: bytes) -> tuple[float, float]:
        found = real(self, number, values, seed)
        seen.append(found)
        return found

    made = train(tmp_path / "proof", task=type(task)(Large), epochs=1)
    monkeypatch.setattr(Motion, "_sealing", noted)
    assert is_exact(made.replayed(tmp_path / "answer"))
    scale = 100 * made.manifest.shards[0].noise.sigma / 1e6
    # Five of its σ, squared, are within; ten are not.
    assert 5 * scale < seen[0][1] < 10 * scale


def test_who_trained_less_exactly_answers_where_less_is_not_usual(
    train: Train, tmp_path: Path
) -> None:
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        made = train(tmp_path / "proof")
    finally:
        matmul.fp32_precision = before
    verdict = made.replayed(tmp_path / "answer")
    # How exact is exact enough is the verifier's choice.
    assert verdict.outcome is not Outcome.REJECTED, verdict.headline()


def test_a_setting_that_changes_within_a_shard_is_named_at_once(
    training: Callable[..., Any], tmp_path: Path
) -> None:
    run, threads = training(tmp_path / "proof"), torch.get_num_threads()

    def loop(run: Any) -> None:
        for at, numbers in enumerate(run.prover.sampler):
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
            if at == 3:
                torch.set_num_threads(threads + 1)

    try:
        with pytest.raises(ChainError, match=f"threads: {threads} and {threads + 1}") as error:
            run.epochs(1, loop)
    finally:
        torch.set_num_threads(threads)
    assert "before the first step" in error.value.advice
    run.prover.close()
    # Between attach and the first step it may change.
    run = training(tmp_path / "other")
    with run.prover.attach(run.model, run.optimizer, evaluate=lambda: 1.0):
        torch.set_num_threads(threads + 1)
        try:
            for numbers in run.prover.sampler:
                run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
            run.prover.end_epoch()
        finally:
            torch.set_num_threads(threads)
    assert run.prover.finish().shards == 1


def test_an_answer_that_cannot_come_out_says_what_is_different_here(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train(tmp_path / "proof")
    real = platform.describe
    monkeypatch.setattr(platform, "describe", lambda device: {**real(device), "name": "abacus"})
    monkeypatch.setattr(type(made.task), "train_step", zeroing_twice)
    with pytest.raises(ChainError, match=r"on another platform than here .*abacus"):
        made.answer(made.everything(), tmp_path / "answer")


def zeroing_twice(self: Any, model: Any, optimizer: Any, batch: Any) -> None:
    zeroing(self, model, optimizer, {**batch, "point": batch["point"] * 2})


@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_settings_that_only_warn_of_kernels_that_do_not_repeat(
    task: Any, train: Train, tmp_path: Path
) -> None:
    class Unpooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(16, 64), nn.Linear(64, 4)
            self.pool, self.unpool = nn.MaxPool1d(2, return_indices=True), nn.MaxUnpool1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pooled, where = self.pool(self.first(x).unsqueeze(1))
            found: torch.Tensor = self.head(self.unpool(pooled, where).squeeze(1))
            return found

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        made = train(tmp_path / "proof", task=type(task)(Unpooled))
    finally:
        torch.use_deterministic_algorithms(False)
    assert is_exact(made.replayed(tmp_path / "answer"))


class Loose(nn.Module):
    """Buffers that no checkpoint holds: one that grows, one that is no number, one that counts."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.layers, self.counts = dropping(), counts
        self.register_buffer("grown", torch.zeros(1), persistent=False)
        self.register_buffer("none", torch.full((2,), math.nan), persistent=False)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.grown = torch.zeros(max(len(x), len(self.grown)))
        if self.training and self.counts:
            self.count += 1
        found: torch.Tensor = self.layers(x)
        return found


def test_buffers_that_no_checkpoint_holds(
    task: Any, train: Train, training: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", task=type(task)(lambda: Loose(counts=False)))
    assert is_exact(made.replayed(tmp_path / "answer"))
    run = training(tmp_path / "other", task=type(task)(lambda: Loose(counts=True)))
    with pytest.warns(EmbeddingWarning, match="training changes count, which is not in the state"):
        run.epochs(1)
    run.prover.close()


def test_another_default_type_changes_nothing(task: Any, train: Train, tmp_path: Path) -> None:
    made = train(tmp_path / "proof", task=type(task)(lambda: dropping().float()))
    torch.set_default_dtype(torch.float64)
    try:
        assert "denormals" not in platform.describe("cpu")
        challenge = made.everything()
        verdict = made.verify(challenge, made.answer(challenge, tmp_path / "answer"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [c.status for c in verdict.checks if c.name == "copies"] == [Status.PASSED]


def test_samples_that_nobody_could_be_shown_are_refused_first(
    task: Any, training: Callable[..., Any], tmp_path: Path
) -> None:
    def columns(self: Any) -> dict[str, Any]:
        found = type(task).train_columns(self)
        point = found["point"].copy()
        point[3, 5] = math.nan
        return {**found, "point": point}

    run = training(tmp_path / "proof", task=changed(task, train_columns=columns)())
    with pytest.raises(TermsError, match="column point: holds NaN"):
        run.epochs(1)
    run.prover.close()


def test_an_optimizer_whose_state_no_verifier_takes_is_refused_before_sealing(
    training: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    run = training(tmp_path / "proof", recipe=recipe_of(optimizer="adam", rate=1e-3))

    def spoilt(run: Any) -> None:
        for numbers in run.prover.sampler:
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
        first = next(iter(run.optimizer.state.values()))
        first["exp_avg_sq"].view(-1)[0] = math.inf

    with pytest.raises(WeightsError, match=r"exp_avg_sq.*not finite"):
        run.epochs(1, spoilt)
    assert run.prover.shards == 0
    run.prover.close()


def test_a_description_that_is_too_long_keeps_what_it_says_by_a_hash() -> None:
    facts = {f"fact{at}": "y" * 48 for at in range(7)}
    unusual = {**dict.fromkeys(platform.USUAL, "else"), "kernels": "MKL_CBWR=AVX2"}
    assert platform._fitting(dict(facts)) == facts
    found = platform._fitting({**facts, **unusual})
    assert found.keys() == {*facts, "unusual"}
    assert len(platform.text_of(found).encode()) <= platform.SIZE
    other = platform._fitting({**facts, **unusual, "kernels": "MKL_CBWR=SSE2"})
    assert [word.partition(":")[0] for word in platform.same(found, other)] == ["unusual"]

"""Level replay from end to end: honest runs of all sorts come out, to the bit."""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import polo
from polo.errors import ChainError, SignatureError, StoreError, TaskError, TermsError, WeightsError
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.data import DataSource
from polo.protocol.records import Bundle
from polo.storage import bundle, writer
from polo.storage.folder import ProofFolder, state_path_of
from polo.verifier import Outcome, Policy, Status
from polo.verifier.report import render


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Dropout(0.2), nn.Linear(64, 4),
    )  # fmt: skip


class Half(nn.Sequential):
    """A model in 16 bits whose inputs are not."""

    def __init__(self) -> None:
        layers = nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
        super().__init__(*layers)
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(x.to(torch.bfloat16))
        return found.float()


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4))
    model[2].requires_grad_(False)
    return model


class Tied(nn.Module):
    """A model that goes through one matrix twice, there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(16, 64), nn.Linear(64, 64, bias=False)
        self.again = nn.Linear(64, 64, bias=False)
        self.again.weight = self.back.weight
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.again(self.back(self.there(x).relu()).relu()))
        return found


class Idle(nn.Module):
    """A model with a layer that nothing goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64)), nn.Linear(4, 4)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.used(x).relu())
        return found


def augmenting(task: Any) -> Any:
    """A task whose step shifts and scales its points by numbers from all three generators."""

    class Augmenting(type(task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            points = batch["point"] + 0.1 * torch.randn_like(batch["point"])
            points = points * (1 + 0.1 * np.random.rand()) + 0.01 * random.random()
            super().train_step(model, optimizer, {**batch, "point": points})

    return Augmenting()


def passed(verdict: polo.Verdict) -> bool:
    """Whether every step came out to the bit."""
    run = [check for check in verdict.checks if check.name in ("segment", "sealing")]
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    return bool(run) and all(check.status is Status.PASSED for check in run)


def draw_of(verdict: polo.Verdict) -> Any:
    (found,) = (check for check in verdict.checks if check.name == "draw")
    return found


def test_an_honest_run_is_accepted_and_the_figures_are_right(
    honest: Any, answered: tuple[Any, Path]
) -> None:
    verdict = honest.verify(*answered)
    assert passed(verdict)
    checks = [check for check in verdict.checks if check.level == "replay"]
    segments = [check for check in checks if check.name == "segment"]
    assert [(c.shard, c.figures["segment"]) for c in segments] == [
        (shard, segment) for shard in (1, 2) for segment in (0, 1, 2)
    ]
    assert [check.detail[:7] for check in segments[:3]] == ["3 steps", "3 steps", "2 steps"]
    assert all(check.figures["move"] > 0 for check in segments)
    assert sum(bool(check.figures["always"]) for check in segments) < 6
    records = [check for check in checks if check.name == "record"]
    assert [check.figures["segments"] for check in records] == [3, 3]
    assert [check.figures["steps"] for check in records] == [8, 8]
    figures = draw_of(verdict).figures
    assert (figures["run"], figures["exact"], figures["steps"]) == (6, 6, 16)
    assert (figures["segments"], figures["drawn"]) == (6, 3)
    assert figures["escape_tenth"] == pytest.approx(math.comb(5, 3) / math.comb(6, 3))
    assert figures["escape_single"] == pytest.approx(math.comb(5, 3) / math.comb(6, 3))
    # Two in each of two shards: of six segments two are left to draw three from.
    assert figures["escape_twice"] == 0
    assert "6 of 6 segments" in verdict.found("replay")
    assert "segment" in render(verdict)


def test_a_drawn_challenge_has_the_first_the_largest_and_enough(
    honest: Any, tmp_path: Path
) -> None:
    challenge = challenges.draw(honest.path)
    assert 3 <= len(challenge.segments) <= 6
    assert str(challenge.segments[0]) == "segment 0 of shard 1"
    assert len(challenge.sealings) in (1, 2)
    assert not challenge.ends
    largest = max(
        (honest.record(shard).moves[segment][0], shard, segment)
        for shard in (1, 2)
        for segment in range(3)
    )
    assert any((place.shard, place.segment) == largest[1:] for place in challenge.segments)
    challenges.save(challenge, tmp_path / "challenge.json")
    assert challenges.load(tmp_path / "challenge.json") == challenge
    assert passed(honest.verify(challenge, honest.answer(challenge, tmp_path / "answer")))


def test_the_segment_before_a_large_move_is_asked_for_too(honest: Any) -> None:
    """A made-up momentum shows in the segment after the one that was faked to get it."""
    timeline = challenges.Timeline.load(ProofFolder(honest.path), honest.manifest)
    moves = [
        timeline.records[at.shard].moves[at.segment][0] for at in map(timeline.place, range(6))
    ]
    top = moves.index(max(moves))
    assert {timeline.place(0), timeline.place(top)} <= timeline.required()
    assert timeline.place(max(0, top - 1)) in timeline.required()


def test_escapes_are_counted_without_putting_back() -> None:
    assert challenges.escape(0.1, 44, 1250) < 0.9**44
    assert challenges.escape(0.1, 10, 10) == 0.0
    assert challenges.escape(1 / 7, 3, 7) == pytest.approx(4 / 7)
    assert challenges.escape(0.5, 5, 10) == pytest.approx(1 / math.comb(10, 5))


def test_without_a_challenge_nothing_is_decided(honest: Any, answered: tuple[Any, Path]) -> None:
    for answer in (None, answered[1]):
        verdict = honest.verify(None, answer)
        assert verdict.outcome is Outcome.UNDECIDED
        assert "nothing was drawn" in verdict.headline()
        assert "polo challenge" in draw_of(verdict).advice


def test_a_challenge_without_an_answer_is_failed(
    honest: Any, answered: tuple[Any, Path], tmp_path: Path
) -> None:
    verdict = honest.verify(answered[0])
    assert verdict.outcome is Outcome.REJECTED
    failed = list(verdict.of(Status.FAILED))
    assert [check.sentence() for check in failed if check.name == "segment"] == [
        f"segment (shard {shard}, segment {segment}): was asked for, and there is no answer "
        "that counts"
        for shard in (1, 2)
        for segment in (0, 1, 2)
    ]
    assert [check.shard for check in failed if check.name == "sealing"] == [1, 2]
    verdict = honest.verify(answered[0], tmp_path / "mistyped")
    assert verdict.outcome is Outcome.UNDECIDED, "a folder that is not there is no refusal"
    assert "no answer here" in verdict.headline()


def test_a_bundle_serves_as_well(honest: Any, answered: tuple[Any, Path], tmp_path: Path) -> None:
    folder = ProofFolder(honest.path)
    bundle.write_bundle(folder, tmp_path / "whole.polo", bundle.whole(honest.manifest))
    bundle.write_bundle(folder, tmp_path / "public.polo", bundle.PUBLIC)
    assert challenges.draw(tmp_path / "whole.polo").proof == answered[0].proof
    options = {"trust": honest.issuer.public_key, "task": honest.task, "policy": Policy("none")}
    asked = {"challenge": answered[0], "answer": answered[1], **options}
    assert passed(polo.verify(tmp_path / "whole.polo", **asked))
    verdict = polo.verify(tmp_path / "public.polo", **asked)
    assert verdict.outcome is Outcome.UNDECIDED
    assert "which only a whole proof shows" in " ".join(c.detail for c in verdict.checks)
    with pytest.raises(StoreError):
        challenges.draw(tmp_path / "public.polo")
    bundle.write_bundle(folder, tmp_path / "buyer.polo", Bundle("buyer", (1,)))
    verdict = polo.verify(tmp_path / "buyer.polo", **options)
    assert "ACCEPTED as a disclosure" in verdict.headline()
    assert verdict.levels == ("chain",)
    assert "which only a whole proof shows" in " ".join(c.detail for c in verdict.of(Status.NOTE))


@pytest.mark.slow
def test_deltas_are_undone_for_prover_and_verifier(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", epochs=3, deltas=True)
    assert any(".delta" in file.path for file in made.manifest.files)
    assert passed(made.replayed(tmp_path / "answer"))


@pytest.mark.parametrize("retention", ["thin", 2])
def test_all_checkpoints_must_be_kept(
    retention: Any, training: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(TermsError, match="all checkpoints"):
        training(tmp_path / "proof", retention=retention)


@pytest.mark.slow
def test_terms_that_let_checkpoints_go_decide_nothing(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An issuer may forget to ask for them; who lets them go has records that hang in the air."""
    real = polo.make_terms
    monkeypatch.setattr(polo, "make_terms", lambda *a, **o: _any_history(real(*a, **o)))
    with pytest.raises(TermsError, match="takes all checkpoints"):
        train(tmp_path / "refused", retention="thin")
    # Another prover than ours may not look.
    monkeypatch.setattr("polo.prover.options.replays", lambda _: True)
    made = train(tmp_path / "proof", retention="thin")
    verdict = made.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    hanging = [check for check in verdict.of(Status.UNDECIDED) if check.name == "record"]
    assert [check.shard for check in hanging] == [1, 2]
    with pytest.raises(StoreError, match="not here any more"):
        made.answer(made.everything(), tmp_path / "answer")


def _any_history(terms: Any) -> Any:
    return replace(terms, history="any")


RECIPES: dict[str, dict[str, Any]] = {
    "sgd without momentum": {"momentum": 0.0},
    "nesterov, decay": {"nesterov": True, "decay": 1e-3},
    "adam, cosine": {
        "optimizer": "adam", "rate": 0.003, "schedule": "cosine", "warmup": 3, "total": 20,
        "momentum": 0.9,
    },
    "adamw, steps": {
        "optimizer": "adamw", "rate": 0.003, "decay": 0.1, "schedule": "steps",
        "milestones": (5, 9),
    },
    "linear, single steps": {"schedule": "linear", "total": 17, "every": 1},
    "one segment a shard": {"every": 100},
    "small last batch": {"batch": 37},
}  # fmt: skip


def some_slow(names: Iterable[str], quick: str) -> list[Any]:
    """Parameters of which all but one count as slow."""
    return [name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", some_slow(RECIPES, "adam, cosine"))
def test_recipes(
    name: str, train: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", recipe=recipe_of(**RECIPES[name]))
    assert passed(made.replayed(tmp_path / "answer"))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": dropping,
    "bf16": Half,
    "frozen": frozen,
    "tied": Tied,
}


@pytest.mark.parametrize("name", some_slow(MODELS, "tied"))
def test_models(name: str, task: Any, train: Callable[..., Any], tmp_path: Path) -> None:
    made = train(tmp_path / "proof", task=type(task)(MODELS[name]), terms={"bits": 64})
    assert passed(made.replayed(tmp_path / "answer", ends=True))


def test_what_a_step_draws_at_random_comes_from_its_seed(
    task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", task=augmenting(task))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    challenge = made.everything()
    answer = made.answer(challenge, tmp_path / "answer")
    assert torch.equal(torch.get_rng_state(), before), "the prover's own training is left alone"
    assert passed(made.verify(challenge, answer))


def test_marks_that_are_pressed_every_other_step(train: Callable[..., Any], tmp_path: Path) -> None:
    """Seven steps a shard, so that the second one begins between two presses."""
    made = train(
        tmp_path / "proof",
        terms={"every": 2, "strength": 0.04, "fewest_steps": 7},
        loop=_seven_steps,
        epochs=3,
    )
    assert {shard.steps for shard in made.manifest.shards} == {7}
    assert passed(made.replayed(tmp_path / "answer"))


def _seven_steps(run: Any) -> None:
    for at, numbers in enumerate(run.prover.sampler):
        if at < 7:
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))


class Points(Dataset[Any]):
    """The tiny task's points for a loader."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["label"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(values[index]) for name, values in self._columns.items()}


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_users_keep_their_loader(
    workers: int, task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    """Dropout is in it: what a loader draws for itself must not show in the steps."""
    task = type(task)(dropping)

    def loop(run: Any) -> None:
        loader = DataLoader(
            Points(task.train_columns()), batch_sampler=run.prover.sampler, num_workers=workers
        )
        for batch in loader:
            run.model.train()
            run.optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(batch["point"]), batch["label"]).backward()
            run.optimizer.step()

    made = train(tmp_path / "proof", task=task, loop=loop)
    assert passed(made.replayed(tmp_path / "answer"))


def test_a_loop_with_an_order_of_its_own_is_found_out_by_the_prover(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    def loop(run: Any) -> None:
        for numbers in torch.arange(256).split(32):
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))

    made = train(tmp_path / "proof", loop=loop)
    with pytest.raises(ChainError, match="boundary 1 does not come out") as caught:
        made.answer(made.everything(), tmp_path / "answer")
    assert "prover.sampler" in caught.value.advice
    assert not (tmp_path / "answer").exists(), "half an answer is in nobody's way"


@pytest.mark.slow
def test_a_shard_of_two_passes(train: Callable[..., Any], tmp_path: Path) -> None:
    def loop(run: Any) -> None:
        for _ in range(2):
            for numbers in run.prover.sampler:
                run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))

    made = train(tmp_path / "proof", loop=loop, terms={"fewest_steps": 16})
    assert {shard.steps for shard in made.manifest.shards} == {16}
    assert passed(made.replayed(tmp_path / "answer"))


def test_what_could_not_be_run_again_is_refused_before_training(
    training: Callable[..., Any], recipe_of: Callable[..., Any], task: Any, tmp_path: Path
) -> None:
    columns = task.train_columns()
    with pytest.raises(TermsError, match="must know the data"):
        training(tmp_path / "a", data=None)
    with pytest.raises(TermsError, match="not those that the terms name"):
        training(tmp_path / "a", data=DataSource(columns, bytes(32)))
    with pytest.raises(TermsError, match="check_every"):
        training(tmp_path / "a", check_every=4)
    run = training(tmp_path / "a")
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    with pytest.raises(TermsError, match="scheduler: replay knows no state") as caught:
        run.prover.attach(run.model, run.optimizer, also={"scheduler": scheduler})
    assert "leave schedulers" in caught.value.advice
    others = {
        "momentum: 0.5": torch.optim.SGD(run.model.parameters(), lr=0.05, momentum=0.5),
        "weight_decay": torch.optim.SGD(
            run.model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1
        ),
        "class: Adam": torch.optim.Adam(run.model.parameters()),
        "groups": torch.optim.SGD([{"params": [p]} for p in run.model.parameters()], momentum=0.9),
    }
    for message, optimizer in others.items():
        with pytest.raises(TermsError, match=message):
            run.prover.attach(run.model, optimizer)
    used = recipe_of().optimizer(run.model)
    with torch.no_grad():
        before = [parameter.clone() for parameter in run.model.parameters()]
    task.train_step(run.model, used, run.source.batch(range(32)))
    with torch.no_grad():
        for parameter, old in zip(run.model.parameters(), before, strict=True):
            parameter.copy_(old)
    for module in run.model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    with pytest.raises(ChainError, match="used before"):
        run.prover.attach(run.model, used)
    run.prover.close()


@pytest.mark.slow
def test_a_scheduler_of_the_users_own_changes_nothing(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    """Rates are set before every step; whoever lowers them in between is overruled."""

    def loop(run: Any) -> None:
        for numbers in run.prover.sampler:
            for group in run.optimizer.param_groups:
                group["lr"] = 1e-9
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))

    assert passed(train(tmp_path / "proof", loop=loop).replayed(tmp_path / "answer"))


def test_an_evaluation_that_changes_the_model_is_refused(
    training: Callable[..., Any], tmp_path: Path
) -> None:
    run = training(tmp_path / "proof")

    def careless() -> float:
        run.model.train()
        with torch.no_grad():
            run.model(torch.randn(8, 16))
        return 0.5

    with run.prover.attach(run.model, run.optimizer):
        for numbers in run.prover.sampler:
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
        before = {name: value.clone() for name, value in run.model.state_dict().items()}
        with pytest.raises(ChainError, match="running_mean") as caught:
            run.prover.end_epoch(evaluate=careless)
        assert "model.eval()" in caught.value.advice
    after = run.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    run.prover.close()


def test_a_sealing_that_fails_can_be_made_up_for(
    training: Callable[..., Any], honest: Any, tmp_path: Path
) -> None:
    run = training(tmp_path / "proof")
    with run.prover.attach(run.model, run.optimizer):
        for numbers in run.prover.sampler:
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
        with pytest.raises(ZeroDivisionError):
            run.prover.end_epoch(evaluate=lambda: 1 / 0)
        real = run.prover._writer.seal
        run.prover._writer.seal = _full_disk
        with pytest.raises(OSError, match="no space"):
            run.prover.end_epoch(evaluate=lambda: 0.5)
        run.prover._writer.seal = real
        for numbers in run.prover.sampler:
            run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))
        run.prover.end_epoch()
    run.prover.finish()
    made = replace(honest, path=tmp_path / "proof")
    assert [shard.steps for shard in made.manifest.shards] == [16]
    assert passed(made.replayed(tmp_path / "answer"))


def _full_disk(*_: Any, **__: Any) -> None:
    raise OSError("no space left on device")


def test_a_parameter_without_gradient_is_named_at_the_first_step(
    task: Any, training: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    task = type(task)(Idle)
    run = training(tmp_path / "proof", task=task, terms={"bits": 64})
    with pytest.raises(WeightsError, match=r"idle\.weight: got no gradient"):
        run.epochs(1)
    run.prover.close()


@pytest.mark.parametrize("epochs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_closed_run_goes_on_to_the_bit(
    epochs: int,
    training: Callable[..., Any],
    train: Callable[..., Any],
    task: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the same secret for its noise, the run is the one that was never interrupted."""
    monkeypatch.setattr(writer.secrets, "token_bytes", bytes)
    task = type(task)(dropping)
    whole = train(tmp_path / "whole", task=task, epochs=3)
    first = training(tmp_path / "proof", task=task)
    first.epochs(epochs)
    with first.prover.attach(first.model, first.optimizer):
        for numbers in list(first.prover.sampler)[:5]:  # Steps that nobody seals.
            task.train_step(first.model, first.optimizer, first.source.batch(numbers))
    first.prover.close()
    torch.manual_seed(31)
    again = training(tmp_path / "proof", task=task)
    again.epochs(3 - epochs)
    again.prover.finish()
    resumed = replace(whole, path=tmp_path / "proof")
    evidence = [[shard.evidence for shard in each.manifest.shards] for each in (whole, resumed)]
    assert evidence[0] == evidence[1]
    assert whole.manifest.last_root == resumed.manifest.last_root
    assert passed(resumed.replayed(tmp_path / "answer"))


def test_without_its_training_state_a_run_does_not_go_on(
    training: Callable[..., Any], tmp_path: Path
) -> None:
    run = training(tmp_path / "proof")
    run.epochs(1)
    run.prover.close()
    for path in state_path_of(tmp_path / "proof").glob("*.safetensors"):
        if not path.name.startswith("rest"):
            path.unlink()
    again = training(tmp_path / "proof")
    with pytest.raises(StoreError, match="cannot go on without it"):
        again.epochs(1)
    again.prover.close()


def test_answers_need_the_provers_own_things(
    honest: Any, answered: tuple[Any, Path], task: Any, issuer: Any, tmp_path: Path
) -> None:
    challenge, out = answered[0], tmp_path / "answer"
    with pytest.raises(StoreError, match="is there already"):
        honest.answer(challenge, answered[1])
    with pytest.raises(SignatureError, match="not the one that was enrolled"):
        honest.answer(challenge, out, key=issuer)
    other = DataSource(task.train_columns(), bytes(32))
    with pytest.raises(TermsError, match="not those that the terms name"):
        honest.answer(challenge, out, data=other)
    newer = type(task)()
    newer.version = 2
    with pytest.raises(TaskError, match="version 2"):
        honest.answer(challenge, out, task=newer)
    changed = honest.copied(tmp_path)
    for name, error in {"rest-000001.safetensors": "rest-000001", "secret": "secret"}.items():
        (state_path_of(changed.path) / name).unlink()
        with pytest.raises(StoreError, match=error):
            changed.answer(challenge, out)
    assert not out.exists()
    unfinished = changed.everything()
    changed.sign(_unfinished(changed.manifest))
    with pytest.raises(ChainError, match="another proof, or from an earlier state"):
        changed.answer(unfinished, out)


def _unfinished(manifest: Any) -> Any:
    return replace(manifest, finished=False)


def test_who_buys_a_replayed_model_need_not_replay_it_again(
    honest: Any, buy: Callable[..., Any], bob: Any, tmp_path: Path
) -> None:
    """The earlier owner's steps were the earlier verifier's business."""
    owned = buy(tmp_path / "bob", bob, seller=honest.path, seller_key=honest.key)
    verdict = owned.made.verify(policy=Policy("none"))
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert verdict.levels == ("chain",)

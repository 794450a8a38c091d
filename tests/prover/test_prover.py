"""The object a trainer holds: when it seals, what it refuses, what it counts."""

import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.errors import (
    ChainError,
    LockedError,
    PoloError,
    SignatureError,
    StoreError,
    TermsError,
    WeightsError,
)
from polo.prover import Progress
from polo.storage import history
from polo.storage.folder import ProofFolder
from polo.weights import checkpoint_of, commit
from polo.weights.loading import load_into

Enrol = Callable[..., polo.OfflineEnrolment]
EASY = {"budget": 1.0, "strength": 0.05}
HOPELESS = {"budget": 0.0, "strength": 1e-6}


class Run:
    """A model in training under a prover; closed when the test ends."""

    def __init__(self, prover: polo.Prover, task: Any) -> None:
        torch.manual_seed(0)
        self.prover, self.task = prover, task
        self.model = task.build_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def attach(self, **options: Any) -> Any:
        return self.prover.attach(self.model, self.optimizer, **options)

    def epoch(self) -> None:
        self.task.train_epoch(self.model, self.optimizer)

    def end(self, **options: Any) -> Progress:
        progress = self.prover.end_epoch(**options)
        assert progress is not None
        return progress

    @property
    def root(self) -> bytes:
        return commit(checkpoint_of(self.model)).root

    @property
    def manifest(self) -> Any:
        return ProofFolder(self.prover._writer.path).manifest()


@pytest.fixture
def start(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path, request: Any
) -> Callable[..., Run]:
    def make(terms: dict[str, Any] = EASY, enrolment: Any = None, **options: Any) -> Run:
        subject = options.pop("task", task)
        enrolment = enrolment or enrol(**{"task": subject, **terms})
        prover = polo.Prover(enrolment, **{"key": alice, "store": tmp_path / "proof", **options})
        request.addfinalizer(prover.close)
        return Run(prover, subject)

    return make


def test_one_shard_an_epoch(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach():
        for number in (1, 2, 3):
            assert run.prover.epoch == number - 1
            run.epoch()
            sealed = run.end().sealed
            assert sealed is not None
            assert (sealed.shard, sealed.epochs, sealed.steps) == (number, 1, 8)
            assert run.prover.shards == number
    assert [shard.shard for shard in run.prover.finish().manifest.shards] == [1, 2, 3]


def test_what_a_loop_prints_fits_on_a_line(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach():
        run.epoch()
        assert re.fullmatch(r"Progress\(shard=1, bits read \d+/\d+, sealed\)", str(run.end()))
    assert re.fullmatch(r"Proof\('\S+', shards=1, outside=0\)", str(run.prover.finish()))


def test_training_goes_on_from_the_sealed_weights(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach():
        for number in (1, 2):
            run.epoch()
            sealed = run.end().sealed
            assert sealed is not None
            assert sealed.root == run.root
            folder = ProofFolder(run.prover._writer.path)
            layout = checkpoint_of(run.model).layout
            with folder.checkpoint(number, layout) as stored:
                for at, tensor in enumerate(layout.tensors):
                    live = checkpoint_of(run.model).read(at, 0, tensor.size)
                    assert bytes(live) == stored.read(at, 0, tensor.size), tensor.name


def test_sealing_every_few_steps_without_any_epoch(start: Callable[..., Run]) -> None:
    run = start(check_every=3)
    with run.attach():
        run.epoch()
        run.epoch()
    proof = run.prover.finish()
    # 16 steps: five shards of three, and finish seals the one that is left.
    assert [shard.steps for shard in proof.manifest.shards] == [3, 3, 3, 3, 3, 1]
    assert {shard.epochs for shard in proof.manifest.shards} == {0}
    assert proof.outside == 0


def test_checks_between_steps_and_at_the_end_of_epochs_go_together(
    start: Callable[..., Run],
) -> None:
    run = start(check_every=5)
    with run.attach():
        for _ in range(2):
            run.epoch()
            run.end()
    shards = run.prover.finish().manifest.shards
    assert [(shard.steps, shard.epochs) for shard in shards] == [(5, 0), (3, 1), (5, 0), (3, 1)]


def test_shards_are_never_shorter_than_the_terms_ask(start: Callable[..., Run]) -> None:
    run = start({**EASY, "fewest_steps": 12})
    with run.attach():
        for sealed in (False, True, False, True):
            run.epoch()
            assert bool(run.end().sealed) is sealed
    assert [(s.steps, s.epochs) for s in run.prover.finish().manifest.shards] == [(16, 2), (16, 2)]


def test_an_epoch_without_a_step_seals_nothing(start: Callable[..., Run]) -> None:
    run = start({**EASY, "fewest_steps": 0})
    with run.attach(), pytest.warns(polo.EmbeddingWarning, match="no step"):
        assert run.end().sealed is None
    assert run.prover.epoch == 1


def test_steps_beyond_the_last_allowed_shard_are_outside(
    start: Callable[..., Run], caplog: pytest.LogCaptureFixture, issuer: polo.Identity, task: Any
) -> None:
    run = start({**EASY, "shards": 2})
    with run.attach():
        for _ in range(2):
            run.epoch()
            assert run.end().sealed
        assert not caplog.records
        # Said once, when it begins to matter; pytest would turn a second one into an error.
        with pytest.warns(polo.EmbeddingWarning, match="all 2 shards"):
            run.epoch()
        assert run.prover.end_epoch() is None
        for _ in range(2):
            run.epoch()
            assert run.prover.end_epoch() is None
    proof = run.prover.finish()
    assert (proof.shards, proof.outside) == (2, 24)
    assert "24 steps after shard 2 are outside the proof" in caplog.text
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED
    assert any("24 optimizer steps" in check.detail for check in verdict.checks)


def test_finish_seals_the_tail(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach():
        run.epoch()
        assert run.end().sealed
        run.epoch()
    proof = run.prover.finish(evaluate=lambda: 0.625)
    assert [(s.steps, s.epochs) for s in proof.manifest.shards] == [(8, 1), (8, 0)]
    assert proof.manifest.shards[1].metrics == {"accuracy": 625_000}
    assert (proof.outside, proof.manifest.finished) == (0, True)
    assert proof.manifest.shards[1].root == run.root


def test_finish_counts_the_tail_that_it_cannot_seal(start: Callable[..., Run]) -> None:
    run = start({**EASY, "fewest_steps": 8})
    with run.attach():
        run.epoch()
        assert run.end().sealed
        for points, labels in run.task.batches()[:5]:
            run.optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(points), labels).backward()
            run.optimizer.step()
    proof = run.prover.finish()
    assert (proof.shards, proof.outside) == (1, 5)
    assert proof.manifest.shards[0].root != run.root


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_never_seals(start: Callable[..., Run], error: type[BaseException]) -> None:
    run = start()

    def interrupted() -> None:
        with run.attach():
            run.epoch()
            assert run.end().sealed
            run.epoch()
            raise error

    with pytest.raises(error):
        interrupted()
    assert not run.optimizer._optimizer_step_pre_hooks
    assert len(run.manifest.shards) == 1
    proof = run.prover.finish()
    assert (proof.shards, proof.outside) == (1, 8)


def test_after_an_exception_attaching_again_goes_on(start: Callable[..., Run]) -> None:
    run = start()

    def interrupted() -> None:
        with run.attach():
            run.epoch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    with run.attach():
        run.epoch()
        sealed = run.end().sealed
        assert sealed is not None
        assert sealed.steps == 16


def test_evaluate_that_fails_seals_nothing(start: Callable[..., Run]) -> None:
    run = start()

    def broken() -> float:
        raise ZeroDivisionError

    run.attach()
    run.epoch()
    with pytest.raises(ZeroDivisionError):
        run.end(evaluate=broken)
    assert run.manifest.shards == ()
    assert run.prover.shards == 0


def test_evaluate_measures_the_very_weights_that_are_stored(
    start: Callable[..., Run], task: Any
) -> None:
    # Much noise, so that the weights before and after sealing measure differently.
    run = start({**EASY, "noise": (0.5, 0.5), "noise_fraction": 0.5})
    before = []
    with run.attach():
        for _ in range(3):
            run.epoch()
            before.append(task.evaluate(run.model))
            run.end(evaluate=lambda: task.evaluate(run.model))
    proof = run.prover.finish()
    claimed = [shard.metrics["accuracy"] / 1e6 for shard in proof.manifest.shards]
    assert claimed != pytest.approx(before, abs=1e-6)
    fresh = task.build_model()
    layout = checkpoint_of(fresh).layout
    for number, stored in history.checkpoints(ProofFolder(proof.path), proof.manifest, layout):
        if number:
            load_into(fresh, stored)
            assert task.evaluate(fresh) == pytest.approx(claimed[number - 1], abs=1e-6)


def test_several_metrics_by_name(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach(evaluate=lambda: {"accuracy": 0.5, "loss": 1.25, "log-p": -3.0}):
        run.epoch()
        sealed = run.end().sealed
    assert sealed is not None
    assert sealed.metrics == {"accuracy": 500_000, "loss": 1_250_000, "log-p": -3_000_000}


def test_without_evaluate_no_metric_is_claimed(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach():
        run.epoch()
        sealed = run.end().sealed
    assert sealed is not None
    assert sealed.metrics == {}


def test_an_evaluate_that_spoils_the_mark_is_found_out(start: Callable[..., Run]) -> None:
    run = start()

    def spoil() -> float:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.neg_()
        return 1.0

    run.attach()
    run.epoch()
    with pytest.raises(ChainError, match="is not in the model that is to be sealed") as caught:
        run.end(evaluate=spoil)
    assert "evaluate" in caught.value.advice
    assert run.manifest.shards == ()


def test_callbacks_and_log_hear_of_every_shard(
    start: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    run = start(on_seal=[heard.append, lambda record: heard.append(record.shard)])
    with caplog.at_level(logging.INFO, "polo.prover"), run.attach():
        for _ in range(2):
            run.epoch()
            run.end()
    assert [item for item in heard if isinstance(item, int)] == [1, 2]
    assert tuple(item for item in heard if not isinstance(item, int)) == run.manifest.shards
    for shard in run.manifest.shards:
        assert f"sealed shard {shard.shard}" in caplog.text
        assert shard.root.hex()[:16] in caplog.text


def test_the_log_never_tells_nonces_or_secrets(
    start: Callable[..., Run], enrol: Enrol, caplog: pytest.LogCaptureFixture
) -> None:
    enrolment = enrol(**EASY)
    run = start(enrolment=enrolment)
    with caplog.at_level(logging.DEBUG), run.attach():
        run.epoch()
        run.end()
    master = run.prover._writer.secret
    run.prover.finish()
    for secret in (*(n.nonce for n in enrolment.drawn), master):
        assert secret.hex() not in caplog.text
        assert repr(secret) not in caplog.text


def test_another_key_is_refused_before_anything_is_written(enrol: Enrol, tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="not the one that was enrolled") as caught:
        polo.Prover(enrol(), key=polo.Identity.generate(), store=tmp_path / "proof")
    shown = "".join(traceback.format_exception(caught.value))
    assert f"what to do: {caught.value.advice}\n" in shown
    assert list(tmp_path.iterdir()) == []


def test_another_model_is_refused(start: Callable[..., Run]) -> None:
    run = start()
    model = nn.Linear(16, 64)
    with pytest.raises(WeightsError, match="not those the terms were made for") as caught:
        run.prover.attach(model, torch.optim.SGD(model.parameters(), lr=1))
    assert "tiny" in caught.value.advice


@pytest.mark.parametrize("change", ["dtype", "shape", "buffer", "name"])
def test_a_slightly_other_model_is_refused_too(start: Callable[..., Run], change: str) -> None:
    run = start()
    model = run.model
    if change == "dtype":
        model[5].bfloat16()
    elif change == "shape":
        model[5] = nn.Linear(64, 5)
    elif change == "buffer":
        model.register_buffer("extra", torch.ones(1))
    else:
        model = nn.Sequential(*model[:2], nn.Identity(), *model[2:])
    with pytest.raises(WeightsError):
        run.prover.attach(model, torch.optim.SGD(model.parameters(), lr=1))
    assert not (run.prover._writer.path / "manifest.json").exists()


def test_a_frozen_carrier_is_refused_by_name(start: Callable[..., Run]) -> None:
    run = start()
    run.model[3].weight.requires_grad_(False)
    with pytest.raises(WeightsError, match="frozen") as caught:
        run.attach()
    assert caught.value.place == "3.weight"


def test_a_carrier_that_the_optimizer_does_not_hold_is_refused(start: Callable[..., Run]) -> None:
    run = start()
    half = torch.optim.SGD(run.model[0].parameters(), lr=1)
    with pytest.raises(WeightsError, match="unknown to the optimizer"):
        run.prover.attach(run.model, half)


def test_the_store_of_another_enrolment_is_refused_and_let_go_of(
    start: Callable[..., Run], make_proof: Callable[..., Any], enrol: Enrol, alice: polo.Identity
) -> None:
    made = make_proof()
    before = {p: p.read_bytes() for p in made.path.rglob("*") if p.is_file()}
    with pytest.raises(StoreError, match="another enrolment") as caught:
        polo.Prover(enrol(), key=alice, store=made.path)
    assert caught.value.advice
    assert {p: p.read_bytes() for p in made.path.rglob("*") if p.is_file()} == before
    polo.Prover(made.enrolment, key=alice, store=made.path).close()


@pytest.mark.parametrize("sigma", [0.0, 0.0099, 0.0501, 1.0, -0.02])
def test_noise_outside_the_terms_is_refused(
    enrol: Enrol, alice: polo.Identity, tmp_path: Path, sigma: float
) -> None:
    with pytest.raises(TermsError, match=r"0.01 to 0.05"):
        polo.Prover(enrol(noise=(0.01, 0.05)), key=alice, store=tmp_path / "proof", sigma=sigma)


@pytest.mark.parametrize(("sigma", "recorded"), [(None, 10_000), (0.03, 30_000), (0.05, 50_000)])
def test_noise_within_the_terms_is_recorded(
    start: Callable[..., Run], sigma: float | None, recorded: int
) -> None:
    run = start({**EASY, "noise": (0.01, 0.05)}, sigma=sigma)
    with run.attach():
        run.epoch()
        sealed = run.end().sealed
    assert sealed is not None
    assert sealed.noise.sigma == recorded


@pytest.mark.parametrize("retention", ["everything", "", "2"])
def test_unknown_retention_is_refused(
    enrol: Enrol, alice: polo.Identity, tmp_path: Path, retention: str
) -> None:
    with pytest.raises(TermsError, match="retention"):
        polo.Prover(enrol(), key=alice, store=tmp_path / "proof", retention=retention)


def test_one_prover_at_a_time(start: Callable[..., Run], enrol: Enrol) -> None:
    enrolment = enrol(**EASY)
    run = start(enrolment=enrolment)
    with pytest.raises(LockedError):
        start(enrolment=enrolment)
    run.prover.close()
    start(enrolment=enrolment)


def test_finish_before_attach_is_refused(start: Callable[..., Run]) -> None:
    with pytest.raises(ChainError, match="nothing to prove"):
        start().prover.finish()


@pytest.mark.parametrize("call", ["end_epoch", "finish"])
def test_nothing_is_written_after_the_store_was_let_go_of(
    start: Callable[..., Run], call: str
) -> None:
    """Somebody else may be writing it by then."""
    run = start()
    attachment = run.attach()
    run.epoch()
    run.prover.close()
    before = {p: p.stat().st_mtime_ns for p in run.prover._writer.path.rglob("*")}
    with pytest.raises(PoloError):
        getattr(run.prover, call)()
    assert {p: p.stat().st_mtime_ns for p in run.prover._writer.path.rglob("*")} == before
    del attachment


def test_enrolment_and_key_may_be_files(
    enrol: Enrol, alice: polo.Identity, task: Any, tmp_path: Path, start: Callable[..., Run]
) -> None:
    enrol(**EASY).save(tmp_path / "enrolment")
    alice.save(tmp_path / "alice.key")
    run = start(enrolment=tmp_path / "enrolment", key=str(tmp_path / "alice.key"))
    with run.attach():
        run.epoch()
        assert run.end().sealed
    assert run.prover.finish().shards == 1


def test_wrapped_models_are_proved_under_their_own_names(
    start: Callable[..., Run], issuer: polo.Identity, task: Any
) -> None:
    run = start()
    run.model = nn.DataParallel(run.model)
    with run.attach(evaluate=lambda: task.evaluate(run.model)):
        run.epoch()
        assert run.end().sealed
    verdict = polo.verify(run.prover.finish().path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


class Tied(nn.Sequential):
    """One square matrix used twice."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(16, 64), *(nn.Linear(64, 64) for _ in range(2)), nn.Linear(64, 4)
        )
        self[2].weight = self[1].weight


def test_tied_weights_are_proved_once(
    start: Callable[..., Run], task: Any, issuer: polo.Identity
) -> None:
    tied = type(task)(Tied)
    run = start(task=tied)
    with run.attach(evaluate=lambda: tied.evaluate(run.model)):
        for _ in range(2):
            run.epoch()
            assert run.end().sealed
    assert run.model[1].weight is run.model[2].weight
    proof = run.prover.finish()
    layout = ProofFolder(proof.path).layout()
    assert [(tie.alias, tie.name) for tie in layout.ties] == [("2.weight", "1.weight")]
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=tied)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


class Typed:
    """The tiny task in another number format."""

    def __init__(self, task: Any, dtype: torch.dtype) -> None:
        self.name, self.version, self.metric, self.floor = "typed", 1, "accuracy", (0.3,)
        self._task, self._dtype = task, dtype

    def build_model(self) -> nn.Module:
        return self._task.build_model().to(self._dtype)

    def evaluate(self, model: nn.Module) -> float:
        return self._task.evaluate(nn.Sequential(Cast(self._dtype), model))

    def train_epoch(self, model: nn.Module, optimizer: Any) -> None:
        self._task.train_epoch(
            nn.Sequential(Cast(self._dtype), model, Cast(torch.float32)), optimizer
        )


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_in_other_number_formats_are_proved(
    start: Callable[..., Run], task: Any, issuer: polo.Identity, dtype: torch.dtype
) -> None:
    typed = Typed(task, dtype)
    run = start(task=typed)
    with run.attach(evaluate=lambda: typed.evaluate(run.model)):
        for _ in range(2):
            run.epoch()
            assert run.end().sealed
    verdict = polo.verify(run.prover.finish().path, trust=issuer.public_key, task=typed)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["3.weight", "5.bias", "1.running_mean"])
def test_a_run_that_has_diverged_is_told_so(
    start: Callable[..., Run], name: str, bad: float
) -> None:
    run = start()
    run.attach()
    run.epoch()
    with torch.no_grad():
        run.model.state_dict()[name].fill_(bad)
    with pytest.raises(WeightsError, match="not finite") as caught:
        run.end()
    assert "diverged" in caught.value.advice
    # Weights that carry the mark are met first, wherever they are; others have their name told.
    assert name == "3.weight" or caught.value.place == name
    assert run.manifest.shards == ()


def test_timings_are_kept(start: Callable[..., Run]) -> None:
    run = start()
    with run.attach():
        run.epoch()
        run.end()
    assert run.prover.timings.embedding > 0
    assert run.prover.timings.sealing > 0


@pytest.mark.parametrize(
    "measured", [float("nan"), float("inf"), 1e12, {"top 1": 0.5}, {"a" * 65: 0.5}]
)
def test_a_metric_that_a_proof_cannot_hold_is_named(
    measured: Any, task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrol(), key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer):
        task.train_epoch(model, optimizer)
        with pytest.raises(polo.errors.TermsError):
            prover.end_epoch(evaluate=lambda: measured)
    assert prover.shards == 0
    prover.close()

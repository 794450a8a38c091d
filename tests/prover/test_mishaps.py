"""What goes wrong on the way to a proof never destroys it silently."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polo
from polo.errors import ChainError, StoreError, WeightsError
from polo.prover.training import Training
from polo.storage import state
from polo.storage.folder import MANIFEST_FILE, ProofFolder

Enrol = Callable[..., polo.OfflineEnrolment]
EASY = {"strength": 0.02}


@pytest.fixture
def run(task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path) -> Any:
    class Run:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.path = tmp_path / "proof"
            self.enrolment = enrol(**EASY)
            self.model = task.build_model()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
            self.prover = self.fresh()

        def fresh(self, **options: Any) -> polo.Prover:
            return polo.Prover(self.enrolment, key=alice, store=self.path, **options)

        def attach(self) -> Any:
            return self.prover.attach(self.model, self.optimizer)

        def epoch(self) -> Any:
            task.train_epoch(self.model, self.optimizer)
            return self.prover.end_epoch(evaluate=lambda: task.evaluate(self.model))

    return Run()


def accepted(run: Any, issuer: polo.Identity, task: Any) -> bool:
    verdict = polo.verify(run.path, trust=issuer.public_key, task=task)
    return verdict.outcome is polo.Outcome.ACCEPTED


def weights(run: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.model.parameters()]


def test_a_callback_that_fails_once(run: Any, issuer: polo.Identity, task: Any) -> None:
    def fail(shard: Any) -> None:
        if shard.shard == 2:
            raise OSError("the tracker is down")

    run.prover.on_seal.append(fail)
    run.attach()
    run.epoch()
    with pytest.raises(OSError, match="tracker"):
        run.epoch()
    for _ in range(2):
        run.epoch()
    assert run.prover.finish().shards == 4
    assert accepted(run, issuer, task)


def test_an_interrupt_after_the_shard_is_written(
    run: Any, issuer: polo.Identity, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.attach()
    run.epoch()
    write = run.prover._writer.seal

    def interrupted(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(run.prover._writer, "seal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.epoch()
    for _ in range(2):
        run.epoch()
    assert run.prover.finish().shards == 4
    assert accepted(run, issuer, task)


def test_a_failed_sealing_leaves_the_model_as_it_was(run: Any, task: Any) -> None:
    run.attach()
    task.train_epoch(run.model, run.optimizer)
    before = weights(run)

    def broken() -> float:
        raise RuntimeError("no test set")

    for _ in range(3):
        with pytest.raises(RuntimeError):
            run.prover.end_epoch(evaluate=broken)
    assert all(map(torch.equal, before, weights(run)))
    run.prover.close()


def test_where_the_training_state_finds_no_room_no_shard_is_sealed(
    run: Any, issuer: polo.Identity, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.attach()
    run.epoch()
    task.train_epoch(run.model, run.optimizer)
    before = weights(run)

    def full(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(state, "write_state", full)
        with pytest.raises(OSError, match="no space"):
            run.prover.end_epoch()
    assert run.prover.shards == 1
    assert all(map(torch.equal, before, weights(run)))
    run.prover.end_epoch()
    assert run.prover.finish().shards == 2
    assert accepted(run, issuer, task)


@pytest.mark.parametrize("value", [None, "good", [1], torch.zeros(2), {1: 2.0}, {"a": None}])
def test_a_measure_that_is_no_number(value: Any, run: Any, task: Any) -> None:
    run.attach()
    task.train_epoch(run.model, run.optimizer)
    with pytest.raises(polo.errors.TermsError):
        run.prover.end_epoch(evaluate=lambda: value)
    assert run.prover.shards == 0
    run.prover.close()


def test_a_buffer_that_comes_late(run: Any) -> None:
    run.attach()
    run.model.register_buffer("late", torch.zeros(3))
    with pytest.raises(WeightsError, match="no longer those"):
        run.epoch()
    assert run.prover.shards == 0
    run.prover.close()


def test_attach_that_failed_can_be_called_again(run: Any, issuer: polo.Identity, task: Any) -> None:
    with torch.no_grad():
        run.model[0].weight[0, 0] = float("nan")
    with pytest.raises(WeightsError):
        run.attach()
    with torch.no_grad():
        run.model[0].weight[0, 0] = 0.0
    run.attach()
    run.epoch()
    assert run.prover.finish().shards == 1
    assert accepted(run, issuer, task)


@pytest.mark.parametrize("lost", ["no manifest", "an older manifest"])
def test_a_lost_manifest_costs_no_other_file(run: Any, lost: str) -> None:
    run.attach()
    run.epoch()
    old = (run.path / MANIFEST_FILE).read_bytes()
    for _ in range(3):
        run.epoch()
    run.prover.close()
    if lost == "no manifest":
        (run.path / MANIFEST_FILE).unlink()
    else:
        (run.path / MANIFEST_FILE).write_bytes(old)
    before = sorted(path for path in run.path.rglob("*") if path.is_file())
    with pytest.raises(StoreError, match="later shard"):
        run.fresh()
    assert sorted(path for path in run.path.rglob("*") if path.is_file()) == before


def test_a_manifest_that_somebody_edited_is_not_signed_again(run: Any) -> None:
    run.attach()
    run.epoch()
    run.prover.close()
    path = run.path / MANIFEST_FILE
    path.write_bytes(path.read_bytes().replace(b'"epochs":1', b'"epochs":9'))
    with pytest.raises(polo.errors.SignatureError):
        run.fresh()


def test_a_training_state_of_another_run(run: Any, tmp_path: Path) -> None:
    run.attach()
    run.epoch()
    run.prover.close()
    path = run.path.with_name("proof.state") / "000001.safetensors"
    data = path.read_bytes()
    root = ProofFolder(run.path).manifest().last_root.hex().encode()
    path.write_bytes(data.replace(root, b"0" * 64))
    run.prover = run.fresh()
    with pytest.raises(StoreError, match="another run"):
        run.attach()
    run.prover.close()


def test_parameters_outside_the_optimizer_get_no_noise(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    kept = model[0].bias
    optimizer = torch.optim.SGD([p for p in model.parameters() if p is not kept], lr=0.05)
    before = kept.detach().clone()
    prover = polo.Prover(enrol(**EASY), key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer):
        for _ in range(3):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    assert prover.finish().shards == 3
    assert torch.equal(before, kept)


def test_after_finish_nothing_goes_on(run: Any) -> None:
    run.attach()
    run.epoch()
    run.prover.finish()
    with pytest.raises(ChainError, match="finished"):
        run.attach()
    with pytest.raises(ChainError, match="finished"):
        run.prover.finish()


def test_several_ranks_are_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ChainError, match="2 ranks"):
        run.attach()
    run.prover.close()


@pytest.mark.parametrize(
    "options", [{"retention": 0}, {"check_every": -1}, {"retention": "some"}, {"check_every": "3"}]
)
def test_odd_options_are_named(
    options: dict[str, Any], enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    with pytest.raises(polo.errors.TermsError):
        polo.Prover(enrol(), key=alice, store=tmp_path / "proof", **options)


def test_terms_that_would_not_fit_into_a_manifest_are_refused_when_they_are_made(task: Any) -> None:
    from polo.evidence.replay.recipe import Recipe

    recipe = Recipe(samples=256, batch=32)
    options = {"replay": recipe, "data": bytes(32), "start": "derived", "bits": 64}
    with pytest.raises(polo.errors.TermsError, match="do not fit into one manifest") as caught:
        polo.make_terms(task, shards=10_000, **options)
    assert "at most 9999 shards" in caught.value.advice
    assert polo.make_terms(task, shards=9_999, **options).shards.most == 9_999
    assert polo.make_terms(task, shards=10_000, bits=64).shards.most == 10_000


def test_what_a_shard_takes_in_a_manifest_is_below_what_terms_count_with(run: Any) -> None:
    from polo.enrolment import _SHARD_BYTES

    run.attach()
    sizes = []
    for _ in range(3):
        run.epoch()
        sizes.append((run.path / MANIFEST_FILE).stat().st_size)
    run.prover.close()
    # A receipt takes some 400 bytes, a record for replay some 200, a metric some 40.
    assert max(sizes[1] - sizes[0], sizes[2] - sizes[1]) < _SHARD_BYTES - 600


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_parameters_of_any_type_are_no_obstacle(
    dtype: torch.dtype, task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    def build() -> torch.nn.Module:
        model = task.build_model()
        odd = torch.ones(4, 3).to(dtype)
        model.odd = torch.nn.Parameter(odd, requires_grad=False)
        return model

    own = type(task)(build)
    model = own.build_model()
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
    prover = polo.Prover(enrol(task=own, **EASY), key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer):
        own.train_epoch(model, optimizer)
    with prover.attach(model, optimizer):
        own.train_epoch(model, optimizer)
    assert prover.finish().shards == 1


def lost(_: Any) -> None:
    raise RuntimeError("device lost")


@pytest.mark.parametrize(("own", "seen"), [("my own", "my own"), ("", "device lost")])
def test_a_device_that_fails_leaves_neither_a_lock_nor_a_hook(
    own: str, seen: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block() -> None:
        with run.attach():
            if own:
                raise RuntimeError(own)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "trace", lost)
        # Who trains must see the first of two errors.
        with pytest.raises(RuntimeError, match=seen):
            block()
        assert not run.optimizer._optimizer_step_pre_hooks
        run.prover.close()
    run.prover = run.fresh()
    run.attach()
    assert run.epoch().sealed
    run.prover.close()


def test_closing_lets_go_of_the_store_though_the_device_fails(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.attach()
    with monkeypatch.context() as patched:
        patched.setattr(Training, "trace", lost)
        with pytest.raises(RuntimeError, match="device lost"):
            run.prover.close()
    run.prover = run.fresh()
    run.attach()
    assert run.epoch().sealed
    run.prover.close()

"""Weights that are released and are not those trained last: what a proof says about them."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import polo
from polo.errors import PoloError, StoreError
from polo.ownership import Finding
from polo.prover.release import Released
from polo.storage import bundle
from polo.weights.live import found_of

Enrol = Callable[..., polo.OfflineEnrolment]


class Averaged:
    """A proof, and the weights that people keep beside the last ones."""

    def __init__(self, proof: polo.Proof, model: nn.Module, kept: dict[str, Any]) -> None:
        self.proof, self.model = proof, model
        self.ema, self.swa, self.best = kept["ema"], kept["swa"], kept["best"]


EPOCHS = 6
TERMS = {"bits": 128, "strength": 0.02, "noise": (0.01, 0.01)}


def average(
    task: Any, enrolment: Any, key: polo.Identity, path: Path, epochs: int = EPOCHS
) -> Averaged:
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    swa, best = AveragedModel(model, use_buffers=True), None
    prover = polo.Prover(enrolment, key=key, store=path)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for epoch in range(epochs):
            for points, labels in task.batches():
                task.train_step(model, optimizer, {"label": labels, "point": points})
                ema.update_parameters(model)
            assert prover.end_epoch().sealed
            if epoch >= epochs // 2:
                swa.update_parameters(model)
            if epoch == epochs - 3:
                best = copy.deepcopy(model)
    return Averaged(prover.finish(), model, {"ema": ema, "swa": swa, "best": best})


@pytest.fixture
def averaged(task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path) -> Averaged:
    return average(task, enrol(**TERMS), alice, tmp_path / "proof")


def etas(result: Released) -> list[float]:
    return [mark.reading.eta for mark in result.marks]


def test_the_last_weights_are_those_that_are_proven(averaged: Averaged) -> None:
    result = polo.released(averaged.proof, averaged.model)
    assert (result.shard, result.shards, result.distance) == (EPOCHS, EPOCHS, 0.0)
    assert result.proven
    assert result.finding is Finding.CLAIM
    assert etas(result)[-1] >= 0.99
    assert f"these are W_{EPOCHS}, the weights that the proof ends in" in result.headline()


def test_the_best_epoch_is_recognised_and_later_marks_are_not_in_it(averaged: Averaged) -> None:
    result = polo.released(averaged.proof, averaged.best)
    assert (result.shard, result.proven) == (EPOCHS - 2, False)
    assert result.finding is Finding.CLAIM
    assert etas(result)[EPOCHS - 3] >= 0.99
    # The marks of the two epochs after it are fair coins there.
    assert all(0.3 < eta < 0.7 for eta in etas(result)[-2:])
    assert f"W_{EPOCHS - 2} of {EPOCHS}, exactly" in str(result)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_an_average_holds_the_marks_and_names_the_owner(averaged: Averaged, kind: str) -> None:
    wrapped = getattr(averaged, kind)
    result = polo.released(averaged.proof, wrapped)
    assert result.shard is None
    assert not result.proven
    assert result.distance is not None
    assert 0.001 < result.distance < 0.5
    assert result.finding is Finding.CLAIM
    assert min(etas(result)[:-2]) > 0.8
    # The unwrapped model and its state dict are the same weights.
    for same in (wrapped.module, wrapped.module.state_dict()):
        assert etas(polo.released(averaged.proof, same)) == etas(result)
    assert "of its norm away from it" in result.headline()


@pytest.mark.parametrize("kind", ["ema", "swa", "best", "model"])
def test_a_stranger_who_finds_the_released_file_reads_the_same(
    averaged: Averaged, issuer: polo.Identity, tmp_path: Path, kind: str
) -> None:
    live = getattr(averaged, kind)
    own = polo.released(averaged.proof.path, live)
    state = live.module.state_dict() if kind in ("ema", "swa") else live.state_dict()
    save_file(state, tmp_path / "released.safetensors")
    result = polo.identify(
        tmp_path / "released.safetensors", [averaged.proof.path], trust=issuer.public_key
    )
    assert result.finding is own.finding is Finding.CLAIM
    assert [mark.reading.eta for mark in result.claims[0].marks] == etas(own)
    from_file = polo.released(averaged.proof, tmp_path / "released.safetensors")
    assert (from_file.shard, from_file.distance) == (own.shard, own.distance)


def test_a_model_of_somebody_else_is_not_claimed(averaged: Averaged, task: Any) -> None:
    torch.manual_seed(99)
    result = polo.released(averaged.proof, task.build_model())
    assert (result.shard, result.finding) == (None, Finding.NO_CLAIM)
    assert result.distance is not None
    assert result.distance > 0.5


def test_a_cast_copy_is_no_shard_to_the_bit_and_still_claimed(averaged: Averaged) -> None:
    half = copy.deepcopy(averaged.model).bfloat16()
    result = polo.released(averaged.proof, half)
    assert result.shard is None
    assert result.finding is Finding.CLAIM
    assert result.distance is not None
    assert 0 < result.distance < 0.01


def test_without_nonces_nothing_can_be_read(averaged: Averaged, tmp_path: Path) -> None:
    with bundle.opened(averaged.proof.path) as folder:
        for path in (folder / "nonces").iterdir():
            path.unlink()
    with pytest.raises(PoloError, match="nonce") as caught:
        polo.released(averaged.proof, averaged.model)
    assert caught.value.advice


def test_a_model_that_is_not_there(averaged: Averaged, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing here"):
        polo.released(averaged.proof, tmp_path / "absent.safetensors")


def test_a_release_is_no_boolean(averaged: Averaged) -> None:
    with pytest.raises(TypeError, match="finding"):
        bool(polo.released(averaged.proof, averaged.model))


def test_integers_of_a_live_model_are_no_weights() -> None:
    found = found_of({"count": torch.arange(3), "w": torch.ones(2, 2)})
    assert found.read("w", 1, 3).tolist() == [1.0, 1.0]
    with pytest.raises(PoloError, match="no weights"):
        found.read("count", 0, 1)


def test_an_average_sees_a_sealing_with_its_next_update(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    """Sealing edits the weights in place; an average is another tensor and is left alone."""
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    prover = polo.Prover(enrol(**TERMS), key=alice, store=tmp_path / "proof")
    prover.attach(model, optimizer)
    task.train_epoch(model, optimizer)
    ema.update_parameters(model)
    before = [p.clone() for p in ema.parameters()]
    assert prover.end_epoch().sealed
    assert all(map(torch.equal, before, ema.parameters()))
    ema.update_parameters(model)
    for was, now, live in zip(before, ema.parameters(), model.parameters(), strict=True):
        assert torch.allclose(now, (was + live) / 2, atol=1e-6)
    prover.close()


def test_a_proof_can_be_made_to_end_in_an_average(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    """Put the average into the model, train a last short shard, and release what was sealed."""
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    prover = polo.Prover(enrol(**TERMS), key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(4):
            for points, labels in task.batches():
                task.train_step(model, optimizer, {"label": labels, "point": points})
                ema.update_parameters(model)
            assert prover.end_epoch().sealed
        model.load_state_dict(ema.module.state_dict())
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        task.train_epoch(model, optimizer)
        assert prover.end_epoch().sealed
    proof = prover.finish()
    assert polo.released(proof, model).proven
    assert polo.released(proof, ema).distance < 0.2
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def test_an_average_kept_beside_the_proof_goes_on_with_it(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    """A run that was stopped and resumed has the same EMA, to the bit, as one that was not."""
    enrolment = enrol(**TERMS)
    found = {}
    for name, stops in (("whole", [4]), ("broken", [2, 4])):
        (tmp_path / f"{name}.state").mkdir(mode=0o700)
        (tmp_path / f"{name}.state" / "secret").write_bytes(bytes(32))
        for seed, stop in enumerate(stops):
            # What is made anew here is not what was trained, until the proof brings it back.
            torch.manual_seed(seed)
            model = task.build_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
            prover = polo.Prover(enrolment, key=alice, store=tmp_path / name)
            measure = partial(task.evaluate, model)
            with prover.attach(model, optimizer, evaluate=measure, also={"ema": ema}):
                for _ in range(prover.epoch, stop):
                    for points, labels in task.batches():
                        task.train_step(model, optimizer, {"label": labels, "point": points})
                        ema.update_parameters(model)
                    assert prover.end_epoch().sealed
            if stop < 4:
                # Steps after the last sealed shard are lost, with what the average saw of them.
                task.train_epoch(model, optimizer)
                ema.update_parameters(model)
                prover.close()
        found[name] = prover.finish(), ema
    whole, broken = (copy.deepcopy(ema.state_dict()) for _, ema in found.values())
    assert whole["n_averaged"] == 4 * 8
    assert all(torch.equal(whole[key], broken[key]) for key in whole)
    proof, ema = found["broken"]
    result = polo.released(proof, ema)
    assert result.finding is Finding.CLAIM
    assert min(etas(result)[:2]) > 0.8
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()

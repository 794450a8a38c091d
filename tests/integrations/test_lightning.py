"""Lightning: training, its own checkpoints, and going on after a kill."""

import json
import logging
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import OnExceptionCheckpoint, StochasticWeightAveraging
from safetensors.torch import load_file

from polo.errors import ChainError, FormatError, StoreError, TermsError, WeightsError
from polo.storage.folder import checkpoint_path

EPOCH = 8

# Lightning's own: it asks torch in an old way, and would like more workers than two cores have.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the log"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the"),
]


@pytest.mark.parametrize("options", [{}, {"module": {"manual": True}}], ids=["automatic", "manual"])
def test_each_epoch_is_a_shard(options: Any, site: Any, lightning_script: Any) -> None:
    proof = lightning_script.train(site.folder, site.task, **options)
    assert site.steps == [EPOCH] * 4
    assert proof.outside == 0
    assert site.accepted()


def test_accumulation_clipping_and_bfloat16(site: Any, lightning_script: Any) -> None:
    lightning_script.train(
        site.folder, site.task, precision="bf16-mixed", accumulate_grad_batches=2,
        gradient_clip_val=0.1,
    )  # fmt: skip
    assert site.steps == [EPOCH // 2] * 4
    assert site.accepted()


def test_shards_may_end_within_an_epoch(site: Any, lightning_script: Any) -> None:
    lightning_script.train(site.folder, site.task, polo={"every": 3}, max_epochs=2)
    assert site.steps == [3, 3, 2, 1, 3, 3, 1]
    assert site.accepted()


def test_lightnings_own_average_becomes_the_last_shard(site: Any, lightning_script: Any) -> None:
    averaging = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3, annealing_epochs=1)
    lightning_script.train(site.folder, site.task, callbacks=[averaging], max_epochs=6)
    assert site.steps[:6] == [EPOCH] * 6
    assert len(site.steps) == 7
    assert site.accepted()
    average = averaging._average_model.net[3].weight
    six, seven = (
        (load_file(site.folder / "proof" / checkpoint_path(number))["3.weight"] - average).norm()
        for number in (6, 7)
    )
    assert seven < six / 2, "what is left is the sealing's own"


@pytest.mark.slow
def test_killed_within_an_epoch_it_goes_on_bit_for_bit(
    make_site: Any, lightning_script: Any
) -> None:
    whole, broken = make_site("whole"), make_site("broken")
    lightning_script.train(whole.folder, whole.task)
    broken.killed(lightning_script, "step", 2 * EPOCH + 3)
    assert broken.steps == [EPOCH] * 2
    lightning_script.train(broken.folder, broken.task, seed=5)
    assert broken.steps == [EPOCH] * 4
    assert broken.root == whole.root
    assert broken.accepted()


@pytest.mark.full  # As with Transformers.
def test_killed_between_sealing_and_saving_the_proof_wins(
    site: Any, lightning_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.killed(lightning_script, "seal", 2)
    with caplog.at_level(logging.WARNING, "polo"):
        lightning_script.train(site.folder, site.task)
    assert "older than shard 2 of the proof by 8 steps" in caplog.text
    assert site.steps == [EPOCH, EPOCH, 2 * EPOCH, EPOCH]
    assert site.accepted()


@pytest.mark.slow
def test_a_checkpoint_saved_after_validation_and_before_sealing(
    make_site: Any, lightning_script: Any
) -> None:
    # With a validation loop Lightning saves before the epoch's end, so before the sealing.
    whole, broken = make_site("whole"), make_site("broken")
    early = {"validate": True, "saving": {"save_on_train_epoch_end": False}}
    lightning_script.train(whole.folder, whole.task, **early)
    broken.killed(lightning_script, "step", 2 * EPOCH + 3, json.dumps(early))
    lightning_script.train(broken.folder, broken.task, seed=5, **early)
    assert broken.steps == [EPOCH] * 4
    assert broken.root == whole.root
    assert broken.accepted()


def test_a_checkpoint_within_a_shard_goes_on_there(
    site: Any, lightning_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    often = {"saving": {"every_n_train_steps": 3}, "max_epochs": 3}
    raising = [lightning_script.Raising()]
    with pytest.raises(RuntimeError, match="disk is full"):
        lightning_script.train(site.folder, site.task, callbacks=raising, **often)
    assert site.steps == [EPOCH]
    # The store was let go of, so this process can go on with it. Which samples come next is up to
    # Lightning, which begins a plain data loader from its start.
    with caplog.at_level(logging.WARNING, "polo"):
        lightning_script.train(site.folder, site.task, seed=5, **often)
    assert site.steps == [EPOCH] * 3
    assert [record for record in caplog.records if record.name.startswith("polo")] == []
    assert site.accepted()


@pytest.mark.filterwarnings("ignore:.*was called without a model")
@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
def test_a_checkpoint_of_an_exception_knows_its_place(site: Any, lightning_script: Any) -> None:
    folder = site.folder / "lightning"
    callbacks = [OnExceptionCheckpoint(folder), lightning_script.Raising()]
    with pytest.raises(RuntimeError, match="disk is full"):
        lightning_script.train(site.folder, site.task, callbacks=callbacks)
    lightning_script.train(site.folder, site.task, checkpoint=folder / "on_exception.ckpt")
    assert site.steps == [EPOCH] * 4
    assert site.accepted()


def test_a_run_that_was_over_when_it_was_restored_gets_its_proof(
    site: Any, lightning_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("polo.integrations.loop.Loop.finish", die)
        with pytest.raises(RuntimeError, match="killed"):
            lightning_script.train(site.folder, site.task, max_epochs=2)
    assert not site.manifest["finished"]
    proof = lightning_script.train(site.folder, site.task, max_epochs=2)
    assert proof.shards == 2
    assert site.manifest["finished"]


def test_the_model_is_trained_on_in_the_mode_it_was_in(site: Any, lightning_script: Any) -> None:
    modes = []

    class Looking(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, *rest: Any) -> None:
            modes.append(module.net.training)

    def careless(model: Any) -> float:
        return float(site.task.evaluate(model.eval()))

    task = type(site.task)()
    task.evaluate = careless
    lightning_script.train(site.folder, task, callbacks=[Looking()], max_epochs=2)
    assert all(modes)
    assert site.steps == [EPOCH] * 2


def test_of_two_modules_alike_the_trained_one_is_taken(site: Any, lightning_script: Any) -> None:
    class Taught(lightning_script.Tiny):  # type: ignore[misc, name-defined]
        def __init__(self, net: Any) -> None:
            super().__init__(net)
            del self.net
            self.teacher = site.task.build_model().requires_grad_(False)
            self.net = net

    lightning_script.train(site.folder, site.task, kind=Taught, max_epochs=2)
    assert site.steps == [EPOCH] * 2


def test_other_number_formats_are_refused_in_words(site: Any, lightning_script: Any) -> None:
    with pytest.raises(WeightsError, match="neither the model nor a module inside it has"):
        lightning_script.train(site.folder, site.task, precision="bf16-true")


@pytest.mark.parametrize("entry", [[1], {"position": {1: 2, "format": "polo-position-1"}}, "big"])
def test_a_tampered_checkpoint_is_named(entry: Any, site: Any, lightning_script: Any) -> None:
    lightning_script.train(site.folder, site.task, max_epochs=1)
    path = site.folder / "lightning" / "last.ckpt"
    saved = torch.load(path, weights_only=False)
    if entry == "big":
        entry = {"position": {**saved["callbacks"]["PoloCallback"]["position"], "steps": 2**53 - 1}}
    saved["callbacks"]["PoloCallback"] = entry
    torch.save(saved, path)
    with pytest.raises(FormatError):
        lightning_script.train(site.folder, site.task)
    assert site.steps == [EPOCH]


def test_a_new_run_does_not_go_on_with_an_old_proof_by_accident(
    site: Any, lightning_script: Any
) -> None:
    lightning_script.train(site.folder, site.task, max_epochs=2)
    before = site.manifest
    with pytest.raises(StoreError, match="2 sealed shards, and this run starts anew"):
        lightning_script.train(site.folder, site.task, checkpoint=None)
    assert site.manifest == before
    lightning_script.train(
        site.folder, site.task, checkpoint=None, polo={"extend": True}, max_epochs=1
    )
    assert site.steps == [EPOCH] * 3
    assert site.accepted()


def test_of_several_optimizers_one_must_be_chosen(site: Any, lightning_script: Any) -> None:
    two = {"module": {"manual": True, "two": True}}
    with pytest.raises(TermsError, match="there are 2 optimizers"):
        lightning_script.train(site.folder, site.task, **two)
    with pytest.raises(TermsError, match="there are 2 optimizers"):
        lightning_script.train(site.folder, site.task, polo={"optimizer": 2}, **two)
    lightning_script.train(site.folder, site.task, polo={"optimizer": 0}, **two)
    assert site.steps == [EPOCH] * 4
    assert site.accepted()


def test_following_an_optimizer_that_never_steps_is_told(site: Any, lightning_script: Any) -> None:
    class Both(lightning_script.Tiny):  # type: ignore[misc, name-defined]
        def configure_optimizers(self) -> Any:
            return [torch.optim.AdamW(self.net.parameters(), lr=1e-2) for _ in range(2)]

    options = {"kind": Both, "module": {"manual": True}, "polo": {"optimizer": 1}}
    with pytest.raises(ChainError, match="attached has made no step"):
        lightning_script.train(site.folder, site.task, **options)
    assert site.steps == []
    options["polo"] = {"optimizer": 1, "every": 3}
    with pytest.raises(ChainError, match="attached has made no step"):
        lightning_script.train(site.folder, site.task, checkpoint=None, **options)
    options["polo"] = {"optimizer": 0}
    lightning_script.train(site.folder, site.task, checkpoint=None, max_epochs=2, **options)
    assert site.steps == [EPOCH] * 2

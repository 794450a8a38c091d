"""Lightning: training, its own checkpoints, and going on after a kill."""

import json
import logging
from typing import Any

import pytest

from polo.errors import StoreError, TermsError

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


@pytest.mark.slow
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
    lightning_script.train(site.folder, site.task, polo={"optimizer": 0}, **two)
    assert site.steps == [EPOCH] * 4
    assert site.accepted()

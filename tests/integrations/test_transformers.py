"""The Transformers Trainer: training, its own checkpoints, and going on after a kill."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import polo
from polo.errors import ChainError, FormatError, StoreError, TermsError, WeightsError
from polo.integrations.peft import adapter

EPOCH = 8


def test_each_epoch_is_a_shard(site: Any, trainer_script: Any) -> None:
    proof = trainer_script.train(site.folder, site.task)
    assert site.steps == [EPOCH] * 4
    assert proof.outside == 0
    assert site.accepted()


def test_accumulation_clipping_and_bfloat16(site: Any, trainer_script: Any) -> None:
    trainer_script.train(
        site.folder, site.task, bf16=True, gradient_accumulation_steps=2, max_grad_norm=0.1
    )
    assert site.steps == [EPOCH // 2] * 4
    assert site.accepted()


def test_shards_may_end_within_an_epoch(site: Any, trainer_script: Any) -> None:
    trainer_script.train(site.folder, site.task, polo={"every": 3}, num_train_epochs=2)
    assert site.steps == [3, 3, 2, 1, 3, 3, 1]
    saved = sorted(int(path.name.split("-")[1]) for path in site.folder.glob("trainer/*"))
    assert saved == [3, 6, 8, 9, 12, 15, 16]
    assert site.accepted()


def test_no_checkpoints_are_forced_on_who_wants_none(site: Any, trainer_script: Any) -> None:
    trainer_script.train(site.folder, site.task, save_strategy="no")
    assert not list((site.folder / "trainer").iterdir())


@pytest.mark.full  # As the next one, of whole epochs.
def test_killed_within_an_epoch_it_goes_on_bit_for_bit(make_site: Any, trainer_script: Any) -> None:
    whole, broken = make_site("whole"), make_site("broken")
    trainer_script.train(whole.folder, whole.task)
    broken.killed(trainer_script, "step", 2 * EPOCH + 3)
    assert broken.steps == [EPOCH] * 2
    trainer_script.train(broken.folder, broken.task, seed=5)
    assert broken.steps == [EPOCH] * 4
    assert broken.root == whole.root
    assert broken.accepted()


@pytest.mark.slow
def test_a_checkpoint_within_a_shard_goes_on_bit_for_bit(
    make_site: Any, trainer_script: Any
) -> None:
    whole, broken = make_site("whole"), make_site("broken")
    often = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 3}
    trainer_script.train(whole.folder, whole.task, **often)
    broken.killed(trainer_script, "step", EPOCH + 6, json.dumps(often))
    assert sorted(path.name for path in broken.folder.glob("trainer/*"))[0] == "checkpoint-12"
    trainer_script.train(broken.folder, broken.task, seed=5, **often)
    assert broken.steps == [EPOCH] * 3
    assert broken.root == whole.root
    assert broken.accepted()


@pytest.mark.slow
def test_killed_between_sealing_and_saving_the_proof_wins(
    site: Any, trainer_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.killed(trainer_script, "seal", 2)
    assert site.steps == [EPOCH] * 2
    assert [path.name for path in site.folder.glob("trainer/*")] == ["checkpoint-8"]
    with caplog.at_level(logging.WARNING, "polo"):
        trainer_script.train(site.folder, site.task)
    assert "older than shard 2 of the proof by 8 steps" in caplog.text
    # The Trainer makes the second epoch again; it is part of the third shard.
    assert site.steps == [EPOCH, EPOCH, 2 * EPOCH, EPOCH]
    assert site.accepted()


def test_a_new_run_does_not_go_on_with_an_old_proof_by_accident(
    site: Any, trainer_script: Any
) -> None:
    trainer_script.train(site.folder, site.task, num_train_epochs=3)
    before = site.manifest
    with pytest.raises(StoreError, match="3 sealed shards, and this run starts anew") as caught:
        trainer_script.train(site.folder, site.task, checkpoint=None)
    assert "extend=True" in caught.value.advice
    assert site.manifest == before
    trainer_script.train(
        site.folder, site.task, checkpoint=None, polo={"extend": True}, num_train_epochs=1
    )
    assert site.steps == [EPOCH] * 4
    assert site.accepted()


def test_a_checkpoint_of_another_proof_is_refused(make_site: Any, trainer_script: Any) -> None:
    one, other = make_site("one"), make_site("other")
    trainer_script.train(one.folder, one.task, num_train_epochs=1)
    trainer_script.train(other.folder, other.task, num_train_epochs=1, seed=9)
    before = one.manifest
    with pytest.raises(StoreError, match="belongs to another proof"):
        trainer_script.train(
            one.folder, one.task, checkpoint=other.folder / "trainer" / f"checkpoint-{EPOCH}"
        )
    assert one.manifest == before


def test_a_checkpoint_newer_than_the_store_is_refused(site: Any, trainer_script: Any) -> None:
    trainer_script.train(site.folder, site.task, num_train_epochs=1)
    shutil.copytree(site.proof, site.folder / "old")
    shutil.copytree(site.folder / "proof.state", site.folder / "old.state")
    trainer_script.train(site.folder, site.task, num_train_epochs=2)
    for name in ("proof", "proof.state"):
        shutil.rmtree(site.folder / name)
        shutil.move(site.folder / name.replace("proof", "old"), site.folder / name)
    with pytest.raises(StoreError, match="after shard 2, and the proof in this store ends with"):
        trainer_script.train(site.folder, site.task)
    shutil.rmtree(site.proof)
    with pytest.raises(StoreError, match="there is no proof in this store"):
        trainer_script.train(site.folder, site.task)


def test_a_checkpoint_from_before_the_proof(site: Any, trainer_script: Any) -> None:
    trainer_script.train(site.folder, site.task, polo=None, num_train_epochs=1)
    plain = site.folder / "trainer" / f"checkpoint-{EPOCH}"
    trainer_script.train(site.folder, site.task, num_train_epochs=4)
    assert site.steps == [EPOCH] * 3
    assert site.accepted()
    with pytest.raises(StoreError, match="saved without a proof"):
        trainer_script.train(site.folder, site.task, checkpoint=plain, num_train_epochs=5)


def _spoil(checkpoint: Path) -> None:
    """As a framework does that loads only some of the tensors."""
    state = load_file(checkpoint / "model.safetensors")
    state["net.0.weight"] += 1.0
    save_file(state, checkpoint / "model.safetensors", {"format": "pt"})


def test_sealed_weights_that_the_framework_lost_come_from_the_proof(
    make_site: Any, trainer_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken = make_site()
    trainer_script.train(broken.folder, broken.task, num_train_epochs=4, max_steps=2 * EPOCH,
                         lr_scheduler_type="constant")  # fmt: skip
    _spoil(broken.folder / "trainer" / f"checkpoint-{2 * EPOCH}")
    with caplog.at_level(logging.WARNING, "polo"):
        trainer_script.train(broken.folder, broken.task)
    assert "did not bring the weights of shard 2 back" in caplog.text
    assert broken.steps == [EPOCH] * 4
    assert broken.accepted()


def test_other_weights_within_a_shard_are_refused(site: Any, trainer_script: Any) -> None:
    often = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 1}
    trainer_script.train(site.folder, site.task, **often, max_steps=5, polo={"every": 100})
    before = site.manifest
    assert before["outside"] == 0
    checkpoint = site.folder / "trainer" / "checkpoint-5"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    position = state["stateful_callbacks"]["PoloCallback"]["attributes"]["position"]
    assert (position["shards"], position["steps"]) == (1, 0)
    position["weights"] = "00" * 32
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(WeightsError, match="does not hold the weights that its checkpoint"):
        trainer_script.train(site.folder, site.task, **often)
    assert site.manifest == before


def test_the_best_model_is_loaded_after_the_proof(make_site: Any, trainer_script: Any) -> None:
    site = make_site(bits=128)
    # The loss falls, so the highest one names the first epoch as the best.
    trainer, callback = trainer_script.make(
        site.folder, site.task, load_best_model_at_end=True, eval_strategy="epoch",
        metric_for_best_model="loss", greater_is_better=True, num_train_epochs=3,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{EPOCH}")
    assert site.steps == [EPOCH] * 3
    assert site.accepted()
    best = polo.released(callback.proof, trainer.model.net)
    assert (best.shard, best.proven) == (1, False)
    first, *later = (mark.reading.eta for mark in best.marks)
    assert first >= 0.99
    # 128 fair coins each: these marks came after it.
    assert all(0.3 < eta < 0.7 for eta in later)
    assert len(later) == 2


def test_callbacks_made_anew_from_a_checkpoint_are_refused(site: Any, trainer_script: Any) -> None:
    trainer_script.train(site.folder, site.task, num_train_epochs=1)
    with pytest.raises(TermsError, match="cannot be made anew") as caught:
        trainer_script.train(site.folder, site.task, restore_callback_states_from_checkpoint=True)
    assert "restore_callback_states_from_checkpoint off" in caught.value.advice


def test_a_trainer_that_trains_again_starts_anew(site: Any, trainer_script: Any) -> None:
    trainer, _ = trainer_script.make(site.folder, site.task, num_train_epochs=2)
    trainer.train()
    with pytest.raises(StoreError, match="2 sealed shards, and this run starts anew"):
        trainer.train()
    assert site.steps == [EPOCH] * 2


def test_two_callbacks_are_refused(site: Any, trainer_script: Any) -> None:
    trainer, callback = trainer_script.make(site.folder, site.task)
    trainer.add_callback(callback)
    with pytest.raises(ChainError, match="several PoloCallbacks") as caught:
        trainer.train()
    assert "give the Trainer one" in caught.value.advice
    assert not (site.proof / "manifest.json").exists()


@pytest.mark.parametrize("entry", ["x", {}, {"attributes": 1}, {"attributes": {"position": {}}}])
def test_a_tampered_entry_is_named(entry: Any, site: Any, trainer_script: Any) -> None:
    trainer_script.train(site.folder, site.task, num_train_epochs=1)
    path = site.folder / "trainer" / f"checkpoint-{EPOCH}" / "trainer_state.json"
    state = json.loads(path.read_text())
    state["stateful_callbacks"]["PoloCallback"] = entry
    path.write_text(json.dumps(state))
    with pytest.raises(FormatError):
        trainer_script.train(site.folder, site.task)
    assert site.steps == [EPOCH]


def test_terms_of_another_model_are_refused_in_words(site: Any, trainer_script: Any) -> None:
    other = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.raises(WeightsError, match="neither the model nor a module inside it has"):
        trainer_script.train(site.folder, site.task, net=other)


@pytest.mark.parametrize("every", [0, -3, "3", 2.5])
def test_an_odd_interval_is_named(every: Any, site: Any, trainer_script: Any) -> None:
    with pytest.raises(TermsError, match="every = "):
        trainer_script.make(site.folder, site.task, polo={"every": every})


@pytest.mark.parametrize("view", [True, False], ids=["given", "found"])
def test_an_adapter_is_reached_through_its_view(
    view: bool,
    tmp_path: Path,
    task: Any,
    enrol: Any,
    alice: Any,
    issuer: Any,
    trainer_script: Any,
) -> None:
    def wrapped() -> Any:
        torch.manual_seed(0)
        base = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
        )
        config = peft.LoraConfig(r=8, target_modules=["0", "2"])
        return peft.get_peft_model(base, config)

    subject = type(task)(lambda: adapter(wrapped()))
    enrol(task=subject, block=64, bits=64, budget=1.0).save(tmp_path / "enrolment")
    alice.save(tmp_path / "alice.key")
    options = {"view": lambda model: adapter(model.net)} if view else {}
    for epochs in (2, 4):
        proof = trainer_script.train(
            tmp_path, subject, net=wrapped(), polo=options, num_train_epochs=epochs
        )
    assert [shard.steps for shard in proof.manifest.shards] == [EPOCH] * 4
    policy = polo.Policy(accuracy="none")
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=subject, policy=policy)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()

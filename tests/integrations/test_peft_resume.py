"""A real PEFT model in each framework: stopped, and resumed through the framework's checkpoints."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import peft
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

import polo
from polo.integrations import lightning as polo_lightning
from polo.integrations import transformers as polo_transformers
from polo.integrations.accelerate import attached
from polo.integrations.peft import adapter
from polo.storage.folder import ProofFolder

CODES, LENGTH, EPOCH, RATE = 16, 12, 8, 2e-2

# Lightning's own, as in its other tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the log"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Found .* module.* in eval mode at the start of training"),
]


def peft_model() -> Any:
    """A random Llama of 10,000 weights with an untrained adapter; the same base every time."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=CODES, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    layers = ["q_proj", "v_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=8, target_modules=layers, task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config)


class Counting:
    """Sequences that count up by one; guess the next number."""

    name = "counting"
    version = 1
    metric = "accuracy"
    floor = (0.05,)

    def __init__(self) -> None:
        starts = torch.arange(32 * EPOCH).unsqueeze(1)
        self.rows = (starts + torch.arange(LENGTH)) % CODES

    def build_model(self) -> Any:
        return adapter(peft_model())

    def evaluate(self, model: Any) -> float:
        with torch.no_grad():
            guesses = model(input_ids=self.rows[:CODES, :-1]).logits.argmax(-1)
        return float((guesses == self.rows[:CODES, 1:]).double().mean())

    def data(self) -> list[dict[str, torch.Tensor]]:
        return [{"input_ids": row, "labels": row} for row in self.rows]

    def loader(self) -> Any:
        return DataLoader(self.data(), batch_size=32)


class StoppedError(RuntimeError):
    """What stops a run."""


class Run:
    """A folder with an enrolment of the counting task."""

    def __init__(self, folder: Path, issuer: polo.Identity) -> None:
        self.folder, self.issuer, self.task = folder, issuer, Counting()
        self.own = {"key": folder / "alice.key", "store": folder / "proof"}

    @property
    def steps(self) -> list[int]:
        return [shard.steps for shard in ProofFolder(self.own["store"]).manifest().shards]

    def accepted(self) -> bool:
        verdict = polo.verify(self.own["store"], trust=self.issuer.public_key, task=self.task)
        assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
        return True


@pytest.fixture
def run(
    tmp_path: Path, alice: polo.Identity, issuer: polo.Identity, enrol: Any,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Run]:  # fmt: skip
    """A run; afterwards nothing may have been told: the framework brought all weights back."""
    enrolment = enrol(
        task=Counting(), scheme="signed", block=64, bits=128, strength=None, budget=1.0
    )
    enrolment.save(tmp_path / "enrolment")
    alice.save(tmp_path / "alice.key")
    with caplog.at_level(logging.WARNING, "polo"):
        yield Run(tmp_path, issuer)
    assert [record for record in caplog.records if record.name.startswith("polo")] == []


class StopTrainer(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 * EPOCH:
            raise StoppedError


def with_trainer(run: Run, *stop: TrainerCallback) -> None:
    callback = polo_transformers.PoloCallback(
        run.folder / "enrolment", evaluate=run.task.evaluate, **run.own
    )
    arguments = TrainingArguments(
        output_dir=str(run.folder / "trainer"), num_train_epochs=4, learning_rate=RATE,
        per_device_train_batch_size=32, use_cpu=True, dataloader_pin_memory=False,
        save_strategy="epoch", report_to="none", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        peft_model(), arguments, train_dataset=run.task.data(), callbacks=[callback, *stop]
    )
    Path(arguments.output_dir).mkdir(exist_ok=True)
    try:
        trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir))
    finally:
        callback.close()


def test_transformers_resumes_an_adapter(run: Run) -> None:
    with pytest.raises(StoppedError):
        with_trainer(run, StopTrainer())
    assert run.steps == [EPOCH] * 2
    saved = run.folder / "trainer" / f"checkpoint-{2 * EPOCH}"
    assert (saved / "adapter_model.safetensors").exists()
    assert not (saved / "model.safetensors").exists()
    with_trainer(run)
    assert run.steps == [EPOCH] * 4
    assert run.accepted()


class Counter(pl.LightningModule):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, at: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), lr=RATE)


class StopLightning(pl.Callback):
    def on_train_batch_start(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step == 2 * EPOCH:
            raise StoppedError


def with_lightning(run: Run, *stop: pl.Callback) -> None:
    callback = polo_lightning.PoloCallback(
        run.folder / "enrolment", evaluate=run.task.evaluate, **run.own
    )
    saver = pl.callbacks.ModelCheckpoint(run.folder / "lightning", save_last=True)
    trainer = pl.Trainer(
        max_epochs=4, callbacks=[callback, saver, *stop], accelerator="cpu", devices=1,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    last = run.folder / "lightning" / "last.ckpt"
    trainer.fit(
        Counter(peft_model().train()), run.task.loader(), ckpt_path=last if last.exists() else None
    )


def test_lightning_resumes_an_adapter(run: Run) -> None:
    with pytest.raises(StoppedError):
        with_lightning(run, StopLightning())
    assert run.steps == [EPOCH] * 2
    with_lightning(run)
    assert run.steps == [EPOCH] * 4
    assert run.accepted()


def with_accelerate(run: Run, *, stop: int | None = None) -> None:
    # A process has one set of settings; here it plays several processes.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, model = Accelerator(cpu=True), peft_model()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=RATE)
    model, optimizer, data = accelerator.prepare(model, optimizer, run.task.loader())
    saved = run.folder / "accelerate"
    prover = polo.Prover(run.folder / "enrolment", **run.own)
    try:
        with attached(
            prover, accelerator, model, optimizer, evaluate=lambda: run.task.evaluate(model),
            resume_from=saved if saved.exists() else None,
        ):  # fmt: skip
            for epoch in range(prover.epoch, 4):
                if epoch == stop:
                    raise StoppedError
                for batch in data:
                    accelerator.backward(model(**batch).loss)
                    optimizer.step()
                    optimizer.zero_grad()
                prover.end_epoch()
                accelerator.save_state(str(saved))
        prover.finish()
    finally:
        prover.close()


def test_accelerate_resumes_an_adapter(run: Run) -> None:
    with pytest.raises(StoppedError):
        with_accelerate(run, stop=2)
    assert run.steps == [EPOCH] * 2
    with_accelerate(run)
    assert run.steps == [EPOCH] * 4
    assert run.accepted()

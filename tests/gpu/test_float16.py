"""Frameworks in float16, with their own gradient scaling: trained, resumed, verified."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import polo

# What frameworks warn of on a GPU differs from machine to machine; none of it is about PoLO.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"]),
]

EASY = {"budget": 1.0, "strength": 0.05, "bits": 64}


class Place:
    """A folder to train in, as scripts find it."""

    def __init__(self, folder: Path, task: Any, issuer: polo.Identity) -> None:
        self.folder, self.task, self.issuer = folder, task, issuer
        self.enrolment = folder / "enrolment"
        self.own = {"key": folder / "alice.key", "store": folder / "proof"}

    def evaluate(self, model: nn.Module) -> float:
        """Accuracy, measured where the verifier measures it; frameworks dress up `forward`."""
        plain = self.task.build_model()
        plain.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
        return float(self.task.evaluate(plain))

    def loader(self) -> Any:
        columns = {name: torch.from_numpy(own) for name, own in self.task.train_columns().items()}
        return DataLoader(TensorDataset(columns["point"], columns["label"]), batch_size=32)

    def check(self, proof: polo.Proof | None) -> None:
        """Four epochs were trained in two runs; steps may be skipped while the scale settles."""
        assert proof is not None
        assert proof.shards >= 3
        verdict = polo.verify(proof.path, trust=self.issuer.public_key, task=self.task)
        assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


@pytest.fixture
def place(
    tmp_path: Path,
    task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
    enrol: Callable[..., polo.OfflineEnrolment],
) -> Place:
    enrol(**EASY).save(tmp_path / "enrolment")
    alice.save(tmp_path / "alice.key")
    torch.manual_seed(0)
    return Place(tmp_path, task, issuer)


class Tiny(nn.Module):
    """The tiny model, called as the Trainer calls models."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.net(points)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


def test_the_trainer(fused: bool, place: Place) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.trainer_utils import get_last_checkpoint

    from polo.integrations.transformers import PoloCallback

    columns = place.task.train_columns()
    rows = zip(columns["point"], columns["label"], strict=True)
    data = [{"points": point, "labels": int(label)} for point, label in rows]
    output = place.folder / "trainer"
    output.mkdir()
    for epochs in (2, 4):
        callback = PoloCallback(place.enrolment, evaluate=place.evaluate, **place.own)
        arguments = transformers.TrainingArguments(
            output_dir=str(output), num_train_epochs=epochs, per_device_train_batch_size=32,
            learning_rate=1e-2, fp16=True, max_grad_norm=1.0,
            optim="adamw_torch_fused" if fused else "adamw_torch", save_strategy="epoch",
            report_to="none", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        model = Tiny(place.task.build_model())
        trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output)))
        assert trainer.accelerator.scaler.is_enabled()
    place.check(callback.proof)


def test_lightning(fused: bool, place: Place) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from polo.integrations.lightning import PoloCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, at: int) -> torch.Tensor:
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2, fused=fused)

    last = place.folder / "lightning" / "last.ckpt"
    for epochs in (2, 4):
        callback = PoloCallback(place.enrolment, evaluate=place.evaluate, **place.own)
        saver = pl.callbacks.ModelCheckpoint(last.parent, save_last=True)
        trainer = pl.Trainer(
            max_epochs=epochs, precision="16-mixed", accelerator="gpu", devices=1,
            # Lightning refuses to clip what a fused optimizer unscales.
            gradient_clip_val=None if fused else 1.0, callbacks=[callback, saver], logger=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        module = Module(place.task.build_model())
        trainer.fit(module, place.loader(), ckpt_path=last if last.exists() else None)
        assert trainer.precision_plugin.scaler.is_enabled()
    place.check(callback.proof)


def test_accelerate(fused: bool, place: Place) -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState

    from polo.integrations.accelerate import attached

    saved = place.folder / "accelerate"
    for epochs in (2, 4):
        # A process has one set of settings; here it plays several processes.
        AcceleratorState._reset_state(reset_partial_state=True)
        engine = accelerate.Accelerator(mixed_precision="fp16")
        model = place.task.build_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        model, optimizer, data = engine.prepare(model, optimizer, place.loader())
        assert engine.scaler.is_enabled()
        prover = polo.Prover(place.enrolment, **place.own)
        with attached(
            prover, engine, model, optimizer, resume_from=saved if saved.exists() else None
        ):
            for _ in range(prover.epoch, epochs):
                for points, labels in data:
                    engine.backward(cross_entropy(model(points), labels))
                    engine.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                bare = engine.unwrap_model(model)
                prover.end_epoch(evaluate=lambda: place.evaluate(bare))  # noqa: B023
                engine.save_state(str(saved))
        proof = prover.finish()
    place.check(proof)

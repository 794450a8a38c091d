"""Lightning: one callback beside the others.

Everything is on that people use: bfloat16, accumulation, clipping, a scheduler, a checkpoint after
each epoch. Run the script on the same folder after it was killed, and all of it goes on.
"""

import torch
from common import enrolled, workplace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polo
from polo.integrations.lightning import PoloCallback
from polo.tasks.digits import Digits

EPOCHS = 6


class Reader(LightningModule):
    """The task's model, and how it is trained."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], at: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[object]]:
        """AdamW with a cosine."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def main() -> None:
    """Train, prove, verify."""
    folder, task = workplace(), Digits()
    if not (folder / "enrolment").exists():
        enrolled(folder, task)
    torch.manual_seed(0)
    callback = PoloCallback(  # +
        folder / "enrolment",
        key=folder / "trainer.key",
        store=folder / "proof",
        evaluate=task.evaluate,
        extend=True,  # if it is killed after the first shard, and before the first checkpoint
    )
    checkpoints = folder / "lightning"
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=[callback, ModelCheckpoint(checkpoints, save_last=True)],  # +
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        precision="bf16-mixed",
        accelerator="auto",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = checkpoints / "last.ckpt"
    trainer.fit(
        Reader(task.build_model()),
        DataLoader(TensorDataset(*task.train_data), batch_size=32, shuffle=True),
        ckpt_path=last if last.exists() else None,
    )

    proof = callback.proof
    assert proof is not None
    print(f"{proof.shards} shards in {proof.path}, {proof.outside} steps outside")
    verdict = polo.verify(proof.path, trust=folder / "issuer.pub")
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()

"""Accelerate: a loop of your own, with `prepare`, accumulation, bfloat16 and `save_state`.

`prover.epoch` says where to go on. Run the script on the same folder after it was killed: what
`save_state` wrote is loaded, and if a shard was sealed since, the proof brings its weights.
"""

import torch
from accelerate import Accelerator
from common import enrolled, workplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polo
from polo.integrations.accelerate import attached
from polo.tasks.digits import Digits

EPOCHS = 6


def main() -> None:
    """Train, prove, verify."""
    folder, task = workplace(), Digits()
    if not (folder / "enrolment").exists():
        enrolled(folder, task)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")

    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    data = DataLoader(TensorDataset(*task.train_data), batch_size=32, shuffle=True)
    model, optimizer, scheduler, data = accelerator.prepare(model, optimizer, scheduler, data)

    saved = folder / "accelerate"
    prover = polo.Prover(folder / "enrolment", key=folder / "trainer.key", store=folder / "proof")
    with attached(  # +
        prover, accelerator, model, optimizer, also={"scheduler": scheduler},
        resume_from=max(saved.glob("epoch-*"), key=lambda path: int(path.name[6:]), default=None),
    ):  # fmt: skip
        for epoch in range(prover.epoch, EPOCHS):
            for images, labels in data:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(images), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            scheduler.step()
            prover.end_epoch(evaluate=lambda: task.evaluate(accelerator.unwrap_model(model)))  # +
            # Whole or not at all, whenever it is killed.
            accelerator.save_state(str(saved / "new"))
            (saved / "new").rename(saved / f"epoch-{epoch}")
    proof = prover.finish()

    print(f"{proof.shards} shards in {proof.path}, {proof.outside} steps outside")
    verdict = polo.verify(proof.path, trust=folder / "issuer.pub")
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()

"""Automatic mixed precision, gradient scaling, clipping and accumulation.

The hook sees unscaled gradients, once per real step. Clipping happens before it, so the mark's
small term is not clipped; with a fused optimizer the scaler's factor is taken into account.
bfloat16 has the range of float32 and needs no scaler; float16 does.
"""

from pathlib import Path

import torch
from common import enrolled, workplace
from torch import nn

import polo
from polo.tasks.digits import Digits

ACCUMULATE = 2


def train(folder: Path, task: Digits, dtype: torch.dtype) -> polo.Proof:
    """Train with everything on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = (part.to(device) for part in task.train_data)
    torch.manual_seed(0)
    model = task.build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=dtype == torch.float16)

    store = folder / f"proof-{dtype}".replace("torch.", "")
    prover = polo.Prover(folder / "enrolment", key=folder / "trainer.key", store=store)
    with prover.attach(model, optimizer, also={"scaler": scaler}):
        for _ in range(5):
            for at, batch in enumerate(torch.randperm(len(labels)).split(32)):
                with torch.autocast(device, dtype=dtype):
                    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                scaler.scale(loss / ACCUMULATE).backward()
                if at % ACCUMULATE == ACCUMULATE - 1:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    return prover.finish()


def main() -> None:
    """Train in both types of 16 bits, prove, verify."""
    folder, task = workplace(), Digits()
    _, _, issuer = enrolled(folder, task)
    outcomes = []
    for dtype in (torch.bfloat16, torch.float16):
        proof = train(folder, task, dtype)
        print(f"{dtype}: {proof.shards} shards, {proof.outside} steps outside")
        verdict = polo.verify(proof.path, trust=issuer)
        print(verdict.headline())
        outcomes.append(verdict.outcome)
    raise SystemExit(max(outcomes))


if __name__ == "__main__":
    main()

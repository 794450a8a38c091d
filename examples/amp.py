"""Automatic mixed precision, gradient scaling, clipping and accumulation.

The hook sees unscaled gradients, once per real step. Clipping happens before it, so the mark's
small term is not clipped; with a fused optimizer the scaler's factor is taken into account.
"""

import torch
from common import enrolled, workplace
from torch import nn

import polo
from polo.tasks.digits import Digits

ACCUMULATE = 2


def main() -> None:
    """Train with everything on, prove, verify."""
    folder, task = workplace(), Digits()
    enrolment, key, issuer = enrolled(folder, task)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = (part.to(device) for part in task.train_data)

    torch.manual_seed(0)
    model = task.build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    prover = polo.Prover(enrolment, key=key, store=folder / "proof")
    with prover.attach(model, optimizer, also={"scaler": scaler}):
        for _ in range(6):
            for at, batch in enumerate(torch.randperm(len(labels)).split(32)):
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                scaler.scale(loss / ACCUMULATE).backward()
                if at % ACCUMULATE == ACCUMULATE - 1:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    proof = prover.finish()

    print(f"{proof.shards} shards, {proof.outside} steps outside")
    verdict = polo.verify(proof.path, trust=issuer)
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()

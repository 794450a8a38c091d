"""Three lines in an ordinary PyTorch loop.

The lines marked with `+` are all that PoLO adds.
"""

import torch
from common import enrolled, workplace
from torch import nn

import polo
from polo.tasks.digits import Digits


def main() -> None:
    """Train, prove, verify."""
    folder, task = workplace(), Digits()
    enrolment, key, issuer = enrolled(folder, task)
    images, labels = task.train_data

    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    prover = polo.Prover(enrolment, key=key, store=folder / "proof")  # +
    with prover.attach(model, optimizer):  # +
        for _ in range(6):
            for batch in torch.randperm(len(labels)).split(64):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            progress = prover.end_epoch(evaluate=lambda: task.evaluate(model))  # +
            if progress and progress.sealed:
                accuracy = progress.sealed.metrics["accuracy"] / 1e6
                print(f"sealed shard {progress.shard}, accuracy {accuracy:.4f}")
    proof = prover.finish()

    print(f"{proof.shards} shards in {proof.path}, {proof.outside} steps outside")
    verdict = polo.verify(proof.path, trust=issuer)
    print(verdict.headline())
    print("but:", verdict.caution)
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()

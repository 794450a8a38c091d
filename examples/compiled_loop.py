"""`torch.compile` around model and loss.

The compiled module shares its parameters with the original one, and PoLO takes the wrapper's part
out of their names: either of them can be attached. The mark's gradient is added outside of what is
compiled, so nothing is compiled again when a shard ends.
"""

import torch
from common import enrolled, workplace
from torch import nn

import polo
from polo_lab.tasks import DigitsMLP


def main() -> None:
    """Train, prove, verify."""
    folder, task = workplace(), DigitsMLP()
    enrolment, key, issuer = enrolled(folder, task)
    images, labels = task.train_part

    torch.manual_seed(0)
    model = task.build_model()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    prover = polo.Prover(enrolment, key=key, store=folder / "proof")  # +
    with prover.attach(compiled, optimizer):  # +
        for _ in range(6):
            # Batches of one size: another one would be compiled for itself.
            for batch in torch.randperm(len(labels))[: len(labels) // 64 * 64].split(64):
                loss = nn.functional.cross_entropy(compiled(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            prover.end_epoch(evaluate=lambda: task.evaluate(model))  # +
    proof = prover.finish()

    print(f"{proof.shards} shards in {proof.path}, {proof.outside} steps outside")
    verdict = polo.verify(proof.path, trust=issuer)
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()

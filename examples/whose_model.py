"""A model turns up somewhere: whose is it?

The trainer's model is stolen, trained further, pruned, renamed and saved in half precision. The
trainer names it; for a model of the same kind that was trained without PoLO there is no claim.
"""

from pathlib import Path

import torch
from common import enrolled, workplace
from safetensors.torch import save_file

import polo
from polo.ownership import Finding
from polo.tasks.digits import Digits


def train(task: Digits, model: torch.nn.Module, epochs: int, rate: float) -> None:
    """Ordinary training, by somebody who has no prover."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(epochs):
        task.train_epoch(model, optimizer)


def disguise(model: torch.nn.Module, path: Path) -> None:
    """Cut the smallest fifth of every tensor, rename all of them, halve the precision."""
    state = {}
    for at, (_, tensor) in enumerate(model.state_dict().items()):
        values = tensor.clone()
        if tensor.dim() > 1:
            values[tensor.abs() < tensor.abs().float().quantile(0.2)] = 0
        state[f"layer{at}"] = values.half() if values.is_floating_point() else values
    save_file(state, path)


def main() -> None:
    """Train with PoLO, steal, find."""
    folder, task = workplace(), Digits()
    enrolment, key, issuer = enrolled(folder, task)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(enrolment, key=key, store=folder / "proof")
    with prover.attach(model, optimizer):
        for _ in range(8):
            task.train_epoch(model, optimizer)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    proof = prover.finish().path
    print(polo.verify(proof, trust=issuer).headline())

    train(task, model, epochs=2, rate=0.01)
    disguise(model, folder / "found.safetensors")
    found = polo.identify(folder / "found.safetensors", [proof], trust=issuer)
    print(f"the stolen copy: {found.headline()}\n  {found.claims[0].how}")

    honest = task.build_model()
    train(task, honest, epochs=8, rate=0.05)
    disguise(honest, folder / "honest.safetensors")
    other = polo.identify(folder / "honest.safetensors", [proof], trust=issuer)
    print(f"somebody else's own model: {other.headline()}")
    assert (found.finding, other.finding) == (Finding.CLAIM, Finding.NO_CLAIM)


if __name__ == "__main__":
    main()

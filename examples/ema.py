"""Releasing other weights than those trained last: EMA, SWA, the best epoch.

A proof ends in W_S, to the bit. Averages of the weights on the way hold the marks of the chain as
well; `polo.released` says how well, mark by mark. Nothing has to be changed in the loop: sealing
edits the weights in place, and an average sees that with its next update, like any other step.

Measure the trained model in `evaluate`, not its average: the accuracy goes into the proof, and a
verifier measures the sealed weights.
"""

import copy

import torch
from common import enrolled, workplace
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import polo
from polo.tasks.digits import Digits

EPOCHS = 10
SWA_FROM = 5


def main() -> None:
    """Train, keep three kinds of weights, and read the chain's marks in each."""
    folder, task = workplace(), Digits()
    enrolment, key, issuer = enrolled(folder, task)
    images, labels = task.train_data

    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    swa = AveragedModel(model)
    best, highest = copy.deepcopy(model), 0.0

    prover = polo.Prover(enrolment, key=key, store=folder / "proof")
    with prover.attach(model, optimizer):
        for epoch in range(EPOCHS):
            for batch in torch.randperm(len(labels)).split(64):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ema.update_parameters(model)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
            # After end_epoch: these are the sealed weights, which the proof can vouch for.
            if epoch >= SWA_FROM:
                swa.update_parameters(model)
            if epoch < EPOCHS - 1 and task.evaluate(model) > highest:
                best, highest = copy.deepcopy(model), task.evaluate(model)
    proof = prover.finish()

    kinds = {"W_S": model, "EMA": ema.module, "SWA": swa.module, "best epoch": best}
    print(f"{'released':11} accuracy    away  log2 p  η of marks 1 to {proof.shards}")
    sentences = []
    for name, weights in kinds.items():
        result = polo.released(proof, weights)
        etas = " ".join(f"{mark.reading.eta:.2f}" for mark in result.marks)
        accuracy, log2_p = task.evaluate(weights), result.claim.log2_p
        print(f"{name:11} {accuracy:8.4f} {result.distance:7.1%} {log2_p:7.0f}  {etas}")
        sentences.append(f"{name}: {result.headline()}")
    print(*sentences, sep="\n")

    # What a stranger finds out about the released file, who has the proof and trusts the issuer.
    file = folder / "released-ema.safetensors"
    save_file(ema.module.state_dict(), file)
    found = polo.identify(file, [proof.path], trust=issuer)
    print(f"{file.name}, as a stranger finds it: {found.headline()}")
    verdict = polo.verify(proof.path, trust=issuer)
    print(verdict.headline())
    raise SystemExit(verdict.outcome or found.finding)


if __name__ == "__main__":
    main()

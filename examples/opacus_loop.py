"""DP-SGD by opacus underneath: the mark's term is added after clipping and noise.

The term depends on the weights and on the mark's key, and on no sample: it is computed from what
DP-SGD has released already. So opacus accounts for ε as it does without PoLO.

Run the script on the same folder after it was killed: the proof brings back the last sealed
weights, and opacus' own checkpoint what was spent of ε.
"""

import warnings

import torch
from common import enrolled, workplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polo
from polo_lab.tasks import DigitsMLP

# opacus explains what it would advise for a release; here the numbers are only to be seen.
warnings.filterwarnings("ignore", module="opacus")
warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)

from opacus import PrivacyEngine  # noqa: E402

EPOCHS = 8


def main() -> None:
    """Train privately, prove, verify."""
    folder, task = workplace(), DigitsMLP()
    if not (folder / "enrolment").exists():
        enrolled(folder, task)

    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = DataLoader(TensorDataset(*task.train_part), batch_size=128)
    engine = PrivacyEngine()
    model, optimizer, data = engine.make_private(
        module=model, optimizer=optimizer, data_loader=data,
        noise_multiplier=0.8, max_grad_norm=1.0,
    )  # fmt: skip

    saved = folder / "opacus.pt"
    if saved.exists():
        engine.load_checkpoint(path=saved, module=model, optimizer=optimizer)

    prover = polo.Prover(  # +
        folder / "enrolment", key=folder / "trainer.key", store=folder / "proof"
    )
    with prover.attach(model, optimizer):  # +
        for _ in range(prover.epoch, EPOCHS):  # +
            for images, labels in data:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            # Before sealing: killed between the two, ε is told too high and never too low.
            engine.save_checkpoint(path=folder / "new.pt", module=model, optimizer=optimizer)
            (folder / "new.pt").replace(saved)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))  # +
    proof = prover.finish()

    epsilon = engine.get_epsilon(delta=1e-4)
    print(f"{proof.shards} shards, {proof.outside} steps outside, ε = {epsilon:.1f} at δ = 1e-4")
    verdict = polo.verify(proof.path, trust=folder / "issuer.pub")
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()

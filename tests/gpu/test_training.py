"""The fast trainer on a GPU: nothing in a step waits, and a prover fits in."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polo
from polo_lab import models, training
from polo_lab.tasks.pairs import cifar10_resnet18
from polo_lab.training import Loop, train_in

TASK = cifar10_resnet18.stand_in()
TASK.floor = (0.0,)  # Two epochs teach little.
COURSE = replace(TASK.course, epochs=2, batch=128, compile="")

# What torch says of itself while it compiles would be taken for a failure of it.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        ".*torch.jit:DeprecationWarning",
        "The CUDA Graph is empty:UserWarning",
        "Synchronization debug mode is a prototype:UserWarning",
    )
]


def test_no_step_waits_for_the_device() -> None:
    loop = Loop(models.build("resnet18", 10).cuda(), TASK.feed(), COURSE)

    def strict(done: int) -> None:
        # What is drawn for an epoch is brought to the device before its first step.
        torch.cuda.set_sync_debug_mode("error" if done < loop.steps else "default")

    try:
        loop.run(0, loop.steps, strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {p.dtype for p in loop.model.parameters()} == {torch.float32}


def test_every_device_sees_the_same_samples_in_the_same_order() -> None:
    course = replace(COURSE, precision="float32")
    feeds = [TASK.feed(seed=4, device=device) for device in ("cpu", "cuda")]
    for here, there in zip(*(feed.batches(course, 1) for feed in feeds), strict=True):
        assert torch.equal(here[1], there[1].cpu())
        assert torch.allclose(here[0], there[0].cpu(), atol=1e-5)


@pytest.mark.parametrize("how", ["", "default", "reduce-overhead"])
def test_a_proof_made_in_bfloat16_holds(tmp_path: Path, how: str) -> None:
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    terms = polo.make_terms(TASK, bits=256, strength=0.02, fewest_shards=1)
    issued = polo.enrol(terms, identity=trainer.public_key, issuer=issuer)
    torch.manual_seed(0)
    model = TASK.build_model()
    prover = polo.Prover(issued, key=trainer, store=tmp_path / "proof")
    done = training.train(
        model, TASK.feed(), replace(COURSE, compile=how), prover=prover,
        metric=lambda: TASK.evaluate(model),
    )  # fmt: skip
    proof = prover.finish()
    assert done.precision == "bfloat16"
    assert (done.compiled, done.problem) == (how, "")
    assert len(proof.manifest.shards) == 2
    found = polo.verify(proof.path, trust=issuer.public_key, task=TASK)
    assert found.outcome.name == "ACCEPTED", found.headline()


def test_a_recorded_loop_trains_again_from_the_same_start() -> None:
    """Weights are put into the memory that recorded steps know, by marked and unmarked runs."""
    torch.manual_seed(0)
    loop = Loop(TASK.build_model(), TASK.feed(), replace(COURSE, compile="reduce-overhead"))
    assert not loop.problem
    first = {name: value.clone() for name, value in loop.model.state_dict().items()}
    found = []
    for _ in range(3):
        loop.restart(first)
        found.append([epoch.loss for epoch in train_in(loop).epochs])
    # Kernels may sum in another order each time; what is learned is the same.
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert found[2] == pytest.approx(found[0], rel=0.05)
    assert loop.preparing == 0

"""What two versions of a model give away: the positions of the marks between them.

This documents a limit, and how far it goes; docs/threat-model.md tells users about it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import polo
from polo.ownership.claimant import Claimant
from polo.ownership.reading import read_mark
from polo.ownership.sources import ArraySource, Values, floats
from polo.tasks.digits import Digits

pytestmark = pytest.mark.slow

EPOCHS = 6


@pytest.fixture(scope="module")
def claimant(tmp_path_factory: pytest.TempPathFactory) -> Claimant:
    issuer, alice = polo.Identity.generate(), polo.Identity.generate()
    task = Digits()
    issued = polo.enrol(polo.make_terms(task), identity=alice.public_key, issuer=issuer)
    torch.manual_seed(3)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    path: Path = tmp_path_factory.mktemp("diff") / "proof"
    prover = polo.Prover(issued, key=alice, store=path)
    with prover.attach(model, optimizer):
        for _ in range(EPOCHS):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    prover.finish()
    return Claimant(path, {issuer.public_key: "issuer"})


def weights(claimant: Claimant, number: int) -> dict[int, Values]:
    """The carrier's tensors in a checkpoint."""
    for at, checkpoint in claimant.checkpoints():
        if at == number:
            tensors = claimant.layout.tensors
            return {
                index: floats(checkpoint, index, 0, tensors[index].elements).copy()
                for index in claimant.carrier.tensors
            }
    raise AssertionError(number)


def moves(claimant: Claimant, before: dict[int, Values], after: dict[int, Values]) -> list[int]:
    """Blocks of the carrier by how far they moved, the farthest first."""
    carrier = claimant.carrier
    norms = []
    for block in range(carrier.blocks):
        where = carrier.locate(block)
        span = slice(where.element, where.element + carrier.block)
        norms.append(float(np.linalg.norm(after[where.tensor][span] - before[where.tensor][span])))
    return [int(block) for block in np.argsort(norms)[::-1]]


def test_neighbouring_checkpoints_show_where_the_mark_is(claimant: Claimant) -> None:
    before, after = weights(claimant, EPOCHS - 1), weights(claimant, EPOCHS)
    derived = claimant.mark(EPOCHS)
    blocks = set(derived.mark.blocks)
    # All of them among the four tenths that moved farthest; often they are the very first.
    farthest = moves(claimant, before, after)[: claimant.carrier.blocks * 2 // 5]
    assert blocks <= set(farthest)
    # Whoever sees that can put the blocks back, and the mark is gone; older ones stay.
    for block in farthest:
        where = claimant.carrier.locate(block)
        span = slice(where.element, where.element + claimant.carrier.block)
        after[where.tensor][span] = before[where.tensor][span]
    scrubbed = ArraySource(after)
    assert read_mark(claimant, derived, scrubbed).reading.eta < 0.7
    assert read_mark(claimant, claimant.mark(EPOCHS - 1), scrubbed).reading.eta > 0.9


def test_one_checkpoint_does_not(claimant: Claimant) -> None:
    """Norms of the blocks of one checkpoint do not tell the mark's from the others."""
    after = weights(claimant, EPOCHS)
    nothing = {at: np.zeros_like(values) for at, values in after.items()}
    largest = moves(claimant, nothing, after)[: len(claimant.mark(EPOCHS).mark.blocks)]
    assert len(set(claimant.mark(EPOCHS).mark.blocks) & set(largest)) <= len(largest) // 2

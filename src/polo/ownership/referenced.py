"""Reading marks from found weights that were first brought into the frame of older checkpoints.

Whatever is done to the found weights may only look at a committed checkpoint W_r with r < x before
mark x is read. Offline that is W_{x-1} alone, whose root the mark is derived from: all other roots
are the prover's to choose in any order, so an older checkpoint could be made out of the marks of
later shards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from polo.errors import StoreError, WeightsError
from polo.ownership.claim import Claim
from polo.ownership.claimant import Claimant
from polo.ownership.reading import read_mark
from polo.ownership.sources import ArraySource, floats
from polo.protocol.combination import ReadMark, log2_selections
from polo.protocol.layout import CARRIER_DTYPES
from polo.storage import history
from polo.weights.checkpoint import Checkpoint
from polo.weights.found_model import FoundModel, Values
from polo.weights.hashing import commit

MOST_REFERENCES = 4

Frame = Callable[[Mapping[str, Values]], Mapping[str, Values]]
"""Found tensors by the claimant's names, made to fit the checkpoint that it is given."""


def marks_against(
    claimant: Claimant, frame: Frame, most: int = MOST_REFERENCES
) -> tuple[list[ReadMark], list[int]]:
    """Every mark that a stored, older checkpoint allows to read, and the checkpoints used.

    Args:
        claimant: Whose marks.
        frame: Brings the found weights into a checkpoint's frame.
        most: Most checkpoints to go by.
    """
    derived, _ = claimant.marks()
    shown = {mark.shard for mark in derived}
    # Only a nonce that was checked binds the root before it, by a receipt or by the seed.
    bound = [at for at in history.stored(claimant.manifest) if at + 1 in shown]
    numbers = references(bound, claimant.shards, most)
    used: list[int] = []
    read: list[ReadMark] = []
    newer = claimant.shards
    index = claimant.layout.index
    for number, checkpoint in claimant.checkpoints():
        if number not in numbers:
            continue
        _check_root(claimant, number, checkpoint)
        framed = frame(_reference(checkpoint))
        source = ArraySource({index[name]: values for name, values in framed.items()})
        last = newer if claimant.live else number + 1
        chosen = [mark for mark in derived if number < mark.shard <= last]
        read += [read_mark(claimant, mark, source) for mark in chosen]
        newer = number
        used.insert(0, number)
    if not used:
        # Listed ones may have been left out of the folder.
        raise StoreError(
            "no older checkpoint is here to align to",
            advice="Alignment needs a proof that kept checkpoints before its last one.",
        )
    return sorted(read, key=lambda mark: mark.shard), used


def stronger(
    claim: Claim,
    claimant: Claimant,
    marks: Sequence[ReadMark],
    *,
    coverage: float = 1.0,
    how: str,
) -> Claim:
    """The stronger of a claim and the same claim with marks read anew; both count as tries."""
    twice = replace(claim, tries=replace(claim.tries, readings=2))
    anew = replace(
        twice,
        marks=tuple(marks),
        tries=replace(
            twice.tries,
            log2_matchings=0.0,
            log2_selections=log2_selections(len(marks), claimant.shards),
        ),
        coverage=coverage,
        how=how,
        problem="",
        advice="",
    )
    # Where neither says anything, that which has seen more of the model.
    return min(twice, anew, key=lambda one: (one.log2_p, -one.coverage))


def references(stored: Sequence[int], shards: int, most: int = MOST_REFERENCES) -> list[int]:
    """Stored checkpoints to align to: a few, evenly, with the last but one among them.

    >>> references([10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 10)
    [0, 3, 6, 9]
    """
    older = sorted(number for number in stored if number < shards)
    count = min(most, len(older))
    if count < 2:
        return older
    return [older[at * (len(older) - 1) // (count - 1)] for at in range(count)]


def named(found: FoundModel, name: str) -> str:
    """The found tensor of a name, or the one that ends in it; empty if none or several do."""
    if name in found.tensors:
        return name
    ends = [other for other in found.tensors if other.endswith("." + name)]
    return ends[0] if len(ends) == 1 else ""


def _check_root(claimant: Claimant, number: int, checkpoint: Checkpoint) -> None:
    """A reference that the chain does not commit to could have been made from the marks."""
    if commit(checkpoint).root != claimant.manifest.root_before(number + 1):
        raise WeightsError(f"checkpoint {number} is not the one that the chain commits to")


def _reference(checkpoint: Checkpoint) -> dict[str, Values]:
    return {
        tensor.name: floats(checkpoint, at, 0, tensor.elements).reshape(tensor.shape)
        if tensor.dtype in CARRIER_DTYPES
        else np.zeros(tensor.shape)
        for at, tensor in enumerate(checkpoint.layout.tensors)
    }

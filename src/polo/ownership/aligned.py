"""Reading marks after undoing what leaves a network's function alone.

Alignment may only look at weights that were fixed before a mark was known: mark x is read after
aligning to a committed checkpoint W_r with r < x, never to one that carries it. Then its bits are
still fair coins on weights made without knowledge of it.

Offline that is W_{x-1} alone, whose root the mark is derived from: all other roots are the prover's
to choose in any order, so an older checkpoint could be made out of the marks of later shards.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polo import tasks
from polo.alignment import align, trace
from polo.alignment.wiring import Wiring
from polo.errors import PoloError, StoreError, TaskError, WeightsError
from polo.ownership.claim import Claim
from polo.ownership.claimant import Claimant
from polo.ownership.reading import read_mark
from polo.ownership.sources import ArraySource, floats
from polo.protocol.combination import ReadMark, log2_selections
from polo.protocol.layout import CARRIER_DTYPES
from polo.storage import history
from polo.tasks.inputs import example_inputs
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.found_model import FoundModel, Values
from polo.weights.hashing import commit

MOST_REFERENCES = 4


class Aligner:
    """Reads found models again, aligned to older checkpoints of the claimant.

    Args:
        task: The task, or its name; by default the one that the claimant's terms name.
    """

    def __init__(self, task: tasks.Task | str | None = None) -> None:
        self._task = task
        self._wirings: dict[bytes, Wiring] = {}

    def better(self, claimant: Claimant, found: FoundModel, claim: Claim) -> Claim:
        """The stronger of a claim and the same claim aligned; both count as tries."""
        twice = replace(claim, tries=replace(claim.tries, readings=2))
        try:
            marks, numbers = self._marks(claimant, found)
        except PoloError as error:
            hint = error.advice or "Give a proof that kept older checkpoints."
            problem = f"no claim as it stands, and it could not be aligned: {error}"
            return replace(claim, problem=problem, advice=hint)
        how = f"aligned to W_{', W_'.join(map(str, numbers))}"
        aligned = replace(
            twice,
            marks=tuple(marks),
            tries=replace(
                twice.tries,
                log2_matchings=0.0,
                log2_selections=log2_selections(len(marks), claimant.shards),
            ),
            coverage=1.0,
            how=how,
            problem="",
            advice="",
        )
        return aligned if aligned.log2_p < twice.log2_p else twice

    def _marks(self, claimant: Claimant, found: FoundModel) -> tuple[list[ReadMark], list[int]]:
        wiring = self._wiring(claimant)
        arrays = _arrays(claimant, found)
        derived, _ = claimant.marks()
        shown = {mark.shard for mark in derived}
        # Only a nonce that was checked binds the root before it, by a receipt or by the seed.
        bound = [at for at in history.stored(claimant.manifest) if at + 1 in shown]
        numbers = references(bound, claimant.shards)
        used: list[int] = []
        read: list[ReadMark] = []
        newer = claimant.shards
        for number, checkpoint in claimant.checkpoints():
            if number not in numbers:
                continue
            _check_root(claimant, number, checkpoint)
            aligned = align(arrays, _reference(checkpoint), wiring).arrays
            index = claimant.layout.index
            source = ArraySource({index[name]: values for name, values in aligned.items()})
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

    def _wiring(self, claimant: Claimant) -> Wiring:
        terms = claimant.manifest.terms
        if terms.layout not in self._wirings:
            asked = self._task if self._task is not None else terms.task.name
            task = tasks.load(asked) if isinstance(asked, str) else asked
            model = task.build_model()
            if checkpoint_of(model).layout.digest != terms.layout:
                raise TaskError(f"the model of task {task.name!r} is not that of the terms")
            self._wirings[terms.layout] = trace(model.eval(), example_inputs(task, model))
        return self._wirings[terms.layout]


def references(stored: Sequence[int], shards: int) -> list[int]:
    """Stored checkpoints to align to: a few, evenly, with the last but one among them.

    >>> references([10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 10)
    [0, 3, 6, 9]
    """
    older = sorted(number for number in stored if number < shards)
    count = min(MOST_REFERENCES, len(older))
    if count < 2:
        return older
    return [older[at * (len(older) - 1) // (count - 1)] for at in range(count)]


def _check_root(claimant: Claimant, number: int, checkpoint: Checkpoint) -> None:
    """A reference that the chain does not commit to could have been made from the marks."""
    if commit(checkpoint).root != claimant.manifest.root_before(number + 1):
        raise WeightsError(f"checkpoint {number} is not the one that the chain commits to")


def _arrays(claimant: Claimant, found: FoundModel) -> dict[str, Values]:
    """The found model's tensors under the claimant's names, in whatever shapes.

    Counters and the like say nothing about channels; zeros stand for them.
    """
    arrays: dict[str, Values] = {}
    for tensor in claimant.layout.tensors:
        name = tensor.name
        if tensor.dtype not in CARRIER_DTYPES:
            arrays[name] = np.zeros(tensor.shape)
            continue
        if name not in found.tensors:
            ends = [other for other in found.tensors if other.endswith("." + name)]
            if len(ends) != 1:
                raise WeightsError("is not in the found model, or under several names", place=name)
            name = ends[0]
        arrays[tensor.name] = found.values(name)
    return arrays


def _reference(checkpoint: Checkpoint) -> dict[str, Values]:
    return {
        tensor.name: floats(checkpoint, at, 0, tensor.elements).reshape(tensor.shape)
        if tensor.dtype in CARRIER_DTYPES
        else np.zeros(tensor.shape)
        for at, tensor in enumerate(checkpoint.layout.tensors)
    }

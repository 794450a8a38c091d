"""Reading marks after undoing what leaves a network's function alone.

Which checkpoints a mark may be aligned to is said in `polo.ownership.referenced`.
"""

from dataclasses import replace

import numpy as np

from polo import tasks
from polo.alignment import align, trace
from polo.alignment.wiring import Wiring
from polo.errors import PoloError, TaskError, WeightsError
from polo.ownership.claim import Claim
from polo.ownership.claimant import Claimant
from polo.ownership.referenced import marks_against, named, references, stronger
from polo.protocol.layout import CARRIER_DTYPES
from polo.tasks.inputs import example_inputs
from polo.weights.checkpoint import checkpoint_of
from polo.weights.found_model import FoundModel, Values

__all__ = ["Aligner", "references"]


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
        try:
            wiring, arrays = self._wiring(claimant), _arrays(claimant, found)
            marks, numbers = marks_against(
                claimant, lambda reference: align(arrays, reference, wiring).arrays
            )
        except PoloError as error:
            hint = error.advice or "Give a proof that kept older checkpoints."
            problem = f"no claim as it stands, and it could not be aligned: {error}"
            return replace(claim, problem=problem, advice=hint)
        how = f"aligned to W_{', W_'.join(map(str, numbers))}"
        return stronger(claim, claimant, marks, how=how)

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


def _arrays(claimant: Claimant, found: FoundModel) -> dict[str, Values]:
    """The found model's tensors under the claimant's names, in whatever shapes.

    Counters and the like say nothing about channels; zeros stand for them.
    """
    arrays: dict[str, Values] = {}
    for tensor in claimant.layout.tensors:
        if tensor.dtype not in CARRIER_DTYPES:
            arrays[tensor.name] = np.zeros(tensor.shape)
            continue
        there = named(found, tensor.name)
        if not there:
            place = tensor.name
            raise WeightsError("is not in the found model, or under several names", place=place)
        arrays[tensor.name] = found.values(there)
    return arrays

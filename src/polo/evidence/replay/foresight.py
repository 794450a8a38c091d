"""What a verifier will say of data, for whoever is about to train on them.

The same checks as in level replay, on all samples and on one batch, before anything is signed.
"""

from collections.abc import Iterator
from secrets import SystemRandom
from typing import Any

import numpy as np
import torch

from polo.evidence.replay.data import DataSource
from polo.evidence.replay.distinct import LEAST_DISTINCT, duplicates
from polo.evidence.replay.engine import quiet_generators
from polo.evidence.replay.likeness import EXACT, likeness
from polo.evidence.replay.samples import Rows, SampleOpening, columns_of, tensors
from polo.evidence.replay.stepping import Batch, slopes
from polo.protocol.digest import SIZE
from polo.tasks import Task
from polo.tasks.training import Screening, Trainable, inputs_of

_TOGETHER = 64
"""Samples that are looked at together."""


def objections(task: Task, rows: Rows) -> Iterator[str]:
    """What would be said against some data, in sentences; nothing if they will do.

    Args:
        task: The verifier's task.
        rows: All samples, column by column.

    Raises:
        PoloError: They are no data that anybody could commit to.
    """
    count = DataSource(rows, bytes(SIZE)).samples
    if not isinstance(task, Trainable):
        yield f"the task {task.name!r} cannot be replayed: it has no columns or no train_step"
        return
    if columns_of(rows) != tuple(task.columns):
        yield f"the task {task.name!r} trains on other columns than these data have"
        return
    if endless := [name for name in sorted(rows) if not _finite(rows[name])]:
        yield f"column {endless[0]} holds what is no number"
        return
    contents = SampleOpening(np.arange(count), rows, (), ()).contents
    repeated = duplicates(contents.values())
    if 1 - repeated / count < LEAST_DISTINCT:
        yield f"data: {repeated} of {count} samples repeat another one"
    yield from _refused(task, rows, count)
    with quiet_generators():
        yield from _alike(task, rows, count)


def _finite(values: "np.ndarray[Any, Any]") -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _refused(task: Task, rows: Rows, count: int) -> Iterator[str]:
    """The first samples that the task refuses."""
    if not isinstance(task, Screening):
        return
    for first in range(0, count, _TOGETHER):
        if word := task.refused(_some(rows, range(first, min(first + _TOGETHER, count)))):
            yield f"samples {first} to {min(first + _TOGETHER, count) - 1}: the task refuses {word}"
            return


def _alike(task: Task, rows: Rows, count: int) -> Iterator[str]:
    """Whether samples of one batch teach different things."""
    assert isinstance(task, Trainable)
    drawing, model = SystemRandom(), task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = _some(rows, drawing.sample(range(count), min(_TOGETHER, count)))
    found = likeness(
        lambda own: slopes(task, model, optimizer, own, seed=0),
        batch,
        inputs_of(task),
        tolerance=0.0,
        drawing=drawing,
    )
    if found is not None and found.share < EXACT.least:
        yield (
            f"copies: about {found.share:.0%} of {found.rows} samples teach a model something of "
            f"their own, at least {EXACT.least:.0%} will be asked"
        )


def _some(rows: Rows, which: "range | list[int]") -> Batch:
    return tensors({name: values[list(which)] for name, values in rows.items()})

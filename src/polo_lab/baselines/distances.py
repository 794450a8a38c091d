"""How far a replayed end is from the recorded one: l1, l2, l∞ and the angle between weights.

The first three are shares of how far the segment itself went, so that one threshold serves all
segments. The angle is that between the weights, as one minus its cosine. Thresholds come from
honest repetition: segments are run again, and what is allowed is a small multiple of the largest
distance seen. Where the prover's machine was another one, repetitions start from weights that
differ in the last binary digit, as replay has it: of deep networks in low precision that leaves a
forger much room.
"""

from collections.abc import Iterable, Mapping

import torch

from polo.evidence.replay.calibration import FACTOR, LEAST, REPETITIONS, Jittered
from polo.evidence.replay.stepping import Stepper
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.loading import copy_all
from polo_lab.baselines.trajectory import Pair, Trajectory

KINDS = ("l1", "l2", "linf", "cosine")

FLOORS = {"l1": LEAST, "l2": LEAST, "linf": LEAST, "cosine": LEAST**2}
"""Smallest thresholds; an angle goes with the square of a distance."""

Distances = dict[str, float]


def weights(stepper: Stepper, checkpoint: Checkpoint | None = None) -> torch.Tensor:
    """All trained weights on the device, one after the other: of a checkpoint, or as they are."""
    live = checkpoint_of(stepper.model)
    tensors = live.layout.tensors
    values = [live.tensor(at) for at in range(len(tensors))]
    if checkpoint is not None:
        values = [torch.empty_like(value) for value in values]
        copy_all(values, checkpoint)
    pairs = zip(tensors, values, strict=True)
    chosen = [value.detach() for tensor, value in pairs if tensor.name in stepper.trained]
    return torch.cat([value.reshape(-1).float() for value in chosen])


def distances(end: torch.Tensor, other: torch.Tensor, start: torch.Tensor) -> Distances:
    """How far another end is from one, which came from a start; what is no number is endless."""
    gap, moved = (end.double() - side for side in (other, start))
    dot = torch.dot(end.double(), other.double())
    angle = 1 - dot / (end.double().norm() * other.double().norm())
    found = [gap.norm(p) / moved.norm(p) for p in (1, 2, float("inf"))]
    # Nothing moved and nothing differs: 0 / 0 is no distance.
    shares = torch.stack([*found, angle]).masked_fill(gap.eq(0).all(), 0.0)
    shares = shares.nan_to_num(nan=torch.inf).clamp(min=0.0)
    return dict(zip(KINDS, shares.tolist(), strict=True))


def calibrate(
    trajectory: Trajectory, stepper: Stepper, segments: Iterable[int], *, elsewhere: bool
) -> Distances:
    """The largest distance of each kind between honest repetitions of some segments.

    Args:
        trajectory: The trajectory.
        stepper: What runs it.
        segments: Which segments to repeat.
        elsewhere: Whether the prover's machine was another one.
    """
    largest = dict.fromkeys(KINDS, 0.0)
    for segment in segments:
        start = trajectory.held(segment, stepper)
        trajectory.run(stepper, segment, *start)
        begun, end = weights(stepper, start[0]), weights(stepper)
        for number in range(REPETITIONS):
            trajectory.run(stepper, segment, *(_jittered(start, number) if elsewhere else start))
            found = distances(end, weights(stepper), begun)
            largest = {kind: max(largest[kind], found[kind]) for kind in KINDS}
    return largest


def thresholds(largest: Mapping[str, float]) -> Distances:
    """What is allowed where honest repetitions differ by so much."""
    return {kind: max(FLOORS[kind], FACTOR * largest[kind]) for kind in KINDS}


def _jittered(start: Pair, number: int) -> tuple[Checkpoint, Checkpoint | None]:
    model, rest = start
    return Jittered(model, number), Jittered(rest, number) if rest is not None else None

"""Provers who did not train as they say: what a baseline must reject to be worth its name.

All write trajectories like any other (`polo_lab.baselines.trajectory`), and all but `swapped` and
`straight` train with the engine that honest provers train with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from polo.evidence.replay.stepping import Stepper
from polo.weights.checkpoint import checkpoint_of
from polo.weights.loading import load_into
from polo_lab.baselines import plain
from polo_lab.baselines.job import Job
from polo_lab.baselines.trajectory import Recorded, Walk, record

_SMALL = 0.01
"""Part of a step's move that is left where a segment shall look unimportant."""

_LESS = 0.9
"""Part of an honest segment's move that one may have which nobody shall look at."""


@dataclass(frozen=True)
class Cheated:
    """What a cheat has made.

    Attributes:
        recorded: The trajectory.
        steps: Steps that it took, of those it says it took.
    """

    recorded: Recorded
    steps: int


def skipped(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """Of the steps of every segment only the first half is taken."""
    steps = 0

    def walk(stepper: Stepper, first: int, stop: int) -> None:
        nonlocal steps
        half = first + (stop - first) // 2
        job.train(stepper, first, half)
        steps += half - first

    return Cheated(record(job, folder, hashed=hashed, walk=walk), steps)


def wrong_data(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """Trained on the right inputs with labels of their neighbours; the right data are named."""

    def walk(stepper: Stepper, first: int, stop: int) -> None:
        found = job.batches(job.indices(first, stop))
        batches = ({**batch, "label": batch["label"].roll(1, 0)} for batch in found)
        stepper.steps(first, batches, job.seeds(first))

    return Cheated(record(job, folder, hashed=hashed, walk=walk), job.steps)


def other_start(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """Training honestly begins with a finished model, and its first steps are not owned up to."""
    stolen = _stolen(job)

    def begin(stepper: Stepper) -> None:
        load_into(stepper.model, checkpoint_of(stolen))

    return Cheated(record(job, folder, hashed=hashed, begin=begin), job.steps)


def swapped(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """Two checkpoints of an honest trajectory change places afterwards."""
    made = record(job, folder, hashed=hashed)
    one, other = 1, 2
    for kind in ("model", "rest"):
        paths = [folder / f"{at:06d}.{kind}" for at in (one, other)]
        if all(path.exists() for path in paths):
            data = [path.read_bytes() for path in paths]
            for path, content in zip(paths, reversed(data), strict=True):
                path.write_bytes(content)
    return Cheated(made, job.steps)


def straight(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """From a drawn start to a stolen model in a straight line, one step a segment for show."""
    ends = _floats(_stolen(job))
    begun: dict[str, torch.Tensor] = {}

    def place(stepper: Stepper, stop: int, _: Mapping[str, torch.Tensor]) -> None:
        for name, value in _floats(stepper.model).items():
            value.copy_(torch.lerp(begun[name], ends[name], stop / job.steps))

    def begin(stepper: Stepper) -> None:
        begun.update({name: value.clone() for name, value in _floats(stepper.model).items()})

    walk, count = _for_show(job, place)
    return Cheated(record(job, folder, hashed=hashed, walk=walk, begin=begin), count)


def small_moves(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """One segment of every epoch is honest; the others hardly move, so that nobody looks at them.

    The loophole of looking at the largest updates alone (Fang et al. 2023).
    """

    def place(stepper: Stepper, _: int, before: Mapping[str, torch.Tensor]) -> None:
        for name, value in _floats(stepper.model).items():
            value.copy_(torch.lerp(before[name], value, _SMALL))

    show, _ = _for_show(job, place)
    steps = 0

    def walk(stepper: Stepper, first: int, stop: int) -> None:
        nonlocal steps
        honest = first % job.pass_steps < job.apart
        (job.train if honest else show)(stepper, first, stop)
        steps += stop - first if honest else 1

    return Cheated(record(job, folder, hashed=hashed, walk=walk), steps)


def made_up(job: Job, folder: Path, *, hashed: bool) -> Cheated:
    """A trajectory to a stolen model, made up afterwards: a synthetic one.

    Its start has the values of a drawn one, in the order of the stolen weights, so that it passes
    for drawn and lies near them. One segment of every epoch is honest and moves the most; the
    others go straight towards the stolen model, by less than that, where nobody looks.
    """
    ends, steps, moved = _floats(_stolen(job)), 0, 0.0

    @torch.no_grad()
    def begin(stepper: Stepper) -> None:
        for name, value in stepper.model.named_parameters():
            value.copy_(_in_order_of(ends[name], value))

    def place(stepper: Stepper, _: int, before: Mapping[str, torch.Tensor]) -> None:
        left = _apart(stepper, before, ends)
        part = min(1.0, _LESS * moved / left) if left else 1.0
        for name, value in _floats(stepper.model).items():
            value.copy_(torch.lerp(before[name], ends[name], part))

    show, _ = _for_show(job, place)

    def walk(stepper: Stepper, first: int, stop: int) -> None:
        nonlocal steps, moved
        if first % job.pass_steps >= job.apart:
            show(stepper, first, stop)
            steps += 1
            return
        before = {name: value.clone() for name, value in _floats(stepper.model).items()}
        job.train(stepper, first, stop)
        moved, steps = _apart(stepper, before, _floats(stepper.model)), steps + stop - first

    return Cheated(record(job, folder, hashed=hashed, walk=walk, begin=begin), steps)


CHEATS: Mapping[str, Callable[..., Cheated]] = MappingProxyType(
    {
        "skipped": skipped,
        "wrong_data": wrong_data,
        "other_start": other_start,
        "swapped": swapped,
        "straight": straight,
        "small_moves": small_moves,
        "made_up": made_up,
    }
)
"""All cheats, by name; each takes a job, a folder, and whether to hash."""


def _for_show(
    job: Job, place: Callable[[Stepper, int, Mapping[str, torch.Tensor]], None]
) -> tuple[Walk, int]:
    """Takes one step of a segment, then puts the weights where they shall be."""

    def walk(stepper: Stepper, first: int, stop: int) -> None:
        if first == stop:
            return
        before = {name: value.clone() for name, value in _floats(stepper.model).items()}
        job.train(stepper, first, first + 1)
        with torch.no_grad():
            place(stepper, stop, before)

    return walk, -(-job.steps // job.apart)


def _in_order_of(other: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The same values, the smallest where another tensor has its smallest, and so on."""
    ordered = torch.empty_like(values).reshape(-1)
    ordered[other.reshape(-1).argsort()] = values.reshape(-1).sort().values
    return ordered.reshape(values.shape)


def _apart(
    stepper: Stepper, one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]
) -> float:
    """How far two states lie apart in what is trained, as verifiers measure moves."""
    names = [name for name, _ in stepper.model.named_parameters()]
    return float(torch.stack([(one[name] - other[name]).norm() for name in names]).norm())


def _stolen(job: Job) -> torch.nn.Module:
    """A model that somebody else has trained."""
    other = Job.of({**job.settings, "seed": job.seed + 1})
    return plain.prove(other).model


def _floats(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's floating tensors, live."""
    return {n: v for n, v in model.state_dict().items() if v.is_floating_point()}

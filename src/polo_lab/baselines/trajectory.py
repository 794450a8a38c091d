"""A recorded training: a checkpoint every k steps, the samples of every step, and the settings.

What proofs of learning by replay have in common. A prover trains and writes; a verifier puts the
engine into one recorded state, runs on to the next, and compares. The folder holds

    record.json         settings of all steps, the root of the data, and hashes if there are
    indices.npy         numbers of the samples, step after step
    000000.model …      weights and buffers as safetensors, one file for every k-th step
    000000.rest …       the optimizer's tensors at the same steps
"""

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from polo.errors import FormatError
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.state import digest_of
from polo.evidence.replay.stepping import Stepper
from polo.protocol.digest import tagged
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint
from polo.weights.files import FileCheckpoint, write_checkpoint
from polo_lab.baselines.job import Clock, Indices, Job

RECORD_FILE = "record.json"
INDICES_FILE = "indices.npy"
TRAINING = "training"

Walk = Callable[[Stepper, int, int], None]
"""Takes a stepper from one step of the training to a later one."""

Entry = tuple[bytes, bytes, bytes]
"""Digests of weights, of the optimizer's tensors, and of the numbers of samples."""

Pair = tuple[HeldCheckpoint, HeldCheckpoint | None]
"""Weights, and the optimizer's tensors if it has any."""


@dataclass(frozen=True)
class Recorded:
    """What a prover has made.

    Attributes:
        path: The folder.
        seconds: Raw seconds by phase: `training`, `storing`, `hashing`, `data`.
        accuracy: The task's metric of the finished model.
        stored: Bytes of the folder.
        head: The last link of the chain of hashes; empty without hashes.
        state: The finished model's tensors.
    """

    path: Path
    seconds: dict[str, float]
    accuracy: float
    stored: int
    head: bytes
    state: dict[str, torch.Tensor]

    @property
    def generation(self) -> float:
        """Seconds beyond training."""
        return sum(self.seconds.values()) - self.seconds[TRAINING]


def record(
    job: Job,
    folder: Path,
    *,
    hashed: bool = False,
    walk: Walk | None = None,
    begin: Callable[[Stepper], None] | None = None,
) -> Recorded:
    """Train, and write a trajectory.

    Args:
        job: What is trained.
        folder: The folder, which must not exist yet.
        hashed: Whether to hash every checkpoint and chain the hashes.
        walk: What a prover does who does not train as it says.
        begin: What is done to the start by a prover who does not draw it.
    """
    folder.mkdir(parents=True)
    clock, entries = Clock(job.where), list[Entry]()
    with job.settled():
        stepper = job.stepper()
        if begin:
            begin(stepper)
        with clock.phase("data"):
            root = job.data_root()
        for at, (first, stop) in enumerate([(0, 0), *spans(job.steps, job.apart)]):
            with clock.phase(TRAINING):
                (walk or job.train)(stepper, first, stop)
            with clock.phase("storing"):
                copied = held(stepper)
                _write(folder, at, copied)
            if hashed:
                with clock.phase("hashing"):
                    entries.append(entry(copied, job.indices(first, stop)))
        with clock.phase("storing"):
            flat = np.concatenate(job.indices(0, job.steps)).astype(np.uint32)
            np.save(folder / INDICES_FILE, flat)
            _write_record(job, folder, root, entries)
        accuracy = job.evaluate(stepper.model)
    stored = sum(file.stat().st_size for file in folder.iterdir())
    state = {name: value.detach().clone() for name, value in stepper.model.state_dict().items()}
    return Recorded(folder, clock.seconds, accuracy, stored, head_of(entries), state)


def finished(folder: Path) -> bool:
    """Whether a trajectory is whole: its record is written last."""
    return (folder / RECORD_FILE).exists()


def cleared(folder: Path) -> Path:
    """The place for a trajectory, without what a killed prover has left there."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def spans(steps: int, every: int) -> list[tuple[int, int]]:
    """First step and end of every segment.

    >>> spans(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(first, min(first + every, steps)) for first in range(0, steps, every)]


def entry(state: Pair, indices: Indices) -> Entry:
    """Digests of a state, and of the samples since the one before."""
    samples = hashlib.sha256(b"".join(np.asarray(i, "<u4").tobytes() for i in indices)).digest()
    return digest_of(state[0]), digest_of(state[1]), samples


def head_of(entries: Sequence[Entry]) -> bytes:
    """The last link of a chain of hashes, each of which covers the one before and an entry."""
    return functools.reduce(lambda link, one: tagged("lab/pol-hash", link, *one), entries, b"")


class Trajectory:
    """A trajectory as a verifier opens it; everything in it is the prover's.

    Args:
        path: The folder.
        job: What prover and verifier have agreed on.

    Attributes:
        recipe: Optimizer and rates, as the prover says and as was agreed on.
        spans: First step and end of every segment.
        root: The root of the data, as the prover says.
        entries: What was hashed at every boundary; empty if nothing was.
        platform: The prover's machine, as it says.
    """

    def __init__(self, path: Path, job: Job) -> None:
        self._path = path
        self._job = job
        place = str(path / RECORD_FILE)
        try:
            found = json.loads((path / RECORD_FILE).read_text())
            self.recipe = Recipe.from_settings(dict(found["recipe"]), place)
            self.root = bytes.fromhex(found["data"])
            self.entries = [_entry(one) for one in found["entries"]]
            self.platform = str(found["platform"])
            steps, seed = found["steps"], bytes.fromhex(found["seed"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"is no record of a training: {error}", place=place) from error
        if steps != job.steps or self.recipe != job.recipe:
            raise FormatError("not the training that was agreed on", place=place)
        self.steps = job.steps
        self.spans = spans(self.steps, self.recipe.every)
        self._order = Order(seed, job.samples, self.recipe.batch)
        self._indices = self._read_indices()
        self._last: tuple[int, Pair] | None = None

    def stepper(self) -> Stepper:
        """An engine that runs what the prover says it ran."""
        return Stepper(self._job.lab_task, self.recipe, device=self._job.where)

    def held(self, at: int, stepper: Stepper) -> Pair:
        """The state at a boundary, in memory; that asked for last is not read again."""
        if self._last is None or self._last[0] != at:
            self._last = at, (self.model(at, stepper), self._rest(at, stepper))
        return self._last[1]

    def model(self, at: int, stepper: Stepper) -> HeldCheckpoint:
        """The weights at a boundary, in memory."""
        path = self._path / f"{at:06d}.model"
        with FileCheckpoint.canonical(path, stepper.layout) as file:
            return file.held()

    def _rest(self, at: int, stepper: Stepper) -> HeldCheckpoint | None:
        if not at or stepper.rest_layout is None:
            return None
        path = self._path / f"{at:06d}.rest"
        with FileCheckpoint.canonical(path, stepper.rest_layout) as file:
            return file.held()

    def indices(self, segment: int) -> Indices:
        """The samples of a segment's steps."""
        first, stop = self.spans[segment]
        return self._indices[first:stop]

    def run(
        self, stepper: Stepper, segment: int, start: Checkpoint, rest: Checkpoint | None
    ) -> None:
        """Run a segment again from a state."""
        first, _ = self.spans[segment]
        stepper.restore(start, rest)
        batches = self._job.batches(self.indices(segment))
        stepper.steps(first, batches, lambda at: self._order.seed(first + at))

    def size(self, at: int, kind: str = "*") -> int:
        """Bytes of the files of a boundary, or of one kind of them: `model` or `rest`."""
        files = self._path.glob(f"{at:06d}.{kind}")
        return sum(file.stat().st_size for file in files)

    def _read_indices(self) -> Indices:
        path = self._path / INDICES_FILE
        wanted = [self.recipe.batch_at(step) for step in range(self.steps)]
        try:
            flat = np.load(path, mmap_mode="r", allow_pickle=False)
            right = flat.dtype == np.uint32 and flat.shape == (sum(wanted),)
            numbers = np.array(flat, dtype=np.int64) if right else np.empty(0, np.int64)
        except (OSError, ValueError, EOFError) as error:
            raise FormatError(f"cannot be read: {error}", place=str(path)) from error
        if not right or (len(numbers) and int(numbers.max()) >= self._job.samples):
            raise FormatError("does not name the samples of every step", place=str(path))
        return np.split(numbers, np.cumsum(wanted)[:-1])


def covered(trajectory: Trajectory, job: Job, segments: Sequence[int]) -> dict[str, int]:
    """How much of a training is run again, and how much of the data a verifier sees for it."""
    steps = [step for at in segments for step in trajectory.indices(at)]
    shown = len(np.unique(np.concatenate(steps))) if steps else 0
    size = sum(values.nbytes for values in job.lab_task.train_columns().values())
    return {
        "segments": len(segments),
        "segments_all": len(trajectory.spans),
        "steps": len(steps),
        "steps_all": trajectory.steps,
        "data_bytes_shown": shown * size // job.samples,
    }


def _entry(texts: Sequence[str]) -> Entry:
    weights, rest, samples = (bytes.fromhex(text) for text in texts)
    return weights, rest, samples


def held(stepper: Stepper) -> Pair:
    """A copy of the state that a stepper is in, in main memory."""
    model, rest = stepper.state()
    copied = HeldCheckpoint.copy_of(rest) if rest is not None else None
    return HeldCheckpoint.copy_of(model), copied


def _write(folder: Path, at: int, state: Pair) -> None:
    for kind, checkpoint in zip(("model", "rest"), state, strict=True):
        if checkpoint is not None:
            with (folder / f"{at:06d}.{kind}").open("wb") as file:
                write_checkpoint(checkpoint, file.write)


def _write_record(job: Job, folder: Path, root: bytes, entries: Sequence[Entry]) -> None:
    text = {
        "recipe": job.recipe.to_settings(),
        "steps": job.steps,
        "seed": job.order_seed.hex(),
        "data": root.hex(),
        "platform": job.platform,
        "entries": [[digest.hex() for digest in one] for one in entries],
    }
    (folder / RECORD_FILE).write_text(json.dumps(text, indent=1))

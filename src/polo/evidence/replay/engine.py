"""Running the declared computation again: steps of training, and the sealing of a shard.

One engine serves the prover, who recomputes the states between two checkpoints instead of keeping
them, and the verifier. The model, the step and every hyper-parameter come from the task and the
terms; from the prover come weights, the optimizer's tensors and samples, nothing else.

Specification: docs/protocol.md, section 17.8.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from polo.embedding.embedder import Embedder
from polo.errors import TaskError, TermsError, WeightsError
from polo.evidence.replay import depth
from polo.evidence.replay.contrast import Copies, contrast, copied, copy_into, differ, only
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.state import (
    Snapshot,
    Tensors,
    moves,
    named_state,
    trained_names,
)
from polo.evidence.replay.stepping import Batch, Stepper, slopes
from polo.privacy import obfuscation
from polo.privacy.noising import Noise, obfuscate_parameters
from polo.protocol.carrier import Carrier
from polo.protocol.records import Nonce, Terms
from polo.storage import state as generators
from polo.tasks import Task
from polo.weights.checkpoint import Checkpoint
from polo.weights.hashing import usual_threads

_NEAR = 16.0
"""What would end within so many times what is forgiven may be guessed nearer than that: slopes
that are a pass old are the crudest guess."""

_SMALL = 2**27
"""Bytes of a model up to which several copies of a state at a time are no burden."""


@dataclass(frozen=True)
class Shard:
    """What the computation of one shard depends on, beside weights and data.

    Attributes:
        number: Its number.
        seed: The seed of its mark, which order and augmentation come from, too.
        before: Steps of the whole chain before it.
        nonce: Its nonce.
    """

    number: int
    seed: bytes
    before: int
    nonce: Nonce


@dataclass(frozen=True)
class Ended:
    """How a segment ended.

    Attributes:
        boundary: Digests of the state.
        moves: How far model and optimizer moved.
    """

    boundary: Boundary
    moves: tuple[int, int]


class Engine(Stepper):
    """A stepper that presses the mark of a shard, and records what it does.

    Attributes:
        stumbled: Whether the task failed at a state that no training was in: who knows what it has
            done to the model, so that another engine is better taken.
    """

    def __init__(
        self, task: Task, terms: Terms, carrier: Carrier, recipe: Recipe, *, device: str = "cpu"
    ) -> None:
        super().__init__(task, recipe, device=device)
        self._terms = terms
        self._carrier = carrier
        if self.layout != carrier.layout:
            raise TaskError("the task's model has another layout than the terms")
        self._shard: Shard | None = None
        self._pressing: Embedder | None = None
        self.stumbled = False
        self._small = carrier.layout.size < _SMALL
        self._recorders = [
            Recorder(self.model, self.optimizer, recipe.every, device, threaded=True)
            for _ in range(2 if self._small else 1)
        ]
        self._copies = Copies(kept=self._small)

    def enter(self, shard: Shard) -> None:
        """Make ready for steps of a shard."""
        if shard == self._shard:
            return
        self._shard, self._pressing = shard, None
        self._order = Order(shard.seed, self._recipe.samples, self._recipe.batch)

    @property
    def _embedder(self) -> Embedder:
        """Presses the current shard's mark; made for who needs it."""
        assert self._shard is not None
        if self._pressing is None:
            seed, parameters = self._shard.seed, self._parameters
            try:
                self._pressing = Embedder(self._terms, self._carrier, seed, parameters)
            except TermsError as error:
                # The package that presses a scheme's marks is missing or broken here.
                raise TaskError(error.message, place=error.place, advice=error.advice) from error
        return self._pressing

    @property
    def order(self) -> Order:
        """Order of the samples in the current shard."""
        return self._order

    def segment(
        self,
        first: int,
        batches: Iterator[Batch],
        *,
        start: Boundary,
        stepped: Callable[[], None] | None = None,
    ) -> Callable[[], Ended]:
        """Run a segment, recorded as a prover records it.

        Args:
            first: Its first step in the current shard, from 0.
            batches: What to train on, step by step.
            start: The digests of the state as it is now, which are not taken again.
            stepped: Called once, after the first step.

        Returns:
            Waits for what was recorded. Meanwhile the next segment may run, of a model that is not
            too large.
        """
        recorder = self._recorders[0]
        self._recorders = [*self._recorders[1:], recorder]
        recorder.follow(self.optimizer)
        with _own_trouble():
            recorder.start(start)
            self.run(first, batches, stepped=stepped, recorder=recorder)
            recorder.end()

        def ended() -> Ended:
            with _own_trouble():
                found = recorder.finish()
            return Ended(found.boundaries[1], found.moves[0])

        if self._small:
            return ended
        found = ended()
        return lambda: found

    def close(self) -> None:
        """Let go of what records."""
        for recorder in self._recorders:
            recorder.abandon()

    def run(
        self,
        first: int,
        batches: Iterator[Batch],
        *,
        stepped: Callable[[], None] | None = None,
        recorder: Recorder | None = None,
    ) -> int:
        """Run steps of the current shard from its step `first`, as many as there are batches.

        Args:
            first: The first step, from 0.
            batches: What to train on, step by step.
            stepped: Called once, after the first step.
            recorder: Told of every step.
        """
        assert self._shard is not None
        every, embedder = self._terms.scheme.every, self._embedder

        def pressed(step: int, scale: torch.Tensor | float) -> None:
            if step % every == 0:
                embedder.add_gradient(scale)

        def after(done: int) -> None:
            if stepped and done == 1:
                stepped()
            if recorder:
                recorder.after_step()

        def fresh() -> Iterator[Batch]:
            for at, batch in enumerate(batches, first):
                # As in training: gradients are no part of the state that a segment starts from.
                if at % self._recipe.every == 0:
                    self.model.zero_grad(set_to_none=True)
                yield batch

        return self.steps(
            self._shard.before + first,
            fresh(),
            lambda at: self._order.seed(first + at),
            pressed=pressed,
            stepped=after,
        )

    def slopes(self, step: int, batch: Batch) -> dict[str, torch.Tensor]:
        """The gradients that a step of the current shard would follow; it is not taken.

        Buffers change as in a step. What is returned changes with the next call.
        """
        return slopes(self._task, self.model, self.optimizer, batch, seed=self._order.seed(step))

    def depths(
        self, first: int, steps: int, batch: Batch, slopes: Tensors, *, forgiven: float = 0.0
    ) -> tuple[dict[str, float], bool]:
        """Which part of the slopes of a segment's first step matter to its end, by tensor.

        The other steps of it follow the same slopes, so that no more passes are made. The state is
        another one afterwards.

        Args:
            first: The first step in the current shard, from 0.
            steps: How many steps the segment has.
            batch: The samples of the first.
            slopes: The slopes of the first, as `copied_slopes` gives them.
            forgiven: How far an end may be off, as a share of its move.

        Returns:
            The part of each tensor's; and whether old slopes lead about as near as is forgiven, so
            that none of them matter.
        """
        before = self.copied()
        self._follow(first, slopes, steps=steps)
        ended, later = self.copied(), self._slopes_there(first, batch)
        if later is None:
            return dict.fromkeys(slopes, 1.0), False
        self.rewind(before)
        age = max(1.0, self._recipe.steps_per_pass / steps)
        self._follow(first, depth.aged(slopes, later, age), steps=1)
        self._follow(first + 1, slopes, steps=steps - 1)
        near = bool(forgiven) and self.differs_from(ended, before) <= _NEAR * forgiven
        return depth.depths(slopes, ended, named_state(self.model, self.optimizer)), near

    def _slopes_there(self, step: int, batch: Batch) -> "Tensors | None":
        """Slopes at a state that training never was in; None if there are none to be had.

        So far away that no task can be asked to take a step there, slopes are other ones, too.
        """
        try:
            found = self.copied_slopes(step, batch)
        except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception:
            self.stumbled = True
            return None
        return found if depth.finite(found) else None

    def copied_slopes(self, step: int, batch: Batch) -> Tensors:
        """The gradients that a step of the current shard would follow, of each tensor once."""
        found = self.slopes(step, batch)
        return {name: found[name].clone() for name in trained_names(self.model) if name in found}

    def _follow(self, first: int, slopes: Tensors, *, steps: int) -> None:
        """Take steps of the current shard along given slopes, the same in each."""
        assert self._shard is not None
        before = self._shard.before + first
        self.model.zero_grad(set_to_none=True)
        for step in range(before, before + steps):
            # Copies, since some optimizers write into gradients.
            for name, copy in copied(slopes).items():
                self._parameters[name].grad = copy
            self._recipe.set_rate(self.optimizer, step)
            self.optimizer.step()

    def seal(self, secret: bytes, sigma: int) -> None:
        """Finish and obfuscate the current shard's mark, as sealing does."""
        assert self._shard is not None
        seed = obfuscation.noise_seed(secret, self._shard.nonce.nonce)
        noise = Noise(seed, self._terms.noise.fraction)
        if sigma and noise.fraction:
            noise.draw_ahead(self._parameters, self._carrier.layout, threads=usual_threads())
        if not self._embedder.read().reaches(self._terms.thresholds.embed):
            self._embedder.apply(self._embedder.finish())
        blocks = self._embedder.mark.blocks
        obfuscate_parameters(self._parameters, self._carrier, blocks, noise, sigma=sigma)

    def restore(self, model: Checkpoint, rest: Checkpoint | None) -> None:
        """Put model and optimizer into a state; copies of the one before are then no more."""
        super().restore(model, rest)
        self._copies.drop()

    def copied(self) -> Snapshot:
        """A copy of model and optimizer on their device, complete when this returns."""
        copy = self._copies.take(named_state(self.model, self.optimizer))
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        return copy

    def rewind(self, before: Snapshot) -> None:
        """Put model and optimizer back into a state that was copied since the last `restore`."""
        self.model.zero_grad(set_to_none=True)
        if not before[1]:
            self.optimizer.state.clear()
        copy_into(named_state(self.model, self.optimizer), before)

    def differs_from(self, other: Snapshot, before: "Snapshot | None") -> float:
        """How far what is trained, or the optimizer's state, is from that in a copy.

        Running statistics do not count: they follow the samples whether these teach or not.

        Args:
            other: The copy.
            before: Another copy, of the state before a step: how far it went since then is what
                the difference is a share of. None if it only matters whether there is one.

        Returns:
            The share, infinity for any difference where there is no measure; 0 for none.
        """
        live = named_state(self.model, self.optimizer)
        states = [live, other] if before is None else [live, other, before]
        trained = trained_names(self.model)
        here, there, *since = ((only(model, trained), rest) for model, rest in states)
        if since:
            return contrast(here, there, *since)
        return math.inf if differ(here, there) else 0.0

    def moves_since(self, before: Snapshot) -> tuple[int, int]:
        """How far model and optimizer have moved, as records say it."""
        trained = trained_names(self.model)
        model, rest = named_state(self.model, self.optimizer)
        with torch.no_grad():
            return moves((only(before[0], trained), before[1]), (only(model, trained), rest))


@contextmanager
def _own_trouble() -> Iterator[None]:
    """Say of what cannot be recorded that it is this machine's or the task's fault, nobody else's.

    The state that a segment starts from was looked at before; nothing of it is refused here.
    """
    try:
        yield
    except WeightsError as error:
        raise TaskError(
            f"this machine could not record it: {error}",
            advice="See that memory is free and processes may be started, then try again.",
        ) from error


@contextmanager
def quiet_generators() -> Iterator[None]:
    """Put the generators back afterwards: replaying must not disturb the caller's randomness."""
    before = generators.random_state()
    try:
        yield
    finally:
        generators.restore_random(before)

"""Running the declared computation again: steps of training, and the sealing of a shard.

One engine serves the prover, who recomputes the states between two checkpoints instead of keeping
them, and the verifier. The model, the step and every hyper-parameter come from the task and the
terms; from the prover come weights, the optimizer's tensors and samples, nothing else.

Specification: docs/protocol.md, section 17.8.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.errors import TaskError, TermsError, WeightsError
from polo.evidence.replay.order import Order, seed_generators
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.state import (
    Snapshot,
    Tensors,
    load_rest,
    moves,
    named_state,
    norm_of,
    rest_layout,
    trained_names,
)
from polo.privacy import noising, obfuscation
from polo.protocol.carrier import Carrier
from polo.protocol.layout import Layout
from polo.protocol.records import Nonce, Terms
from polo.storage import state as generators
from polo.tasks import Task
from polo.tasks.training import Trainable
from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint, checkpoint_of
from polo.weights.loading import load_into

Batch = Mapping[str, torch.Tensor]

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


class Engine:
    """A task's model and optimizer, to be put into any recorded state and run from there."""

    def __init__(
        self, task: Task, terms: Terms, carrier: Carrier, recipe: Recipe, *, device: str = "cpu"
    ) -> None:
        if not isinstance(task, Trainable):
            raise TaskError(
                f"the task {task.name!r} cannot be replayed: it has no columns or no train_step",
                advice="See polo.tasks.training.Trainable.",
            )
        self._task = task
        self._terms = terms
        self._carrier = carrier
        self._recipe = recipe
        self.device = device
        self.model = task.build_model().to(device)
        if checkpoint_of(self.model).layout != carrier.layout:
            raise TaskError("the task's model has another layout than the terms")
        self.optimizer = recipe.optimizer(self.model)
        self._parameters = _trained(self.model, self.optimizer)
        self.rest_layout: Layout | None = rest_layout(self.model, self.optimizer)
        self._shard: Shard | None = None
        self._recorders = [
            Recorder(self.model, self.optimizer, recipe.every, device)
            for _ in range(2 if carrier.layout.size < _SMALL else 1)
        ]

    @property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that are trained."""
        return frozenset(self._parameters)

    def restore(self, model: Checkpoint, rest: Checkpoint | None) -> None:
        """Put model and optimizer into a state; `rest` is None for an untouched optimizer."""
        load_into(self.model, model)
        # Some loops clear gradients after a step, not before: none may be left over.
        self.model.zero_grad(set_to_none=True)
        self.optimizer = self._recipe.optimizer(self.model)
        if rest is not None:
            load_rest(self.optimizer, self.model, rest)

    def enter(self, shard: Shard) -> None:
        """Make ready for steps of a shard."""
        if shard == self._shard:
            return
        self._shard = shard
        self._order = Order(shard.seed, self._recipe.samples, self._recipe.batch)
        try:
            self._embedder = Embedder(self._terms, self._carrier, shard.seed, self._parameters)
        except TermsError as error:
            # The package that presses a scheme's marks is missing or broken here.
            raise TaskError(error.message, place=error.place, advice=error.advice) from error

    @property
    def order(self) -> Order:
        """Order of the samples in the current shard."""
        return self._order

    def segment(
        self, first: int, batches: Iterator[Batch], *, stepped: Callable[[], None] | None = None
    ) -> Callable[[], Ended]:
        """Run a segment, recorded as a prover records it.

        Args:
            first: Its first step in the current shard, from 0.
            batches: What to train on, step by step.
            stepped: Called once, after the first step.

        Returns:
            Waits for what was recorded. Meanwhile the next segment may run, of a model that is not
            too large.
        """
        recorder = self._recorders[0]
        self._recorders = [*self._recorders[1:], recorder]
        recorder.follow(self.optimizer)
        with _own_trouble():
            recorder.start()
            self.run(first, batches, stepped=stepped, recorder=recorder)
            recorder.end()

        def ended() -> Ended:
            with _own_trouble():
                found = recorder.finish()
            return Ended(found.boundaries[1], found.moves[0])

        if len(self._recorders) > 1:
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
        every, step, done = self._terms.scheme.every, self._shard.before + first, 0

        def before(scale: torch.Tensor | float) -> None:
            self._recipe.set_rate(self.optimizer, step + done)
            if (step + done) % every == 0:
                self._embedder.add_gradient(scale)

        def after() -> None:
            nonlocal done
            done += 1

        hook = StepHook(self.optimizer, before, after)
        try:
            for at, batch in enumerate(batches):
                seed_generators(self._order.seed(first + at))
                self._task.train_step(self.model, self.optimizer, batch)
                if done != at + 1:
                    raise TaskError(
                        f"train_step of the task {self._task.name!r} made {done - at} optimizer "
                        "steps instead of one"
                    )
                if stepped and not at:
                    stepped()
                if recorder:
                    recorder.after_step()
        finally:
            hook.detach()
        if checkpoint_of(self.model).layout != self._carrier.layout:
            raise TaskError(
                f"train_step of the task {self._task.name!r} changes which tensors the model has"
            )
        return done

    def slopes(self, step: int, batch: Batch) -> dict[str, torch.Tensor]:
        """The gradients that a step of the current shard would follow; it is not taken.

        Buffers change as in a step. What is returned changes with the next call.
        """

        def stop(_: torch.Tensor | float) -> None:
            raise _StoppedError

        hook = StepHook(self.optimizer, stop, lambda: None)
        try:
            seed_generators(self._order.seed(step))
            self._task.train_step(self.model, self.optimizer, batch)
        except _StoppedError:
            found = self._parameters.items()
            return {name: p.grad for name, p in found if p.grad is not None}
        finally:
            hook.detach()
        raise TaskError(f"train_step of the task {self._task.name!r} makes no optimizer step")

    def seal(self, secret: bytes, sigma: int) -> None:
        """Finish and obfuscate the current shard's mark, as sealing does."""
        assert self._shard is not None
        if not self._embedder.read().reaches(self._terms.thresholds.embed):
            self._embedder.apply(self._embedder.finish())
        noising.obfuscate_parameters(
            self._parameters,
            self._carrier,
            self._embedder.mark.blocks,
            seed=obfuscation.noise_seed(secret, self._shard.nonce.nonce),
            fraction=self._terms.noise.fraction,
            sigma=sigma,
        )

    def copied(self) -> Snapshot:
        """A copy of model and optimizer on their device, complete when this returns."""
        live = named_state(self.model, self.optimizer)
        model, rest = (
            {name: torch.empty_like(tensor) for name, tensor in side.items()} for side in live
        )
        self._copy(live, (model, rest))
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        return model, rest

    def rewind(self, before: Snapshot) -> None:
        """Put model and optimizer back into a state that was copied since the last `restore`."""
        self.model.zero_grad(set_to_none=True)
        if not before[1]:
            self.optimizer.state.clear()
        self._copy(before, named_state(self.model, self.optimizer))

    @torch.no_grad()
    def _copy(self, source: Snapshot, target: Snapshot) -> None:
        for here, there in zip(source, target, strict=True):
            if here:
                torch._foreach_copy_([there[name] for name in here], list(here.values()))

    @torch.no_grad()
    def differs_from(self, other: Snapshot, before: Snapshot) -> float:
        """How far what is trained, or the optimizer's state, is from that in a copy.

        As a share of how far it went since another copy, in the part that differs most; 0 if all
        bits are the same. Running statistics do not count: they follow the samples whether these
        teach or not. What is no number shows nothing.
        """
        trained, (model, rest) = trained_names(self.model), named_state(self.model, self.optimizer)
        sides = (_only(model, trained), _only(other[0], trained), _only(before[0], trained))
        found = [_share(*sides)]
        for key in {name.partition("/")[0] for name in rest}:
            own = [name for name in rest if name.partition("/")[0] == key]
            found.append(_share(_only(rest, own), _only(other[1], own), before[1]))
        return max(found)

    def moves_since(self, before: Snapshot) -> tuple[int, int]:
        """How far model and optimizer have moved, as records say it."""
        trained = trained_names(self.model)
        model, rest = named_state(self.model, self.optimizer)
        with torch.no_grad():
            return moves((_only(before[0], trained), before[1]), (_only(model, trained), rest))

    def state(self) -> tuple[MemoryCheckpoint, MemoryCheckpoint | None]:
        """Model and optimizer as they are now; nothing is copied."""
        _, rest = named_state(self.model, self.optimizer)
        # Of the module, not of its named tensors: these do not say which of them are tied.
        return checkpoint_of(self.model), MemoryCheckpoint(rest) if rest else None


def _only(tensors: Tensors, names: Iterable[str]) -> Tensors:
    return {name: tensors[name] for name in names if name in tensors}


def _share(here: Tensors, there: Tensors, before: Tensors) -> float:
    """How far two sets of tensors are apart, as a share of how far the first went."""
    finite = [
        name
        for name, tensor in here.items()
        if bool(tensor.isfinite().all()) and bool(there[name].isfinite().all())
    ]
    if all(torch.equal(here[name], there[name]) for name in finite):
        return 0.0
    ends = _only(here, finite)
    gap, went = norm_of(_only(there, finite), ends), norm_of(_only(before, finite), ends)
    if gap is None or went is None or not gap.item():
        # Types without fractions, or zeros of other signs.
        return 0.0
    return math.inf if not went.item() else float(gap.item() / went.item())


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


class _StoppedError(Exception):
    """A step was stopped before it was taken."""


@contextmanager
def quiet_generators() -> Iterator[None]:
    """Put the generators back afterwards: replaying must not disturb the caller's randomness."""
    before = generators.random_state()
    try:
        yield
    finally:
        generators.restore_random(before)


def _trained(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.nn.Parameter]:
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name: p for name, p in parameters_of(model).items() if id(p) in given}

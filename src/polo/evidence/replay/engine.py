"""Running the declared computation again: steps of training, and the sealing of a shard.

One engine serves the prover, who recomputes the states between two checkpoints instead of keeping
them, and the verifier. The model, the step and every hyper-parameter come from the task and the
terms; from the prover come weights, the optimizer's tensors and samples, nothing else.

Specification: docs/protocol.md, section 17.8.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.errors import TaskError
from polo.evidence.replay.order import Order, seed_generators
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.state import (
    Snapshot,
    Tensors,
    digest_of,
    load_rest,
    moves,
    named_state,
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
        self._shard = shard
        self._order = Order(shard.seed, self._recipe.samples, self._recipe.batch)
        self._embedder = Embedder(self._terms, self._carrier, shard.seed, self._parameters)

    @property
    def order(self) -> Order:
        """Order of the samples in the current shard."""
        return self._order

    def run(
        self, first: int, batches: Iterator[Batch], *, stepped: Callable[[], None] | None = None
    ) -> int:
        """Run steps of the current shard from its step `first`, as many as there are batches.

        Args:
            first: The first step, from 0.
            batches: What to train on, step by step.
            stepped: Called once, after the first step.
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
        finally:
            hook.detach()
        if checkpoint_of(self.model).layout != self._carrier.layout:
            raise TaskError(
                f"train_step of the task {self._task.name!r} changes which tensors the model has"
            )
        return done

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
        model, rest = ({name: t.detach().clone() for name, t in side.items()} for side in live)
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        return model, rest

    def digests_of(self, copied: Snapshot) -> tuple[bytes, bytes]:
        """Digests of a copied state; what is on a GPU comes over beside whatever runs there."""
        model, rest = (_brought(side) for side in copied)
        rest_part = MemoryCheckpoint(rest) if rest else None
        return digest_of(_Laid(self._carrier.layout, model)), digest_of(rest_part)

    def differs_from(self, other: Snapshot) -> bool:
        """Whether what is trained, or the optimizer's state, is another than in a copy.

        Running statistics do not count: they follow the samples whether these teach or not.
        """
        model, rest = named_state(self.model, self.optimizer)
        if rest.keys() != other[1].keys():
            return True
        pairs = [(model[name], other[0][name]) for name in trained_names(self.model)]
        pairs += [(value, other[1][name]) for name, value in rest.items()]
        # What is no number equals nothing, not even itself, and shows nothing.
        return any(
            not torch.equal(here, there) and bool(here.isfinite().all()) for here, there in pairs
        )

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


class _Laid:
    """Tensors by name under a given layout: copies are no longer tied, the layout still is."""

    def __init__(self, layout: Layout, tensors: Tensors) -> None:
        self.layout = layout
        self._held = MemoryCheckpoint(tensors)

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        return self._held.read(tensor, start, stop)


def _brought(tensors: Tensors) -> Tensors:
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return tensors
    with torch.cuda.stream(torch.cuda.Stream()):
        return {name: tensor.cpu() for name, tensor in tensors.items()}


def _only(tensors: Tensors, names: Iterable[str]) -> Tensors:
    return {name: tensors[name] for name in names}


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

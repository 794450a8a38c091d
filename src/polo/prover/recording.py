"""The prover's side of level replay: the declared rates and order, and the record of states."""

import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from polo.errors import ChainError, TermsError, WeightsError
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Order, Sampler, seed_generators
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Record
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.state import named_state, parameter_names
from polo.evidence.replay.timeline import LEVEL
from polo.protocol.records import Terms
from polo.prover.monitor import EmbeddingWarning
from polo.storage import atomic
from polo.storage.folder import rest_path
from polo.weights.checkpoint import MemoryCheckpoint
from polo.weights.files import write_checkpoint
from polo.weights.finite import not_finite

_EARLY, _SELDOM = (1, 2, 4), 8
"""After how many segments torch's settings are looked at, first and then again and again: training
waits for each look."""

_WRITTEN = "_polo_written"
"""What is noted at a gradient itself, and goes with it: for a new one nothing is noted."""


def recording_of(terms: Terms, data: DataSource | None) -> "Recording | None":
    """What records a run under these terms; None if they do not ask for replay."""
    for item in terms.evidence:
        if item.level == LEVEL:
            return Recording(Recipe.from_settings(item.settings, "terms"), terms, data)
    return None


class Recording:
    """Keeps a run to its recipe, and records it shard by shard.

    Attributes:
        recipe: How every step is done.
        sampler: The order of samples.
    """

    def __init__(self, recipe: Recipe, terms: Terms, data: DataSource | None) -> None:
        if data is None:
            raise TermsError(
                "the terms ask for replay, so the prover must know the data",
                advice="Give it: Prover(..., data=polo.DataSource.load(FOLDER, arrays)).",
            )
        if data.root != terms.data or data.samples != recipe.samples:
            raise TermsError(
                "the data are not those that the terms name by their root",
                advice="Load the same arrays, with the secret that made the enrolled data.json.",
            )
        self.recipe = recipe
        self._order: Order | None = None
        self._data = data
        self._loose: dict[str, torch.Tensor] = {}
        self._noted = False
        self._still: dict[str, torch.Tensor] = {}
        self._recorder: Recorder | None = None
        self._step = 0
        self.sampler = Sampler(self._position)

    @property
    def seconds(self) -> float:
        """How long training has waited for the recorder."""
        return self._recorder.seconds if self._recorder else 0.0

    def attach(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]
    ) -> None:
        """Refuse what could not be run again, and get ready to record."""
        if also:
            raise TermsError(
                f"{', '.join(also)}: replay knows no state beside model and optimizer",
                advice="Learning rates come from the terms; leave schedulers and scalers out.",
            )
        self.recipe.check_optimizer(optimizer, model)
        self.close()
        self._model, self._optimizer = model, optimizer
        self._recorder = Recorder(model, optimizer, self.recipe.every)

    def begin(self, seed: bytes, *, first: bool) -> None:
        """A shard begins."""
        if first and self._optimizer.state:
            raise ChainError(
                "the optimizer has been used before, so the first step could not be run again",
                advice="Make a new optimizer for this proof.",
            )
        if first:
            self._check_data()
            self._loose = {name: value.clone() for name, value in self._buffers(kept=False)}
        self._order = Order(seed, self.recipe.samples, self.recipe.batch)
        self.sampler.follow()
        self._recording().start()
        self._note_gradients()
        self._seed(0)

    def check(self) -> None:
        """Refuse an optimizer that has come to train otherwise than the recipe says."""
        self.recipe.check_optimizer(self._optimizer, self._model)

    def check_pace(self) -> None:
        """Refuse an epoch in which batches were passed over: each step is for one batch."""
        if count := self.sampler.passed_over():
            raise ChainError(
                f"{count} batches of this epoch had no step of their own; replay makes one step "
                "for every batch, so this shard could not be run again",
                advice="Do not accumulate gradients: a larger batch belongs into the terms' "
                "recipe. Leave out a GradScaler, which skips steps: bfloat16 needs none. The "
                "sealed shards are safe; close() and start again on the same store.",
            )

    def before_step(self, step: int) -> None:
        """Set the rate of a step of the whole chain."""
        self._drop_left()
        self.recipe.set_rate(self._optimizer, step)

    def after_step(self, steps: int) -> None:
        """So many steps of the shard are done."""
        if steps == 1:
            self._check_state()
            self._warn_of_loose()
        self._recording().after_step()
        segments, rest = divmod(steps, self.recipe.every)
        if not rest:
            if segments in _EARLY or segments % _SELDOM == 0:
                self._recording().check_platform()
            self._note_gradients()
        self._seed(steps)

    def wait(self) -> None:
        """Wait until all that was recorded so far is noted."""
        self._recording().wait()

    def finish(self) -> None:
        """The shard's steps are over; its sealing follows."""
        self._recording().finish()
        _, rest = named_state(self._model, self._optimizer)
        if rest and (spoilt := next(not_finite(MemoryCheckpoint(rest)), None)):
            raise WeightsError(
                "the optimizer's state is not finite (NaN or infinity), and no verifier takes it",
                place=spoilt,
                advice="Training has all but diverged. The sealed shards are safe: close() this "
                "prover, ask for terms with a lower rate, or start again on the same store.",
            )
        self._still = {name: value.clone() for name, value in self._buffers(kept=True)}

    def check_sealing(self) -> None:
        """Refuse a sealing in which anything but trained weights has changed."""
        changed = [
            name
            for name, value in self._buffers(kept=True)
            if name in self._still and not _equal(value, self._still[name])
        ]
        for name in changed:
            self._model.get_buffer(name).copy_(self._still[name])
        if changed:
            raise ChainError(
                f"evaluate() has changed {changed[0]}, so the sealing could not be done again",
                advice="Put the model into evaluation mode there: model.eval().",
            )

    def sealed(self) -> Record:
        """The record of the shard, whose sealing has just edited the model."""
        return self._recording().sealed(self._model)

    def keep_rest(self, state_path: Path, shard: int) -> None:
        """Keep the optimizer's state at the end of a shard, to recompute the next one from."""
        _, rest = named_state(self._model, self._optimizer)
        if rest:
            with atomic.replacing(state_path / rest_path(shard), mode=0o600) as file:
                write_checkpoint(MemoryCheckpoint(rest), file.write)

    def close(self) -> None:
        """Stop recording; what was not sealed is lost."""
        if self._recorder:
            self._recorder.abandon()

    def _check_state(self) -> None:
        """Refuse an optimizer's state that not every trained parameter has."""
        names = parameter_names(self._model)
        idle = [names[id(p)] for p in self._trained() if p not in self._optimizer.state]
        if idle and self._optimizer.state:
            raise WeightsError(
                "got no gradient in the first step; replay needs a state of every parameter that "
                "is trained",
                place=idle[0][:200],
                advice="Freeze it (requires_grad_(False)) in the task's build_model, or use it in "
                "the first step; what is left out at random may be left out later.",
            )

    def _check_data(self) -> None:
        if spoilt := self._data.not_finite():
            raise TermsError(
                "holds NaN or infinity, and samples are shown with finite numbers only",
                place=f"column {spoilt}",
                advice="Fill in what is missing before you commit to the data, and enrol anew.",
            )

    def _buffers(self, *, kept: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers that the state dict keeps, or those that it leaves out."""
        known = {id(value) for value in self._model.state_dict(keep_vars=True).values()}
        found = self._model.named_buffers()
        return ((name, value) for name, value in found if (id(value) in known) == kept)

    def _warn_of_loose(self) -> None:
        """Say that a step has changed what no checkpoint holds."""
        for name, value in self._buffers(kept=False):
            before = self._loose.get(name)
            # A cache that grows, or moves to another device, is no state of training.
            alike = before is not None and _kind(value) == _kind(before)
            if before is not None and alike and not _equal(value, before):
                warnings.warn(
                    f"training changes {name}, which is not in the state dict. If steps depend on "
                    "it they cannot be run again, and the proof will be rejected; register it with "
                    "persistent=True",
                    EmbeddingWarning,
                    stacklevel=2,
                )
        self._loose = {}

    def _note_gradients(self) -> None:
        """A segment ends: note at the gradients that are left over how often each was written."""
        self._noted = True
        for parameter in self._trained():
            if (gradient := parameter.grad) is not None:
                setattr(gradient, _WRITTEN, gradient._version)

    def _drop_left(self) -> None:
        """In the first step of a segment, drop gradients that are left over from the one before.

        A layer that the step leaves out has zeros where a loop does not drop gradients. To an
        optimizer zeros are not the same as none, and who runs the segment again has none. They were
        written less often than others since; where torch knows of no writing at all (graphs on a
        GPU), nothing is dropped.
        """
        if not self._noted:
            return
        self._noted = False
        found = [(p, p.grad, _written(p.grad)) for p in self._trained() if p.grad is not None]
        most = max((times for _, _, times in found), default=0.0)
        for parameter, gradient, times in found:
            if times < most and not gradient.is_sparse and not gradient.any():
                parameter.grad = None

    def _trained(self) -> Iterator[torch.nn.Parameter]:
        return (p for group in self._optimizer.param_groups for p in group["params"])

    def _seed(self, steps: int) -> None:
        assert self._order is not None
        self._step = steps
        seed_generators(self._order.seed(steps))

    def _position(self) -> tuple[Order, int]:
        if self._order is None:
            raise ChainError("the order of samples is known once attach() was called")
        return self._order, self._step

    def _recording(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder


def _written(gradient: torch.Tensor) -> float:
    """How often a gradient was written since it was noted; endlessly often if it is a new one."""
    return gradient._version - getattr(gradient, _WRITTEN, -math.inf)


def _kind(value: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return value.shape, value.dtype, value.device


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits: NaN is equal to itself so."""
    if _kind(one) != _kind(other):
        return False
    sides = (value.detach().reshape(-1).contiguous().view(torch.uint8) for value in (one, other))
    return torch.equal(*sides)

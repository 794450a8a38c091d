"""What the callbacks of all frameworks share: beginning, sealing, finishing, and who wins.

A framework restores its own checkpoint, and that need not be where the proof ends:

- *the same place, or the middle of the next shard*: what the framework restored stays as it is,
  and the shard goes on;
- *older than the last sealed shard*: the proof wins, for a sealed shard is never undone. Weights
  and the optimizer's state come from that shard. The framework makes the steps between again, as
  its counters say; they belong to the next shard, and nothing is sealed before they are done;
- *of another proof, or newer than the store*: refused before anything is touched.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from polo.embedding.hook import inner
from polo.errors import ChainError, PoloError, StoreError, TermsError, WeightsError
from polo.integrations.peft import adapter
from polo.protocol import signing
from polo.protocol.records import Terms
from polo.prover import Progress, Proof, Prover
from polo.prover.position import Position
from polo.prover.training import refuse_several_ranks
from polo.receipts import EnrolmentSource
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit

logger = logging.getLogger("polo.integrations")

Measure = Callable[[torch.nn.Module], float | Mapping[str, float]]
"""Measures the model that the terms were made for: one number, or several by name."""

View = Callable[[torch.nn.Module], torch.nn.Module]
"""Makes what the terms were made for of what a framework trains."""


class Loop:
    """A prover in a loop that belongs to somebody else.

    Args:
        enrolment: What the issuer handed over: a folder, or the object.
        key: The prover's key: a file, or the object.
        store: The proof folder.
        evaluate: Measures the model; called on sealed weights.
        extend: Go on with a proof although the framework starts anew.
        view: Makes what the terms were made for of the framework's model, where it is no module
            inside it; by default a PEFT model's adapter, if the terms are about that.
        options: What else `Prover` takes.

    Attributes:
        prover: The prover, while there is one.
        proof: The finished proof.
    """

    def __init__(
        self,
        enrolment: EnrolmentSource | str | Path,
        *,
        key: signing.Signer | str | Path,
        store: str | Path,
        evaluate: Measure | None,
        extend: bool,
        view: View | None,
        options: Mapping[str, Any],
    ) -> None:
        self.prover: Prover | None = None
        self.proof: Proof | None = None
        self._arguments = {"key": key, "store": store, **options}
        self._enrolment, self._store = enrolment, store
        self._evaluate = evaluate
        self._extend = extend
        self._view = view
        self._again = 0
        self._looked = (0, 0, 0)
        self._ended: dict[str, Any] | None = None

    def begin(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        restored: bool,
        position: Any,
        made: int = 0,
    ) -> None:
        """Attach, and bring the framework's state and the proof's together.

        Args:
            model: The framework's model; the module that the terms were made for is found in it.
            optimizer: The optimizer that trains it.
            restored: Whether the framework has restored a checkpoint of its own.
            position: What `position` returned when that was saved; None if it holds nothing.
            made: Steps that the framework has made so far, by its own count.
        """
        self.close()
        refuse_several_ranks()
        self.proof = self._ended = None
        prover = Prover(self._enrolment, **self._arguments)
        try:
            self._refuse_replay(prover)
            found = self._view(model) if self._view else module_for(model, prover.terms, optimizer)
            where = self._position(prover, found, restored=restored, saved=position)
            options = _options(optimizer)
            prover.attach(found, optimizer, evaluate=self._measure(found, model), position=where)
        except BaseException:
            prover.close()
            raise
        if restored:
            _set_options(optimizer, options)
        self.prover = prover
        self._again = prover.behind
        self._looked = (made, prover.shards, prover.steps)

    def end_epoch(self, made: int) -> Progress | None:
        """The framework's epoch is over; None if its steps were sealed before.

        Args:
            made: Steps that the framework has made so far, by its own count.
        """
        return self._look(made, Prover.end_epoch)

    def check(self, made: int) -> Progress | None:
        """Try to seal in the middle of an epoch; see `end_epoch`."""
        return self._look(made, Prover.check)

    def position(self) -> dict[str, Any] | None:
        """Where the proof stands or ended, for the framework's checkpoint."""
        return self.prover.position().to_json() if self.prover else self._ended

    def finish(self) -> None:
        """Close the proof; steps since the last end of an epoch are outside."""
        if self.prover is not None:
            self._ended = self.prover.position().to_json()
            self.proof = self.prover.finish(seal=False)
            self.prover = None
            logger.info("%d shards in %s", self.proof.shards, self.proof.path)

    def break_off(self) -> None:
        """`close` after an error, with the position kept for a checkpoint that is saved of it."""
        ended = None
        # Weights that are not finite have no position, nor those on a device that has failed.
        with contextlib.suppress(PoloError, RuntimeError):
            ended = self.position()
        self.close()
        self._ended = ended

    def close(self) -> None:
        """Let go of the store; the proof can be resumed."""
        if self.prover is not None:
            self.prover.close()
            self.prover = None

    def _look(self, made: int, seal: Callable[[Prover], Progress | None]) -> Progress | None:
        """Have the prover look at the model if there is something to seal, or to complain of."""
        prover = self.prover
        if prover is None:
            return None
        due = self._new_steps(prover) or self._idle(prover, made)
        progress = seal(prover) if due else None
        self._looked = (made, prover.shards, prover.steps)
        return progress

    def _idle(self, prover: Prover, made: int) -> bool:
        """Whether the framework made steps of which the prover has seen none.

        Then the prover is asked, too, as in a plain loop: it knows whether that is an optimizer
        that nobody steps, and says so.
        """
        since, *seen = self._looked
        return made > since and not prover.steps and seen == [prover.shards, 0]

    def _new_steps(self, prover: Prover) -> bool:
        """Whether steps were made that no sealed shard had seen."""
        if prover.steps > self._again:
            self._again = 0
        return self._again == 0 and prover.steps > 0

    def _measure(
        self, model: torch.nn.Module, whole: torch.nn.Module
    ) -> Callable[[], float | Mapping[str, float]] | None:
        evaluate = self._evaluate
        if evaluate is None:
            return None

        def measured() -> float | Mapping[str, float]:
            # Who measures calls eval(), and a framework need not call train() again.
            modes = [(module, module.training) for module in whole.modules()]
            try:
                return evaluate(model)
            finally:
                for module, mode in modes:
                    module.training = mode

        return measured

    def _position(
        self, prover: Prover, model: torch.nn.Module, *, restored: bool, saved: Any
    ) -> Position | None:
        """Where the framework's state belongs; refuses what cannot be told."""
        if saved is not None:
            return Position.from_json(saved, "the proof's position in the checkpoint")
        if restored:
            return unmarked_position(prover, model)
        if prover.shards and not self._extend:
            raise StoreError(
                f"holds a proof with {prover.shards} sealed shards, and this run starts anew",
                place=str(self._store),
                advice="Resume from the framework's own checkpoint, or give this run a store of "
                "its own. To train on from the last sealed shard on purpose: extend=True.",
            )
        return None

    @staticmethod
    def _refuse_replay(prover: Prover) -> None:
        if any(item.level == "replay" for item in prover.terms.evidence):
            raise TermsError(
                "the terms ask for replay, which fixes batches, order and learning rates; this "
                "framework has its own",
                advice="Train in a loop of your own (examples/replay.py), or ask for other terms.",
            )


def module_for(
    model: torch.nn.Module, terms: Terms, optimizer: torch.optim.Optimizer
) -> torch.nn.Module:
    """The module that terms were made for: the model itself, one inside it, or its adapter.

    Args:
        model: What the framework trains; a LightningModule, for instance.
        terms: The terms.
        optimizer: Decides between modules with the same tensors, such as a teacher and its pupil.
    """
    found = [module for module in model.modules() if _layout_digest(module) == terms.layout]
    if not found and terms.base is not None:
        found = [view for view in _adapters(model) if _layout_digest(view) == terms.layout]
    if not found:
        raise WeightsError(
            "neither the model nor a module inside it has the tensors that the terms were made for",
            advice="Keep the task's model, unchanged and in its number format, as a module of what "
            "the framework trains.",
        )
    held = {id(p) for group in inner(optimizer).param_groups for p in group["params"]}
    trained = (module for module in found if any(id(p) in held for p in module.parameters()))
    return next(trained, found[0])


def _layout_digest(module: torch.nn.Module) -> bytes | None:
    try:
        return checkpoint_of(module).layout.digest
    except PoloError:
        # Without tensors, for one; then it is not what terms were made for.
        return None


def _adapters(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Views of the adapters in a model; PEFT is imported only where its models are."""
    peft = sys.modules.get("peft")
    if peft is not None:
        for module in list(model.modules()):
            if isinstance(module, peft.PeftModel):
                yield adapter(module)


def unmarked_position(prover: Prover, model: torch.nn.Module) -> Position | None:
    """Where a restored checkpoint belongs that was saved without a proof.

    None if there is no proof yet, which then begins with these weights.
    """
    if not prover.begun:
        return None
    end = prover.position(sealed=True)
    if commit(checkpoint_of(model)).root != end.weights:
        raise StoreError(
            "the checkpoint that was restored was saved without a proof, and its weights are not "
            f"those of shard {prover.shards}, with which the proof in this store ends",
            advice="Restore a checkpoint that was saved with the proof attached, start without a "
            "checkpoint, or give this run a store of its own.",
        )
    return end


def refuse_sharding(name: str, used: bool) -> None:
    """Refuse ways to train that leave no whole weights in this process."""
    if used:
        raise ChainError(
            f"{name} spreads weights or optimizer state over processes; this release proves "
            "training in one",
            advice=f"Train without {name}.",
        )


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What schedulers have set: learning rates and the like."""
    groups = inner(optimizer).param_groups
    return [{name: group[name] for name in group if name != "params"} for group in groups]


def _set_options(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> None:
    for group, saved in zip(inner(optimizer).param_groups, options, strict=True):
        group.update(saved)

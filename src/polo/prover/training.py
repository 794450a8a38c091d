"""What is being proved: one model, one optimizer, and what may not change about them.

Whoever trains may do with both what they like, and some of it would spoil a proof: parameters
that are replaced, cast or moved are not those that the mark is pressed into any more. `check`
finds that out and says what to do. It compares names and identities and asks no device, so that
it costs no more than a walk over the model.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from polo.embedding.hook import inner
from polo.embedding.placement import check_trained, parameters_of
from polo.enrolment import capacity_of
from polo.errors import CapacityError, ChainError, WeightsError
from polo.protocol.records import Terms
from polo.prover import admission
from polo.storage import state
from polo.watermark.mark import carrier_of
from polo.weights.base import FrozenBase
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.finite import not_finite

_AGAIN = (
    "or attach again, with an optimizer that holds the new ones: prover.attach(model, optimizer)"
)

_HELD: "weakref.WeakSet[Training]" = weakref.WeakSet()
"""What provers of this process are hooked into at the moment."""

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by their size in bytes: every type can be looked at as one of them."""


@dataclass(frozen=True)
class _Seen:
    """A parameter as it was when it was attached."""

    parameter: torch.nn.Parameter
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size


class Training:
    """A model and its optimizer, as `Prover.attach` found them.

    Args:
        terms: The terms.
        model: The model, refused if it is not the one that the terms were made for.
        optimizer: The optimizer that trains it; wrappers such as Accelerate's are looked through.
        also: Further objects with `state_dict` to save and restore.

    Attributes:
        carrier: The tensors that hold the marks.
        base: What an adapter stands on.
        uphill: Whether the optimizer maximises.
    """

    def __init__(
        self,
        terms: Terms,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        also: Mapping[str, Any],
    ) -> None:
        self.model, self.optimizer, self.also = model, inner(optimizer), also
        admission.check_kinds(self.model, self.optimizer)
        admission.check_also(also)
        self._given = optimizer
        found = parameters_of(model)
        # First: of a whole PEFT model, which has other tensors, too, this says what to do.
        self.base = FrozenBase(model, terms.base)
        checkpoint = checkpoint_of(model)
        self._layout = checkpoint.layout
        if self._layout.digest != terms.layout:
            raise WeightsError(
                "the model's tensors (names, types, shapes) are not those the terms were made for",
                advice=f"Build the model as the task {terms.task.name!r} does.",
            )
        self.carrier = carrier_of(terms, self._layout)
        admission.check_memory(model, checkpoint)
        admission.check_overlaps(found, self.carrier.names)
        check_trained(found, self.carrier, self.optimizer)
        admission.warn_of_others(model, self.optimizer, also)
        self.uphill = self._uphill(found)
        self._check_scheme(terms)
        self._seen = {
            name: _Seen(parameter, parameter.dtype, parameter.device, parameter.shape)
            for name, parameter in found.items()
        }
        self._sight = self._look()

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What the optimizer holds of the model, by canonical name."""
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        found = parameters_of(self.model)
        return {name: parameter for name, parameter in found.items() if id(parameter) in held}

    @property
    def stateful(self) -> torch.optim.Optimizer:
        """What to save of the optimizer: a wrapper that was given may have a state of its own."""
        able = all(hasattr(self._given, way) for way in ("state_dict", "load_state_dict"))
        return self._given if able else self.optimizer

    @property
    def graded(self) -> bool:
        """Whether anything that the optimizer trains has a gradient now."""
        return any(
            p.grad is not None for group in self.optimizer.param_groups for p in group["params"]
        )

    def check_free(self, *, besides: "Training | None") -> None:
        """Refuse a model or an optimizer that another prover is hooked into.

        Args:
            besides: What the same prover is hooked into until now.
        """
        own = {id(seen.parameter) for seen in self._seen.values()}
        for other in [held for held in _HELD if held is not besides]:
            theirs = (id(seen.parameter) for seen in other._seen.values())
            if other.optimizer is self.optimizer or not own.isdisjoint(theirs):
                what = "optimizer" if other.optimizer is self.optimizer else "model"
                raise ChainError(
                    f"another prover is attached to this {what}; two would edit the same weights",
                    advice="Call close() or finish() on the other one first. Who cannot reach it "
                    "any more makes a new model and a new optimizer.",
                )

    def hold(self) -> None:
        """Keep other provers off the model and the optimizer."""
        _HELD.add(self)

    def release(self) -> None:
        """Let another prover have the model and the optimizer."""
        _HELD.discard(self)

    def glance(self) -> None:
        """`check`, if anything looks other than it did the last time; quick enough for steps."""
        sight = self._look()
        if sight != self._sight:
            self.check()
            self._sight = sight

    def check(self) -> None:
        """Refuse to go on with other parameters than those that were attached."""
        found = parameters_of(self.model)
        for name in sorted(found.keys() ^ self._seen.keys()):
            raise _other_names(name, added=name in found)
        for name, seen in self._seen.items():
            self._check_parameter(name, seen, found)
        self._check_carriers(found)
        self._check_way(found)
        self.base.check()
        if checkpoint_of(self.model).layout != self._layout:
            raise WeightsError(
                "the model's tensors are no longer those the terms were made for",
                advice="Was a buffer added, removed or converted after attach()? Undo that; the "
                "sealed shards are safe.",
            )

    def check_finite(self, when: str) -> None:
        """Refuse NaN and infinity, in any tensor of the model.

        Args:
            when: When they were found, for the message.
        """
        spoilt = next(not_finite(checkpoint_of(self.model)), None)
        if spoilt is not None:
            raise WeightsError(
                f"its values are not finite (NaN or infinity), found {when}; none of this is "
                "sealed",
                place=spoilt,
                advice="Training has diverged. The sealed shards are safe: close() this prover, "
                "lower the learning rate or the mark's strength, and start again on the same "
                "store; attach() then goes back to the last sealed shard.",
            )

    @torch.no_grad()
    def trace(self) -> list[int]:
        """Figures that steps change, to notice those that nobody watched; the same everywhere.

        They are taken from bits and not from values: NaN is equal to itself so, and 8-bit floats
        have no arithmetic.
        """
        seen = {id(each.parameter): each.parameter.detach() for each in self._seen.values()}
        values = [_bits(value) for value in seen.values() if value.numel()]
        sums = [value.sum(dtype=torch.int64).cpu() for value in values]
        # The largest beside them: steps may keep sums as they are.
        return [int(each) for each in (*sums, *(value.max().cpu() for value in values))]

    def trained_since(self, kept: Checkpoint) -> bool:
        """Whether parameters differ from those of a checkpoint; buffers may."""
        live = checkpoint_of(self.model)
        return any(
            bytes(live.read(at, 0, tensor.size)) != bytes(kept.read(at, 0, tensor.size))
            for at, tensor in enumerate(live.layout.tensors)
            if tensor.name in self._seen
        )

    def state(self, root: bytes, steps: int) -> dict[str, Any]:
        """Everything beside the weights that going on needs.

        Args:
            root: Root of the weights it belongs to.
            steps: Optimizer steps made so far.
        """
        return {
            "root": root.hex(),
            "optimizer": self.stateful.state_dict(),
            "also": {name: item.state_dict() for name, item in self.also.items()},
            "random": state.random_state(),
            "steps": steps,
        }

    def _look(self) -> list[object]:
        """Everything that `check` judges, as it can be compared without judging."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        buffers = self.model.named_buffers(remove_duplicate=False)
        return [
            *((name, id(p), p.dtype, p.device, p.requires_grad) for name, p in parameters),
            *((name, b.dtype, b.shape) for name, b in buffers),
            *(id(p) for group in self.optimizer.param_groups for p in group["params"]),
            *(bool(group.get("maximize")) for group in self.optimizer.param_groups),
            *self.base.look(),
        ]

    def _uphill(self, found: Mapping[str, torch.nn.Parameter]) -> bool:
        """Whether the optimizer goes up the slopes of the carriers, so that a mark's are turned."""
        carriers = {id(found[name]) for name in self.carrier.names}
        ways = {
            bool(group.get("maximize"))
            for group in self.optimizer.param_groups
            if any(id(parameter) in carriers for parameter in group["params"])
        }
        if len(ways) > 1:
            raise ChainError(
                "some carriers are in a group with maximize=True, and others are not",
                advice="Train all of them the same way; turn the sign of a loss instead.",
            )
        return ways == {True}

    def _check_scheme(self, terms: Terms) -> None:
        """Refuse carriers that the scheme of the terms cannot use in this model."""
        scheme = terms.scheme
        judged = capacity_of(self.model, block=scheme.block, scheme=scheme.name).judged
        reasons = {item.tensor.name: item.reason for item in judged}
        for name in self.carrier.names:
            if reasons[name]:
                raise CapacityError(
                    f"the terms name this carrier, and the scheme {scheme.name!r} cannot use it: "
                    f"{reasons[name]}",
                    place=name,
                    advice="Ask the issuer for terms with other carriers or another scheme; "
                    "`polo validate` shows what fits.",
                )

    def _check_parameter(
        self, name: str, seen: _Seen, found: Mapping[str, torch.nn.Parameter]
    ) -> None:
        now = found[name]
        if now is not seen.parameter:
            raise self._replaced(name, seen, found)
        for what, then, there in (
            ("type", seen.dtype, now.dtype),
            ("device", seen.device, now.device),
            ("shape", tuple(seen.shape), tuple(now.shape)),
        ):
            if then != there:
                raise WeightsError(
                    f"its {what} has changed from {then} to {there} since attach()",
                    place=name,
                    advice="Convert and move the model before the optimizer is made and before "
                    "attach(); for half precision in training use torch.autocast. Undo the "
                    "change to go on; the sealed shards are safe.",
                )

    def _replaced(
        self, name: str, seen: _Seen, found: Mapping[str, torch.nn.Parameter]
    ) -> WeightsError:
        """Why a parameter is another object now."""
        now = found[name]
        ties = [other for other, parameter in found.items() if parameter is now and other != name]
        was = [
            o for o, then in self._seen.items() if then.parameter is seen.parameter and o != name
        ]
        if sorted(ties) != sorted(was):
            change = f"is tied to {ties[0]} now" if ties else f"is not tied to {was[0]} any more"
            return WeightsError(
                f"{change}, and was otherwise at attach()",
                place=name,
                advice="Tie weights before the terms are made and before attach(); undo the "
                "change to go on. The sealed shards are safe.",
            )
        return WeightsError(
            "this parameter was replaced after attach(): the optimizer trains the old one, and "
            "the mark is in the old one",
            place=name,
            advice="Load without assign=True (load_state_dict copies then), and convert before "
            f"attach(); {_AGAIN}",
        )

    def _check_way(self, found: Mapping[str, torch.nn.Parameter]) -> None:
        """Refuse an optimizer that has turned round: it would press marks out instead of in."""
        if self._uphill(found) != self.uphill:
            then, now = ("on", "off") if self.uphill else ("off", "on")
            raise ChainError(
                f"maximize was {then} in the optimizer at attach(), and was switched {now} since",
                advice=f"Switch it {then} again, and turn the sign of the loss instead; or attach "
                "again between two shards: prover.attach(model, optimizer). The sealed shards are "
                "safe.",
            )

    def _check_carriers(self, found: Mapping[str, torch.nn.Parameter]) -> None:
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for name in self.carrier.names:
            if not found[name].requires_grad:
                raise WeightsError(
                    "was frozen after attach(), and carries marks",
                    place=name,
                    advice="Unfreeze it (requires_grad_()), or finish() the proof here. Who "
                    "freezes it for some steps, as for those of another network, unfreezes it "
                    "before end_epoch(). A run that freezes it for good needs terms with other "
                    "carriers (make_terms(carrier=...)).",
                )
            if id(found[name]) not in held:
                raise WeightsError(
                    "carries marks, and the optimizer does not hold it any more",
                    place=name,
                    advice=f"Give it back to the optimizer, {_AGAIN}",
                )


def refuse_several_ranks() -> None:
    """Sealing edits the weights of this process alone, so replicas would drift apart."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
        if ranks > 1:
            raise ChainError(
                f"this run has {ranks} ranks; this release proves training on one",
                advice="Train on one rank, or wait for the distributed integration.",
            )


def _other_names(name: str, *, added: bool) -> WeightsError:
    change = "was added to the model" if added else "is not in the model any more"
    return WeightsError(
        f"this parameter {change} since attach()",
        place=name,
        advice="The terms fix the model's tensors. Undo the change to go on (the sealed shards are "
        "safe), or ask the issuer for terms of the changed model.",
    )


def _bits(value: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as whole numbers in one row, whatever its type."""
    if value.is_complex():
        value = torch.view_as_real(value)
    return value.contiguous().reshape(-1).view(_WHOLE[value.element_size()])

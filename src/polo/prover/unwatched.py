"""Steps that nobody watches: of an optimizer that was made anew, and not attached."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from polo.errors import ChainError


class Unwatched:
    """Notices when another optimizer than the attached one moves what that one trains.

    A wrapper that has the attached one step is no other one, whether it does so each time or not.

    Args:
        optimizer: The optimizer that is attached.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        # Hooks for all optimizers are torch's own: what they refer to would live for ever.
        self._attached = weakref.ref(optimizer)
        self._held = frozenset(map(id, _trained(optimizer)))
        self._steps = 0
        self._before: tuple[int, list[int]] | None = None
        self._found = ""
        self._handles = (
            register_optimizer_step_pre_hook(torch.compiler.disable(self._pre)),
            register_optimizer_step_post_hook(torch.compiler.disable(self._post)),
        )
        weakref.finalize(optimizer, self.detach)

    def check(self) -> None:
        """Refuse to go on after such a step.

        Raises:
            ChainError: There was one.
        """
        if self._found:
            raise ChainError(
                f"another optimizer ({self._found}) than the one that was attached has moved the "
                "weights; nobody saw how, so the shard they are in cannot be sealed",
                advice="Attach the optimizer whose step() you call, again when it is made anew "
                "between two shards. The sealed shards are safe: close() this prover and make a "
                "new one on the same store; its attach() goes back to the last of them.",
            )

    def detach(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()

    def _pre(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        attached = self._attached()
        if attached is not optimizer and not self._held.isdisjoint(map(id, _trained(optimizer))):
            self._before = self._steps, _versions(attached)

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        attached = self._attached()
        if attached is optimizer:
            self._steps += 1
            return
        before, self._before = self._before, None
        if before and before[0] == self._steps and before[1] != _versions(attached):
            self._found = type(optimizer).__name__


def _trained(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _versions(optimizer: Optimizer | None) -> list[int]:
    """How often each parameter was written to; that is known without asking a device."""
    return [parameter._version for parameter in _trained(optimizer)] if optimizer else []

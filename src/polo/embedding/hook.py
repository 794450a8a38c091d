"""Attaching to an optimizer without wrapping anything.

A step pre-hook adds the mark's gradient to `p.grad`; a post-hook counts the step. What the
pre-hook finds depends on the loop:

- plain loops, accumulation, clipping, GradScaler: real gradients, once per step. Clipping
  happened before, so the mark's term is not clipped.
- `step(closure)`: gradients are made inside the closure, so the closure is wrapped for this call.
- GradScaler with a fused optimizer: gradients are still scaled and the optimizer divides later;
  the mark's term is scaled alike, and steps skipped for infinities are not counted.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class StepHook:
    """Calls back around every step of one optimizer.

    Args:
        optimizer: The optimizer; wrappers such as Accelerate's are looked through.
        before: Called with the factor that gradients are scaled by (a tensor or 1.0).
        after: Called when a step is done.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        before: Callable[[torch.Tensor | float], None],
        after: Callable[[], None],
    ) -> None:
        self.optimizer = inner(optimizer)
        self._before = before
        self._after = after
        self._skipped: torch.Tensor | None = None
        # Where a loop compiles `optimizer.step`, what is compiled ends here: hooks keep time.
        self._handles = (
            self.optimizer.register_step_pre_hook(_uncompiled(self._pre)),
            self.optimizer.register_step_post_hook(_uncompiled(self._post)),
        )

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def skipped_steps(self) -> int:
        """Steps since the last call that a fused optimizer skipped because of infinities.

        Asking waits for the device, so it is asked once per shard and not once per step.
        """
        skipped = 0 if self._skipped is None else int(self._skipped.item())
        self._skipped = None
        return skipped

    def _pre(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # torch hands over all of step's arguments, the optimizer itself first.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._before(_scale(optimizer))
            return None

        def closure_with_mark() -> Any:
            loss = closure()
            self._before(_scale(optimizer))
            return loss

        if len(args) > 1:
            return (args[0], closure_with_mark, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_with_mark}

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        found = getattr(optimizer, "found_inf", None)
        if found is not None:
            found = found.detach() > 0
            self._skipped = found.long() if self._skipped is None else self._skipped.add_(found)
        self._after()


def _uncompiled(hook: Any) -> Any:
    return torch.compiler.disable(hook)


def inner(optimizer: Any) -> Optimizer:
    """The optimizer that really steps, behind wrappers that forward to it."""
    for attribute in ("optimizer", "original_optimizer"):
        wrapped = getattr(optimizer, attribute, None)
        if isinstance(wrapped, Optimizer):
            return inner(wrapped)
    found: Optimizer = optimizer
    return found


def _scale(optimizer: Optimizer) -> torch.Tensor | float:
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else scale

"""The base that an adapter stands on: named by its root, and frozen while the adapter is trained.

A proof of an adapter holds the adapter's tensors alone. Terms bind the base by the root of its own
canonical checkpoint (docs/protocol.md, sections 3.3 and 4). A module that stands on a base says so
by a method `base_state`; `polo.integrations.peft.adapter` makes one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from polo.errors import WeightsError
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit

if TYPE_CHECKING:
    import torch

_ADVICE = (
    "Freeze all of the base and keep its norm layers in eval(); what must be trained with the "
    "adapter belongs to it (PEFT: modules_to_save). Do not merge and unmerge the adapter on the "
    "way: that does not bring the base back to the bit."
)


@runtime_checkable
class HasBase(Protocol):
    """A module whose own tensors are an adapter, and that stands on a base."""

    def base_state(self) -> Mapping[str, Any]:
        """The base's tensors by the names they have without the adapter; live, not detached."""


def base_root(model: "torch.nn.Module") -> bytes | None:
    """The root of the base that a model stands on; None for a model that is no adapter."""
    return commit(checkpoint_of(model.base_state())).root if isinstance(model, HasBase) else None


def check_base(model: "torch.nn.Module", wanted: bytes | None) -> None:
    """Refuse a model that does not stand on the base that terms name.

    Args:
        model: The model.
        wanted: What the terms say; None if they are not about an adapter.
    """
    found = base_root(model)
    if found == wanted:
        return
    if wanted is None:
        raise WeightsError(
            "this is an adapter on a base model, and the terms name no base",
            advice="Ask for terms that were made for a task whose model is this adapter.",
        )
    if found is None:
        raise WeightsError(
            f"the terms are about an adapter on the base {wanted.hex()[:16]}…, and this model "
            "has no base",
            advice="With PEFT: from polo.integrations.peft import adapter; use adapter(model).",
        )
    raise WeightsError(
        f"the base model is {found.hex()[:16]}…, and the terms name {wanted.hex()[:16]}…",
        advice="Load the base that the terms were made for, in the same number format.",
    )


class FrozenBase:
    """Watches that the base stays as it is while an adapter on it is trained.

    Args:
        model: The model that is trained; without a base there is nothing to watch.
        wanted: Root of the base, as the terms say.

    Raises:
        WeightsError: It stands on another base, or part of the base would be trained.
    """

    def __init__(self, model: "torch.nn.Module", wanted: bytes | None) -> None:
        check_base(model, wanted)
        self._model, self._wanted = model, wanted
        self._versions = self._counted()
        self.check()

    def look(self) -> list[object]:
        """Everything that `check` judges, as it can be compared without judging."""
        state = self._state().items()
        return [(name, v.data_ptr(), v._version, v.requires_grad) for name, v in state]

    def check(self) -> None:
        """Refuse a base that is trained or was written to, by torch's own count of writes."""
        for name, value in self._state().items():
            if value.requires_grad:
                raise WeightsError(
                    "this tensor of the base would be trained", place=name, advice=_ADVICE
                )
        now = self._counted()
        if changed := sorted(n for n in self._versions if now.get(n) != self._versions[n]):
            raise WeightsError(
                "the base was changed while the adapter was trained",
                place=changed[0],
                advice=_ADVICE,
            )

    def check_all(self) -> None:
        """Hash the base again; finds what was written behind torch's back, too."""
        self.check()
        if self._wanted is not None and base_root(self._model) != self._wanted:
            raise WeightsError(
                "the base is no longer the one that training began with", advice=_ADVICE
            )

    def _state(self) -> Mapping[str, Any]:
        return self._model.base_state() if isinstance(self._model, HasBase) else {}

    def _counted(self) -> dict[str, tuple[int, int]]:
        state = self._state().items()
        return {name: (value.data_ptr(), value._version) for name, value in state}

"""The live tensors of a model and its optimizer, found again without walking through them.

They are asked for in the middle of training, which waits meanwhile; and nearly always they are the
ones that they were before.
"""

from collections.abc import MutableMapping
from itertools import chain, count
from operator import attrgetter, is_, methodcaller

import torch

from polo.errors import WeightsError
from polo.evidence.replay.snapshot import Live, Plan, kinds_of
from polo.evidence.replay.state import Tensors, named_rest, parameter_names, trained_names
from polo.weights.checkpoint import MemoryCheckpoint, canonical_names, checkpoint_of

_Store = MutableMapping[str, torch.Tensor | None]

_numbers = count(1)


class Watched:
    """What a snapshot is taken of.

    Args:
        model: The model.
        optimizer: The optimizer that trains it.
        before: What was watched before; its plan stays in use if it fits.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        before: "Watched | None" = None,
    ) -> None:
        checkpoint = checkpoint_of(model)
        self._model, self._optimizer = model, optimizer
        self._layout = checkpoint.layout
        self._kinds = kinds_of(_tensors_of(checkpoint))
        self._names, self._trained = parameter_names(model), trained_names(model)
        self._places = _places(model, [tensor.name for tensor in self._layout.tensors])
        self._plan: Plan | None = before._plan if before else None
        self._forms: list[object] = before._forms if before else []
        self._number: int = before._number if before else 0
        self.forget()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Watch another optimizer of the model, which has the tensors that it had.

        Args:
            optimizer: Trains the same parameters.
        """
        self._optimizer = optimizer
        self.forget()

    def forget(self) -> None:
        """Let go of all tensors, so that those that are replaced are kept by nobody."""
        self._seen: list[object] = []
        self._tensors: list[torch.Tensor] = []
        self._ordered: list[torch.Tensor] = []
        self._live: Live | None = None

    def live(self) -> Live:
        """The tensors as they are now.

        Raises:
            WeightsError: The model's are not of the kinds that they were, or the optimizer keeps
                something that is no tensor.
        """
        model, state = self._of_model(), self._optimizer.state
        values = chain.from_iterable(map(methodcaller("values"), state.values()))
        seen = [*model, *state, *chain.from_iterable(state.values()), *values]
        if self._live is not None and self._still(seen):
            return self._live
        tensors, self._plan = self._found([tensor for tensor in model if tensor is not None])
        ordered = [tensor for tensor in tensors if tensor.dim()]
        if (forms := _forms(tensors, ordered)) != self._forms:
            self._forms, self._number = forms, next(_numbers)
        groups = [[tensors[at] for at in group] for group in self._plan.groups]
        live = Live(self._plan, groups, self._number)
        if self._places is not None:
            self._seen, self._live = seen, live
            self._tensors, self._ordered = tensors, ordered
        return live

    def _still(self, seen: list[object]) -> bool:
        """Whether these are the tensors of the last time; a conversion leaves objects the same."""
        return (
            len(seen) == len(self._seen)
            and all(map(is_, seen, self._seen))
            and self._forms == _forms(self._tensors, self._ordered)
        )

    def _of_model(self) -> list[torch.Tensor | None]:
        if self._places is not None:
            return [store.get(key) for store, key in self._places]
        return [*_tensors_of(checkpoint_of(self._model))]

    def _found(self, model: list[torch.Tensor]) -> tuple[list[torch.Tensor], Plan]:
        """The tensors as they are now, and the plan for them; the last one, if it fits."""
        if kinds_of(model) != self._kinds:
            raise WeightsError(
                "the model's tensors are no longer those that the shard began with",
                advice="Was a buffer or a parameter added, removed or converted?",
            )
        rest = _sorted(named_rest(self._names, self._optimizer))
        tensors = [*model, *rest.values()]
        if self._plan is not None and self._serves(self._plan, list(rest), tensors):
            return tensors, self._plan
        layout = MemoryCheckpoint(rest).layout if rest else None
        return tensors, Plan(self._layout, layout, tensors, self._trained)

    def _serves(self, plan: Plan, rest: list[str], tensors: list[torch.Tensor]) -> bool:
        """Whether a plan is the one that would be made now."""
        names = [tensor.name for tensor in plan.rest.tensors] if plan.rest else []
        return (
            plan.model == self._layout
            and plan.trained == self._trained
            and names == rest
            and plan.fits(tensors)
        )


def _forms(tensors: list[torch.Tensor], ordered: list[torch.Tensor]) -> list[object]:
    """Addresses, counts and types of tensors, and the strides of those that have any.

    Training waits for this, so shapes and devices are left out: another shape of the same count
    and strides is the same memory, and another device has other addresses.
    """
    return [
        *map(torch.Tensor.data_ptr, tensors),
        *map(torch.Tensor.numel, tensors),
        *map(attrgetter("dtype"), tensors),
        *map(torch.Tensor.stride, ordered),
    ]


def _sorted(rest: Tensors) -> Tensors:
    """The same in the order of layouts."""
    return {name: rest[name] for name in sorted(rest, key=str.encode)}


def _tensors_of(checkpoint: MemoryCheckpoint) -> list[torch.Tensor]:
    return [checkpoint.tensor(at) for at in range(len(checkpoint.layout.tensors))]


def _places(model: torch.nn.Module, names: list[str]) -> list[tuple[_Store, str]] | None:
    """Where modules keep the tensors of these names; None if some are made up on request."""
    stores: dict[int, tuple[_Store, str]] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for key, value in store.items():
                stores.setdefault(id(value), (store, key))  # type: ignore[arg-type]
    state = model.state_dict(keep_vars=True)
    values = {short: state[name] for name, short in canonical_names(list(state)).items()}
    found = [stores.get(id(values[name])) for name in names]
    known = [place for place in found if place is not None]
    return known if len(known) == len(names) else None

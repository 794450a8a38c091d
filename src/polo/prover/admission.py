"""What `attach` refuses or warns of, before anything is hooked or written."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from polo.errors import ChainError, WeightsError
from polo.prover.monitor import EmbeddingWarning
from polo.weights.checkpoint import MemoryCheckpoint

_ONE = "spreads weights or optimizer state over processes; this release proves training in one"


def check_kinds(model: object, optimizer: object) -> None:
    """Refuse what is no model or no optimizer, before anything else is asked of it."""
    steps = all(hasattr(optimizer, name) for name in ("param_groups", "register_step_pre_hook"))
    if not (isinstance(model, torch.nn.Module) and steps):
        found = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise ChainError(
            f"attach() takes a torch.nn.Module and a torch.optim.Optimizer; it got {found}",
            advice="Write prover.attach(model, optimizer), in this order. An optimizer of your own "
            "has to be a subclass of torch.optim.Optimizer: its hooks are what sees the steps.",
        )
    names = [type(optimizer).__name__]
    names += [type(parameter).__name__ for parameter in model.parameters()]
    names += [type(parameter.data).__name__ for parameter in model.parameters()]
    for name in ("ZeroRedundancyOptimizer", "DTensor"):
        if name in names:
            raise ChainError(f"{name} {_ONE}", advice="Train with whole weights, on one rank.")


def check_also(also: object) -> None:
    """Refuse what could not be saved and restored beside model and optimizer."""
    takes = "`also` takes objects with state_dict() and load_state_dict() by name"
    advice = 'Write for instance also={"scheduler": scheduler}; leave everything else out.'
    if not isinstance(also, Mapping):
        raise ChainError(f"{takes}; it got {type(also).__name__}", advice=advice)
    for name, item in also.items():
        able = all(callable(getattr(item, way, None)) for way in ("state_dict", "load_state_dict"))
        if not isinstance(name, str) or not able:
            raise ChainError(
                f"{takes}; {name!r} is {type(item).__name__}", place="attach()", advice=advice
            )


def check_memory(model: torch.nn.Module, checkpoint: MemoryCheckpoint) -> None:
    """Refuse tensors of a state dict that are copies: what is written there reaches no model."""
    own = {_storage(value) for value in (*model.parameters(), *model.buffers())}
    for at, tensor in enumerate(checkpoint.layout.tensors):
        value = checkpoint.tensor(at)
        if value.numel() and _storage(value) not in own:
            raise WeightsError(
                "the state dict hands out a copy of it, or something that is no parameter and no "
                "buffer; weights that are put back from a proof would not reach the model",
                place=tensor.name,
                advice="Keep it in a parameter or a buffer, leave it out of the state dict "
                "(get_extra_state), and do not copy in hooks of state_dict().",
            )


def check_overlaps(found: Mapping[str, torch.nn.Parameter], carriers: tuple[str, ...]) -> None:
    """Refuse carriers that share memory with another parameter in another shape."""
    # By storage first: of thousands of parameters hardly two are in the same one.
    rooms: dict[tuple[torch.device, int], list[str]] = {}
    for name, parameter in found.items():
        rooms.setdefault(_storage(parameter), []).append(name)
    for name in carriers:
        for other in rooms[_storage(found[name])]:
            if found[other] is not found[name] and _overlap(found[other], found[name]):
                raise WeightsError(
                    f"carries marks and shares memory with {other}, in another shape: what is "
                    "pressed into one changes the other",
                    place=name,
                    advice="Tie weights as one parameter and transpose where it is used, or ask "
                    "the issuer for terms with other carriers (make_terms(carrier=...)).",
                )


def warn_of_others(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]
) -> None:
    """Say that what is trained beside the model is not put back when a run is resumed."""
    modules = [item for item in also.values() if isinstance(item, torch.nn.Module)]
    known = {id(p) for module in (model, *modules) for p in module.parameters()}
    others = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if others:
        warnings.warn(
            f"the optimizer also trains {others} tensors outside the model that was attached; a "
            'run that is resumed would not put them back. Name them: also={"head": head}',
            EmbeddingWarning,
            stacklevel=5,
        )


def _storage(value: torch.Tensor) -> tuple[torch.device, int]:
    return value.device, value.untyped_storage().data_ptr()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage reach into each other."""
    if not (one.numel() and other.numel()):
        return False
    (start, stop), (begin, end) = _span(one), _span(other)
    return start < end and begin < stop


def _span(value: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the one after its last."""
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr(), value.data_ptr() + (1 + last) * value.element_size()

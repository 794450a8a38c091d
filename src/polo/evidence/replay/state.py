"""The training state at one moment: the model's tensors, and the optimizer's.

Both are checkpoints. The optimizer's tensors, the *rest*, are named `KEY/PARAMETER`, as in
`exp_avg/0.weight`. Rates, momentum and the like are no part of it: they come from the recipe.

Specification: docs/protocol.md, sections 17.1 and 17.2.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from polo.errors import WeightsError
from polo.protocol.digest import tagged
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint, canonical_names, checkpoint_of
from polo.weights.hashing import usual_threads

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"
"""Tensors by name."""

Snapshot: TypeAlias = "tuple[Tensors, Tensors]"
"""Tensors of a model, and of its optimizer's state."""

PIECE_BYTES = 2**24
"""Every so many bytes of a tensor are hashed by themselves, so that threads can share the work."""

MOVE_ONE = 2**32
"""A move of length one: moves are integers in this fraction of it."""

SATURATED = 2**63 - 1
"""The move that stands for every larger one, for infinity, and for what is no number."""

STEP = "step"
"""The key of an optimizer's own count of steps."""

_LABEL = "polo/state/1"

NO_STATE = tagged(_LABEL, b"")
"""The digest of an optimizer that keeps no state, or has not stepped yet."""


def named_state(model: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> Snapshot:
    """The live tensors of a model and of its optimizer's state, by name.

    Raises:
        WeightsError: The optimizer trains something else, or keeps what is no tensor.
    """
    checkpoint = checkpoint_of(model)
    tensors = checkpoint.layout.tensors
    found = {tensor.name: checkpoint.tensor(at) for at, tensor in enumerate(tensors)}
    return found, named_rest(parameter_names(model), optimizer)


def parameter_names(model: "torch.nn.Module") -> dict[int, str]:
    """The canonical name of each parameter, by its `id`; of several names the first."""
    named = dict(model.named_parameters(remove_duplicate=False))
    names = canonical_names(list(named))
    found: dict[int, str] = {}
    for name in sorted(named, key=lambda name: names[name].encode()):
        found.setdefault(id(named[name]), names[name])
    return found


def trained_names(model: "torch.nn.Module") -> list[str]:
    """Canonical names of the parameters that are trained, each parameter once."""
    names = parameter_names(model)
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return sorted(name for at, name in names.items() if at in trained)


def named_rest(names: Mapping[int, str], optimizer: "torch.optim.Optimizer") -> Tensors:
    """The live tensors of an optimizer's state, by name.

    Args:
        names: The parameters' names, as `parameter_names` gives them.
        optimizer: The optimizer.
    """
    rest: Tensors = {}
    for parameter, state in optimizer.state.items():
        name = _name_of(parameter, names, optimizer)
        for key, value in state.items():
            if hasattr(value, "data_ptr"):
                rest[f"{key}/{name}"] = value
            elif value is not None:
                raise WeightsError(
                    f"the state {key!r} of {name!r} is a {type(value).__name__}; only tensors can "
                    "be recorded",
                    place=type(optimizer).__name__,
                    advice="Use an optimizer that keeps its state in tensors: SGD, Adam, AdamW.",
                )
    return rest


def _name_of(
    parameter: "torch.Tensor", names: Mapping[int, str], optimizer: "torch.optim.Optimizer"
) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise WeightsError(
            "the optimizer trains a tensor that is no parameter of the model",
            place=type(optimizer).__name__,
            advice="Make the optimizer after the model has its final parameters.",
        )
    return name


def state_checkpoints(
    model: "torch.nn.Module", optimizer: "torch.optim.Optimizer"
) -> tuple[MemoryCheckpoint, MemoryCheckpoint | None]:
    """Model and rest as checkpoints, of which nothing is copied; None for a rest without tensors.

    Not to be made from `named_state`, which does not tell which names are tied.
    """
    rest = named_rest(parameter_names(model), optimizer)
    return checkpoint_of(model), MemoryCheckpoint(rest) if rest else None


def state_digests(
    model: "torch.nn.Module", optimizer: "torch.optim.Optimizer"
) -> tuple[bytes, bytes]:
    """The digests of a model and of its optimizer's state, as they are now."""
    checkpoint, rest = state_checkpoints(model, optimizer)
    return digest_of(checkpoint), digest_of(rest)


def digest_of(checkpoint: Checkpoint | None, threads: int | None = None) -> bytes:
    """The digest of a model or of a rest, as records hold it.

    Args:
        checkpoint: What to hash, a piece at a time; None for an optimizer without state.
        threads: How many threads; by default one per core, at most four. Each holds one piece.
    """
    if checkpoint is None or not checkpoint.layout.tensors:
        return NO_STATE
    pieces = list(pieces_of(checkpoint.layout))

    def hashed(piece: tuple[int, int, int]) -> bytes:
        return hashlib.sha256(checkpoint.read(*piece)).digest()

    workers = min(threads or usual_threads(), len(pieces))
    if workers <= 1 or checkpoint.layout.size < PIECE_BYTES:
        return joined(checkpoint.layout, map(hashed, pieces))
    with ThreadPoolExecutor(workers) as pool:
        return joined(checkpoint.layout, pool.map(hashed, pieces))


def pieces_of(layout: Layout) -> Iterator[tuple[int, int, int]]:
    """What is hashed by itself, in order: index of a tensor, first byte, and end."""
    for at, tensor in enumerate(layout.tensors):
        for start in range(0, tensor.size, PIECE_BYTES):
            yield at, start, min(start + PIECE_BYTES, tensor.size)


def joined(layout: Layout, hashes: Iterator[bytes]) -> bytes:
    """The digest that the hashes of all pieces make."""
    return tagged(_LABEL, layout.digest, b"".join(hashes))


def rest_layout(
    model: "torch.nn.Module", recipe_optimizer: "torch.optim.Optimizer"
) -> Layout | None:
    """The layout of the rest after one step or more; None if the optimizer keeps no state.

    Found by stepping, one parameter at a time, a copy of the optimizer over zeros: whatever the
    optimizer keeps, this is what it looks like. Neither the model nor the optimizer is touched.

    Args:
        model: The model; its values do not matter, and it may be on the meta device.
        recipe_optimizer: An optimizer of the model's parameters, as the recipe makes it.
    """
    names = parameter_names(model)
    tensors: list[Tensor] = []
    for group in recipe_optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                name = _name_of(parameter, names, recipe_optimizer)
                tensors += _stepped(recipe_optimizer, group, parameter, name)
    if not tensors:
        return None
    layout = Layout(CHUNK_BYTES, tuple(sorted(tensors, key=lambda t: t.name.encode())), ())
    layout.check("rest")
    return layout


def _stepped(
    optimizer: "torch.optim.Optimizer",
    group: dict[str, Any],
    parameter: "torch.Tensor",
    name: str,
) -> list[Tensor]:
    """What an optimizer keeps of one parameter."""
    import copy

    import torch

    probe = copy.copy(optimizer)
    blank = torch.zeros(parameter.shape, dtype=parameter.dtype, device="cpu", requires_grad=True)
    blank.grad = torch.zeros_like(blank)
    probe.state = type(optimizer.state)(dict)
    probe.param_groups = [{**group, "params": [blank]}]
    probe.step()
    rest = named_rest({id(blank): name}, probe)
    return [
        Tensor(key, dtypes.name_of_torch(value.dtype, place=key), tuple(value.shape))
        for key, value in rest.items()
    ]


def load_rest(
    optimizer: "torch.optim.Optimizer",
    model: "torch.nn.Module",
    checkpoint: Checkpoint | None,
) -> None:
    """Put the tensors of a rest into an optimizer, in the place of all that it kept.

    The param groups stay as they are. Every tensor gets fresh memory, laid out as the parameter's:
    alignment and strides show in the last bits of some sums.

    Raises:
        WeightsError: A tensor belongs to no parameter that the optimizer trains.
    """
    from polo.weights.loading import copy_all

    named = parameter_names(model)
    trained: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            trained[named.get(id(parameter), "")] = parameter, group
    optimizer.state.clear()
    if checkpoint is None:
        return
    rooms = []
    for tensor in checkpoint.layout.tensors:
        key, _, name = tensor.name.partition("/")
        if not name or name not in trained:
            raise WeightsError("belongs to no parameter of the optimizer", place=tensor.name[:200])
        parameter, group = trained[name]
        rooms.append(_room_for(tensor, key, parameter, group))
        optimizer.state[parameter][key] = rooms[-1]
    copy_all(rooms, checkpoint)


def _room_for(
    tensor: Tensor, key: str, parameter: "torch.Tensor", group: dict[str, Any]
) -> "torch.Tensor":
    import torch

    dtype = dtypes.torch_dtype(tensor.dtype)
    if tensor.shape == tuple(parameter.shape) and key != STEP:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    # torch counts steps on the CPU unless the count must be seen by kernels.
    there = key != STEP or group.get("capturable") or group.get("fused")
    device = parameter.device if there else torch.device("cpu")
    return torch.empty(tensor.shape, dtype=dtype, device=device)


def moves(before: Snapshot, after: Snapshot) -> tuple[int, int]:
    """How far the model and the rest moved between two snapshots, in units of 2^-32.

    The model's move is the Euclidean norm of the change of its floating tensors; records have
    those of `trained_names` measured and no others. The rest's is the largest, over the keys of the
    state, of the norm of the change over the smaller of the norms before and after; a key that was
    not there or zero before counts as an endless move.

    Args:
        before: Tensors of model and rest by name, as `named_state` gives them, but copies.
        after: The same, later.
    """
    norm = norm_of(before[0], after[0])
    model = in_units(norm.item() if norm is not None else 0.0)
    return model, rest_move(before[1], after[1])


def rest_move(before: Tensors, after: Tensors) -> int:
    """The second of the two `moves`."""
    worst = 0
    for key in sorted({name.partition("/")[0] for name in (*before, *after)} - {STEP}):
        old, new = (
            {name: value for name, value in side.items() if name.partition("/")[0] == key}
            for side in (before, after)
        )
        parts = norm_of(old, new), norm_of({}, old), norm_of({}, new)
        change, *sizes = (0.0 if part is None else float(part.item()) for part in parts)
        worst = max(worst, relative(change, *sizes))
    return worst


def relative(change: float, before: float, after: float) -> int:
    """A change against the smaller of two norms, as a move."""
    smaller = min(before, after)
    return in_units(change / smaller) if smaller > 0 else SATURATED


def in_units(move: float) -> int:
    """A move as records hold it."""
    # The comparison is false for what is no number, too.
    return round(move * MOVE_ONE) if move * MOVE_ONE < SATURATED else SATURATED


def norm_of(before: Tensors, after: Tensors) -> "torch.Tensor | None":
    """The norm of the difference of two sets of tensors; a tensor that is not there is zero.

    Returns:
        The norm as a tensor, on the device of the first one; None if there is nothing to measure.
    """
    import torch

    names = sorted({*before, *after})
    found = [norm for name in names for norm in norms(before.get(name), after.get(name))]
    # A model may be on several devices.
    together = [norm.to(found[0].device) for norm in found]
    return torch.linalg.vector_norm(torch.stack(together)) if together else None


def norms_of(before: Tensors, after: Tensors) -> dict[str, float]:
    """The norm of the difference of each of some tensors, all fetched at once.

    Args:
        before: Tensors; those that are not there count as zero.
        after: Tensors on one device. Those without a norm are left out of what is returned.
    """
    import torch

    parts = {name: norms(before.get(name), value) for name, value in after.items()}
    found = [norm for some in parts.values() for norm in some]
    values = iter(torch.stack(found).tolist() if found else ())
    return {
        name: math.hypot(*itertools.islice(values, len(some)))
        for name, some in parts.items()
        if some
    }


def norms(before: "torch.Tensor | None", after: "torch.Tensor | None") -> "list[torch.Tensor]":
    """The norms of parts of a difference, accumulated in double precision.

    Args:
        before: A tensor of any type; types without fractions have no norms. None counts as zero.
        after: Another of the same type and shape, or None.
    """
    import torch

    flat = [_flat(value) for value in (before, after) if value is not None]
    if not flat or not flat[0].is_floating_point():
        return []
    flat = [value.to(flat[0].device) for value in flat]
    wide = torch.float64 if flat[0].dtype == torch.float64 else torch.float32
    # Little memory; on the CPU so little at a time that torch asks no further threads for help,
    # which would get in the way of training's.
    most = 2**23 if flat[0].is_cuda else 2**14
    found = []
    for start in range(0, flat[0].numel(), most):
        parts = [value[start : start + most].to(wide) for value in flat]
        change = parts[0] if len(parts) == 1 else parts[1] - parts[0]
        found.append(torch.linalg.vector_norm(change, dtype=torch.float64))
    return found


def _flat(value: "torch.Tensor") -> "torch.Tensor":
    import torch

    value = value.detach()
    if value.device.type not in ("cpu", "cuda"):
        # Nor do all others have double precision.
        value = value.cpu()
    return torch.view_as_real(value).reshape(-1) if value.is_complex() else value.reshape(-1)

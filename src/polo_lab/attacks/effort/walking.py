"""Made-up trajectories: from where a shard starts to where it is to end, segment by segment."""

from functools import partial

import torch

from polo.evidence.replay.engine import Engine
from polo.weights import dtypes
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import Snapshot, between, copied
from polo_lab.attacks.state import State
from polo_lab.effort.case import Case

_COUNTER = "num_batches_tracked"


def walk(forgery: Forgery, target: State, *, rough: float = 0.0) -> None:
    """Make up the rest of a shard: a path to the target, with the mark pressed in at its end.

    Every state is a real one, so it can be shown; moves are claimed as they are. Only no training
    leads from one to the next.

    Args:
        forgery: The proof.
        target: The weights to end in.
        rough: Noise on each state of the path, relative to a tensor's root mean square.
    """
    begun, origin = forgery.segment, forgery.now
    end = forgery.pressed(origin.with_model(target)).model
    every, left = forgery.recipe.every, forgery.segments - begun
    past = (forgery.shard - 1) * forgery.steps

    def made(segment: int) -> Snapshot:
        share = (segment + 1 - begun) / left
        model = between(origin.model, end, share)
        if share < 1:
            scatter(model, rough, torch.Generator().manual_seed(past + segment))
        steps = min((segment + 1) * every, forgery.steps)
        count(model, origin.model, steps - begun * every)
        rest = plausible_rest(forgery.engine, origin.model, model, past + steps)
        return Snapshot(model, rest)

    for segment in range(begun, forgery.segments):
        forgery.jump(made(segment), again=partial(made, segment))


@torch.no_grad()
def scatter(state: State, share: float, generator: torch.Generator) -> None:
    """Put noise on all weights of a model, relative to each tensor's root mean square."""
    unique = {value.data_ptr(): value for value in state.values()} if share else {}
    for value in unique.values():
        if value.is_floating_point() and value.dim() > 1:
            scale = share * float(value.double().square().mean().sqrt())
            value += scale * torch.randn(value.shape, generator=generator).to(value)


@torch.no_grad()
def count(state: State, origin: State, steps: int) -> None:
    """Let the counters of batch-norm layers go on as if steps had been taken."""
    for name, value in state.items():
        if name.endswith(_COUNTER):
            value.copy_(origin[name] + steps)


def plausible_rest(
    engine: Engine, before: State, after: State, steps: int
) -> dict[str, torch.Tensor]:
    """Tensors that the optimizer might have after so many steps that led from one model to another.

    Averages of gradients point back along the way, averages of squares are their squares.
    """
    rest: dict[str, torch.Tensor] = {}
    for tensor in engine.rest_layout.tensors if engine.rest_layout else ():
        key, _, name = tensor.name.partition("/")
        dtype = dtypes.torch_dtype(tensor.dtype)
        if key == "step":
            rest[tensor.name] = torch.full(tensor.shape, float(steps), dtype=dtype)
            continue
        back = (before[name].double() - after[name].double()).to(dtype)
        rest[tensor.name] = back.square() + 1e-8 if key.endswith("_sq") else back
    return rest


@torch.no_grad()
def reestimate(
    case: Case, state: State, batches: int = 8, size: int = 256
) -> dict[str, torch.Tensor]:
    """A model whose batch-norm statistics are estimated anew; others come back as they are.

    Args:
        case: The case, for model and data.
        state: The model.
        batches: Forward passes to take.
        size: Samples in each.
    """
    model = case.task.build_model()
    model.load_state_dict(dict(state))
    device = next(model.parameters()).device
    norms = [part for part in model.modules() if isinstance(part, _NORMS)]
    if not norms:
        return copied(state)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    inputs = next(value for name, value in sorted(case.columns.items()) if name != "label")
    for at in range(0, min(batches * size, len(inputs)), size):
        model(torch.from_numpy(inputs[at : at + size]).to(device))
    found = copied(model.state_dict())
    count(found, state, 0)
    return found


def rows_meet(model: torch.nn.Module) -> bool:
    """Whether what comes out for a sample depends on the others of its batch, or on chance."""
    return any(isinstance(part, (*_NORMS, torch.nn.Dropout)) for part in model.modules())


_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)

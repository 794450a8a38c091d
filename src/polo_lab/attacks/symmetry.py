"""What a thief can do to weights without a change of the network's function.

    wiring = trace(model, inputs)
    stolen = permute(model, wiring, seed=1)
    torch.func.functional_call(model, stolen, inputs)    # the same outputs

Marks are read at fixed positions, so all of these erase them; `polo.alignment` undoes them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from polo.alignment.frame import Array, Frame, sizes_of
from polo.alignment.wiring import Group, Place, Wiring
from polo.errors import PoloError

KINDS = ("zero", "clique", "split")

State = dict[str, torch.Tensor]


def permute(model: torch.nn.Module | Mapping[str, Any], wiring: Wiring, seed: int) -> State:
    """Every group in another order; heads, and dimensions within each head on their own."""
    frame, draw = _frame(model, wiring), np.random.default_rng(seed)
    for number, group in enumerate(wiring.groups):
        if group.permutable:
            _shuffle(frame, number, draw)
    return _state(model, frame)


def rescale(
    model: torch.nn.Module | Mapping[str, Any], wiring: Wiring, seed: int, spread: float = 1.0
) -> State:
    """Every channel that can be scaled times a factor e^(spread × normal)."""
    frame, draw = _frame(model, wiring), np.random.default_rng(seed)
    for scaling in wiring.scalings:
        parent = wiring.groups[scaling.group].parent
        size = frame.sizes[scaling.group]
        shape = (size,) if parent is None else (frame.sizes[parent], size)
        frame.scale(scaling, np.exp(spread * draw.standard_normal(shape)))
    return _state(model, frame)


def add_dummies(
    model: torch.nn.Module | Mapping[str, Any], wiring: Wiring, kind: str, share: float, seed: int
) -> State:
    """Channels that do nothing, in every group that can grow; the tensors become wider.

    The result runs by `torch.func.functional_call` where the model's code takes sizes from its
    weights.

    Args:
        model: The model, or its state.
        wiring: Its wiring.
        kind: `zero` (nobody reads them), `clique` (equal ones whose readers cancel) or `split`
            (several proportional ones in place of one).
        share: How many, relative to the group's size.
        seed: For the random choices.
    """
    if kind not in KINDS:
        raise PoloError(f"no dummies of kind {kind!r}", advice=f"Choose from {', '.join(KINDS)}.")
    frame, draw = _frame(model, wiring), np.random.default_rng(seed)
    for number, group in enumerate(wiring.groups):
        if group.extendable and group.parent is None:
            _widen(frame, number, kind, max(2, round(share * group.size)), draw)
            _shuffle(frame, number, draw)
    return _state(model, frame)


def rotate(model: torch.nn.Module | Mapping[str, Any], wiring: Wiring, seed: int) -> State:
    """A random basis wherever only linear maps meet: LoRA pairs, heads of attention."""
    frame, draw = _frame(model, wiring), np.random.default_rng(seed)
    for scaling in wiring.rotations:
        size = frame.sizes[scaling.group]
        parent = wiring.groups[scaling.group].parent
        heads = 1 if parent is None else frame.sizes[parent]
        frame.turn(scaling, draw.standard_normal((heads, size, size)))
    return _state(model, frame)


def rotate_lora(
    down: torch.Tensor, up: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A LoRA pair (A, B) as (R A, B R⁻¹) with a random invertible R."""
    draw = np.random.default_rng(seed)
    mix = torch.from_numpy(draw.standard_normal((len(down), len(down))))
    turned = (mix @ down.double()).to(down.dtype)
    return turned, torch.linalg.solve(mix, up.double(), left=False).to(up.dtype)


def _widen(frame: Frame, number: int, kind: str, more: int, draw: np.random.Generator) -> None:
    size = frame.sizes[number]
    donors = draw.integers(size, size=more)
    if kind == "clique":
        # Cliques of two, or three where one is left over.
        donors = np.repeat(donors, 2)[:more] if more % 2 == 0 else np.repeat(donors, 3)[:more]
    frame.rearrange(number, np.concatenate([np.arange(size), donors]))
    group = frame.wiring.groups[number]
    copies = np.arange(size, size + more)
    if kind == "split":
        for place in _places(group, "out"):
            _share(frame, place, donors, copies, draw)
        _vary(frame, number, draw)
        return
    noise = np.exp(0.5 * draw.standard_normal(size + more))
    noise[:size] = 1
    for place in _places(group, "in"):
        _times(frame, place, noise if kind == "zero" else _by_donor(noise, donors, size))
    for place in _places(group, "out"):
        _silence(frame, place, kind, donors, copies, draw)


def _by_donor(noise: Array, donors: Array, size: int) -> Array:
    """The same factor for all copies of one channel."""
    return np.concatenate([noise[:size], np.exp(0.3 * np.cos(donors))])


def _places(group: Group, role: str) -> list[Place]:
    return [place for place in group.places if place.role == role]


def _slabs(frame: Frame, place: Place) -> Any:
    """Boxes that a place lies in, with its dimension moved to the front."""
    for box in frame.boxes(frame.wiring.by_name[place.tensor]):
        at = box.dimension(place)
        if at is not None:
            yield box, at, np.moveaxis(frame.get(box).copy(), at, 0)


def _times(frame: Frame, place: Place, factors: Array) -> None:
    for box, at, values in _slabs(frame, place):
        scaled = values * factors.reshape([-1] + [1] * (values.ndim - 1))
        frame.put(box, np.moveaxis(scaled, 0, at))


def _share(
    frame: Frame, place: Place, donors: Array, copies: Array, draw: np.random.Generator
) -> None:
    """Divide what is read of each channel among it and its copies."""
    for box, at, values in _slabs(frame, place):
        for donor in np.unique(donors):
            same = np.concatenate([[donor], copies[donors == donor]])
            parts = draw.uniform(0.2, 1.0, len(same))
            parts /= parts.sum()
            values[same] = values[donor] * parts.reshape([-1] + [1] * (values.ndim - 1))
        frame.put(box, np.moveaxis(values, 0, at))


def _silence(
    frame: Frame, place: Place, kind: str, donors: Array, copies: Array, draw: np.random.Generator
) -> None:
    """Let nothing of the copies through: by zeros, or by readers that cancel."""
    for box, at, values in _slabs(frame, place):
        if kind == "zero":
            values[copies] = 0
        else:
            values[copies] = draw.standard_normal(values[copies].shape) * np.std(values)
            for donor in np.unique(donors):
                same = copies[donors == donor]
                values[same[-1]] = -values[same[:-1]].sum(axis=0)
        frame.put(box, np.moveaxis(values, 0, at))


def _vary(frame: Frame, number: int, draw: np.random.Generator) -> None:
    for scaling in frame.wiring.scalings:
        if scaling.group == number:
            frame.scale(scaling, np.exp(0.5 * draw.standard_normal(frame.sizes[number])))


def _shuffle(frame: Frame, number: int, draw: np.random.Generator) -> None:
    parent = frame.wiring.groups[number].parent
    size = frame.sizes[number]
    if parent is None:
        frame.rearrange(number, draw.permutation(size))
    else:
        rows = [draw.permutation(size) for _ in range(frame.sizes[parent])]
        frame.rearrange(number, np.stack(rows))


def _frame(model: torch.nn.Module | Mapping[str, Any], wiring: Wiring) -> Frame:
    """A copy of the weights that are wired, in double precision."""
    state = model if isinstance(model, Mapping) else model.state_dict()
    arrays = {t.name: state[t.name].detach().cpu().double().numpy() for t in wiring.tensors}
    copies = {name: np.array(array) for name, array in arrays.items()}
    return Frame(wiring, copies, sizes_of(wiring, copies))


def _state(model: torch.nn.Module | Mapping[str, Any], frame: Frame) -> State:
    state = dict(model if isinstance(model, Mapping) else model.state_dict())
    for name, array in frame.arrays.items():
        state[name] = torch.from_numpy(array).to(state[name].dtype)
    for alias, name in frame.wiring.ties:
        state[alias] = state[name]
    return state

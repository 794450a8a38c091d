"""Tensors that a recorder follows: replaced, converted, renamed, made up, and none of them kept."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polo.errors import ChainError, WeightsError
from polo.evidence.replay import state
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.watched import Watched

Begin = Callable[..., Any]


def test_state_that_cannot_be_recorded_is_named(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("plain")
    one = recorder(run)
    one.start()
    run.record(one, 2)
    run.optimizer.state[run.model[0].weight]["since"] = 0.5
    with pytest.raises(WeightsError, match=r"'since' of '0\.weight' is a float"):
        run.record(one, 1)


def test_tensors_that_are_replaced_are_followed(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin()
    one = recorder(run, 1)
    one.start()
    run.record(one, 1)
    run.model[1].running_mean = torch.full((6,), 5.0)
    run.model[0].weight.data = torch.ones_like(run.model[0].weight)
    run.record(one, 1)
    assert one.finish().boundaries[2] == run.digests()
    for change in (torch.zeros(7), torch.zeros(6, dtype=torch.float64), None):
        one.start()
        run.model[1].running_mean = change
        with pytest.raises(WeightsError, match="no longer those that the shard began with"):
            one.after_step()
        run.model[1].running_mean = torch.zeros(6)
        for call in (one.after_step, one.finish):
            with pytest.raises(ChainError, match="has a gap"):
                call()


@pytest.mark.parametrize(
    "convert",
    [
        lambda model: model.double(),
        lambda model: setattr(model[0].bias, "data", model[0].bias.data[:1]),
        lambda model: setattr(model[0].bias, "data", model[0].bias.data.view(torch.bfloat16)),
    ],
    ids=["cast", "slice", "other type"],
)
def test_tensors_that_are_converted_in_place_are_noticed(
    convert: Callable[[nn.Module], None], begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    """The objects stay the same, and sometimes even the memory."""
    run = begin("plain")
    one = recorder(run, 1)
    one.start()
    run.record(one, 2)
    parameters = list(map(id, run.model.parameters()))
    convert(run.model)
    assert list(map(id, run.model.parameters())) == parameters
    with pytest.raises(WeightsError, match="no longer those that the shard began with"):
        one.after_step()


def test_a_state_under_another_key_is_another_state(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("plain", "momentum")
    one = recorder(run, 1)
    one.start()
    run.record(one, 2)
    for kept in run.optimizer.state.values():
        kept["still"] = kept.pop("momentum_buffer")
    one.after_step()
    with torch.no_grad():
        for kept in run.optimizer.state.values():
            kept["still"].mul_(2)
    one.after_step()
    found = one.finish()
    assert found.boundaries[-1] == run.digests()
    assert found.moves[2][1] == state.SATURATED
    assert found.moves[3][1] == pytest.approx(state.MOVE_ONE, rel=1e-6)


def test_what_is_replaced_is_kept_by_nobody(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("plain", "momentum")
    one = recorder(run, 1)
    one.start()
    run.record(one, 2)
    kept = [weakref.ref(each["momentum_buffer"]) for each in run.optimizer.state.values()]
    run.optimizer.state.clear()
    one.reset()
    gc.collect()
    assert not any(each() is not None for each in kept)


def test_an_optimizer_may_replace_its_state(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("plain", "adam")
    one = recorder(run, 1)
    one.start()
    run.record(one, 2)
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    for kept in run.optimizer.state.values():
        kept["exp_avg"] = torch.full_like(kept["exp_avg"], 0.25)
    one.after_step()
    wanted = run.digests()
    for kept in run.optimizer.state.values():
        kept["late"] = kept.pop("exp_avg").double()
    one.after_step()
    assert one.finish().boundaries[3:] == (wanted, run.digests())


def test_models_that_make_up_their_state(begin: Begin, recorder: Callable[..., Recorder]) -> None:
    class Doubled(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "double"] = self.weight.detach() * 2

    run = begin("plain")
    run.model = nn.Sequential(Doubled(8, 4))
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1, momentum=0.9)
    one = recorder(run, 2)
    one.start()
    run.record(one, 4)
    assert one.finish().boundaries[-1] == run.digests()
    assert one.finish().boundaries[1] != one.finish().boundaries[2]
    assert not one._watched._tensors, "they are of no use next time"


@pytest.mark.parametrize(
    "change",
    [
        lambda base: base[:16].clone(),
        lambda base: base[::2],
        lambda base: base[:16].view(torch.int32),
        lambda base: base.view(torch.bfloat16)[:16],
        lambda base: base[:5],
    ],
    ids=["elsewhere", "strides", "type of the same width", "half as wide", "fewer"],
)
def test_other_memory_under_the_same_object_is_another_place(
    change: Callable[[torch.Tensor], torch.Tensor], begin: Begin
) -> None:
    """Who launched what was recorded for the place before would copy something else."""
    run = begin("plain").steps(1)
    base, kept = torch.zeros(32), run.optimizer.state[run.model[0].bias]["momentum_buffer"]
    kept.data = base[:16]
    watched = Watched(run.model, run.optimizer)
    first = watched.live()
    assert watched.live() is first
    kept.data = change(base)
    assert watched.live().number != first.number


def test_the_same_memory_is_the_same_place_in_the_next_shard(begin: Begin) -> None:
    run = begin("plain").steps(1)
    first = Watched(run.model, run.optimizer)
    number = first.live().number
    first.forget()
    assert first.live().number == number
    second = Watched(run.model, run.optimizer, first)
    assert second.live().number == number
    run.model[0].weight.data = run.model[0].weight.data.t().contiguous().t()
    assert second.live().number != number

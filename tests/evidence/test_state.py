"""Training states: their names, digests, layouts and moves, and the way back into an optimizer."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polo.errors import WeightsError
from polo.evidence.replay import state
from polo.protocol.digest import tagged
from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint, checkpoint_of
from polo.weights.files import FileCheckpoint, write_checkpoint

Begin = Callable[..., Any]


def written(checkpoint: Checkpoint, path: Path) -> FileCheckpoint:
    with path.open("wb") as file:
        write_checkpoint(checkpoint, file.write)
    return FileCheckpoint.canonical(path, checkpoint.layout)


def by_hand(checkpoint: Checkpoint, piece: int) -> bytes:
    """The digest after the words of the specification."""
    hashes = b""
    for at, tensor in enumerate(checkpoint.layout.tensors):
        data = bytes(checkpoint.read(at, 0, tensor.size))
        for start in range(0, len(data), piece):
            hashes += hashlib.sha256(data[start : start + piece]).digest()
    return tagged("polo/state/1", checkpoint.layout.digest + hashes)


def test_digests_of_memory_and_file_are_those_of_the_specification(
    kind: tuple[str, str], begin: Begin, tmp_path: Path
) -> None:
    run = begin(*kind).steps(3)
    model, rest = state.state_checkpoints(run.model, run.optimizer)
    assert state.state_digests(run.model, run.optimizer) == (
        state.digest_of(model),
        state.digest_of(rest),
    )
    for number, checkpoint in enumerate((model, rest)):
        if checkpoint is None:
            assert state.digest_of(None) == state.NO_STATE == tagged("polo/state/1", b"")
        else:
            with written(checkpoint, tmp_path / str(number)) as file:
                assert state.digest_of(file) == state.digest_of(checkpoint)
            assert state.digest_of(checkpoint) == by_hand(checkpoint, 2**24)


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_pieces_end_every_so_many_bytes_of_each_tensor(threads: int | None) -> None:
    size = 2 * 2**24 + 5
    values = {"a": torch.arange(size, dtype=torch.uint8), "b": torch.ones(7), "c": torch.ones(0)}
    checkpoint = MemoryCheckpoint(values)
    found = state.digest_of(checkpoint, threads)
    assert found == by_hand(checkpoint, 2**24)
    for at in (0, 2**24 - 1, 2**24, size - 1):
        values["a"][at] += 1
        assert state.digest_of(checkpoint, threads) != found
        values["a"][at] -= 1
    assert state.digest_of(checkpoint, threads) == found


def test_another_process_finds_the_same_without_torch(
    begin: Begin, tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    run = begin("buffers", "adam").steps(2)
    model, _ = state.state_checkpoints(run.model, run.optimizer)
    written(model, tmp_path / "model").close()
    code = f"""
import sys
from pathlib import Path
from polo.evidence.replay.state import digest_of
from polo.weights.files import FileCheckpoint
with FileCheckpoint.any(Path({str(tmp_path / "model")!r})) as file:
    print(digest_of(file).hex(), "torch" in sys.modules)
"""
    assert in_child(code, bare=True).stdout.split() == [state.digest_of(model).hex(), "False"]


def test_layout_and_names_are_part_of_the_digest() -> None:
    value = torch.zeros(4)
    found = {
        state.digest_of(MemoryCheckpoint(values))
        for values in (
            {"a": value},
            {"b": value},
            {"a": value.view(2, 2)},
            {"a": value.view(torch.int32)},
            {"a": value, "b": value},
        )
    }
    assert len(found) == 5


def test_names_are_canonical_and_ties_come_once(begin: Begin) -> None:
    tied = begin("tied", "adam").steps(1)
    model, rest = state.named_state(tied.model, tied.optimizer)
    assert list(model) == ["embedding.weight", "norm.bias", "norm.weight"]
    assert sorted(rest) == sorted(
        f"{key}/{name}" for key in ("exp_avg", "exp_avg_sq", "step") for name in model
    )
    wrapped = begin("wrapped").steps(1)
    model, rest = state.named_state(wrapped.model, wrapped.optimizer)
    assert list(model) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert sorted(rest) == [f"momentum_buffer/{name}" for name in model]
    assert begin("plain", "adam").copies()[1] == {}


def test_tensors_are_the_live_ones(begin: Begin) -> None:
    run = begin().steps(1)
    before = run.copies()
    live = state.named_state(run.model, run.optimizer)
    run.step()
    for old, new in zip(before, live, strict=True):
        assert all(not torch.equal(old[name], new[name]) for name in old)


def test_state_that_is_no_tensor_is_refused_by_name(begin: Begin) -> None:
    run = begin("plain").steps(1)
    run.optimizer.state[run.model[2].bias]["count"] = 3
    with pytest.raises(WeightsError, match=r"SGD: the state 'count' of '2.bias' is a int"):
        state.named_state(run.model, run.optimizer)
    run.optimizer.state[run.model[2].bias]["count"] = None
    assert "count/2.bias" not in state.named_state(run.model, run.optimizer)[1]


def test_an_optimizer_of_another_model_is_refused(begin: Begin) -> None:
    run = begin("plain").steps(1)
    with pytest.raises(WeightsError, match="no parameter of the model"):
        state.named_state(begin("plain").model, run.optimizer)
    with pytest.raises(WeightsError, match="no parameter of the model"):
        state.rest_layout(begin("plain").model, run.optimizer)


def test_the_layout_of_a_rest_is_known_before_a_step(kind: tuple[str, str], begin: Begin) -> None:
    run = begin(*kind)
    before = run.copies()
    called = []
    run.optimizer.register_step_post_hook(lambda *_: called.append(1))
    found = state.rest_layout(run.model, run.optimizer)
    assert not called
    assert not run.optimizer.state
    assert all(torch.equal(run.copies()[0][name], before[0][name]) for name in before[0])
    run.steps(2)
    _, rest = state.state_checkpoints(run.model, run.optimizer)
    assert found == (rest.layout if rest else None)
    assert (found is None) == (kind[1] == "sgd")
    assert state.rest_layout(run.model, run.optimizer) == found


def test_the_layout_follows_param_groups_and_what_is_trained(begin: Begin) -> None:
    model = begin("plain").model
    model[0].bias.requires_grad_(False)
    groups = [
        {"params": list(model[0].parameters()), "momentum": 0.9},
        {"params": list(model[2].parameters())},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    found = state.rest_layout(model, optimizer)
    assert found is not None
    assert [tensor.name for tensor in found.tensors] == ["momentum_buffer/0.weight"]


def test_the_layout_of_a_model_without_values(begin: Begin) -> None:
    real = begin("buffers", "adamw")
    model = begin("buffers").model.to("meta")
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    assert state.rest_layout(model, optimizer) == state.rest_layout(real.model, real.optimizer)


def test_training_goes_on_to_the_bit_from_a_file(
    kind: tuple[str, str], begin: Begin, tmp_path: Path
) -> None:
    run = begin(*kind).steps(3)
    _, rest = state.state_checkpoints(run.model, run.optimizer)
    other = begin(*kind)
    other.model.load_state_dict(run.model.state_dict())
    groups = [{**group, "params": None} for group in other.optimizer.param_groups]
    if rest is None:
        state.load_rest(other.optimizer, other.model, None)
    else:
        with written(rest, tmp_path / "rest") as file:
            state.load_rest(other.optimizer, other.model, file)
    assert [{**group, "params": None} for group in other.optimizer.param_groups] == groups
    for each in (run, other):
        torch.manual_seed(9)
        each.steps(5)
    assert state.state_digests(other.model, other.optimizer) == state.state_digests(
        run.model, run.optimizer
    )


def test_what_is_loaded_lies_as_training_keeps_it(begin: Begin) -> None:
    run = begin("channels last", "adam").steps(2)
    kept = {key: dict(run.optimizer.state[key]) for key in run.optimizer.state}
    _, rest = state.state_checkpoints(run.model, run.optimizer)
    state.load_rest(run.optimizer, run.model, rest)
    for parameter, values in kept.items():
        for key, value in values.items():
            found = run.optimizer.state[parameter][key]
            assert torch.equal(found, value)
            assert (found.dtype, found.device) == (value.dtype, value.device)
            assert found.stride() == value.stride()
            assert found.data_ptr() != value.data_ptr()
            assert found.data_ptr() % 64 == 0


def test_loading_takes_the_place_of_all_that_was_kept(begin: Begin) -> None:
    run = begin("plain", "adam").steps(2)
    state.load_rest(run.optimizer, run.model, None)
    assert state.state_digests(run.model, run.optimizer)[1] == state.NO_STATE


@pytest.mark.parametrize(
    "name", ["momentum_buffer/7.weight", "momentum_buffer", "momentum_buffer/"]
)
def test_a_rest_of_something_else_is_refused(begin: Begin, name: str) -> None:
    run = begin("plain").steps(1)
    rest = MemoryCheckpoint({name: torch.zeros(3)})
    with pytest.raises(WeightsError, match="belongs to no parameter"):
        state.load_rest(run.optimizer, run.model, rest)


def test_moves_are_norms_in_double_precision(kind: tuple[str, str], begin: Begin) -> None:
    run = begin(*kind).steps(2)
    before = run.copies()
    run.steps(3)
    after = run.copies()
    model, rest = state.moves(before, after)
    wide = [
        {name: value.double().numpy() for name, value in part.items() if value.is_floating_point()}
        for part in (*before, *after)
    ]
    far = math.sqrt(sum(((wide[2][name] - wide[0][name]) ** 2).sum() for name in wide[0]))
    assert model / 2**32 == pytest.approx(far, rel=1e-6)
    worst = 0.0
    for key in {name.partition("/")[0] for name in wide[1]} - {"step"}:
        sides = [
            np.concatenate(
                [side[name].ravel() for name in sorted(side) if name.startswith(key + "/")]
            )
            for side in (wide[1], wide[3])
        ]
        smaller = min(np.linalg.norm(side) for side in sides)
        worst = max(worst, float(np.linalg.norm(sides[1] - sides[0]) / smaller))
    assert rest / 2**32 == pytest.approx(worst, rel=1e-6)
    assert state.moves(after, after) == (0, 0)


def test_long_tensors_and_small_moves_are_measured_exactly() -> None:
    before = torch.full((3 * 2**14 + 5,), 1000.0)
    after = before.clone()
    after[::7] += 2.0**-13
    changed = len(range(0, len(before), 7))
    model, _ = state.moves(({"a": before}, {}), ({"a": after}, {}))
    assert model == round(math.sqrt(changed) * 2.0**-13 * 2**32)


ODD = {
    "a key that was not there": ({}, {"m/a": [1.0]}, state.SATURATED),
    "a key that is gone": ({"m/a": [1.0]}, {}, state.SATURATED),
    "a key that was zero": ({"m/a": [0.0]}, {"m/a": [1.0]}, state.SATURATED),
    "a key that becomes zero": ({"m/a": [1.0]}, {"m/a": [0.0]}, state.SATURATED),
    "a key that stays zero": ({"m/a": [0.0]}, {"m/a": [0.0]}, state.SATURATED),
    "no number": ({"m/a": [1.0]}, {"m/a": [math.nan]}, state.SATURATED),
    "infinity": ({"m/a": [1.0]}, {"m/a": [math.inf]}, state.SATURATED),
    "a tensor that was not there": ({"m/a": [3.0]}, {"m/a": [3.0], "m/b": [4.0]}, 4 * 2**32 // 3),
    "one key of two": ({"m/a": [4.0], "v/a": [2.0]}, {"m/a": [4.0], "v/a": [3.0]}, 2**31),
    "a count of steps": ({"step/a": [1.0]}, {"step/a": [9.0]}, 0),
    "nothing": ({}, {}, 0),
    "beyond what is counted": ({"m/a": [1e-9]}, {"m/a": [1e9]}, state.SATURATED),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_moves_of_a_rest(name: str) -> None:
    old, new, wanted = ODD[name]
    sides = [{key: torch.tensor(value) for key, value in side.items()} for side in (old, new)]
    assert abs(state.moves(({}, sides[0]), ({}, sides[1]))[1] - wanted) <= 1


def test_odd_moves_of_a_model() -> None:
    def move(before: Any, after: Any) -> int:
        return state.moves(({"a": before}, {}), ({"a": after}, {}))[0]

    zero = torch.zeros(3)
    assert move(zero, torch.tensor([0.0, math.nan, 0.0])) == state.SATURATED
    assert move(zero, torch.tensor([0.0, math.inf, 0.0])) == state.SATURATED
    assert move(zero, torch.full((3,), 3e9)) == state.SATURATED
    assert move(torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64)) == 0
    assert move(zero.to(torch.complex64), torch.tensor([0, 3 + 4j, 0])) == 5 * 2**32
    eight = torch.tensor([3.0]).to(torch.float8_e5m2)
    assert move(torch.zeros(1).to(torch.float8_e5m2), eight) == 3 * 2**32


def test_parameters_of_one_memory_have_names_of_their_own() -> None:
    model = nn.Module()
    model.b = nn.Parameter(torch.ones(3))
    model.a = nn.Parameter(model.b.data)
    optimizer = torch.optim.Adam(model.parameters())
    (model.a.sum() + model.b.sum()).backward()
    optimizer.step()
    assert len(checkpoint_of(model).layout.tensors) == 1
    assert {"exp_avg/a", "exp_avg/b"} < set(state.named_state(model, optimizer)[1])

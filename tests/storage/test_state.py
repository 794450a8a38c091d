"""Training state: exactly what it was, in a file that holds no code."""

import os
import random
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from torch import nn
from torch.optim import lr_scheduler

from polo.errors import StoreError
from polo.storage import state


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, tensors to the last bit, NaN equal to itself."""
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
            return False
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
        return one.shape == other.shape and torch.equal(*raw)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def round_trip(path: Path, tree: Any) -> Any:
    state.write_state(path / "state.safetensors", tree)
    return state.read_state(path / "state.safetensors")


VALUES: dict[str, Any] = {
    "nothing": None,
    "booleans": [True, False],
    "integers": [0, -1, 2**31, 2**63, -(2**200)],
    "floats": [0.0, -0.0, 0.1, 1e-320, 1.7976931348623157e308],
    "odd floats": [float("inf"), -float("inf"), float("nan")],
    "text": ["", "ü\U0001f600", "$tensor", 'a "quoted" \\ line\n'],
    "empty": [{}, [], ()],
    "keys": {1: "a", "1": "b", 2.5: "c", None: "d", (1, "x"): "e"},
    "our own words": {"$tensor": "0", "$tuple": [1], "$map": {}, "$float": "00"},
    "deep": [[[[{"a": ({"b": [1.5]},)}]]]],
    "tensors of odd sizes": [
        torch.ones(3, dtype=torch.uint8),
        torch.rand(2, dtype=torch.float64),
        torch.ones(1, dtype=torch.int16),
        torch.rand(3),
        torch.rand(3, dtype=torch.cfloat),
    ],
    "tensors": [torch.arange(4), torch.tensor(2.5), torch.empty(0, 3), torch.ones(2, 2).T],
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_as_they_were(tmp_path: Path, kind: str) -> None:
    assert same(round_trip(tmp_path, {"value": VALUES[kind]}), {"value": VALUES[kind]})


def test_the_sign_of_zero_is_kept(tmp_path: Path) -> None:
    assert str(round_trip(tmp_path, -0.0)) == "-0.0"


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
        torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
    ],
)  # fmt: skip
def test_tensors_of_every_type_come_back_to_the_last_bit(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    raw = torch.arange(96, dtype=torch.uint8)
    value = (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(2, -1)
    assert same(round_trip(tmp_path, value), value)


def test_numbers_of_numpy_come_back_as_plain_numbers(tmp_path: Path) -> None:
    found = round_trip(tmp_path, [np.float64(0.1), np.int64(3), np.bool_(True)])
    assert same(found, [0.1, 3, True])


def test_tensors_that_share_memory_or_need_gradients_are_stored(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    turned = torch.rand(3, dtype=torch.cfloat).conj()
    tree = [base, base[2:], base, nn.Parameter(base.clone()), turned, turned.imag]
    found = round_trip(tmp_path, tree)
    assert all(map(torch.equal, found, tree))
    assert not found[3].requires_grad


Pair = namedtuple("Pair", "a b")


def unsupported() -> dict[str, Any]:
    return {
        "set": {1, 2},
        "function": len,
        "lambda": lambda: 0,
        "object": object(),
        "array": np.ones(3),
        "bytes": b"raw",
        "complex": 1j,
        "type": torch.float32,
        "device": torch.device("cpu"),
        "module": nn.Linear(1, 1),
        "generator": torch.Generator(),
        "sparse tensor": torch.eye(3).to_sparse(),
        "meta tensor": torch.ones(3, device="meta"),
        "wide complex tensor": torch.ones(2, dtype=torch.complex128),
        "odd key": {frozenset(): 1},
    }


@pytest.mark.parametrize("kind", unsupported())
def test_what_needs_pickle_is_refused_in_words(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state.safetensors"
    with pytest.raises(StoreError, match="cannot be saved without pickle") as caught:
        state.write_state(path, {"scheduler": [unsupported()[kind]]})
    assert caught.value.advice
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_MOST_HEADER", 1000)
    with pytest.raises(StoreError, match="bytes of plain values") as caught:
        state.write_state(tmp_path / "state", {"order": list(range(1000))})
    assert caught.value.place == str(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_dictionaries_with_more_to_them_keep_what_they_hold(tmp_path: Path) -> None:
    found = round_trip(tmp_path, [OrderedDict(b=1, a=2), Pair(1, 2.0), Counter({30: 1, 60: 2})])
    assert found[0] == {"b": 1, "a": 2}
    assert found[1] == (1, 2.0)
    assert found[2] == {30: 1, 60: 2}
    # MultiStepLR asks its milestones for `elements()`.
    assert isinstance(found[2], Counter)


def test_the_file_is_plain_safetensors_for_its_owner_alone(tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    path = tmp_path / "state.safetensors"
    state.write_state(path, {"weights": torch.ones(3), "text": "x"})
    assert path.stat().st_mode & 0o777 == 0o600
    with safetensors.safe_open(path, framework="np") as file:
        assert [file.get_tensor(name).tolist() for name in file.keys()] == [[1, 1, 1]]  # noqa: SIM118
        assert "tree" in file.metadata()
    data = path.read_bytes()
    assert not any(word in data for word in (b"pickle", b"\x80\x04", b"c__builtin__"))


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text", "other file", "bad tree"])
def test_damaged_files_are_refused_in_words(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.safetensors"
    state.write_state(path, {"weights": torch.ones(300), "rate": 0.5})
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other file":
        from safetensors.torch import save_file

        save_file({"weights": torch.ones(3)}, path)
    else:
        path.write_bytes(
            {
                "empty": b"",
                "cut": data[:-8],
                "text": b"hello",
                "bad tree": data.replace(b"$float", b"$flout"),
            }[damage]
        )
    with pytest.raises(StoreError, match="cannot be read"):
        state.read_state(path)


# Real optimizers and schedulers.

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam, tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
}


def trained(task: Any, optimizer_of: Callable[..., Any], epochs: int, setup: Any = None) -> Any:
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = optimizer_of(model.parameters())
    if setup:
        setup(model, optimizer)
    for points, labels in task.batches()[:4] * epochs:

        def closure(points: Any = points, labels: Any = labels) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_go_on_as_if_they_had_never_been_saved(
    tmp_path: Path, task: Any, kind: str
) -> None:
    model, optimizer = trained(task, OPTIMIZERS[kind], 1)
    saved = optimizer.state_dict()
    found = round_trip(tmp_path, saved)
    assert same(found, dict(saved))
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def restore(model: nn.Module, optimizer: Any) -> None:
        model.load_state_dict(weights)
        optimizer.load_state_dict(found)

    again, _ = trained(task, OPTIMIZERS[kind], 1, restore)
    expected, _ = trained(task, OPTIMIZERS[kind], 2)
    assert all(map(torch.equal, again.state_dict().values(), expected.state_dict().values()))


SCHEDULERS: dict[str, Callable[..., Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers_go_on_as_if_they_had_never_been_saved(tmp_path: Path, kind: str) -> None:
    def fresh() -> Any:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[kind](optimizer)

    def rates(optimizer: Any, scheduler: Any, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    optimizer, scheduler = fresh()
    rates(optimizer, scheduler, 3)
    tree = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    found = round_trip(tmp_path, tree)
    expected = rates(optimizer, scheduler, 6)
    optimizer, scheduler = fresh()
    optimizer.load_state_dict(found["optimizer"])
    scheduler.load_state_dict(found["scheduler"])
    assert rates(optimizer, scheduler, 6) == expected


def test_plateaus_and_scalers_are_stored(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    plateau.step(3.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    tree = {"plateau": plateau.state_dict(), "scaler": scaler.state_dict()}
    found = round_trip(tmp_path, tree)
    assert same(found, tree)
    fresh = torch.amp.GradScaler("cpu")
    fresh.load_state_dict(found["scaler"])
    assert fresh.get_scale() == 512.0


def test_all_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> tuple[Any, ...]:
        return (
            torch.rand(5).tolist(),
            torch.randn(3).tolist(),
            np.random.rand(5).tolist(),
            np.random.standard_normal(3).tolist(),
            [random.random() for _ in range(5)],
            random.gauss(0, 1),
        )

    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    draw()  # leaves a second Gaussian waiting in numpy and random
    saved = state.random_state()
    expected = draw()
    torch.manual_seed(6)
    np.random.seed(6)
    random.seed(6)
    assert draw() != expected
    state.restore_random(round_trip(tmp_path, saved))
    assert draw() == expected
    state.restore_random(saved)
    assert draw() == expected

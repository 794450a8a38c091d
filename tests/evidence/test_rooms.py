"""Memory that states are read to: used again, never while somebody looks, and no more of it."""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polo.evidence.replay import check, memory, rooms
from polo.evidence.replay.contrast import Copies, contrast, differ
from polo.evidence.replay.rerun import Rerun
from polo.evidence.replay.rooms import Rooms
from polo.verifier import Outcome
from polo.weights.checkpoint import checkpoint_of
from polo.weights.files import FileCheckpoint, write_checkpoint
from polo.weights.sharing import LARGE

SEGMENTS = 16


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all rooms that are made."""
    found: list[int] = []

    class Counted(memory.Memory):
        def __init__(self, size: int, *, pinned: bool = False) -> None:
            found.append(size)
            super().__init__(size, pinned=pinned)

    monkeypatch.setattr(rooms, "Memory", Counted)
    return found


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_room_is_used_again(size: int, made: list[int]) -> None:
    some = Rooms()
    for value in range(3):
        room = some.room(size)
        room[:] = bytes([value]) * size
        del room
    assert made == [size]
    kept = some.room(size), some.room(size), some.room(size + 1)
    assert made == [size, size, size + 1]
    assert [len(room) for room in kept] == [size, size, size + 1]


@pytest.mark.parametrize(
    "look",
    [
        lambda room: room[2:4],
        lambda room: np.frombuffer(room[4:8], dtype=np.uint8)[1:],
        lambda room: torch.frombuffer(room, dtype=torch.uint8)[3:],
        lambda room: memoryview(room).toreadonly(),
    ],
)
def test_a_room_is_not_given_away_while_a_part_is_looked_at(
    look: Callable[[memoryview], Any], made: list[int]
) -> None:
    some = Rooms()
    room = some.room(8)
    room[:] = b"12345678"
    view = look(room)
    del room
    gc.collect()
    before = bytes(view)
    some.room(8)[:] = b"xxxxxxxx"
    assert bytes(view) == before
    assert len(made) == 2
    del view
    assert some.room(8) is not None
    assert len(made) == 2


def test_rooms_may_outlive_their_house() -> None:
    room = Rooms().room(LARGE)
    gc.collect()
    room[:3] = b"abc"
    assert bytes(room[:3]) == b"abc"


def test_a_checkpoint_is_read_to_a_room(made: list[int], tmp_path: Path) -> None:
    model, some = torch.nn.Linear(5, 3), Rooms()
    with (tmp_path / "file").open("wb") as out:
        write_checkpoint(checkpoint_of(model), out.write)
    for _ in range(2):
        with FileCheckpoint.canonical(tmp_path / "file", checkpoint_of(model).layout) as file:
            held = file.held(some.room)
        assert bytes(held.data) == bytes(file_bytes(model))
        del held
    assert made == [72]


def file_bytes(model: torch.nn.Linear) -> bytes:
    parts = (model.bias, model.weight)
    return b"".join(part.detach().numpy().tobytes() for part in parts)


@pytest.fixture(scope="module")
def stepwise(
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Two shards of eight segments, one step each, and an answer that shows all."""
    folder = tmp_path_factory.mktemp("stepwise")
    run = train(folder / "proof", recipe=recipe_of(every=1, tolerance=0))
    challenge = run.everything()
    assert len(challenge.segments) == SEGMENTS
    return run, challenge, run.answer(challenge, folder / "answer")


@pytest.mark.parametrize(("small", "states"), [(2**28, 5), (0, 3)])
def test_a_verifier_holds_few_states_at_a_time(
    small: int, states: int, stepwise: Any, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading is much faster than running: whoever reads as far ahead as possible is found out."""
    attempt = Rerun.attempt

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.02)
        return attempt(*arguments, **options)

    monkeypatch.setattr(check, "_SMALL", small)
    monkeypatch.setattr(Rerun, "attempt", slow)
    run, challenge, answer = stepwise
    verdict = run.verify(challenge, answer)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    # A state is two files: the weights, and what the optimizer keeps.
    assert len(made) <= 2 * states < SEGMENTS


def test_copies_take_the_memory_of_those_that_were_dropped(begin: Callable[..., Any]) -> None:
    copies, run = Copies(kept=True), begin("buffers", "adam").steps(1)
    first = copies.take(run.copies())
    where = [value.data_ptr() for side in first for value in side.values()]
    second = copies.take(run.copies())
    assert not set(where) & {value.data_ptr() for side in second for value in side.values()}
    del second
    copies.drop()
    run.steps(1)
    live = run.copies()
    again = [copies.take(live) for _ in range(3)]
    assert any([v.data_ptr() for side in each for v in side.values()] == where for each in again)
    assert not any(differ(live, each) for each in again)


def test_copies_of_another_shape_get_memory_of_their_own(begin: Callable[..., Any]) -> None:
    copies, run = Copies(kept=True), begin()
    assert copies.take(run.copies())[1] == {}
    copies.drop()
    live = run.steps(1).copies()
    assert copies.take(live)[1].keys() == live[1].keys() != set()


def test_states_differ_by_what_can_be_measured() -> None:
    nan = torch.tensor([1.0, torch.nan])
    one = {"w": torch.ones(2)}, {"step": torch.tensor(3)}
    for model, rest, differs in (
        ({"w": torch.ones(2)}, {"step": torch.tensor(4)}, False),
        ({"w": torch.tensor([1.0, 1 + 2**-23])}, one[1], True),
        ({"w": nan}, one[1], False),
    ):
        there = model, rest
        before = {"w": torch.zeros(2)}, {"step": torch.tensor(0)}
        assert differ(one, there) is differs
        assert (contrast(one, there, before) > 0) is differs
    signs = {"w": torch.zeros(2)}, dict[str, torch.Tensor]()
    assert not differ(signs, ({"w": -torch.zeros(2)}, {}))
    # What only one of them keeps is a difference, unless it is zero.
    for kept, differs in ((torch.ones(2), True), (torch.zeros(2), False)):
        assert differ(({}, {"m/w": kept}), ({}, {})) is differs
        assert (contrast(({}, {"m/w": kept}), ({}, {}), ({}, {})) > 0) is differs

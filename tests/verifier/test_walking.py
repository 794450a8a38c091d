"""Checkpoints that are hashed while the one before is looked at."""

import contextlib
import gc
import os
import resource
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest

from polo.errors import FormatError, WeightsError
from polo.verifier import hashers, walking
from polo.verifier.hashers import Hashers
from polo.weights import sharing
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint, MemoryCheckpoint
from polo.weights.files import FileCheckpoint, write_checkpoint
from polo.weights.hasher import Hasher
from polo.weights.hashing import commit

COUNT = 5


def weights(number: int) -> MemoryCheckpoint:
    return MemoryCheckpoint({"w": np.full((300, 100), float(number), np.float32)})


LAYOUT = weights(0).layout


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.safetensors" for number in range(COUNT)]
    for number, path in enumerate(paths):
        with path.open("wb") as file:
            write_checkpoint(weights(number), file.write)
    return paths


def kept(files: list[Path]) -> Iterator[tuple[int, FileCheckpoint]]:
    """Each is closed when the next one is asked for, as a proof's history does."""
    for number, path in enumerate(files):
        with FileCheckpoint.canonical(path, LAYOUT) as checkpoint:
            yield number, checkpoint


def seen(
    files: list[Path],
    *,
    looked_at: Collection[int],
    threads: int | None = None,
    keeping: bool = False,
    longer: bool = False,
) -> Iterator[walking.Seen]:
    """The walk through some files, with hashers of its own."""
    with Hashers(LAYOUT, len(files), threads) as own:
        walk = walking.seen(
            kept(files), own, looked_at=looked_at, keeping=keeping, longer=longer, threads=threads
        )
        with contextlib.closing(walk):  # type: ignore[type-var]
            yield from walk


@pytest.fixture(params=["by threads", "by processes"])
def much(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there is so much to hash that processes do it."""
    if request.param == "by processes":
        monkeypatch.setattr(sharing, "LARGE", 1)
        monkeypatch.setattr(hashers, "MUCH", 1)
    return bool(request.param == "by processes")


def value(checkpoint: Checkpoint) -> float:
    data = checkpoint.read(0, 0, LAYOUT.size)
    [found] = set(np.frombuffer(data, np.float32).tolist())
    return float(found)


@pytest.mark.parametrize("keeping", [False, True])
@pytest.mark.parametrize("looked_at", [range(COUNT), {1, 3}, ()])
@pytest.mark.parametrize("most", [0, 2**20])
def test_every_checkpoint_comes_with_its_root_and_stays_while_it_is_looked_at(
    files: list[Path],
    keeping: bool,
    looked_at: set[int],
    most: int,
    much: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(hashers, "MOST_HELD", most)
    found = []
    walk = seen(files, looked_at=looked_at, keeping=keeping)
    for number, one in enumerate(walk):
        assert (one.number, one.root) == (number, commit(weights(number)).root)
        if number in looked_at:
            assert value(one.checkpoint) == number
            assert isinstance(one.checkpoint, HeldCheckpoint) == bool(most or keeping)
        found.append(one)
        if most and much:
            assert not looked_at or number not in looked_at or one.checkpoint.handle
    assert len(found) == COUNT
    assert not caplog.records, "a process was lost"
    if keeping:
        assert [value(found[at].checkpoint) for at in looked_at] == list(looked_at)


@pytest.mark.usefixtures("much")
def test_two_rooms_are_enough(files: list[Path]) -> None:
    walk = seen(files, looked_at=range(COUNT), threads=1)
    rooms = [one.checkpoint.data.obj for one in walk]  # type: ignore[attr-defined]
    assert len(set(map(id, rooms))) <= 2


@pytest.mark.usefixtures("much")
def test_who_looks_longer_sees_what_was_hashed_until_the_next_but_one(files: list[Path]) -> None:
    walk = seen(files, looked_at=range(COUNT), threads=1, longer=True)
    before, rooms = next(walk), set()
    for one in walk:
        assert (value(before.checkpoint), value(one.checkpoint)) == (before.number, one.number)
        rooms.add(id(one.checkpoint.data.obj))  # type: ignore[attr-defined]
        before = one
    assert len(rooms) <= 3


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("threads", [2, 3])
def test_where_nothing_is_looked_at_few_are_in_memory(files: list[Path], threads: int) -> None:
    walk = seen(files * 3, looked_at=(), threads=threads)
    # Held, so that no two of them can have the same place one after the other.
    rooms = [one.checkpoint.data.obj for one in walk]  # type: ignore[attr-defined]
    assert len(set(map(id, rooms))) <= threads + 2


def test_large_ones_are_hashed_one_after_the_other(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashers, "MOST_HELD", LAYOUT.size - 1)
    walk = seen(files, looked_at=(), threads=3)
    assert not any(isinstance(one.checkpoint, HeldCheckpoint) for one in walk)


def test_where_nothing_is_looked_at_several_are_hashed_at_once(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)

    def hashing(checkpoint: Checkpoint, *, threads: int | None = None) -> object:
        together.wait(20)
        return commit(checkpoint, threads=threads)

    monkeypatch.setattr(walking, "commit", hashing)
    walk = seen(files[:3], looked_at=(), threads=3)
    assert [one.root for one in walk] == [commit(weights(number)).root for number in range(3)]


def test_the_next_is_hashed_meanwhile(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = threading.Event()

    def hashing(checkpoint: Checkpoint, *, threads: int | None = None) -> object:
        found = commit(checkpoint, threads=threads)
        if value(checkpoint) == 1:
            hashed.set()
        return found

    monkeypatch.setattr(walking, "commit", hashing)
    walk = seen(files, looked_at=range(COUNT))
    assert next(walk).number == 0
    assert hashed.wait(20), "nobody has asked for it yet"
    assert [one.number for one in walk] == [1, 2, 3, 4]


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("looked_at", [range(COUNT), ()])
def test_a_checkpoint_without_a_root_says_why_and_the_others_go_on(
    files: list[Path], looked_at: range
) -> None:
    data = bytearray(files[2].read_bytes())
    data[-4:] = np.float32("nan").tobytes()
    files[2].write_bytes(data)
    found = list(seen(files, looked_at=looked_at))
    assert [one.number for one in found] == list(range(COUNT))
    assert [one.number for one in found if isinstance(one.root, WeightsError)] == [2]


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("looked_at", [range(COUNT), ()])
def test_what_breaks_the_walk_breaks_it_where_it_is(files: list[Path], looked_at: range) -> None:
    files[3].write_bytes(b"short")
    walk = seen(files, looked_at=looked_at)
    assert [next(walk).number for _ in range(3)] == [0, 1, 2]
    with pytest.raises(FormatError, match="5 bytes"):
        next(walk)


@pytest.mark.parametrize("looked_at", [range(COUNT), ()])
def test_whoever_stops_early_leaves_nothing_open(
    files: list[Path], looked_at: range, much: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    before = open_files()
    walk = seen(files * 3, looked_at=looked_at, threads=3)
    first = next(walk)
    assert (len(open_files()) > len(before)) or not much
    walk.close()  # type: ignore[attr-defined]
    del walk, first
    gc.collect()
    assert open_files() == before
    assert not caplog.records, "a process was lost"


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("looked_at", [range(COUNT), ()])
def test_processes_that_die_are_done_without(
    files: list[Path], looked_at: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Hasher.start

    def doomed(hasher: Hasher) -> None:
        start(hasher)
        if hasher._process:
            hasher._process._process.kill()

    monkeypatch.setattr(Hasher, "start", doomed)
    walk = seen(files, looked_at=looked_at, threads=2)
    assert [one.root for one in walk] == [commit(weights(number)).root for number in range(COUNT)]


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("looked_at", [range(COUNT), ()])
def test_few_descriptors_are_enough(
    files: list[Path], looked_at: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (70, 70))
    before = len(open_files())
    walk = seen(files, looked_at=looked_at, threads=16)
    most = 0
    for number, one in enumerate(walk):
        assert one.root == commit(weights(number)).root
        most = max(most, len(open_files()) - before)
    assert most <= 16


def open_files() -> list[str]:
    """What this process has open."""
    return sorted(os.listdir("/proc/self/fd"))


def test_whoever_stops_early_leaves_no_thread_behind(files: list[Path]) -> None:
    before = threading.active_count()
    walk = walking.ahead(iter(range(10)))
    assert next(walk) == 0
    walk.close()  # type: ignore[attr-defined]
    outcomes = walking.at_once(lambda number: 1 // number, [1, 0, 2], 2)
    assert next(outcomes)[1].result() == 1
    outcomes.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_few_outcomes_are_waited_for_by_who_stops() -> None:
    begun: list[int] = []
    outcomes = walking.at_once(begun.append, range(1000), 2)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert len(begun) < 10


def test_outcomes_come_in_order_with_what_went_wrong() -> None:
    found = dict(walking.at_once(lambda number: 6 // number, [3, 0, 2], 2))
    assert list(found) == [3, 0, 2]
    assert (found[3].result(), found[2].result()) == (2, 3)
    assert isinstance(found[0].exception(), ZeroDivisionError)
    assert dict(walking.at_once(len, [], 2)) == {}

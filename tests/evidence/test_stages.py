"""Snapshots that training's own thread notes, in stages: no thread beside it, and no wrong word."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from polo.errors import ChainError, WeightsError
from polo.evidence.replay import background, snapshot
from polo.evidence.replay.notary import Notary
from polo.evidence.replay.recorder import Recorder
from polo.weights import sharing

Begin = Callable[..., Any]
Threads = Callable[[], list[threading.Thread]]

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
"""Python 3.12 warns of what loaders do all the time, and what these tests are about."""


@pytest.fixture(autouse=True)
def in_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large states are noted by training's own thread, as where a GPU does what takes time."""
    monkeypatch.setattr(sharing, "LARGE", 1)
    monkeypatch.setattr(
        Notary, "is_asking", lambda self, _: self._hasher.start() or self._hasher.elsewhere
    )


def test_training_passes_by_and_nobody_waits(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run, every=100)
    before = threading.active_count()
    one.start()
    process = one._notary._hasher._process
    run.record(one, 1)
    assert one._notary.boundaries.keys() <= {0}
    deadline = time.monotonic() + 20
    while not one._notary.boundaries and time.monotonic() < deadline:
        run.record(one, 1)
    assert threading.active_count() == before
    os.kill(process._process.pid, signal.SIGSTOP)
    one.end()
    run.record(one, 3)
    assert len(one._notary.boundaries) == 1, "its process sleeps, and training goes on"
    os.kill(process._process.pid, signal.SIGCONT)
    digests = run.digests()
    assert one.finish().boundaries[-1] == digests


def test_devices_are_looked_at_and_waited_for_only_when_room_is_needed(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the CPU were a GPU that is done when somebody has looked three times."""
    here, take = torch.device("cpu"), snapshot.Slot.take
    said: list[str] = []
    lane = Mock(device=here, stream=Mock(wait_event=lambda event: said.append(f"waits {event}")))
    lane.graphs.run = lambda place, work: work()
    lane.done.record = lambda _: said.append("asked")
    lane.done.query = lambda: said.append("looked") or said[-3:] == ["looked"] * 3
    lane.done.synchronize = lambda: said.append("waited")

    def taken(slot: snapshot.Slot, *plan: Any) -> None:
        take(slot, *plan)
        slot.filled[here] = "filled"

    monkeypatch.setattr(snapshot.Slot, "take", taken)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    run = begin("buffers", "adam").steps(1)
    one = recorder(run, every=2)
    one._notary._lanes[here] = lane
    one.start()
    assert said == ["waits filled", "asked"]
    run.record(one, 1)
    assert said[2:] == ["looked"]
    assert not one._notary.boundaries
    run.record(one, 1)
    assert said[3:6] == ["looked", "looked", "waited"]
    assert said[-2:] == ["waits filled", "asked"]
    assert [*one._notary.boundaries] == [0]
    wanted = run.digests()
    assert one.finish().boundaries[-1] == wanted
    assert said[-5:] == ["looked"] * 3 + ["waited"] * 2


def test_a_process_that_dies_is_followed_by_a_thread_and_then_by_another(
    begin: Begin, recorder: Callable[..., Recorder], threads: Threads
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run)
    one.start()
    os.kill(one._notary._hasher._process._process.pid, signal.SIGKILL)
    run.record(one, 4)
    found = one.finish().boundaries
    assert (len(found), found[-1]) == (3, run.digests())
    assert not threads()
    one.start()
    assert threads()
    run.record(one, 3)
    assert one.finish().boundaries[-1] == run.digests()
    one.start()
    assert not threads()
    assert one._notary._hasher.elsewhere
    run.record(one, 3)
    assert one.finish().boundaries[-1] == run.digests()
    assert one._notary._hasher.elsewhere


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["_begin", "_is_settled", "_settle", "_moves"])
def test_what_fails_in_a_stage_is_told(
    where: str, error: BaseException, begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run, every=1)
    one.start()
    one.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one._notary, where, Mock(side_effect=[error, *[True] * 9]))
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                run.record(one, 2)
        else:
            with pytest.raises(WeightsError, match="out of memory"):
                run.record(one, 3)
    with pytest.raises((WeightsError, ChainError), match=r"could not be recorded|interrupted"):
        run.record(one, 1)
    one.start()
    run.record(one, 2)
    assert one.finish().boundaries[-1] == run.digests()


def test_what_an_interrupt_left_over_gets_into_nobodys_way(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    """It may live on in a traceback, and end when another shard is under way."""
    run = begin("buffers", "adam").steps(1)
    one = recorder(run, every=1)
    one.start()
    one.wait()
    run.record(one, 1)
    # What an interrupt right before a job goes on does.
    _, stages, _ = one._beside._under_way
    one._beside._under_way = None
    # A device may still be at it, and write where the next copies will lie.
    lane = one._notary._lanes[torch.device("meta")] = Mock()
    lane.stream.synchronize.side_effect = lambda: waited.append(one.steps)
    waited: list[int] = []
    one.start()
    assert waited == [1], "before anything is forgotten"
    before = run.copies()
    run.record(one, 1)
    stages.close()
    for _ in range(4):
        after = run.copies()
        run.record(one, 1)
        one.wait()
        wanted = run.moves(before, after)
        assert one._notary.moves[one.steps - 2] == pytest.approx(wanted, rel=1e-9, abs=2)
        before = after


def test_a_device_that_cannot_be_asked_any_more_holds_nobody_up(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run, every=1)
    # As many as on a GPU.
    one._slots = one._slots[:2]
    one.start()
    run.record(one, 1)
    one.wait()
    broken = Mock(side_effect=RuntimeError("device-side assert triggered"))
    monkeypatch.setattr(one._notary, "_is_settled", broken)
    with pytest.raises(WeightsError, match="device-side assert"):
        run.record(one, 3)
    monkeypatch.setattr(one._notary, "_settle", broken)
    process = one._notary._hasher._process._process
    one.abandon()
    assert process.poll() is not None


@pytest.mark.parametrize("when", ["is_asking", "begun"])
def test_a_change_of_kind_that_is_broken_off_is_made_up_for(
    when: str, begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run)
    with monkeypatch.context() as patch:
        patch.setattr(Notary, "is_asking", lambda *_: False)
        one.start()
    run.record(one, 3)
    with monkeypatch.context() as patch:
        if when == "is_asking":
            patch.setattr(Notary, "is_asking", Mock(side_effect=[True, MemoryError]))
        else:
            patch.setattr(background.Stages, "__init__", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            one.start()
    with pytest.raises(ChainError, match="nothing is being recorded"):
        one.after_step()
    one.start()
    run.record(one, 3)
    assert one.finish().boundaries[-1] == run.digests()


def test_who_interrupts_the_wait_can_wait_again(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run)
    one.start()
    run.record(one, 2)
    one.wait()
    process = one._notary._hasher._process._process.pid
    os.kill(process, signal.SIGSTOP)
    one.end()
    with monkeypatch.context() as patch:
        patch.setattr(background.time, "sleep", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.finish()
    os.kill(process, signal.SIGCONT)
    assert one.finish().boundaries[-1] == run.digests()


@FORKS
def test_a_forked_child_asks_a_process_of_its_own(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run)
    one.start()
    process = one._notary._hasher._process._process.pid
    child = os.fork()
    if not child:
        signal.alarm(60)
        with contextlib.suppress(ChainError):
            one.start()
            os._exit(1)
        one.abandon()
        one.start()
        own = one._notary._hasher._process._process.pid
        run.record(one, 3)
        right = one.finish().boundaries[-1] == run.digests()
        one.abandon()
        os._exit(0 if right and own != process else 2)
    run.record(one, 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.finish().boundaries[-1] == run.digests()
    assert one._notary._hasher._process._process.pid == process


def test_what_is_left_in_the_middle_leaves_nothing(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin("buffers", "adam").steps(1)
    one = recorder(run, every=1)
    for _ in range(2):
        one.start()
        process = one._notary._hasher._process._process
        run.record(one, 1)
        one.abandon()
        assert process.poll() is not None
    one.start()
    process = one._notary._hasher._process._process
    run.record(one, 1)
    one.reset()
    one.start()
    run.record(one, 1)
    assert one.finish().boundaries[-1] == run.digests()

"""Recording beside training: the same digests, the same training, and nothing left behind."""

import contextlib
import gc
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from polo.errors import ChainError, TermsError, WeightsError
from polo.evidence.replay import memory, notary, platform, snapshot, state
from polo.evidence.replay.measuring import Measuring
from polo.evidence.replay.notary import Notary
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.recorder import Recorder
from polo.weights import pieces, sharing
from polo.weights.checkpoint import MemoryCheckpoint
from polo.weights.hasher import Hasher

Begin = Callable[..., Any]
Threads = Callable[[], list[threading.Thread]]

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
"""Python 3.12 warns of what loaders do all the time, and what these tests are about."""


def seal(run: Any) -> None:
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.add_(0.01)


@pytest.mark.parametrize("asking", [False, True], ids=["on a thread", "in stages"])
@pytest.mark.parametrize("large", [sharing.LARGE, 1], ids=["threads", "process"])
def test_every_boundary_and_move_is_what_is_found_at_once(
    large: int,
    asking: bool,
    kind: tuple[str, str],
    begin: Begin,
    recorder: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "LARGE", large)
    # As if a GPU were asked, and had done it at once.
    monkeypatch.setattr(Notary, "is_asking", lambda *_: asking)
    run = begin(*kind)
    one = recorder(run)
    for steps in (10, 9, 1):
        one.start()
        wanted, kept = [run.digests()], [run.copies()]
        for step in range(1, steps + 1):
            run.step()
            one.after_step()
            if step % 3 == 0 or step == steps:
                wanted.append(run.digests())
                kept.append(run.copies())
        assert one.finish().boundaries == tuple(wanted)
        seal(run)
        found = one.sealed(run.model)
        assert found.boundaries == tuple(wanted)
        pairs = zip(kept, [*kept[1:], run.copies()], strict=True)
        moves = [run.moves(before, after) for before, after in pairs]
        for got, right in zip(found.moves, [*moves[:-1], (moves[-1][0], 0)], strict=True):
            assert got == pytest.approx(right, rel=1e-9, abs=2)
        assert found.platform == platform.text_of(platform.describe("cpu"))
    assert (one._notary._hasher._process is not None) == (large == 1)


def test_a_state_whose_digests_are_known_is_not_hashed(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    ask = Hasher.ask
    monkeypatch.setattr(Hasher, "ask", lambda self, *image: hashed.append(1) or ask(self, *image))
    run = begin("buffers", "adam").steps(1)
    one, known, before = recorder(run), Boundary(b"k" * 32, b"n" * 32), run.copies()
    one.start(known)
    run.record(one, 3)
    found = one.finish()
    assert found.boundaries == (known, run.digests())
    assert len(hashed) == 1
    right = run.moves(before, run.copies())
    assert found.moves[0] == pytest.approx(right, rel=1e-9, abs=2)


@pytest.mark.parametrize("large", [sharing.LARGE, 1], ids=["threads", "process"])
def test_what_is_on_several_devices_is_brought_together(
    large: int, begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To torch the devices `cpu` and `cpu:0` are two, as far as recording can tell."""
    home = snapshot._home
    monkeypatch.setattr(sharing, "LARGE", large)
    monkeypatch.setattr(notary, "Memory", lambda size, pinned: memory.Memory(size))
    monkeypatch.setattr(
        snapshot, "_home", lambda value: torch.device("cpu", 0) if value.dim() % 2 else home(value)
    )
    run = begin("buffers", "adam")
    one = recorder(run, 1)
    one.start()
    wanted, kept = [run.digests()], [run.copies()]
    for _ in range(5):
        run.record(one, 1)
        wanted.append(run.digests())
        kept.append(run.copies())
    found = one.finish()
    assert found.boundaries == tuple(wanted)
    for at, move in enumerate(found.moves):
        right = run.moves(kept[at], kept[at + 1])
        assert move == pytest.approx(right, rel=1e-9, abs=2)
    assert one._notary._image
    one.abandon()
    assert not one._notary._image


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.float8_e5m2,
        torch.int32,
    ],
)
@pytest.mark.parametrize("keep", [True, False])
def test_moves_of_long_tensors_are_those_found_at_once(dtype: torch.dtype, keep: bool) -> None:
    torch.manual_seed(8)
    sizes = {"a/long": 2**21 + 37, "a/none": 0, "a/short": 5, "b/odd": 2**14 + 1, "step/long": 1}

    def drawn() -> dict[str, torch.Tensor]:
        kind = torch.complex64 if dtype.is_complex else torch.float32
        found = {name: torch.randn(size, dtype=kind) for name, size in sizes.items()}
        return {name: value.to(dtype) for name, value in found.items()}

    slots, kept = [snapshot.Slot(), snapshot.Slot()], [drawn(), drawn()]
    layout = MemoryCheckpoint(kept[0]).layout
    twice = [list(side.values()) * 2 for side in kept]
    plan = snapshot.Plan(layout, layout, twice[0], ["a/long", "b/odd"])
    moves = []
    for slot, values in zip(slots, twice, strict=True):
        slot.take(snapshot.Live(plan, [[values[at] for at in group] for group in plan.groups], 1))
        before = slots[0].copy if slot is slots[1] else None
        measuring = Measuring(before, slot.copy, keep=keep)
        measuring.ask(torch.device("cpu"))
        moves.append(measuring.moves())
    assert moves[0] is None
    measured = [{name: side[name] for name in ("a/long", "b/odd")} for side in kept]
    right = state.moves((measured[0], kept[0]), (measured[1], kept[1]))
    assert moves[1] == pytest.approx(right, rel=1e-9, abs=2)
    assert right[0] > 2**32 or not dtype.to_real().is_floating_point
    same = map(torch.equal, slots[0].copy.rest().values(), kept[0].values())
    # Narrow types are widened first; else differences are written over the snapshot before.
    assert all(same) == (keep or dtype not in (torch.float32, torch.float64, torch.complex64))


def test_training_is_the_same_to_the_bit(
    kind: tuple[str, str], begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    plain = begin(*kind).steps(12)
    wanted = plain.digests(), torch.get_rng_state().tolist()
    run = begin(*kind)
    one = recorder(run, 2)
    one.start()
    run.record(one, 12)
    assert (run.digests(), torch.get_rng_state().tolist()) == wanted
    one.finish()
    assert run.digests() == wanted[0]


def test_training_may_go_on_after_finish(begin: Begin, recorder: Callable[..., Recorder]) -> None:
    records = []
    for stops in ((), (2, 3, 7, 8)):
        run = begin()
        one = recorder(run)
        one.start()
        for step in range(1, 11):
            run.record(one, 1)
            if step in stops:
                assert one.finish() == one.finish()
        records.append(one.sealed(run.model))
    assert records[0] == records[1]
    assert records[0].segments == 4


def test_a_slow_hash_holds_training_back_and_memory_stays(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, made = threading.Event(), []

    def slow(data: memoryview) -> Any:
        assert gate.wait(30)
        return hashlib.sha256(data)

    class Counted(snapshot.Copy):
        def __init__(self, plan: snapshot.Plan) -> None:
            made.append(self)
            super().__init__(plan)

    monkeypatch.setattr(pieces, "sha256", slow)
    monkeypatch.setattr(snapshot, "Copy", Counted)
    run = begin().steps(1)
    one, wanted = recorder(run, 1), [run.digests()]

    def training() -> None:
        for _ in range(8):
            run.step()
            wanted.append(run.digests())
            one.after_step()

    one.start()
    thread = threading.Thread(target=training)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()
    assert one.steps == 3
    gate.set()
    thread.join(30)
    assert not thread.is_alive()
    assert one.finish().boundaries == tuple(wanted)
    assert one.seconds > 0.2
    assert len(made) == 3
    states = state.state_checkpoints(run.model, run.optimizer)
    size = sum(part.layout.size for part in states if part)
    assert sum(copy.memory[torch.device("cpu")].numel() for copy in made) < 3 * size + 3 * 64 * 20


def test_memory_is_used_again_in_the_next_shard(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("tied", "adam").steps(1)
    one = recorder(run)
    one.start()
    run.record(one, 9)
    one.sealed(run.model)
    monkeypatch.setattr(snapshot.Copy, "__init__", None)
    one.start()
    run.record(one, 9)
    assert one.sealed(run.model).segments == 3


def test_a_failure_is_raised_by_the_next_call_and_named(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin()
    one = recorder(run, 2)
    one.start()
    run.record(one, 4)
    one.finish()

    def broken(data: memoryview) -> Any:
        raise OSError("the hash is gone")

    monkeypatch.setattr(pieces, "sha256", broken)
    with pytest.raises(WeightsError, match=r"boundary 3: .* OSError: the hash is gone"):
        run.record(one, 60)
    with pytest.raises(WeightsError, match="boundary 3"):
        one.after_step()
    for call in (one.finish, lambda: one.sealed(run.model)):
        with pytest.raises(WeightsError, match="boundary 3"):
            call()
    monkeypatch.undo()
    one.reset()
    one.start()
    run.record(one, 2)
    assert one.finish().boundaries[-1] == run.digests()


def test_training_that_waits_is_woken_by_a_failure(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def broken(data: memoryview) -> Any:
        assert gate.wait(30)
        raise MemoryError

    monkeypatch.setattr(pieces, "sha256", broken)
    run = begin()
    one = recorder(run, 1)
    one.start()
    threading.Timer(0.2, gate.set).start()
    with pytest.raises(WeightsError, match=r"boundary 0: .* MemoryError"):
        run.record(one, 20)


def test_training_that_waits_is_woken_where_a_device_has_failed_for_good(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def broken(*_: Any) -> Any:
        assert gate.wait(30)
        raise RuntimeError("device-side assert triggered")

    run = begin()
    one = recorder(run, 1)
    one.start()
    one.wait()
    monkeypatch.setattr(Notary, "_settle", broken)
    threading.Timer(0.2, gate.set).start()
    with pytest.raises(WeightsError, match=r"boundary 1: .* device-side assert"):
        run.record(one, 20)
    one.reset()
    monkeypatch.undo()
    one.start()
    run.record(one, 2)
    assert one.finish().boundaries[-1] == run.digests()


def test_no_number_in_the_weights_does_no_harm(
    begin: Begin, recorder: Callable[..., Recorder]
) -> None:
    run = begin()
    one = recorder(run)
    one.start()
    run.record(one, 3)
    with torch.no_grad():
        run.model[0].weight.fill_(torch.nan)
    run.record(one, 6)
    assert one.finish().boundaries[-1] == run.digests()
    found = one.sealed(run.model)
    assert found.moves[1:] == ((state.SATURATED,) * 2, (state.SATURATED,) * 2, (2**63 - 1, 0))


def test_an_interrupt_while_training_waits_leaves_no_gap_unnoticed(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin()
    one = recorder(run, 1)
    one.start()
    run.record(one, 2)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(snapshot.Copy, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.record(one, 1)
    with pytest.raises(ChainError, match="has a gap"):
        run.record(one, 1)
    one.start()
    run.record(one, 5)
    assert one.finish().boundaries[-1] == run.digests()


def test_an_interrupt_before_a_snapshot_leaves_no_gap_unnoticed(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin()
    one = recorder(run, 1)
    one.start()

    def interrupted(device: object) -> dict[str, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(platform, "describe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.record(one, 1)
    with pytest.raises(ChainError, match="has a gap"):
        one.finish()


def test_calls_out_of_order(begin: Begin, recorder: Callable[..., Recorder]) -> None:
    run = begin()
    one = recorder(run)
    for call in (one.after_step, one.finish, lambda: one.sealed(run.model)):
        with pytest.raises(ChainError, match="nothing is being recorded"):
            call()
    one.abandon()
    one.start()
    one.abandon()
    with pytest.raises(ChainError, match="nothing is being recorded"):
        one.after_step()
    with pytest.raises(TermsError, match="every 0 steps"):
        recorder(run, 0)


def test_starting_again_forgets_the_shard(begin: Begin, recorder: Callable[..., Recorder]) -> None:
    run = begin()
    one = recorder(run)
    one.start()
    run.record(one, 7)
    one.start()
    assert one.steps == 0
    assert one.finish().boundaries == (run.digests(),)
    found = one.sealed(run.model)
    assert found.segments == 0
    assert found.moves == ((0, 0),)


def test_no_thread_outlives_its_recorder(begin: Begin, threads: Threads) -> None:
    run = begin()
    one = Recorder(run.model, run.optimizer, 2)
    one.start()
    run.record(one, 5)
    assert threads()
    one.abandon()
    assert not threads()
    one.start()
    run.record(one, 5)
    assert threads()
    del one
    gc.collect()
    assert not threads()


def test_dropped_work_does_not_delay_the_end(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []

    def slow(data: memoryview) -> Any:
        hashed.append(len(data))
        time.sleep(0.01)
        return hashlib.sha256(data)

    monkeypatch.setattr(pieces, "sha256", slow)
    run = begin()
    one = recorder(run, 1)
    one.start()
    run.record(one, 2)
    one.abandon()
    assert len(hashed) < 20


def test_a_process_ends_in_the_middle_of_a_shard(in_child: Callable[..., Any]) -> None:
    code = """
import torch
from polo.evidence.replay import recorder
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
one = recorder.Recorder(model, optimizer, 1)
one.start()
for _ in range(5):
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    one.after_step()
print("done")
"""
    assert in_child(code, bare=True).stdout.split() == ["done"]


@FORKS
def test_forked_children_are_not_harmed(begin: Begin, recorder: Callable[..., Recorder]) -> None:
    run = begin("plain")
    one = recorder(run, 1)
    one.start()
    data = TensorDataset(torch.randn(24, 8))
    for _ in range(2):
        for (batch,) in DataLoader(data, 4, num_workers=2, multiprocessing_context="fork"):
            run.draw = lambda batch=batch: batch
            run.record(one, 1)
    assert one.finish().boundaries[-1] == run.digests()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            signal.alarm(20)
            with contextlib.suppress(ChainError):
                one.after_step()
                os._exit(1)
            one.reset()
            one.abandon()
            gc.collect()
            os._exit(0)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@FORKS
def test_a_forked_child_may_end_while_threads_hash(
    begin: Begin, recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_LITTLE", 1)
    run = begin("tied", "adam")
    one = recorder(run, 1)
    one._notary = Notary(threads=3)
    one.start()
    for _ in range(10):
        run.record(one, 2)
        child = os.fork()
        if not child:
            signal.alarm(20)
            one.abandon()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert one.finish().boundaries[-1] == run.digests()


def test_several_threads_hash_alike(
    begin: Begin, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_LITTLE", 1)
    run = begin("tied", "adam").steps(2)
    one = Recorder(run.model, run.optimizer, 2)
    one._notary = Notary(threads=3)
    one.start()
    run.record(one, 8)
    assert one.finish().boundaries[-1] == run.digests()
    assert len(threads()) > 1
    one.abandon()
    assert not threads()

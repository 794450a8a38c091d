"""The process that hashes beside training: the same hashes, and never left behind."""

import contextlib
import gc
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polo.evidence.replay import state
from polo.evidence.replay.memory import Memory
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.recorder import Recorder
from polo.weights import hasher, sharing
from polo.weights.hasher import Hasher, Question
from polo.weights.pieces import table_of
from polo.weights.sharing import LARGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads hash")

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

PIECES = [(0, 1), (64, 64), (100, 5000), (4096, LARGE), (5, LARGE // 2)]

PARENT = """
import os, signal, sys, threading, time
import torch
from polo.evidence.replay.platform import describe
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.state import state_digests

def made(size):
    model = torch.nn.Linear(1200, size)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

class Training:
    def __init__(self):
        self.model, self.optimizer = made(1000)
        self.recorder = Recorder(self.model, self.optimizer, 1)
        self.recorder.start()
        self.train(2)
        self.recorder.wait()

    def train(self, steps):
        for _ in range(steps):
            step(self.model, self.optimizer)
            self.recorder.after_step()

    @property
    def process(self):
        return self.recorder._notary._hasher._process._process.pid

def worker():
    if not os.fork():
        os.close(1)
        time.sleep(15)
        os._exit(0)

def interrupted(training):
    os.setsid()
    # Whoever runs these tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = training.process
    try:
        # What a terminal does: everybody in the group gets it.
        os.killpg(0, signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        training.train(2)
        found = training.recorder.finish().boundaries[-1]
        assert (found.model, found.rest) == state_digests(training.model, training.optimizer)
        assert training.process == process
        os._exit(7)

# What torch and PoLO do the first time takes long. Do it once.
torch.set_num_threads(1)
step(*made(1))
describe("cpu")
for end in sys.argv[1:]:
    if not os.fork():
        training = Training()
        os.write(1, f"{training.process}\\n".encode())
        exec(end)
        break
else:
    for _ in sys.argv[1:]:
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Trains in as many processes as there are arguments, each of which says how one of them ends."""


@pytest.fixture
def one() -> Iterator[Hasher]:
    """A hasher that has been started."""
    found = Hasher(threads=2)
    found.start()
    yield found
    found.close()


@pytest.fixture
def image() -> Memory:
    """Shared memory with something in it."""
    found = Memory(LARGE)
    found.tensor.copy_(torch.arange(LARGE, dtype=torch.int64).mul(40503).to(torch.uint8))
    return found


@pytest.fixture
def recording() -> Iterator["Recording"]:
    """A large state in training."""
    found = Recording()
    yield found
    found.recorder.abandon()


class Recording:
    """A state that is large enough for a process, in training."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = nn.Linear(1200, 1000)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.recorder = Recorder(self.model, self.optimizer, 1)
        self.wanted: list[Boundary] = []

    def start(self) -> int:
        """Start recording; returns the process that hashes."""
        self.recorder.start()
        self.recorder.wait()
        self.wanted = [self.boundary()]
        return pid_of(self.hasher)

    def train(self, steps: int, *, record: bool = True) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(3, 1200)).pow(2).mean().backward()
            self.optimizer.step()
            self.wanted.append(self.boundary())
            if record:
                self.recorder.after_step()

    def boundary(self) -> Boundary:
        return Boundary(*state.state_digests(self.model, self.optimizer))

    def check(self) -> None:
        assert self.recorder.finish().boundaries == tuple(self.wanted)

    @property
    def hasher(self) -> Hasher:
        return self.recorder._notary._hasher


def pid_of(one: Hasher) -> int:
    assert one._process is not None
    return one._process._process.pid


def status(pid: int) -> str:
    """The state of a process: R, S, T, Z and the like; empty if there is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends soon; a zombie of somebody else's has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if status(pid) in ("", "Z", "X"):
            return True
        time.sleep(0.02)
    return False


def looked_for(question: Question) -> bytes:
    """An answer that nobody waits for."""
    deadline = time.monotonic() + 20
    while not question.is_answered():
        assert time.monotonic() < deadline, "it is looked for in vain"
        time.sleep(0.001)
    return question.answer()


def listed(pieces: list[tuple[int, int]]) -> bytes:
    return table_of((*piece, b"") for piece in pieces)


def right(image: Memory, pieces: list[tuple[int, int]]) -> bytes:
    data = image.tensor.numpy().tobytes()
    return b"".join(hashlib.sha256(data[start:stop]).digest() for start, stop in pieces)


def open_files() -> list[str]:
    """What this process has open: files by their folder, all else by its kind."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
            found.append(target if target == "/memfd" else os.path.dirname(target) or target)
    return sorted(found)


def test_the_process_hashes_what_is_there_now(one: Hasher, image: Memory) -> None:
    table = listed(PIECES)
    for value in (3, 200):
        assert one.hashes(image, table) == right(image, PIECES)
        image.tensor[5000:6000] = value
    other = Memory(2 * LARGE + 3)
    other.tensor.fill_(7)
    pieces = [(0, 2 * LARGE + 3)] * 3
    assert one.hashes(other, listed(pieces)) == right(other, pieces)
    assert one.hashes(image, b"") == b""
    assert one._process is not None
    assert one._here._pool is None


def test_what_stands_before_a_piece_is_hashed_before_it(one: Hasher, image: Memory) -> None:
    rows = [(0, 5, b"before"), (7, 7, b""), (64, LARGE, bytes(23))]
    data = image.tensor.numpy().tobytes()
    wanted = [hashlib.sha256(first + data[start:stop]).digest() for start, stop, first in rows]
    assert one.hashes(image, table_of(rows)) == b"".join(wanted)
    assert one._process is not None
    one.close()
    assert one.hashes(image, table_of(rows)) == b"".join(wanted)


def test_what_stands_before_a_piece_is_not_cut() -> None:
    with pytest.raises(ValueError, match="24 bytes"):
        table_of([(0, 1, bytes(24))])


def test_memory_that_cannot_be_mapped_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_files()

    def refused(*_: Any, **__: Any) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(sharing.SharedMemory, "__new__", refused)
    assert Memory(LARGE).handle is None
    assert open_files() == files


@pytest.mark.parametrize("table", [PIECES, [(0, 3)]])
def test_an_answer_that_nobody_waited_for_is_not_taken_for_another(
    one: Hasher, image: Memory, table: list[tuple[int, int]]
) -> None:
    forgotten = one.ask(image, listed(table))
    image.tensor.fill_(1)
    assert one.hashes(image, listed(PIECES)) == right(image, PIECES)
    del forgotten
    assert one.hashes(image, listed(PIECES[:2])) == right(image, PIECES[:2])
    assert one.elsewhere


def test_who_is_interrupted_while_an_answer_comes_gets_it_all_the_same(
    one: Hasher, image: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, received = one.ask(image, listed(PIECES)), hasher._Process.received

    def cut(process: Any, *most: Any) -> None:
        received(process, *most)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hasher._Process, "received", cut)
        with pytest.raises(KeyboardInterrupt):
            question.answer()
    assert question.is_answered()
    assert question.answer() == right(image, PIECES)
    assert not one.elsewhere


def test_a_question_can_be_looked_at(one: Hasher, image: Memory) -> None:
    os.kill(pid_of(one), signal.SIGSTOP)
    question = one.ask(image, listed(PIECES))
    assert not question.is_answered()
    os.kill(pid_of(one), signal.SIGCONT)
    deadline = time.monotonic() + 20
    while not question.is_answered() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert question.is_answered()
    assert question.answer() == right(image, PIECES)
    again = one.ask(image, listed(PIECES))
    os.kill(pid_of(one), signal.SIGKILL)
    while not again.is_answered() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert again.answer() == right(image, PIECES)


def test_long_tables_pass(one: Hasher, image: Memory) -> None:
    pieces = [(at, at + 3) for at in range(60_000)]
    assert one.hashes(image, listed(pieces)) == right(image, pieces)
    assert one._process is not None


def test_little_is_hashed_without_a_process(one: Hasher) -> None:
    little = Memory(LARGE - 1)
    little.tensor.fill_(9)
    assert little.handle is None
    one.close()
    assert one.hashes(little, listed(PIECES[:3])) == right(little, PIECES[:3])
    assert one._process is None


def test_the_process_loads_the_standard_library_alone(tmp_path: Path) -> None:
    for name in ("socket", "hashlib", "sitecustomize", "platform"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded')")
    ours, theirs = socket.socketpair()
    ours.close()
    python, *arguments = hasher.command(1)
    with theirs:
        done = subprocess.run(
            [python, "-X", "importtime", *arguments], stdin=theirs, capture_output=True, text=True,
            cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, timeout=60, check=True,
        )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.split("\n")}
    assert {"socket", "hashlib", "mmap"} <= loaded
    assert not loaded & {"polo", "torch", "numpy", "site", "cryptography"}
    assert loaded - {"", "imported package"} <= {*sys.stdlib_module_names, "zipimport"}


def test_a_small_state_starts_no_process() -> None:
    model = nn.Linear(100, 100)
    one = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    one.start()
    one.finish()
    assert one._notary._hasher._process is None
    one.abandon()


@FORKS
def test_workers_that_are_forked_at_once_are_in_nobodys_way(recording: Recording) -> None:
    recording.recorder.start()
    # Had it been left to another thread, it might be starting now.
    assert pid_of(recording.hasher)
    child = os.fork()
    if not child:
        signal.alarm(60)
        time.sleep(60)
        os._exit(0)
    recording.recorder.wait()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_every_boundary_is_right_and_training_is_the_same_to_the_bit(recording: Recording) -> None:
    pid = recording.start()
    recording.train(6)
    recording.check()
    assert pid_of(recording.hasher) == pid
    plain = Recording()
    plain.train(6, record=False)
    assert plain.wanted == recording.wanted[1:]


@pytest.mark.parametrize("forgotten", [False, True])
def test_nothing_is_left_when_a_recorder_ends(forgotten: bool) -> None:
    gc.collect()
    files = open_files()
    recording: Recording | None = Recording()
    for _ in range(2):
        pid = recording.start()
        recording.train(3)
        recording.check()
    # Memory without a name goes when nobody holds it, and a shared folder need not have room.
    more = open_files()
    assert "/memfd" in more
    assert more.count("/dev/shm") == files.count("/dev/shm")
    assert status(pid) in ("S", "R")
    if not forgotten:
        recording.recorder.abandon()
        assert status(pid) == ""
    recording = None
    gc.collect()
    assert status(pid) == ""
    assert open_files() == files


def test_a_process_that_dies_is_done_without(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    pid = recording.start()
    recording.train(2)
    recording.recorder.wait()
    os.kill(pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "polo.weights"):
        recording.train(3)
        recording.check()
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "the process that hashes is lost"
    ]
    assert recording.hasher._process is None
    assert status(pid) == ""
    recording.recorder.abandon()
    assert recording.start() != pid
    recording.train(1)
    recording.check()


def test_a_process_that_dies_at_work_is_done_without(one: Hasher, image: Memory) -> None:
    one.hashes(image, b"")
    pid = pid_of(one)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    assert one.hashes(image, listed(PIECES)) == right(image, PIECES)
    assert one._process is None
    assert status(pid) == ""


def test_a_process_that_stalls_is_done_without(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hasher, "_INTERVAL", 0.1)
    pid = recording.start()
    monkeypatch.setattr(hasher, "_PATIENCE", 0.5)
    os.kill(pid, signal.SIGSTOP)
    recording.train(2)
    recording.check()
    assert recording.hasher._process is None
    assert status(pid) == ""


def test_a_process_that_is_slow_is_waited_for(
    image: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hasher, "_INTERVAL", 0.05)
    one = Hasher()
    one.start()
    pid = pid_of(one)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
    assert one.hashes(image, listed(PIECES)) == right(image, PIECES)
    assert pid_of(one) == pid
    one.close()


@FORKS
@pytest.mark.parametrize("looked_at", [False, True])
def test_its_death_is_seen_even_if_somebody_holds_its_end(
    looked_at: bool, image: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, forked = socket.socketpair, []

    def forking() -> Any:
        found = pair()
        forked.append(os.fork())
        if not forked[-1]:
            signal.alarm(60)
            time.sleep(60)
        return found

    monkeypatch.setattr(hasher, "_INTERVAL", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", forking)
        one = Hasher()
        one.start()
    if looked_at:
        os.kill(pid_of(one), signal.SIGSTOP)
        question = one.ask(image, listed(PIECES))
        os.kill(pid_of(one), signal.SIGKILL)
        assert not question.is_answered(), "nothing has come, and the connection is open"
        assert looked_for(question) == right(image, PIECES)
    else:
        os.kill(pid_of(one), signal.SIGKILL)
        assert one.hashes(image, listed(PIECES)) == right(image, PIECES)
    assert one._process is None
    os.kill(forked[0], signal.SIGKILL)
    os.waitpid(forked[0], 0)


def test_a_process_that_stalls_is_not_looked_at_for_ever(
    one: Hasher, image: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hasher, "_PATIENCE", 0.2)
    monkeypatch.setattr(hasher, "_SLOWEST", 2**40)
    one.start()
    os.kill(pid_of(one), signal.SIGSTOP)
    question = one.ask(image, listed(PIECES))
    assert looked_for(question) == right(image, PIECES)
    assert one._process is None


@pytest.mark.parametrize("program", [None, "/nowhere/python", "/bin/false"])
def test_where_no_process_can_be_started_threads_hash(
    program: str | None, image: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files()
    monkeypatch.setattr(sys, "executable", program)
    one = Hasher(threads=2)
    for _ in range(2):
        one.start()
        assert one.hashes(image, listed(PIECES)) == right(image, PIECES)
        assert one._process is None
    one.close()
    assert open_files() == files


def test_where_memory_has_no_files_the_shared_folder_does(
    one: Hasher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    image = Memory(LARGE)
    image.tensor.fill_(4)
    assert image.handle is not None
    assert one.hashes(image, listed(PIECES)) == right(image, PIECES)
    assert one._process is not None
    monkeypatch.setattr(sharing, "_SHARED_FOLDER", str(tmp_path / "missing"))
    assert Memory(LARGE).handle is None


def test_memory_that_cannot_be_shared_is_hashed_by_threads(
    one: Hasher, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files()

    def full(*_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    image = Memory(LARGE)
    assert image.handle is None
    assert open_files() == files
    assert one.hashes(image, listed(PIECES)) == right(image, PIECES)


@pytest.mark.slow
def test_it_ends_with_its_parent_however_that_ends() -> None:
    """A loader's worker that outlives a killed parent holds the connection open."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    ends = {
        "": 0, "sys.exit(3)": 3, "raise ValueError": 1, "os._exit(4)": 4, kill: -signal.SIGKILL,
        "os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM, f"worker(); {kill}": -9,
        "interrupted(training)": 7,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PARENT, *ends], stdout=subprocess.PIPE, text=True, timeout=120,
        stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    numbers = [int(line) for line in done.stdout.split()]
    codes, processes = sorted(numbers)[: len(ends)], sorted(numbers)[len(ends) :]
    assert codes == sorted(ends.values())
    assert len(processes) == len(ends)
    assert all(gone(process) for process in processes)


@FORKS
def test_a_forked_child_neither_ends_it_nor_keeps_it(recording: Recording) -> None:
    pid = recording.start()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            signal.alarm(60)
            recording.recorder.abandon()
            del recording
            gc.collect()
            time.sleep(60)
        os._exit(0)
    recording.train(3)
    recording.check()
    assert pid_of(recording.hasher) == pid
    began = time.monotonic()
    recording.recorder.abandon()
    assert status(pid) == ""
    assert time.monotonic() - began < 5
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

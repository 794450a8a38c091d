"""Marks that are read on a thread of their own, while weights are tested and files hashed."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polo.protocol.records import File
from polo.storage.folder import ProofFolder, opening_path
from polo.verifier import Outcome, Policy, Status, hashers, verification
from polo.watermark import reading

FORKING = """
import faulthandler, importlib.util, os, sys
faulthandler.dump_traceback_later(90, exit=True)
import numpy as np
import polo
from polo.verifier import hashers, marks
from polo.watermark import reading
from polo.weights import sharing

spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = sys.modules["shared"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
hashers.MUCH = sharing.LARGE = 1
large = np.ones((256, 16384)), np.ones((16384, 2))

class Loading(shared.TinyTask):
    def evaluate(self, model):
        for _ in range(40):
            if not (child := os.fork()):
                os._exit(0)
            os.waitpid(child, 0)
        return super().evaluate(model)

def read(*given):
    for _ in range(100):
        large[0] @ large[1]
    return reading.read(*given)

marks.read = read
verdict = polo.verify(sys.argv[2], trust=bytes.fromhex(sys.argv[3]), task=Loading())
print(verdict.outcome.name)
"""


pytestmark = pytest.mark.usefixtures("hashed_by_processes")


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen whenever a mark is about to be read."""

    def install(first: Callable[[], None]) -> None:
        def read(*given: Any) -> Any:
            first()
            return reading.read(*given)

        monkeypatch.setattr("polo.verifier.marks.read", read)

    return install


def threads() -> int:
    return sum(thread.name.endswith("(_make)") for thread in threading.enumerate())


def test_weights_are_tested_while_marks_are_read(
    make_proof: Callable[..., Any], instead: Callable[..., None]
) -> None:
    made, tested, said = make_proof(), threading.Event(), list[tuple[str, int, int]]()

    def slowly() -> None:
        assert tested.wait(20), "nobody looks at weights meanwhile"
        time.sleep(0.3)

    def tell(what: str, done: int, total: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        said.append((what, done, total))
        if what == "testing weights":
            tested.set()

    instead(slowly)
    verdict = made.verify(listener=tell)
    assert verdict.outcome is Outcome.ACCEPTED
    order = [check.name for check in verdict.checks]
    assert order.index("files") < order.index("mark") < order.index("root")
    told = [done for what, done, total in said if (what, total) == ("reading marks", 3)]
    assert told == sorted(told)
    assert set(told) == {0, 1, 2}
    assert not threads()


def test_where_there_is_little_to_hash_there_is_no_thread(
    make_proof: Callable[..., Any], instead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, where = make_proof(), set[threading.Thread]()
    instead(lambda: where.add(threading.current_thread()))
    for much, here in ((1, False), (2**40, True)):
        monkeypatch.setattr(hashers, "MUCH", much)
        assert made.verify().outcome is Outcome.ACCEPTED
        assert (threading.current_thread() in where) == here


def test_levels_of_effort_have_all_nonces(
    make_proof: Callable[..., Any], instead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, known = make_proof(terms={"progress": True}), list[int]()
    effort = verification.effort_of

    def noted(folder: Any, manifest: Any, carrier: Any, nonces: Any, *given: Any) -> Any:
        known.append(len(nonces))
        return effort(folder, manifest, carrier, nonces, *given)

    monkeypatch.setattr(verification, "effort_of", noted)
    instead(lambda: time.sleep(0.2))
    made.verify()
    assert known == [3]


@pytest.mark.parametrize("levels", [{}, {"progress": True}], ids=["chain", "progress"])
def test_nothing_is_said_after_marks_that_the_system_broke_off(
    make_proof: Callable[..., Any], instead: Callable[..., None], levels: dict[str, Any]
) -> None:
    made, read = make_proof(terms=levels), list[int]()

    def fail() -> None:
        read.append(1)
        if len(read) == 2:
            raise OSError("no more descriptors")

    instead(fail)
    verdict = made.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    assert "no more descriptors" in verdict.headline()
    names = [check.name for check in verdict.checks]
    assert names.count("mark") == 1
    assert not {"root", "accuracy", "start"} & {*names}


def test_who_breaks_marks_off_breaks_off_the_tests(
    make_proof: Callable[..., Any], instead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tested = make_proof(epochs=8), list[int]()
    evaluate = made.task.evaluate

    def slow(model: Any) -> float:
        tested.append(1)
        time.sleep(0.1)
        found: float = evaluate(model)
        return found

    def fail() -> None:
        raise RuntimeError("a scheme of somebody else")

    monkeypatch.setattr(made.task, "evaluate", slow, raising=False)
    instead(fail)
    with pytest.raises(RuntimeError, match="somebody else"):
        made.verify()
    assert len(tested) < 6
    assert not threads()


def test_a_listener_that_has_gone_takes_no_mark_with_it(
    make_proof: Callable[..., Any], instead: Callable[..., None]
) -> None:
    made = make_proof()

    def tell(what: str, *_: int) -> None:
        if what == "reading marks":
            raise BrokenPipeError("nobody listens")

    instead(lambda: time.sleep(0.3))
    verdict = made.verify(listener=tell)
    assert verdict.outcome is Outcome.UNDECIDED
    assert [check.shard for check in verdict.checks if check.name == "mark"] == [3, 2, 1]
    assert [check.shard for check in verdict.checks if check.name == "accuracy"] == [3, 2, 1]


def test_who_breaks_off_waits_for_one_mark_at_most(
    make_proof: Callable[..., Any], instead: Callable[..., None]
) -> None:
    made, begun = make_proof(), list[int]()
    reading, going_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.append(1)
        reading.set()
        assert going_on.wait(20)

    def tell(what: str, *_: int) -> None:
        if what == "testing weights":
            # On a busy machine weights may be tested before the first mark's turn has come.
            assert reading.wait(20)
            threading.Timer(0.2, going_on.set).start()
            raise KeyboardInterrupt

    instead(wait)
    with pytest.raises(KeyboardInterrupt):
        made.verify(listener=tell)
    assert going_on.is_set(), "it was waited for"
    assert not threads()
    assert len(begun) == 1


def test_who_breaks_off_waits_for_no_file_that_a_mark_waits_for(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, check_file = make_proof(epochs=8), ProofFolder.check_file
    # Without its opening a mark waits for the checkpoint, and the oldest one's turn comes last.
    (made.path / opening_path(1)).unlink()

    def slow(own: ProofFolder, file: File, *given: Any) -> None:
        if file.path.startswith("checkpoints"):
            time.sleep(1.0)
        check_file(own, file, *given)

    def tell(what: str, *_: int) -> None:
        if what == "testing weights":
            raise KeyboardInterrupt

    monkeypatch.setattr(ProofFolder, "check_file", slow)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        made.verify(listener=tell, policy=Policy(threads=1))
    assert time.monotonic() - began < 5, "all files would take eight seconds"
    assert not threads()


def test_a_task_that_forks_finds_no_product_half_done(make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=4)
    shared, key = Path(__file__).parents[1] / "conftest.py", made.issuer.public_key.hex()
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(shared), str(made.path), key],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["ACCEPTED"]
    assert not list(made.verify().of(Status.FAILED))

"""Hashers of a verification, and files that their processes hash."""

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.protocol import signing
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import File
from polo.storage.folder import (
    MANIFEST_FILE,
    ProofFolder,
    checkpoint_path,
    nonce_path,
    opening_path,
)
from polo.verifier import Outcome, Status, hashers
from polo.verifier.hashers import Hashers
from polo.watermark import reading
from polo.weights import hasher, sharing
from polo.weights.hasher import Hasher

SIZE = 3 * 2**20
LAYOUT = Layout(CHUNK_BYTES, (Tensor("w", "F32", (SIZE // 4,)),), ())


pytestmark = pytest.mark.usefixtures("hashed_by_processes")


@pytest.fixture
def own() -> Iterator[Hashers]:
    with Hashers(LAYOUT, 4, 2) as found:
        assert found.by_processes
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_a_file_is_hashed_by_a_process(
    own: Hashers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hasher, "here", lambda *_: pytest.fail("not here"))
    with path.open("rb") as file:
        assert own.digest(file, SIZE) == sha256(path.read_bytes()).digest()
        assert own.digest(file, SIZE) == sha256(path.read_bytes()).digest()


def test_little_is_left_to_whoever_asks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LARGE", SIZE + 1)
    with path.open("rb") as file, Hashers(LAYOUT, 4, 2) as own:
        assert not own.by_processes
        assert own.digest(file, SIZE) is None


def test_a_file_that_is_cut_costs_the_process_and_nobody_else(
    own: Hashers,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever reads mapped pages that are gone is killed."""
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"
    monkeypatch.setattr(hasher, "command", lambda _: [sys.executable, "-c", killed])
    with caplog.at_level(logging.WARNING), path.open("rb") as file:
        assert own.digest(file, SIZE) is None
        assert "lost" in caplog.text
        assert own.digest(file, SIZE) is None


@pytest.mark.parametrize("size", [0, 5])
def test_a_file_that_is_cut_is_named(
    make_proof: Callable[..., Any],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    made, digest = make_proof(), Hasher.digest
    name = checkpoint_path(2)

    def cut(own: Hasher, file: Any, length: int) -> bytes | None:
        if os.path.samestat(os.fstat(file.fileno()), (made.path / name).stat()):
            os.truncate(made.path / name, size)
        return digest(own, file, length)

    monkeypatch.setattr(Hasher, "digest", cut)
    first = next(made.verify().of(Status.FAILED))
    assert (first.name, first.place) == ("files", name)
    assert "not those that were signed" in first.detail
    assert capfd.readouterr().err == ""


def test_a_shorter_file_has_another_digest(own: Hashers, path: Path) -> None:
    whole = sha256(path.read_bytes()).digest()
    with path.open("rb") as file:
        os.truncate(path, SIZE - 1)
        assert own.digest(file, SIZE) != whole


def test_each_is_lent_to_one_at_a_time(own: Hashers) -> None:
    with own.lent() as one, own.lent() as other:
        assert one is not other
        waiting = threading.Thread(target=lambda: own.lent().__enter__())
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive()


def test_after_the_end_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasher, "start", lambda _: pytest.fail("it is over"))
    with Hashers(LAYOUT, 4, 2) as own:
        pass
    with own.lent():
        pass


def test_who_is_interrupted_at_the_beginning_leaves_nothing_behind(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, before, submit = make_proof(), threading.active_count(), ThreadPoolExecutor.submit
    asked = itertools.count()

    def interrupted(*arguments: Any) -> Any:
        if next(asked) == 4:
            raise KeyboardInterrupt
        return submit(*arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.verify()
    assert threading.active_count() == before


def test_a_file_that_is_listed_twice_must_be_as_both_say(
    make_proof: Callable[..., Any], alice: polo.Identity
) -> None:
    made = make_proof()
    right = next(file for file in made.manifest.files if file.path == opening_path(2))
    wrong = replace(right, sha256=bytes(32))
    for pair in ((wrong, right), (right, wrong)):
        others = tuple(file for file in made.manifest.files if file != right)
        twice = replace(made.manifest, files=(*others, *pair))
        signed = signing.sign(twice, alice)
        (made.path / MANIFEST_FILE).write_bytes(signed.to_bytes())
        verdict = made.verify()
        assert verdict.outcome is Outcome.REJECTED
        assert opening_path(2) in {check.place for check in verdict.of(Status.FAILED)}


def test_marks_are_read_while_large_files_are_hashed(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, marks = make_proof(), threading.Event()
    monkeypatch.setattr("polo.verifier.files.LARGE", 2**15)
    digest = Hashers.digest

    def late(own: Hashers, file: Any, size: int) -> bytes | None:
        assert size < 2**15 or marks.wait(20), "nobody reads marks meanwhile"
        return digest(own, file, size)

    def read(*given: Any) -> Any:
        marks.set()
        return reading.read(*given)

    monkeypatch.setattr(Hashers, "digest", late)
    monkeypatch.setattr("polo.verifier.marks.read", read)
    assert made.verify().outcome is Outcome.ACCEPTED


def test_weights_are_tested_while_older_ones_are_hashed(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tested = make_proof(), threading.Event()
    check_file = ProofFolder.check_file

    def late(own: ProofFolder, file: File, *given: Any) -> None:
        if file.path == checkpoint_path(1):
            assert tested.wait(20), "nobody looks at the newest weights meanwhile"
        check_file(own, file, *given)

    def tell(what: str, *_: int) -> None:
        if what == "testing weights":
            tested.set()

    monkeypatch.setattr(ProofFolder, "check_file", late)
    # One at a time is looked at, and the next one hashed meanwhile.
    monkeypatch.setattr(hashers, "MOST_THREADS", 1)
    assert made.verify(listener=tell).outcome is Outcome.ACCEPTED
    assert tested.is_set()


@pytest.mark.parametrize("name", [checkpoint_path(1), checkpoint_path(3)])
def test_weights_are_not_looked_at_before_their_file_is_known_to_be_as_signed(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made, hashed = make_proof(), threading.Event()
    check_file, opened = ProofFolder.check_file, ProofFolder.checkpoint

    def late(own: ProofFolder, file: File, *given: Any) -> None:
        check_file(own, file, *given)
        if file.path == name:
            time.sleep(0.3)
            hashed.set()

    def checkpoint(folder: ProofFolder, shard: int, *given: Any) -> Any:
        assert hashed.is_set() or checkpoint_path(shard) != name
        return opened(folder, shard, *given)

    monkeypatch.setattr(ProofFolder, "check_file", late)
    monkeypatch.setattr(ProofFolder, "checkpoint", checkpoint)
    assert made.verify().outcome is Outcome.ACCEPTED
    assert hashed.is_set()


@pytest.mark.parametrize("name", [checkpoint_path(2), opening_path(2), nonce_path(2)])
def test_damage_is_found_by_processes_too(make_proof: Callable[..., Any], name: str) -> None:
    made = make_proof()
    data = bytearray((made.path / name).read_bytes())
    data[-9] ^= 1
    (made.path / name).write_bytes(data)
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    first = next(verdict.of(Status.FAILED))
    assert (first.name, first.place, first.shard) == ("files", name, 2)
    order = [check.name for check in verdict.checks]
    assert order.index("files") < order.index("order") < order.index("mark")


def test_a_mark_without_an_opening_waits_for_its_checkpoint(
    make_proof: Callable[..., Any],
) -> None:
    made = make_proof()
    (made.path / opening_path(2)).unlink()
    verdict = made.verify()
    assert [check.shard for check in verdict.checks if check.name == "mark"] == [3, 2, 1]
    assert all(c.status is Status.PASSED for c in verdict.checks if c.name == "mark")
    data = bytearray((made.path / checkpoint_path(2)).read_bytes())
    data[-9] ^= 1
    (made.path / checkpoint_path(2)).write_bytes(data)
    [mark] = [c for c in made.verify().checks if c.name == "mark" and c.shard == 2]
    assert (mark.status, "neither opening" in mark.detail) == (Status.UNDECIDED, True)

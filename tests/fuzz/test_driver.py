"""The drivers themselves: they run every target, and they find what is planted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import promises
from fuzz.__main__ import NAMES, fuzz, main
from polo.errors import FormatError

ROOT = Path(__file__).resolve().parents[2]


def test_only_errors_that_a_person_can_read_may_pass() -> None:
    with promises.refusals():
        raise FormatError("it is wrong", place="file")
    for error in (
        FormatError("it is wrong"),
        FormatError("", place="file"),
        FormatError("x" * 3000, place="file"),
        FormatError("\ud800", place="file"),
    ):
        with pytest.raises(promises.BrokenPromiseError), promises.refusals():
            raise error
    with pytest.raises(KeyError), promises.refusals():
        raise KeyError("x")


def test_memory_is_measured_even_when_it_is_given_back() -> None:
    with promises.frugal(64):
        bytearray(2**20)
    with pytest.raises(promises.BrokenPromiseError, match="MiB"), promises.frugal(64):
        bytearray(b"x") * (100 * 2**20)


def test_memory_is_measured_when_an_input_is_refused() -> None:
    def refuse() -> None:
        bytearray(b"x") * (100 * 2**20)
        raise FormatError("too late", place="file")

    with pytest.raises(promises.BrokenPromiseError, match="MiB"), promises.frugal(64):
        refuse()


ELSEWHERE = {
    "write": lambda path: path.write_bytes(b""),
    "mkdir": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to("x"),
    "append": lambda path: path.open("a").close(),
    "os.open": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
    "upwards": lambda path: (path.parent / "in" / ".." / "y").write_bytes(b""),
    "rename": lambda path: (path.parent / "in" / "z").rename(path),
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_is_written_elsewhere_is_noticed(tmp_path: Path, kind: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "z").touch()
    with promises.confined(inside):
        (inside / "a").write_bytes(b"")
        (inside / "a").read_bytes()
        (inside / "b").mkdir()
        (inside / "a").rename(inside / "b" / "c")
    with pytest.raises(promises.BrokenPromiseError, match="elsewhere"), promises.confined(inside):
        ELSEWHERE[kind](tmp_path / "x")


def test_a_link_that_leads_outside_is_no_way_out(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "out").symlink_to(tmp_path)
    with pytest.raises(promises.BrokenPromiseError), promises.confined(inside):
        (inside / "out" / "x").write_bytes(b"")


PLANTED = {
    "an error": 'if data[:1] == b"b": raise KeyError(data)',
    "memory": 'if data[:1] == b"b": bytearray(b"x") * 200 * 2**20',
    "a limit": 'if data[:1] == b"b": bytearray(2**40)',
    "time": 'while data[:1] == b"b": pass',
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "one.py").write_text(
        "from fuzz.target import Target\n"
        f"def check(data):\n    {PLANTED[kind]}\n"
        "TARGET = Target(check, lambda: [b'a'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = fuzz("planted.one", 30, corpus=tmp_path / "corpus", findings=tmp_path / "findings")
    assert run.broken
    assert run.line().endswith("BROKEN")
    assert run.finding is not None
    assert run.finding.read_bytes().startswith(b"b")


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_target_runs_under_atheris(tmp_path: Path, name: str) -> None:
    run = fuzz(name, 2, corpus=tmp_path / "corpus", findings=tmp_path / "findings")
    assert not run.broken, run.log[-3000:]
    assert run.runs > 20
    assert run.coverage > 10
    assert run.features > run.coverage
    assert list((tmp_path / "corpus" / name).iterdir())


def test_every_file_of_a_target_is_registered() -> None:
    files = {path.stem for path in (ROOT / "fuzz" / "targets").glob("*.py")} - {"__init__"}
    assert files == set(NAMES)


def test_a_target_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "canonical" in capsys.readouterr().err


def test_one_input_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b'{"a":1}')
    command = [sys.executable, "-m", "fuzz", "canonical", "--input", str(tmp_path / "input")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "breaks no promise" in done.stdout, done.stderr

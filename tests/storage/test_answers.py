"""Answers as one file: exactly one form, nothing that the challenge does not ask for."""

import io
import os
import tarfile

import pytest

from polo.errors import FormatError, PoloError, StoreError
from polo.protocol.challenge import ANSWER_FILE, Challenge, Place, sealing_file
from polo.storage import answers

CHALLENGE = Challenge(bytes(32), (Place(1, 0), Place(2, 3)), (2,), False, 0)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "answer"
    made.mkdir()
    for name in (
        ANSWER_FILE,
        Place(1, 0).file("model"),
        Place(1, 0).file("samples"),
        Place(2, 3).file("rest"),
        sealing_file(2),
    ):
        (made / name).write_bytes(name.encode() * 700)
    return made


def test_what_is_packed_comes_out(folder, tmp_path):
    answers.pack(folder, CHALLENGE, tmp_path / "answer.tar")
    answers.unpack(tmp_path / "answer.tar", CHALLENGE, tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {
        p.name: p.read_bytes() for p in folder.iterdir()
    }
    with tarfile.open(tmp_path / "answer.tar") as standard:
        assert standard.getnames() == sorted(p.name for p in folder.iterdir())
    assert (tmp_path / "answer.tar").stat().st_mode & 0o077 == 0


def test_what_nobody_asked_for_is_not_packed(folder, tmp_path):
    (folder / "diary.txt").write_text("private")
    with pytest.raises(StoreError, match=r"diary\.txt"):
        answers.pack(folder, CHALLENGE, tmp_path / "answer.tar")
    (folder / "diary.txt").unlink()
    (folder / ANSWER_FILE).unlink()
    with pytest.raises(StoreError, match=ANSWER_FILE):
        answers.pack(folder, CHALLENGE, tmp_path / "answer.tar")


def test_another_challenge_is_not_answered(folder, tmp_path):
    answers.pack(folder, CHALLENGE, tmp_path / "answer.tar")
    other = Challenge(bytes(32), (Place(1, 1),), (), False, 0)
    with pytest.raises(PoloError):
        answers.unpack(tmp_path / "answer.tar", other, tmp_path / "out")


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", ANSWER_FILE + "x", "a" * 99])
def test_strange_members_are_refused(tmp_path, name):
    with tarfile.open(tmp_path / "odd.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = 4
        archive.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(FormatError):
        answers.unpack(tmp_path / "odd.tar", CHALLENGE, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_broken_archives_are_refused(folder, tmp_path):
    answers.pack(folder, CHALLENGE, tmp_path / "answer.tar")
    data = (tmp_path / "answer.tar").read_bytes()
    broken = {
        "short": data[:-5000],
        "long": data + bytes(10240),
        "empty": b"",
        "random": os.urandom(20_000),
        "size": data[:124] + b"77777777777\0" + data[136:],
        "twice": data[:10240] + data,
    }
    for name, found in broken.items():
        (tmp_path / name).write_bytes(found)
        with pytest.raises(PoloError):
            answers.unpack(tmp_path / name, CHALLENGE, tmp_path / f"out-{name}")

"""Files are there whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polo.storage import atomic


def test_a_file_appears_whole_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    atomic.write(path, b"content")
    assert path.read_bytes() == b"content"
    assert os.listdir(path.parent) == ["file.json"]


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic.write(path, b"old")
    with atomic.replacing(path) as file:
        file.write(b"new and longer")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new and longer"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("existing", [True, False])
def test_an_exception_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, error: type[BaseException], existing: bool
) -> None:
    path = tmp_path / "file"
    if existing:
        path.write_bytes(b"old")

    def interrupted() -> None:
        with atomic.replacing(path) as file:
            file.write(b"half of")
            raise error

    with pytest.raises(error):
        interrupted()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == (
        {"file": b"old"} if existing else {}
    )


def test_a_leftover_of_a_kill_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / ("file" + atomic.TEMPORARY)).write_bytes(b"much longer than what follows")
    atomic.write(path, b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"file": b"new"}


def test_file_and_folder_are_on_disk_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches the system calls: data first, then the name, then the folder that holds the name."""
    happened: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"
        happened.append(f"sync {kind}")
        real_sync(handle)

    def rename(*names: Any, **options: Any) -> None:
        happened.append("rename")
        real_replace(*names, **options)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    atomic.write(tmp_path / "file", b"content")
    assert happened == ["sync file", "rename", "sync folder"]


KILL = """
import os, signal, sys
from pathlib import Path
from polo.storage import atomic
with atomic.replacing(Path(sys.argv[1])) as file:
    file.write(b"half of the new")
    file.flush()
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    os._exit(0)
"""


def test_a_kill_in_the_middle_leaves_the_old_file(
    tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    in_child(KILL, path, bare=True)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("unguessable", [True, False])
def test_a_link_in_the_way_is_not_followed(tmp_path: Path, unguessable: bool) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    link = tmp_path / ("file" + atomic.TEMPORARY)
    link.symlink_to(precious)
    atomic.write(tmp_path / "file", b"new", unguessable=unguessable)
    assert precious.read_text() == "precious"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()
    assert link.is_symlink() == unguessable, "an unguessable name does not even touch it"


@pytest.mark.parametrize("unguessable", [True, False])
def test_nobody_else_can_read_it_from_the_first_byte_on(tmp_path: Path, unguessable: bool) -> None:
    (tmp_path / ("file" + atomic.TEMPORARY)).write_bytes(b"left over, and open to all")
    before = os.umask(0)
    try:
        with atomic.replacing(tmp_path / "file", mode=0o600, unguessable=unguessable) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_unguessable_names_differ_and_leave_nothing(tmp_path: Path) -> None:
    seen = set()
    for _ in range(3):
        with atomic.replacing(tmp_path / "file", unguessable=True):
            seen |= {path.name for path in tmp_path.iterdir()} - {"file"}
    assert len(seen) == 3
    assert os.listdir(tmp_path) == ["file"]

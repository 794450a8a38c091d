"""A database to measure on: SQLite in a folder, or a PostgreSQL server that is started for it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

KINDS = ("sqlite", "postgresql")
_WAIT = 30


def programs() -> Path | None:
    """Where PostgreSQL's server is installed; None if it is not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    if found:
        return found[-1]
    path = shutil.which("initdb")
    return Path(path).parent if path else None


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of this kind, durable."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'registry.sqlite'}"
        return
    with _server() as url:
        yield url


@contextmanager
def _server() -> Iterator[str]:
    where, account = programs(), _account()
    assert where is not None
    folder = Path(tempfile.mkdtemp(prefix="polo-bench-pg-"))
    if account:
        os.chown(folder, account["user"], account["group"])
    options = [f"unix_socket_directories={folder}", "listen_addresses=", "max_connections=100"]
    options += ["fsync=on", "synchronous_commit=on", "shared_buffers=128MB"]
    process = None
    try:
        make: list[str | Path] = [
            where / "initdb",
            "-D",
            folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        subprocess.run(
            [*make, "-E", "UTF8", "--no-locale", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **account,
        )
        command: list[str | Path] = [where / "postgres", "-D", folder / "data"]
        for option in options:
            command += ["-c", option]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **account)
        url = f"postgresql://postgres@/postgres?host={folder}"
        _await(url, process)
        yield url
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(_WAIT)
        shutil.rmtree(folder)


def _account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid():
        return {}
    names = {found.pw_name: found for found in pwd.getpwall()}
    found = names.get("postgres") or names["nobody"]
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _await(url: str, process: "subprocess.Popen[bytes]") -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    deadline = time.monotonic() + _WAIT
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text("select 1"))
        except OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            engine.dispose()
            return

"""A PostgreSQL server for the tests, from the system's own binaries."""

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

import psycopg

_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
_SETTINGS = (
    *("-c", "listen_addresses="),
    *("-c", "fsync=on"),
    *("-c", "synchronous_commit=on"),
    *("-c", "max_connections=200"),
)


def binaries() -> Path | None:
    """Where the newest server's programs are; None if there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    if found:
        return found[-1]
    path = shutil.which("initdb")
    return Path(path).parent if path else None


def _account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root, so root runs it as somebody else."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise RuntimeError("no unprivileged user to run PostgreSQL as")


class Server:
    """A running server, with a database for everybody who asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0
        self._free: list[str] = []

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(
            dbname="postgres", user="postgres", host=str(self.folder), autocommit=True
        ) as connection:
            connection.execute(statement)

    def create(self, template: str = "template1") -> str:
        """Make a database, and give its URL."""
        self._made += 1
        name = f"polo_{self._made}"
        self.execute(f"create database {name} template {template}")
        return self.url(name)

    def borrow(self, template: str) -> str:
        """A copy of the template: one that was used and emptied, or a new one."""
        return self._free.pop() if self._free else self.create(template)

    def give_back(self, url: str, tables: list[str]) -> None:
        """Empty a borrowed database, which takes a hundredth of the time of a new one."""
        try:
            with psycopg.connect(url) as connection:
                connection.execute("set lock_timeout = '3s'")
                asked = "select count(*) from pg_tables where schemaname = 'public'"
                count = connection.execute(asked).fetchone()
                if count != (len(tables) + 1,):
                    raise psycopg.OperationalError("somebody made tables of their own")
                for table in tables:
                    connection.execute(f"delete from {table}")
        except psycopg.OperationalError:
            self.drop(url)
        else:
            self._free.append(url)

    def drop(self, url: str) -> None:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self.execute(f"drop database if exists {name} with (force)")


@contextmanager
def running() -> Iterator[Server]:
    """A server in a folder of its own, durable as a real one, on a socket in that folder."""
    programs = binaries()
    assert programs is not None
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="polo-pg-"))
    if account:
        os.chown(folder, account["user"], account["group"])
    data = folder / "data"
    process: subprocess.Popen[bytes] | None = None
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, *_INITDB],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **account,
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-k", folder, *_SETTINGS],
                stdout=log,
                stderr=log,
                cwd=folder,
                **account,
            )
        server = Server(folder)
        _wait(server, process)
        yield server
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        shutil.rmtree(folder)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            server.execute("select 1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((server.folder / "log").read_text()[-2000:]) from None
            time.sleep(0.05)
        else:
            return

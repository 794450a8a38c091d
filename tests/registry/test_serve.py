"""`polo registry`, as a process of its own: the first start, the next one, and the end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from polo.cli import run
from polo.registry.context import Registry
from polo.registry.migrations import latest
from polo.registry.serving import server_of
from polo.registry.settings import Settings

POLO = Path(sys.executable).with_name("polo")


class Process:
    """A registry that somebody started."""

    def __init__(self, data, *arguments):
        self.data = data
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [POLO, "registry", "serve", "--data", data, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.greeting = ""
        self.errors = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def wait(self):
        """Its address, when it answers."""
        while "folder" not in self.greeting:
            line = self.process.stdout.readline()
            assert line, "".join(self.errors)
            self.greeting += line
        self.url = re.search(r"http://\S+", self.greeting)[0]
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if httpx2.get(f"{self.url}/readyz").status_code == 200:
                    return self.url
            except httpx2.TransportError:
                time.sleep(0.05)
        raise AssertionError("".join(self.errors))

    def end(self, number=signal.SIGTERM):
        """Its exit code and what else it printed."""
        self.process.send_signal(number)
        rest = self.process.stdout.read()
        code = self.process.wait(60)
        self.read_to_the_end()
        self.greeting += rest
        return code

    def read_to_the_end(self):
        """Have all of its errors, once it has ended."""
        self._reader.join(10)


@pytest.fixture
def start(tmp_path):
    started = []

    def make(*arguments, data=tmp_path / "registry"):
        started.append(Process(data, *arguments))
        return started[-1]

    yield make
    for item in started:
        if item.process.poll() is None:
            item.process.kill()
            item.process.wait()
        item.process.stdout.close()
        item.process.stderr.close()


def token_in(text):
    found = re.findall(r"polo_[A-Za-z0-9_-]+", text)
    return found[0] if found else None


@pytest.mark.slow
def test_the_first_start_on_a_bare_machine(start, tmp_path):
    registry = start(data=tmp_path / "some" / "where")
    url = registry.wait()
    assert registry.end() == 0
    token = token_in(registry.greeting)
    assert token
    log = "".join(registry.errors)
    assert token not in log
    assert all(json.loads(line)["event"] for line in registry.errors)
    assert '"stopped"' in log
    assert {path.name for path in registry.data.iterdir()} >= {"data.key", "registry.sqlite"}
    for path in registry.data.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    again = start(data=registry.data)
    url = again.wait()
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx2.get(f"{url}/v1/tokens", headers=headers).status_code == 200
    assert again.end(signal.SIGINT) == 0
    assert token_in(again.greeting) is None


@pytest.mark.slow
def test_a_running_request_is_answered_before_the_end(start):
    registry = start()
    url = registry.wait()
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        body = b'{"name": "x"}'
        head = b"POST /v1/identities HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body)
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        registry.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert registry.process.poll() is None
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
    assert registry.process.wait(30) == 0


@pytest.mark.slow
def test_keys_are_rotated_under_a_running_registry(start, capsys):
    registry = start()
    url = registry.wait()
    before = httpx2.get(f"{url}/v1/keys").json()["keys"]
    assert run(["registry", "keys", "rotate", "--data", str(registry.data), "--json"]) == 0
    fresh = json.loads(capsys.readouterr().out)["issuer"]
    after = {item["key"]: item for item in httpx2.get(f"{url}/v1/keys").json()["keys"]}
    assert after[fresh]["until"] is None
    assert {item["key"] for item in before} < after.keys()
    assert registry.end() == 0


def test_a_port_in_use_is_said_and_nothing_is_made(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        data = tmp_path / "registry"
        assert run(["registry", "serve", "--data", str(data), "--port", port]) == 2
    told = capsys.readouterr().err
    assert f"127.0.0.1:{port}: cannot listen there: Address already in use\n" in told
    assert "Is a registry running there already?" in told
    assert not data.exists()


def test_workers_on_sqlite_are_refused_before_anything_is_made(start):
    registry = start("--set", "jobs=procrastinate")
    assert registry.process.wait(60) == 2
    registry.read_to_the_end()
    assert registry.errors[0] == "polo: setting jobs: workers need PostgreSQL\n"
    assert len(registry.errors) == 2
    assert not registry.data.exists()


def test_a_server_that_cannot_start_says_so_and_exits_with_2(in_child, tmp_path):
    code = """
import sys
from polo.cli import run
from polo.registry.jobs import Jobs
def start(self, registry):
    raise RuntimeError("no room for jobs")
Jobs.start = start
code = run(["registry", "serve", "--port", "0", "--data", sys.argv[1]])
print(f"exit {code}")
"""
    done = in_child(code, tmp_path / "data", bare=True)
    assert done.stdout == "exit 2\n"
    assert "no room for jobs" in done.stderr
    assert "\npolo: the registry could not start\n  what to do: Its log says why.\n" in done.stderr


def test_a_folder_that_is_none_is_said(tmp_path, capsys):
    (tmp_path / "file").write_text("here first")
    assert run(["registry", "serve", "--port", "0", "--data", str(tmp_path / "file")]) == 2
    assert "--data FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["token", "x"], ["keys", "rotate"], ["keys", "rotate", "--log"]]
)
@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_where_no_registry_is_none_is_made_by_the_way(tmp_path, capsys, command, name):
    (tmp_path / "file").write_text("here first")
    assert run(["registry", *command, "--data", str(tmp_path / name)]) == 2
    assert "there is no registry here" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def begun(tmp_path):
    """The folder of a registry that was started once."""
    Registry.open(Settings.load(data=tmp_path)).close()
    return tmp_path


def test_a_token_does_not_wait_for_the_whole_server(in_child, begun):
    code = """
import sys
from polo.cli import run
assert run(["registry", "token", "x", "--data", sys.argv[1]]) == 0
assert "polo.registry.pages" not in sys.modules
assert "polo.registry.app" not in sys.modules
"""
    in_child(code, begun)


def test_another_database_is_not_migrated_by_itself(tmp_path, capsys):
    other = ["--data", str(tmp_path), "--database", f"sqlite:///{tmp_path}/other.sqlite"]
    assert run(["registry", "serve", "--port", "0", *other]) == 2
    assert "polo registry migrate" in capsys.readouterr().err
    assert run(["registry", "migrate", *other]) == 0
    assert f"empty -> {latest()}" in capsys.readouterr().out
    assert run(["registry", "migrate", *other, "--to", "base"]) == 0
    assert f"{latest()} -> empty" in capsys.readouterr().out


def test_a_token_is_made_at_the_machine(begun, capsys):
    arguments = ["registry", "token", "Ada", "--role", "auditor", "--scope", "read"]
    assert run([*arguments, "--data", str(begun)]) == 0
    assert token_in(capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [["--set", "prot=1"], ["--set", "port"], ["--set", "rate=x"], ["--set", "origin=a b"]],
)
def test_settings_that_are_none_are_refused(tmp_path, capsys, arguments):
    assert run(["registry", "token", "x", "--data", str(tmp_path), *arguments]) == 2
    assert "polo:" in capsys.readouterr().err


def test_another_origin_for_a_log_that_has_begun_is_refused(registry):
    from sqlalchemy import insert

    from polo.errors import StoreError
    from polo.registry.context import Registry
    from polo.registry.schema import log_heads
    from polo.registry.settings import Settings

    row = {"size": 1, "root": bytes(32), "time": 0, "note": "registry.test/log\n1\nAAAA\n"}
    with registry.database.begin() as connection:
        connection.execute(insert(log_heads).values(row))
    same = Settings(
        data=registry.settings.data, database=registry.settings.database, origin="registry.test/log"
    )
    Registry.open(same).close()
    other = Settings(
        data=registry.settings.data, database=registry.settings.database, origin="other.test/log"
    )
    with pytest.raises(StoreError, match=r"registry\.test/log"):
        Registry.open(other)


@pytest.mark.slow
def test_it_starts_without_torch_and_numpy(in_child, tmp_path):
    code = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from pathlib import Path
from polo.registry.context import Registry
from polo.registry.settings import Settings
from starlette.testclient import TestClient
from polo.registry.app import create_app
registry = Registry.open(Settings(data=Path(sys.argv[1])))
with TestClient(create_app(registry)) as client:
    assert client.get("/readyz").status_code == 200
registry.close()
"""
    in_child(code, tmp_path, bare=True)


def test_a_mistake_in_the_offers_is_told_at_the_start(tmp_path, capsys):
    offers = tmp_path / "tasks.toml"
    offers.write_text("[digits]\nshard = 5\n")
    data = tmp_path / "data"
    serve = ["registry", "serve", "--data", str(data), "--port", "0", "--set", f"tasks={offers}"]
    assert run(serve) == 2
    assert "tasks: digits.shard" in capsys.readouterr().err
    assert not data.exists()


@pytest.mark.parametrize("broken", [False, True])
def test_the_greeting_waits_for_the_server(registry, monkeypatch, broken):
    """One that could not start must not have said where it is."""
    said = []
    server = server_of(registry, port=0, started=lambda: said.append(server.started))

    def start(_registry):
        server.should_exit = True
        if broken:
            raise RuntimeError("no room for jobs")

    monkeypatch.setattr(registry.jobs, "start", start)
    with contextlib.suppress(SystemExit):
        server.run()
    assert said == ([] if broken else [True])

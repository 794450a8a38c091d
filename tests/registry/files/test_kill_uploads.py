"""`kill -9` of the server in the middle of an upload: what it acknowledged is there afterwards."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from polo.client.client import Client
from polo.client.http import Patience
from polo.errors import OutageError
from polo.registry.context import Registry
from polo.registry.objects import key_of
from polo.registry.settings import Settings

KILLS = 4
PIECE = 100_000
SIZE = 6_000_000


class Server:
    """The real command, which is killed and started again."""

    def __init__(self, settings, log):
        flags = ["--data", settings.data, "--database", settings.database]
        for name in ("port", "origin", "rate", "guest_rate"):
            flags += ["--set", f"{name}={getattr(settings, name)}"]
        self._command = [sys.executable, "-m", "polo", "registry", "serve", *map(str, flags)]
        self._log, self._port = log, settings.port
        self.start()

    def start(self):
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.05)

    def kill(self):
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)
def test_an_upload_goes_on_over_kills(database_url, tmp_path):
    import live_chain

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(
        data=tmp_path / "data",
        database=database_url,
        origin="registry.test/log",
        port=port,
        rate=100_000,
        guest_rate=100_000,
    )
    registry = Registry.open(settings, migrate=True)
    chain = live_chain.enrol(registry, live_chain.identity(1))
    data = os.urandom(SIZE)
    wanted = {"enrolment": chain.id, "kind": "record", "shard": 1, "size": SIZE}
    wanted["sha256"] = hashlib.sha256(data).hexdigest()
    server = Server(settings, tmp_path / "log")
    client = Client(f"http://127.0.0.1:{port}", chain.prover, patience=Patience(tries=1))
    try:
        upload = client._post("/v1/uploads", wanted)["id"]
        acknowledged, killed = 0, 0
        while acknowledged < SIZE:
            timer = None
            if acknowledged > (killed + 1) * SIZE / (KILLS + 1) and killed < KILLS:
                # Some milliseconds later, so that a piece is on its way or being written.
                timer = threading.Timer(killed * 0.004, server.kill)
                timer.start()
            try:
                piece = data[acknowledged : acknowledged + PIECE]
                reply = client._connection.ask(
                    "PATCH",
                    f"/v1/uploads/{upload}",
                    body=piece,
                    headers={"Upload-Offset": str(acknowledged)},
                )
                acknowledged = reply.json("")["received"]
            except OutageError:
                assert timer
            if timer:
                timer.join()
                killed += 1
                server.start()
                found = client._get(f"/v1/uploads/{upload}")
                # A piece may have arrived whose answer was never seen, and none may be lost.
                assert found["received"] in (acknowledged, acknowledged + PIECE)
                acknowledged = found["received"]
        assert killed == KILLS
        assert client._get(f"/v1/uploads/{upload}")["state"] == "stored"
        assert registry.objects.get(key_of(wanted["sha256"])) == data
    finally:
        server.kill()
        client.close()
        registry.close()

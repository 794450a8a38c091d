"""`kill -9` of the serving process under load: no acknowledged receipt is lost or changed."""

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import live_chain
import pytest
from sqlalchemy import func, select

from polo.protocol.entries import leaf_hash
from polo.protocol.log_tree import Frontier, check_consistency
from polo.protocol.records import Receipt
from polo.registry.context import Registry
from polo.registry.operations.auditing import Audit
from polo.registry.schema import commitments, events, jobs, log_leaves
from polo.registry.settings import Settings

KILLS = 20
CLIENTS = 6
CHAINS = 3  # of each client
JOBS = 12
pytestmark = pytest.mark.slow


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """The real command, in a child that can be killed and started again."""

    def __init__(self, settings, log):
        self.url = f"http://127.0.0.1:{settings.port}"
        self._arguments = ["--data", str(settings.data), "--database", settings.database]
        for name in ("port", "origin", "rate", "guest_rate"):
            self._arguments += ["--set", f"{name}={getattr(settings, name)}"]
        self._worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("serve_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SERVE_LOG": str(log)},
        )
        self._log = log
        self._child = None

    def start(self):
        self._worker.stdin.write(json.dumps(self._arguments) + "\n")
        self._worker.stdin.flush()
        self._child = int(self._worker.stdout.readline())
        deadline = time.monotonic() + 30
        while True:
            try:
                return httpx2.get(f"{self.url}/healthz").raise_for_status()
            except httpx2.TransportError:
                assert time.monotonic() < deadline, self._log.read_text()[-3000:]
                time.sleep(0.01)

    def end(self, number):
        os.kill(self._child, number)
        self._child = None
        assert self._worker.stdout.readline() == "dead\n"

    def close(self):
        if self._child is not None:  # The test failed while it was serving.
            self.end(signal.SIGKILL)
        self._worker.stdin.close()
        assert self._worker.wait(30) == 0
        self._worker.stdout.close()


class Prover(threading.Thread):
    """Commits on its chains in turn, and insists until each entry is answered."""

    def __init__(self, url, chains, stop):
        super().__init__(daemon=True)
        self.url, self.chains, self.stop = url, chains, stop
        self.error = None
        self.cut = 0

    def run(self):
        try:
            with httpx2.Client(base_url=self.url, timeout=20) as client:
                while not self.stop.is_set():
                    chain = random.choice(self.chains)
                    self.commit(client, chain)
                    if random.random() < 0.1:
                        self.repeat(client, chain)
        except BaseException as error:
            self.error = error

    def send(self, client, chain, body):
        """The answer to an entry; None if the registry died over it, and the test is over."""
        while not self.stop.is_set():
            try:
                answer = client.post(chain.path, content=body, headers=chain.headers(body))
            except httpx2.TransportError:
                self.cut += 1
                time.sleep(0.02)
                continue
            if answer.status_code == 503:
                time.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()
        return None

    def commit(self, client, chain):
        entry = chain.entry()
        answer = self.send(client, chain, entry.to_bytes())
        if answer is not None:
            chain.accept(entry, answer)

    def repeat(self, client, chain):
        number = random.randrange(len(chain.receipts)) if chain.receipts else 0
        answer = (
            self.send(client, chain, chain.entry(number).to_bytes()) if chain.receipts else None
        )
        if answer is not None:
            again = Receipt.from_json(answer["receipt"], "receipt").to_bytes()
            assert again == chain.receipts[number]


@pytest.fixture
def settings(tmp_path, database_url):
    return Settings(
        data=tmp_path / "data",
        database=database_url,
        port=free_port(),
        origin="registry.test/log",
        rate=1_000_000,
        guest_rate=1_000_000,
    )


def test_nothing_acknowledged_is_lost(settings, tmp_path):
    opened = Registry.open(settings, migrate=True)
    provers = [live_chain.identity(number) for number in range(CLIENTS)]
    chains = [[live_chain.enrol(opened, prover) for _ in range(CHAINS)] for prover in provers]
    with opened.database.begin() as connection:
        for number in range(JOBS):
            opened.jobs.enqueue(connection, "slow", str(number))
    opened.close()
    server, stop = Server(settings, tmp_path / "serve.log"), threading.Event()
    clients = [Prover(server.url, mine, stop) for mine in chains]
    every = [chain for mine in chains for chain in mine]
    try:
        kill_again_and_again(server, clients, every)
        server.start()
        wait_for_jobs(settings, tmp_path / "serve.log")
        stop.set()
        for client in clients:
            client.join(30)
            assert client.error is None, client.error
        check_over_the_wire(server.url, every)
        server.end(signal.SIGTERM)
    finally:
        stop.set()
        server.close()
    check_database(settings, every)


def kill_again_and_again(server, clients, every):
    server.start()
    for client in clients:
        client.start()
    for kill in range(KILLS):
        if kill:
            server.start()
        before = sum(len(chain.receipts) for chain in every)
        time.sleep(random.uniform(0.02, 0.4))
        deadline = time.monotonic() + 20
        while sum(len(chain.receipts) for chain in every) == before:
            assert time.monotonic() < deadline, "nothing is committed any more"
            assert all(client.error is None for client in clients), [c.error for c in clients]
            time.sleep(0.002)
        server.end(signal.SIGKILL)
    # It was under load: requests were cut off in the middle.
    assert sum(client.cut for client in clients) >= KILLS


def wait_for_jobs(settings, log):
    opened = Registry.open(settings)
    deadline = time.monotonic() + 30
    try:
        while True:
            with opened.database.read() as connection:
                query = select(jobs.c.state, func.count()).where(jobs.c.kind == "slow")
                states = dict(connection.execute(query.group_by(jobs.c.state)).all())
                done = connection.execute(
                    select(events.c.subject).where(events.c.action == "slow.done").distinct()
                ).all()
            if states == {"done": JOBS}:
                assert len(done) == JOBS
                return
            assert time.monotonic() < deadline, (states, log.read_text()[-3000:])
            time.sleep(0.1)
    finally:
        opened.close()


def check_over_the_wire(url, every):
    """What the registry shows is what was acknowledged, byte for byte, each once."""
    with httpx2.Client(base_url=url, timeout=20) as client:
        for chain in every:
            items, after = [], -1
            while after is not None:
                page = client.get(chain.path, params={"after": after, "limit": 500}).json()
                items += page["items"]
                after = page["next"]
            found = [Receipt.from_json(item["receipt"], "receipt").to_bytes() for item in items]
            # The last entry may have got in without its prover hearing of it.
            assert found[: len(chain.receipts)] == chain.receipts
            assert len(found) <= len(chain.receipts) + 1
        seen = sorted({item for chain in every for item in chain.checkpoints.items()})
        assert len({size for size, _ in seen}) == len(seen), "two roots of the same size"
        for (old, old_root), (new, new_root) in random.sample(list(itertools.pairwise(seen)), 20):
            query = {"old": old, "new": new}
            path = client.get("/v1/log/consistency", params=query).json()["path"]
            proof = [bytes.fromhex(item) for item in path]
            check_consistency(old, old_root, new, new_root, proof, place="log")


def check_database(settings, every):
    """The log holds in itself, and with every checkpoint that any client ever saw."""
    opened = Registry.open(settings)
    with opened.database.read() as connection:
        key = opened.vault.log_key(connection).public_key
        assert list(Audit(connection, settings.origin, key).faults()) == []
        count = connection.execute(select(func.count()).select_from(commitments)).scalar_one()
        entries = connection.execute(select(log_leaves.c.entry).order_by(log_leaves.c.index))
        leaves = [leaf_hash(bytes(entry)) for entry in entries.scalars()]
    opened.close()
    assert len(leaves) == count
    assert sum(len(chain.receipts) for chain in every) <= count
    roots, frontier = {}, Frontier()
    for leaf in leaves:
        frontier, _ = frontier.grown([leaf])
        roots[frontier.size] = frontier.root
    for chain in every:
        for size, root in chain.checkpoints.items():
            assert roots[size] == root

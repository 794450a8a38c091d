"""What a streamed chain costs a prover: bytes sent to the registry, checkpoints on its own disk.

A real prover seals shards of ResNet-18 against `polo registry serve`, and hands everything in that
a verification needs. Its weights move by random gradients: what is counted does not depend on what
they learn. All bytes go through a relay that counts them, heads and bodies; a thread watches the
proof's folder. Both are compared with handing in the two checkpoints of every shard.
"""

import contextlib
import os
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import polo
from benchmarks import chains
from benchmarks.figures import Benchmark, Figure, Target, amount_of
from benchmarks.serving import free_port, serving
from polo.client.client import Client
from polo.client.enrolled import Address, LiveEnrolment
from polo.client.submitting import bring_files
from polo.evidence.receipts.rules import Rules
from polo.protocol.log_notes import NoteKey
from polo.prover.receiving import ReceiptWarning
from polo.registry.context import Registry
from polo.registry.schema import challenges
from polo.registry.settings import Settings
from polo.weights.checkpoint import checkpoint_of
from polo_lab.models.resnet import ResNet, resnet18

SHARDS = 50
STEPS = 3
DRAWN = 50_000
"""Millionths of the shards whose whole checkpoint the registry asks for."""

_ORIGIN = "bench.test"
_SENT = Target("at most", 0.10)
_KEPT = Target("at most", 2)
_LOOK = 0.002


@dataclass(frozen=True)
class Streamed:
    """What one chain took.

    Attributes:
        shards: Shards that were sealed.
        weights: Bytes of a checkpoint.
        sent: Bytes that the prover sent.
        drawn: Checkpoints that the registry asked for.
        most: Most checkpoints on the prover's disk.
        disk: Most bytes of checkpoints on it.
        seconds: How long it took.
    """

    shards: int
    weights: int
    sent: int
    drawn: int
    most: int
    disk: int
    seconds: float


class Task:
    """ResNet-18 without a task: how good it is nobody asks."""

    name = "resnet18-moved"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.0,)

    def __init__(self, small: bool) -> None:
        self.small = small

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        return ResNet(width=16, blocks=(1, 1)) if self.small else resnet18()

    def evaluate(self, _model: nn.Module) -> float:
        """Says nothing."""
        return 0.5


class Relay:
    """Passes a client's connections on to a server, and counts what the client sends.

    Args:
        port: Where the server listens.
    """

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((client, server), (server, client)):
                    counts = pair[0] is client
                    threading.Thread(target=self._pass, args=(*pair, counts), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.sent += len(data) if counts else 0
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Watch:
    """Looks at a folder again and again, and keeps the most files and bytes that were in it.

    Args:
        folder: The folder; it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.most = self.disk = 0
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            with contextlib.suppress(FileNotFoundError):
                sizes = [entry.stat().st_size for entry in os.scandir(self._folder)]
                self.most = max(self.most, len(sizes))
                self.disk = max(self.disk, sum(sizes))


def run(quick: bool) -> Iterator[Figure]:
    """One chain."""
    found = streamed(3 if quick else SHARDS, small=quick)
    naive = 2 * found.shards * found.weights
    about = (
        f"{found.shards} shards of {found.weights / 1e6:.1f} MB; the registry asked for "
        f"{found.drawn} whole checkpoints"
    )
    yield amount_of(
        "bytes sent, of two checkpoints for every shard",
        "",
        [found.sent / naive],
        target=None if quick else _SENT,  # The small model is hardly larger than an opening.
        note=about,
        details={"bytes": found.sent, "naive_bytes": naive, "drawn": found.drawn},
    )
    yield amount_of(
        "most checkpoints on the prover's disk",
        "",
        [found.most],
        target=_KEPT,
        note="files in its folder, half-written ones too, looked at every 2 ms",
        details={"bytes": found.disk, "seconds": round(found.seconds, 1)},
    )


def streamed(shards: int, *, small: bool = False) -> Streamed:
    """Seal, commit and hand in a chain of so many shards."""
    with tempfile.TemporaryDirectory(prefix="polo-bench-") as name, contextlib.ExitStack() as stack:
        folder, task = Path(name), Task(small)
        database = f"sqlite:///{folder / 'registry.sqlite'}"
        settings = Settings(
            data=folder / "data", database=database, origin=_ORIGIN, port=free_port()
        )
        registry = Registry.open(settings, migrate=True)
        stack.callback(registry.close)
        relay = Relay(settings.port)
        stack.callback(relay.close)
        # The registry has no such task, and accuracy is not what is measured here.
        stack.enter_context(serving(settings, verify_accuracy="none"))
        prover, enrolment = _enrol(registry, task, shards, f"http://127.0.0.1:{relay.port}", folder)
        watch = Watch(folder / "proof" / "checkpoints")
        stack.callback(watch.close)
        began = time.monotonic()
        _train(task, prover, enrolment, shards, folder / "proof")
        with Client(enrolment.address.url, prover.key, origin=_ORIGIN) as client:
            bring_files(client, enrolment, folder / "proof", lambda *_: None)
        with registry.database.read() as connection:
            drawn = len(connection.execute(challenges.select()).all())
        weights = checkpoint_of(task.build_model()).layout.size
        took = time.monotonic() - began
        return Streamed(shards, weights, relay.sent, drawn, watch.most, watch.disk, took)


def _enrol(
    registry: Registry, task: Task, shards: int, url: str, folder: Path
) -> tuple[chains.Prover, LiveEnrolment]:
    with registry.database.read() as connection:
        log = NoteKey(_ORIGIN, registry.vault.log_key(connection).public_key)
    rules = Rules(_ORIGIN, log, checkpoints=DRAWN)
    terms = polo.make_terms(
        task, shards=shards, fewest_shards=1, receipts=rules, history="streaming", budget=1.0
    )
    layout = checkpoint_of(task.build_model()).layout
    (prover,) = chains.admit(registry, terms, layout, 1)
    enrolment = LiveEnrolment(prover.record, Address(url, _ORIGIN)).save(folder / "enrolment")
    return prover, enrolment


def _train(
    task: Task, prover: chains.Prover, enrolment: LiveEnrolment, shards: int, store: Path
) -> None:
    torch.manual_seed(1)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    proving = polo.Prover(
        enrolment, key=prover.key, store=store, retention="streaming", on_outage="wait"
    )
    with warnings.catch_warnings():
        # Sealing is faster than committing here, and the wait for receipts is no news.
        warnings.simplefilter("ignore", ReceiptWarning)
        with proving.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for _ in range(shards):
                _move(model, optimizer)
                proving.end_epoch()
        proof = proving.finish(wait=600)
    if proof.shards != shards:
        raise RuntimeError(f"{proof.shards} of {shards} shards were sealed")


def _move(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A few steps along random gradients."""
    for _ in range(STEPS):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) * 0.01
        optimizer.step()


BENCHMARK = Benchmark("streaming", "what a streamed chain costs a prover in bytes and disk", run)

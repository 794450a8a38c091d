"""A registry under load: durable commitments a second, their latency, and how it all grows.

Server and clients share the machine: the server is `polo registry serve` as people run it, the
clients are one process that signs and sends as 32 provers do. Between the rounds the same database
takes single rows, one transaction each, to show what the disk allows.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks import chains, databases, growth, serving
from benchmarks.figures import Benchmark, Figure, Target, amount_of, missing
from polo.registry.context import Registry
from polo.registry.schema import log_leaves
from polo.registry.settings import Settings

CLIENTS = 32
ORIGIN = "bench.test"
_RATES = {"sqlite": Target("at least", 300), "postgresql": Target("at least", 500)}
_SLOWEST = Target("at most", 250)
_ENTRY_BYTES = 763


@dataclass(frozen=True)
class Loaded:
    """What one round of load showed."""

    rate: float
    p50: float
    p99: float
    client_cpu: float
    server_cpu: float


def run(quick: bool) -> Iterator[Figure]:
    """Both databases: load, then growth."""
    for kind in databases.KINDS:
        if kind == "postgresql" and databases.programs() is None:
            yield missing(f"{kind}: commitments", "1/s", "no PostgreSQL here", _RATES[kind])
            continue
        with tempfile.TemporaryDirectory(prefix="polo-bench-") as folder:
            yield from _load(kind, Path(folder), quick)
        with tempfile.TemporaryDirectory(prefix="polo-bench-") as folder:
            yield from growth.run(kind, Path(folder), quick)


def _load(kind: str, folder: Path, quick: bool) -> Iterator[Figure]:
    seconds, rounds = (1.0, 1) if quick else (10.0, 7)
    with databases.database(kind, folder) as url:
        settings = Settings(
            data=folder / "data", database=url, origin=ORIGIN, port=serving.free_port()
        )
        registry = Registry.open(settings, migrate=True)
        try:
            provers = chains.enrol(registry, CLIENTS)
            single, found = [], []
            with serving.serving(settings) as server:
                shards = [0] * CLIENTS
                _round(settings, server, provers, shards, seconds / 3)
                for _ in range(rounds):
                    single.append(_single_rows(registry, seconds / 3))
                    found.append(_round(settings, server, provers, shards, seconds))
                streamed = chains.enrol(registry, CLIENTS, "streaming")
                opened = _round(settings, server, streamed, [0] * CLIENTS, seconds, openings=True)
        finally:
            registry.close()
    details = {
        "client_cpu_us": round(_median([item.client_cpu for item in found]) * 1e6),
        "server_cpu_us": round(_median([item.server_cpu for item in found]) * 1e6),
        "p50_ms": round(_median([item.p50 for item in found]) * 1e3, 1),
    }
    rows = "rows in the log's table, one durable transaction each"
    yield amount_of(f"{kind}: {rows}", "1/s", single, note="one writer")
    yield amount_of(
        f"{kind}: durable commitments",
        "1/s",
        [item.rate for item in found],
        target=_RATES[kind],
        note=f"{CLIENTS} provers, each waits for its receipt; CPU is for each commitment",
        details=details,
    )
    slowest = [item.p99 * 1e3 for item in found]
    yield amount_of(f"{kind}: p99 of a commitment", "ms", slowest, target=_SLOWEST)
    yield amount_of(
        f"{kind}: commitments with openings",
        "1/s",
        [opened.rate],
        note="each made with its mark, sent along, and the mark read by the registry; one round",
        details={"p50_ms": round(opened.p50 * 1e3, 1), "p99_ms": round(opened.p99 * 1e3, 1)},
    )


def _round(
    settings: Settings,
    server: "subprocess.Popen[bytes]",
    provers: list[chains.Prover],
    shards: list[int],
    seconds: float,
    *,
    openings: bool = False,
) -> Loaded:
    """Load for some seconds; `shards` says how far each prover is, and is moved on."""
    asked = {
        "address": settings.host,
        "port": settings.port,
        "origin": settings.origin,
        "seconds": seconds,
        "openings": openings,
        "provers": [
            {"key": prover.private, "enrolment": prover.record.to_json(), "first": first}
            for prover, first in zip(provers, shards, strict=True)
        ],
    }
    before = _cpu(server.pid)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.provers"],
        input=json.dumps(asked).encode(),
        check=True,
        stdout=subprocess.PIPE,
    )
    spent = _cpu(server.pid) - before
    told: dict[str, Any] = json.loads(done.stdout)
    took = sorted(second for each in told["took"] for second in each)
    for at, each in enumerate(told["took"]):
        shards[at] += len(each)
    count = len(took)
    return Loaded(
        count / told["seconds"],
        took[count // 2],
        took[min(count - 1, int(count * 0.99))],
        told["cpu"] / count,
        spent / count,
    )


def _single_rows(registry: Registry, seconds: float) -> float:
    """Rows a second, each in a transaction of its own. They are taken out again."""
    entry, count = os.urandom(_ENTRY_BYTES), 0
    far = 2**50
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        with registry.database.begin() as connection:
            row = {"index": far + count, "hash": bytes(32), "entry": entry}
            connection.execute(insert(log_leaves), row)
        count += 1
    took = time.monotonic() - began
    with registry.database.begin() as connection:
        connection.execute(log_leaves.delete().where(log_leaves.c.index >= far))
    return count / took


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


BENCHMARK = Benchmark("registry", "a registry under load, and as it grows", run)

"""Reads hostile files, each in a forked child that has little memory and little time.

Asked by lines of JSON, `[kind, path, MiB, seconds]`, it answers by lines of JSON.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polo
from fuzz import promises, sandbox, seeds
from polo import keys
from polo.errors import PoloError
from polo.protocol import canonical, fields
from polo.protocol.layout import Layout
from polo.protocol.records import Manifest
from polo.receipts import OfflineEnrolment
from polo.storage import bundle
from polo.weights import hashing
from polo.weights.files import FileCheckpoint
from polo.weights.found import open_found

LAYOUT = seeds.layout()
for hidden in ("polo.verifier.verification", "gguf"):
    __import__(hidden)


def record(kind: type[fields.Record]) -> Callable[[Path], Any]:
    return lambda path: kind.from_bytes(path.read_bytes(), path.name)


def checkpoint(path: Path) -> None:
    with FileCheckpoint.canonical(path, LAYOUT) as found:
        hashing.commit(found, threads=1)


def header(path: Path) -> None:
    with FileCheckpoint.any(path) as found:
        hashing.commit(found, threads=1)


def found(path: Path) -> None:
    with open_found(path) as model:
        for name, tensor in model.tensors.items():
            model.read(name, 0, min(tensor.elements, 1024))


def verify(path: Path) -> str:
    trust = keys.load_public(seeds.GOLDEN.parent / "issuer.pub")
    verdict = polo.verify(path, trust=trust, policy=polo.Policy("none"))
    wrong = [check for check in verdict.checks if check.status.name in ("FAILED", "UNDECIDED")]
    return "; ".join([verdict.outcome.name, *(f"{c.name} {c.place}: {c.detail}" for c in wrong)])


READERS: dict[str, Callable[[Path], Any]] = {
    "document": lambda path: canonical.parse(path.read_bytes(), place=path.name),
    "manifest": record(Manifest),
    "layout": record(Layout),
    "checkpoint": checkpoint,
    "header": header,
    "found": found,
    "bundle": lambda path: bundle.read_bundle(path, path.parent / "out"),
    "glance": bundle.glance,
    "verify": verify,
    "enrolment": OfflineEnrolment.load,
    "public key": keys.load_public,
    "private key": keys.Identity.load,
    "locked key": lambda path: keys.Identity.load(path, b"x"),
}


def attempt(kind: str, path: Path, mib: int) -> dict[str, Any]:
    """Read a file in this process, which is used up by it."""
    promises.limit_memory(mib)
    before = promises.resident()
    promises.forget_peak()
    began = time.process_time()
    result: dict[str, Any] = {"end": "read"}
    try:
        with promises.confined(path.parent), sandbox.temporary(path.parent):
            result["value"] = str(READERS[kind](path))[:4000]
    except PoloError as error:
        result = {
            "end": "refused",
            "error": type(error).__name__,
            "place": error.place,
            "message": error.diagnostics(),
        }
    except BaseException as error:
        result = {"end": "raised", "error": type(error).__name__, "message": str(error)[:400]}
    taken = promises.peak() - before
    return {**result, "mib": taken / promises.MIB, "seconds": time.process_time() - began}


def in_child(kind: str, path: Path, mib: int, seconds: float) -> dict[str, Any]:
    """Read a file in a child, and end the child where it does not end by itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, json.dumps(attempt(kind, path, mib)).encode())
        os._exit(0)
    os.close(writing)
    answered, _, _ = select.select([reading], [], [], seconds)
    if not answered:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    lost = {"end": "killed" if answered else "too slow", "message": f"status {status}"}
    return json.loads(data) if data else lost


def main() -> None:
    for line in sys.stdin:
        kind, path, mib, seconds = json.loads(line)
        print(json.dumps(in_child(kind, Path(path), mib, seconds)), flush=True)


if __name__ == "__main__":
    main()

"""Trains in children that die, for test_kill.py. One import of torch serves all of them.

Reads orders from standard input, one JSON object a line: {"after": seconds} kills a child with
SIGKILL after that time, {"at": n} lets a child kill itself at its n-th call that touches the
disk, {"asking": [method, end of the path, n, "before" or "after"]} at its n-th such request to
a registry, {} lets it finish. Answers each with one JSON line.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import polo
from polo.storage import atomic

EPOCHS = 400


def main() -> None:
    folder, tests = Path(sys.argv[1]), sys.argv[2]
    options = json.loads(sys.argv[3])
    sys.path.insert(0, tests)
    import conftest

    task = conftest.TinyTask()
    torch.set_num_threads(1)
    # What a first optimizer and a first prover import is imported once, before the forks.
    torch.optim.SGD(task.build_model().parameters())
    assert polo.Prover
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            train(folder, task, options, order)
            os._exit(0)
        if "after" in order:
            time.sleep(order["after"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        code = None if killed else os.waitstatus_to_exitcode(status)
        print(json.dumps({"killed": killed, "code": code}), flush=True)


def train(folder: Path, task: Any, options: dict[str, Any], order: dict[str, Any]) -> None:
    if "at" in order:
        die_at(order["at"])
    if "asking" in order:
        die_asking(*order["asking"])
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    log = os.open(folder / "sealed.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    prover = polo.Prover(
        folder / "enrolment", key=folder / "alice.key", store=folder / "proof", **options
    )
    prover.on_seal.append(lambda shard: note(log, f"{shard.shard} {shard.root.hex()}\n"))
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(prover.epoch, order.get("epochs", EPOCHS)):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    prover.finish()


def note(log: int, text: str) -> None:
    os.write(log, text.encode())
    os.fsync(log)


def die_asking(method: str, end: str, count: int, when: str) -> None:
    """Die before the n-th such request is sent, or after its answer has come."""
    from polo.client import courier
    from polo.client.http import Connection

    if method == "PATCH" or end == "/uploads":
        courier.ATTACHED = 0  # Small openings are not uploaded otherwise.
    real, left = Connection._once, count

    def once(self: Connection, request: Any, limit: int) -> Any:
        nonlocal left
        is_one = request.method == method and request.url.path.endswith(end)
        left -= is_one
        if is_one and left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        reply = real(self, request, limit)
        if is_one and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    Connection._once = once  # type: ignore[method-assign]


def die_at(count: int) -> None:
    """Die at the n-th sync or rename, before it is done."""
    left = count

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    atomic.os.fsync = dying(os.fsync)
    Path.replace = dying(Path.replace)  # type: ignore[method-assign]
    Path.unlink = dying(Path.unlink)  # type: ignore[method-assign]


if __name__ == "__main__":
    main()

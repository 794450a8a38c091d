"""Starts `polo registry serve` again and again, in children that are killed.

Reads a line for each child: the command's arguments, as JSON. Answers with the child's process id.
Everything is imported once, so that a start takes a moment and not seconds.
"""

import json
import os
import sys
import time

import polo.registry.serving  # noqa: F401
from polo.cli import main
from polo.registry.events.service import note
from polo.registry.jobs import handler, handlers, queue, runner

queue.LEASE = runner.LEASE = 1


@handler("slow")
def slow(registry, subject):
    """Takes long enough to be killed in the middle, and notes that it was done."""
    time.sleep(0.3)
    with registry.database.begin() as connection:
        note(connection, "slow.done", subject, actor="test", now=registry.clock())


def serve(arguments):
    log = os.open(os.environ["SERVE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    main(["registry", "serve", *arguments])


import random
from polo.registry.commitments.sequencer import Sequencer
_settle = Sequencer.settle


def lossy(self, submissions):
    if random.random() > 0.02:
        return _settle(self, submissions)
    begin = type(self._database).begin
    class Undo(Exception):
        pass
    import contextlib
    @contextlib.contextmanager
    def undone(db):
        with contextlib.suppress(Undo), begin(db) as c:
            yield c
            raise Undo
    type(self._database).begin = undone
    try:
        return _settle(self, submissions)
    finally:
        type(self._database).begin = begin


Sequencer.settle = lossy

if __name__ == "__main__":
    handlers.load()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            serve(json.loads(line))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)

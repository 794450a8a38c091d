"""Hours of one prover's verification keep no other prover from its receipt."""

import threading

from polo.registry.jobs import HANDLERS, Jobs, handlers
from polo.registry.jobs.queue import LONG


def test_long_work_holds_nothing_else_up(registry, monkeypatch):
    handlers.load()
    monkeypatch.setattr(handlers, "PERIODIC", {})
    go_on, checked, begun = threading.Event(), threading.Event(), threading.Event()

    def hours(_registry, _subject):
        begun.set()
        go_on.wait(30)

    for kind in LONG:
        monkeypatch.setitem(HANDLERS, kind, hours)
    monkeypatch.setitem(HANDLERS, "challenges.check", lambda *_: checked.set())
    running = Jobs()
    monkeypatch.setattr(registry, "jobs", running)
    with registry.database.begin() as connection:
        for kind in LONG:
            running.enqueue(connection, kind, "a")
    running.start(registry)
    try:
        assert begun.wait(10)
        with registry.database.begin() as connection:
            running.enqueue(connection, "challenges.check", "a")
        assert checked.wait(5)
        assert not go_on.is_set()
    finally:
        go_on.set()
        running.stop()

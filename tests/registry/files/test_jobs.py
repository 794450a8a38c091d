"""Jobs: enqueued with what asks for them, done once, tried again, and never lost."""

import os
import signal
import subprocess
import sys
import time

import pytest
from sqlalchemy import select, text

from polo.errors import FormatError
from polo.registry.context import Registry
from polo.registry.jobs import HANDLERS, PERIODIC, Jobs, Later, handlers, presence, queue, runner
from polo.registry.jobs.queue import LEASE, MOST_TRIES
from polo.registry.operations import figures
from polo.registry.schema import enrolments, jobs, workers
from polo.registry.settings import Settings

PRELUDE = """
import sys, time
from pathlib import Path
from polo.registry.jobs import handler
from polo.registry.jobs import handlers
marks = Path(sys.argv[1])

@handler("slow")
def slow(registry, subject):
    with (marks / subject).open("a") as file:
        file.write("begun\\n")
    if subject == "hang" and (marks / subject).read_text().count("begun") == 1:
        time.sleep(600)
    with (marks / subject).open("a") as file:
        file.write("done\\n")

handlers._MODULES = ()
handlers.PERIODIC.clear()
"""


@pytest.fixture
def kind(monkeypatch):
    """A kind of job that notes its subjects; `kind.fails` makes it fail."""
    handlers.load()

    class Noting(list):
        fails = None

        def __call__(self, registry, subject):
            self.append(subject)
            if self.fails is not None:
                raise self.fails

    noting = Noting()
    monkeypatch.setitem(HANDLERS, "test", noting)
    return noting


def enqueue(registry, subject="a", **options):
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "test", subject, **options)


def abandon(registry, kind, subject):
    """Enqueue in a transaction that is taken back."""
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, kind, subject)
        connection.rollback()


def rows(registry):
    with registry.database.read() as connection:
        return connection.execute(select(jobs).order_by(jobs.c.id)).all()


def test_a_job_is_done_once(registry, kind, work):
    enqueue(registry)
    enqueue(registry)
    assert len(rows(registry)) == 1
    assert work() == 1
    assert kind == ["a"]
    assert rows(registry)[0].state == "done"
    enqueue(registry)
    work()
    assert kind == ["a", "a"]


def test_without_the_transaction_there_is_no_job(registry, kind, work):
    abandon(registry, "test", "a")
    assert rows(registry) == []
    assert work() == 0


def test_a_job_waits_from_when_it_was_put_in(registry, kind, clock):
    """Not since 1970, which would alarm whoever watches, and go before all that wait longer."""
    enqueue(registry)
    clock.advance(7)
    assert "\npolo_jobs_late_seconds 7.0\n" in figures.text(registry).decode()


def test_not_before_it_is_due(registry, kind, work, clock):
    enqueue(registry, due=registry.clock() + 60)
    assert work() == 0
    clock.advance(60)
    assert work() == 1


def test_what_fails_is_tried_again_ever_later_and_then_given_up(
    registry, kind, work, clock, monkeypatch
):
    given_up = []
    monkeypatch.setitem(handlers.GIVE_UP, "test", lambda *args: given_up.append(args[1:]))
    kind.fails = ValueError("no")
    enqueue(registry)
    waits = []
    for _ in range(MOST_TRIES):
        assert work() == 1
        row = rows(registry)[0]
        waits.append(row.due - registry.clock())
        clock.advance(row.due - registry.clock())
    assert waits == sorted(waits)
    assert rows(registry)[0].state == "broken"
    assert given_up == [("a", "ValueError: no")]
    assert work() == 0


def test_later_is_no_failure(registry, kind, work, clock):
    kind.fails = Later(100)
    enqueue(registry)
    for _ in range(3 * MOST_TRIES):
        assert work() == 1
        assert work() == 0
        clock.advance(100)
    assert rows(registry)[0].tries == 0


def test_a_lease_that_runs_out_gives_the_job_to_another(registry, kind, clock):
    enqueue(registry)
    lost = queue.take(registry.database, registry.clock())
    assert queue.take(registry.database, registry.clock()) is None
    clock.advance(LEASE + 1)
    taken = queue.take(registry.database, registry.clock())
    assert taken.tries == lost.tries + 1
    assert not queue.renew(registry.database, lost, registry.clock())
    with registry.database.begin() as connection:
        queue.finish(connection, lost, registry.clock())
    assert rows(registry)[0].state == "running"
    runner.do(registry, taken)
    assert rows(registry)[0].state == "done"


def test_what_comes_by_itself_comes_again(registry, kind, work, clock, monkeypatch):
    for name in list(PERIODIC):
        monkeypatch.delitem(PERIODIC, name)
    monkeypatch.setitem(PERIODIC, "test", 60)
    for expected in (1, 1, 2):
        queue.schedule(registry)
        work()
        assert len(kind) == expected
        clock.advance(30)


def test_the_thread_does_jobs_and_stops(registry, kind):
    registry.jobs.start(registry)
    enqueue(registry)
    deadline = time.monotonic() + 20
    while not kind and time.monotonic() < deadline:
        time.sleep(0.02)
    registry.jobs.stop()
    assert kind == ["a"]
    enqueue(registry, "b")
    time.sleep(1)
    assert kind == ["a"]


def test_a_kill_in_the_middle_costs_no_job(settings, tmp_path, monkeypatch, wait_for):
    """A process dies over a job; another one does it when the lease is over."""
    monkeypatch.setattr(queue, "LEASE", 2)
    registry = Registry.open(settings, migrate=True)
    marks = tmp_path / "marks"
    marks.mkdir()
    code = (
        PRELUDE
        + """
from polo.registry.context import Registry
from polo.registry.settings import Settings
from polo.registry.jobs import queue, runner
queue.LEASE = runner.LEASE = 2
registry = Registry.open(Settings(data=Path(sys.argv[2]), database=sys.argv[3]))
registry.jobs.start(registry)
time.sleep(600)
"""
    )
    command = [sys.executable, "-c", code, marks, settings.data, settings.database]
    with registry.database.begin() as connection:
        for subject in ("hang", "other"):
            registry.jobs.enqueue(connection, "slow", subject)
    first = subprocess.Popen(list(map(str, command)))
    try:
        wait_for(lambda: (marks / "hang").exists())
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    second = subprocess.Popen(list(map(str, command)))
    try:
        wait_for(lambda: all(row.state == "done" for row in rows(registry)))
    finally:
        second.kill()
        second.wait()
    registry.close()
    assert (marks / "hang").read_text() == "begun\nbegun\ndone\n"
    assert (marks / "other").read_text() == "begun\ndone\n"


@pytest.mark.slow
def test_workers_of_postgresql_take_over_from_a_killed_one(
    postgres, migrated, tmp_path, wait_for, request
):
    """Real worker processes by procrastinate; the first dies in the middle of a job."""
    url = postgres.create(migrated)
    settings = Settings(data=tmp_path / "data", database=url, jobs="procrastinate")
    registry = Registry.open(settings)
    request.addfinalizer(lambda: (registry.close(), postgres.drop(url)))
    marks = tmp_path / "marks"
    marks.mkdir()
    code = (
        PRELUDE
        + """
from polo.registry.jobs import fleet, queue, runner
queue.LEASE = runner.LEASE = 2
fleet.STALLED, fleet.HEARTBEAT = 3, 1
sys.argv[0:2] = ["polo"]
from polo.cli import main
main()
"""
    )
    flags = ["--data", settings.data, "--database", url, "--set", "jobs=procrastinate"]
    command = [sys.executable, "-c", code, marks, "registry", "worker", *flags]
    registry.jobs.start(registry)
    abandon(registry, "slow", "undone")
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "slow", "hang")
        registry.jobs.enqueue(connection, "slow", "hardware", queue="gpu")
    first = subprocess.Popen(list(map(str, command)))
    try:
        wait_for(lambda: (marks / "hang").exists())
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        second = subprocess.Popen(list(map(str, command)))
        try:
            wait_for(lambda: rows(registry)[0].state == "done", 60)
            assert not (marks / "hardware").exists()
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == 0
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()
    assert (marks / "hang").read_text() == "begun\nbegun\ndone\n"
    assert not (marks / "undone").exists()
    wait_for(lambda: lacking(registry) == ["cpu", "gpu"])
    third = subprocess.Popen([*map(str, command), "--queue", "gpu"])
    try:
        wait_for(lambda: (marks / "hardware").exists())
        wait_for(lambda: lacking(registry) == ["cpu"])
        wait_for(lambda: all(row.state == "done" for row in rows(registry)))
    finally:
        third.kill()
        third.wait()


def lacking(registry):
    """Queues that nobody serves; a worker that was killed a moment ago counts for a while."""
    with registry.database.begin() as connection:
        connection.execute(workers.delete().where(workers.c.seen < registry.clock() - 4))
        found = presence.unserved(connection, registry.settings, registry.clock(), ("cpu", "gpu"))
    return [item.queue for item in found]


def test_a_task_that_needs_a_gpu_goes_to_its_queue(
    registry, sending, tmp_path, monkeypatch, wait_for
):
    from polo.registry.tasks.service import Tasks
    from polo.registry.verifications import service

    registry.jobs.stop()
    offers = tmp_path / "tasks.toml"
    offers.write_text("[made-up]\ngpu = true\n[digits]\n")
    monkeypatch.setitem(vars(registry), "tasks", Tasks(registry.settings.data, str(offers)))
    with registry.database.begin() as connection:
        connection.execute(enrolments.update().values(manifest=b"{}", state="closed"))
        service.ask(registry, connection, sending.chain.id, None, actor="test")

    def asked():
        return next(row for row in rows(registry) if row.kind == "verify")

    assert asked().queue == "gpu"
    monkeypatch.setattr(presence, "has_gpu", lambda: False)
    handlers.load()
    monkeypatch.setitem(HANDLERS, "verify", lambda *_: None)
    registry.jobs.start(registry)
    time.sleep(1.2)
    assert asked().state == "waiting"  # Nobody here has one.
    registry.jobs.stop()
    monkeypatch.setattr(presence, "has_gpu", lambda: True)
    registry.jobs.start(registry)
    wait_for(lambda: asked().state == "done")
    registry.jobs.stop()


def test_messages_of_workers_go_to_the_queue_of_the_task(postgres, migrated, tmp_path):
    url = postgres.create(migrated)
    registry = Registry.open(Settings(data=tmp_path, database=url, jobs="procrastinate"))
    try:
        registry.jobs.start(registry)
        enqueue(registry, "a", queue="gpu")
        enqueue(registry, "b")
        asked = text("select queue_name, args->>'number' from procrastinate_jobs order by id")
        with registry.database.begin() as connection:
            sent = [tuple(row) for row in connection.execute(asked)]
            assert sent == [(row.queue, str(row.id)) for row in rows(registry)]
            assert [queue for queue, _ in sent] == ["gpu", "cpu"]
            presence.sign(connection, "w1", "cpu", registry.clock())
            assert presence.served(connection, registry.settings, registry.clock()) == {"cpu"}
            assert lacks_of(registry, connection, "a") == "gpu"
            assert lacks_of(registry, connection, "b") == ""
            later = registry.clock() + presence.MISSING + 1
            assert presence.served(connection, registry.settings, later) == set()
            presence.leave(connection, "w1")
            assert presence.served(connection, registry.settings, registry.clock()) == set()
    finally:
        registry.close()
        postgres.drop(url)


def lacks_of(registry, connection, subject):
    return presence.lacks(connection, registry.settings, registry.clock(), "test", subject)


def test_queues_can_be_named(tmp_path):
    assert presence.inside(Settings(data=tmp_path, queues=("gpu",))) == ("gpu",)
    with pytest.raises(FormatError, match="neither cpu nor gpu"):
        Settings(data=tmp_path, queues=("tpu",))


def test_workers_need_postgresql(tmp_path):
    with pytest.raises(FormatError, match="workers need PostgreSQL") as refused:
        Settings(data=tmp_path / "data", jobs="procrastinate")
    assert refused.value.place == "setting jobs"
    assert Jobs().mode == "inside"

"""The doctor finds what is wrong, says what to do, and changes nothing."""

import hashlib
import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import live_chain
import pytest
from sqlalchemy import insert, update

from polo.cli import run
from polo.errors import MissingError
from polo.registry.objects import key_of
from polo.registry.operations.doctor import BAD, OK, WARNING, examine
from polo.registry.schema import (
    challenges,
    commitments,
    enrolments,
    jobs,
    log_heads,
    log_leaves,
    objects,
)
from polo.registry.tasks.service import Tasks


@pytest.fixture
def chain(registry, client):
    made = live_chain.enrol(registry, live_chain.identity(1))
    made.clock = registry.clock
    for _ in range(5):
        made.commit(client)
    return made


def found(registry, *, everything=True):
    return list(examine(registry.settings, everything=everything, clock=registry.clock))


def wrong(registry, **options):
    return [line for line in found(registry, **options) if line.state == BAD]


@pytest.fixture(autouse=True)
def room(monkeypatch):
    """The disk's size and what is free of it: the disk that the tests run on may be full."""
    usage = SimpleNamespace(total=2**40, free=2**39)
    monkeypatch.setattr("polo.registry.operations.doctor.shutil.disk_usage", lambda _: usage)
    return usage


@pytest.fixture(autouse=True)
def trouble(monkeypatch):
    """What is wrong with each task: to build them takes seconds, and chains/test_tasks.py does."""
    found = {}
    monkeypatch.setattr(Tasks, "trouble", lambda _, name: found.get(name))
    return found


def test_a_task_that_cannot_be_used(registry, trouble):
    trouble["lab-cifar"] = MissingError("CIFAR-10 is not here", advice="Bring it.")
    lines = [line for line in found(registry) if line.about == "tasks"]
    assert [line.state for line in lines] == [WARNING, OK]
    assert lines[0].found == "CIFAR-10 is not here"
    assert lines[0].advice.startswith("Nobody is enrolled for it. Bring it.")
    assert lines[1].found == "digits can be enrolled for"


def test_offers_that_cannot_be_read(registry, tmp_path):
    registry.settings = replace(registry.settings, tasks=str(tmp_path / "nowhere.toml"))
    (line,) = wrong(registry)
    assert (line.about, "cannot be read" in line.found) == ("tasks", True)


@pytest.mark.parametrize("everything", [False, True])
def test_a_healthy_registry_has_nothing(registry, chain, everything):
    lines = found(registry, everything=everything)
    # The test's clock stands still, years from the database's.
    assert [line for line in lines if line.state != OK and line.about != "clock"] == []
    assert {"folder", "disk", "data key", "database", "keys", "log", "files", "jobs"} <= {
        line.about for line in lines
    }


def test_settings_that_name_another_log(registry, chain):
    settings = replace(registry.settings, origin="another.test")
    lines = list(examine(settings, everything=True, clock=registry.clock))
    [told] = [line for line in lines if line.about == "origin"]
    assert told.state == WARNING
    assert "--set origin=registry.test/log" in told.advice
    assert [line.state for line in lines if line.about == "log"] == [OK]


def test_others_who_may_look(registry):
    registry.settings.data.chmod(0o755)
    (registry.settings.data / "data.key").chmod(0o640)
    lines = wrong(registry)
    assert [line.about for line in lines] == ["folder", "data key"]
    assert all("chmod" in line.advice for line in lines)


@pytest.mark.parametrize(("free", "state"), [(2**29, BAD), (2**35, WARNING), (2**38, OK)])
def test_a_disk_that_fills(registry, room, free, state):
    room.free = free
    (line,) = [line for line in found(registry) if line.about == "disk"]
    assert (line.state, bool(line.advice)) == (state, state != OK)


def test_another_key(registry, chain):
    (registry.settings.data / "data.key").write_bytes(bytes(32))
    (line,) = wrong(registry)
    assert (line.about, "data.key" in line.advice) == ("keys", True)


def test_a_secret_that_was_moved(registry, client, chain):
    other = live_chain.enrol(registry, live_chain.identity(2))
    with registry.database.begin() as connection:
        sealed = (
            connection.execute(enrolments.select().where(enrolments.c.id == chain.id)).one().secret
        )
        change = update(enrolments).where(enrolments.c.id == other.id).values(secret=sealed)
        connection.execute(change)
    (line,) = wrong(registry)
    assert line.about == "keys"
    assert other.id in line.found


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("what", ["leaf", "hash", "root", "head", "receipt", "record"])
def test_a_log_that_does_not_hold(registry, chain, what, everything):
    changed = chain.entry(2, steps=7).to_bytes()
    change = {
        "leaf": update(log_leaves).where(log_leaves.c.index == 2).values(entry=changed),
        "hash": update(log_leaves).where(log_leaves.c.index == 2).values(hash=bytes(32)),
        "root": update(log_heads).where(log_heads.c.size == 5).values(root=bytes(32)),
        "head": update(log_heads)
        .where(log_heads.c.size == 5)
        .values(note="x\n5\n\n— x AAAAAAA=\n"),
        "receipt": update(commitments)
        .where(commitments.c.index == 1)
        .values(receipt=chain.receipts[0]),
        "record": update(commitments).where(commitments.c.index == 1).values(record=changed),
    }[what]
    with registry.database.begin() as connection:
        connection.execute(change)
    lines = wrong(registry, everything=everything)
    assert lines
    assert {line.about for line in lines} == {"log"}


def test_files_that_are_gone_or_damaged(registry, chain):
    digests = []
    for data in (b"one", b"two", b"three"):
        digests.append(hashlib.sha256(data).hexdigest())
        registry.objects.put(key_of(digests[-1]), data)
        row = {"sha256": digests[-1], "enrolment": chain.id, "kind": "opening", "size": len(data)}
        with registry.database.begin() as connection:
            connection.execute(insert(objects).values(**row, made=1))
    folder = registry.settings.data / "objects"
    (folder / key_of(digests[0])).unlink()
    (folder / key_of(digests[1])).write_bytes(b"tw")
    (folder / key_of(digests[2])).write_bytes(b"throe")
    assert {line.found.split("…")[1] for line in wrong(registry)} == {
        " is not there",
        " has 2 bytes instead of 3",
        " the stored bytes are not those that were put there",
    }
    assert len(wrong(registry, everything=False)) == 2


def test_stuck_work(registry):
    now = registry.clock()
    states = [("broken", 0, None), ("waiting", now - 1000, None), ("running", 0, now - 1000)]
    with registry.database.begin() as connection:
        for state, due, held in [*states, ("waiting", now, None), ("running", 0, now)]:
            values = {"state": state, "due": due, "held_until": held, "tries": 1}
            subject = f"{state} {due} {held}"
            connection.execute(
                insert(jobs).values(kind="verify", subject=subject, queue="cpu", **values)
            )
    lines = [line for line in found(registry) if line.about == "jobs"]
    assert [line.state for line in lines] == [WARNING] * 3
    assert all(line.found.startswith("1 verify") and line.advice for line in lines)


def test_stuck_answers(registry, chain):
    row = {"id": "ab" * 16, "enrolment": chain.id, "kind": "replay", "shard": 1, "record": b"{}"}
    row |= {"state": "answered", "detail": "another platform", "made": 1, "due": 1}
    with registry.database.begin() as connection:
        connection.execute(insert(challenges).values(row))
    (line,) = [line for line in found(registry) if line.about == "challenges"]
    assert (line.state, line.found[:6]) == (WARNING, "1 have")
    assert "operator's page" in line.advice


def test_a_clock_that_is_behind(registry, chain, clock):
    clock.advance(-3600)
    assert [line.about for line in wrong(registry)] == ["clock"]


def test_a_database_that_is_away_or_old(registry, tmp_path):
    nowhere = replace(registry.settings, database="postgresql://nobody@127.0.0.1:1/none")
    lines = [line for line in examine(nowhere) if line.state == BAD]
    assert [line.about for line in lines] == ["database"]
    file = tmp_path / "other.sqlite"
    empty = replace(registry.settings, database=f"sqlite:///{file}")
    assert "is not there" in next(line.found for line in examine(empty) if line.state == BAD)
    assert not file.exists()
    file.touch()
    (line,) = [line for line in examine(empty) if line.state == BAD]
    assert "migrate" in line.advice


def test_plain_http_for_everybody(registry):
    open_ = replace(registry.settings, host="0.0.0.0")
    assert [line.about for line in examine(open_) if line.state == WARNING][:1] == ["network"]


def test_the_command(registry, chain, capsys, tmp_path):
    place = ["--data", str(registry.settings.data), "--database", registry.settings.database]
    place += ["--set", "origin=registry.test/log"]
    out = tmp_path / "backup.tar"
    assert run(["registry", "backup", str(out), *place]) == 0
    assert "5 entries of the log" in capsys.readouterr().out
    assert run(["registry", "restore", str(out), *place]) == 2
    assert "a registry already" in capsys.readouterr().err
    there = ["--data", str(tmp_path / "there"), "--set", "origin=registry.test/log"]
    assert run(["registry", "restore", str(out), *there]) == 0
    assert f"doctor --all {' '.join(there)}" in capsys.readouterr().out
    # The test's clock is ahead of the real one, which the doctor must see.
    assert run(["registry", "doctor", "--all", "--json", *there]) == 1
    lines = json.loads(capsys.readouterr().out)
    assert [line["about"] for line in lines if line["state"] == "bad"] == ["clock"]
    assert run(["registry", "doctor", "--data", str(tmp_path / "nowhere")]) == 1
    assert "what to do:" in capsys.readouterr().out
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_no_row_names_and_a_queue_that_nobody_serves(
    registry, chain, tmp_path, monkeypatch
):
    registry.jobs.stop()
    monkeypatch.setattr("polo.registry.jobs.presence.has_gpu", lambda: False)
    key = key_of(hashlib.sha256(b"left behind").digest())
    registry.objects.put(key, b"left behind")
    then = time.time() - 100_000
    os.utime(registry.settings.data / "objects" / key, (then, then))
    (tmp_path / "tasks.toml").write_text("[digits]\ngpu = true\n")
    registry.settings = replace(registry.settings, tasks=str(tmp_path / "tasks.toml"))
    told = {line.about: line for line in found(registry) if line.state == WARNING}
    assert told["files"].found == "1 that no row names, for more than a day"
    assert told["queues"].found == "queue gpu: nobody serves it, and 0 jobs wait in it"
    registry.settings = replace(registry.settings, queues=("cpu", "gpu"))
    told = {line.about: line for line in found(registry) if line.state == WARNING}
    assert "queues" not in told
    assert registry.objects.exists(key)  # It changes nothing.

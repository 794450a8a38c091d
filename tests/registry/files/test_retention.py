"""Files are kept for as long as the terms say, then removed, and what stays is enough."""

import hashlib
import os
import time

import pytest
from sqlalchemy import insert, select, update

from polo.registry.jobs import handlers
from polo.registry.objects import key_of
from polo.registry.schema import challenges, events, objects, scans, verifications
from polo.registry.uploads import upkeep

DAY = 86_400
DATA = os.urandom(3000)


@pytest.fixture
def kept(registry, client_of):
    """A prover whose terms keep files for thirty days, with one file uploaded."""
    import live_chain

    prover = live_chain.identity(7)
    asking = client_of(prover)
    chain = live_chain.enrol(registry, prover, keep="30")
    body = {"enrolment": chain.id, "kind": "opening", "shard": 1, "size": len(DATA)}
    body["sha256"] = hashlib.sha256(DATA).hexdigest()
    upload = asking.post("/v1/uploads", json=body).json()["id"]
    stored = asking.patch(f"/v1/uploads/{upload}", content=DATA, headers={"Upload-Offset": "0"})
    assert stored.json()["state"] == "stored"
    return asking, chain.id


@pytest.fixture
def retain(registry):
    handlers.load()
    return lambda: handlers.HANDLERS["objects.retain"](registry, "")


@pytest.fixture
def sweep(registry):
    handlers.load()
    return lambda: handlers.HANDLERS["objects.sweep"](registry, "")


def status(asking, chain):
    said = asking.get(f"/v1/enrolments/{chain}").json()
    return said["files"], said["keep_until"], said["removed"]


def set_state(registry, table, **values):
    with registry.database.begin() as connection:
        connection.execute(update(table).values(**values))


def test_the_terms_decide_and_the_prover_sees_it(registry, kept, retain, clock, client):
    asking, chain = kept
    clock.advance(999 * DAY)
    retain()
    assert status(asking, chain) == (1, None, None)  # As long as the chain is open.
    assert asking.post(f"/v1/enrolments/{chain}/withdraw").status_code == 200
    until = clock() + 30 * DAY
    assert status(asking, chain) == (1, until, None)
    page = client.get(f"/chains/{chain}").text
    assert "to be removed" in page
    assert "kept for 30 days" in page
    clock.advance(30 * DAY - 1)
    retain()
    assert status(asking, chain) == (1, until, None)
    clock.advance(1)
    retain()
    assert status(asking, chain) == (0, None, clock())
    assert "removed <time" in client.get(f"/chains/{chain}").text
    assert list(registry.objects.keys()) == []
    with registry.database.read() as connection:
        told = connection.execute(select(events).where(events.c.action == "objects.removed"))
        (event,) = told.all()
    assert (event.subject, event.actor) == (chain, "registry")
    assert "1 opening; 3000 bytes" in event.detail


def test_without_a_word_in_the_terms_it_is_the_setting(registry, sending, retain, clock):
    sending.send(DATA)
    sending.asking.post(f"/v1/enrolments/{sending.chain.id}/withdraw")
    until = clock() + registry.settings.keep_days * DAY
    assert status(sending.asking, sending.chain.id) == (1, until, None)


def test_a_verdict_keeps_them_longer_and_its_report_for_good(registry, kept, retain, clock):
    asking, chain = kept
    asking.post(f"/v1/enrolments/{chain}/withdraw")
    clock.advance(20 * DAY)
    report = b"<p>a report</p>"
    sha256 = hashlib.sha256(report).hexdigest()
    registry.objects.put(key_of(sha256), report)
    with registry.database.begin() as connection:
        made = {"id": "ab" * 16, "enrolment": chain, "made": clock(), "progress": ""}
        connection.execute(insert(verifications).values(**made, state="running", ended=clock()))
        row = {"sha256": sha256, "enrolment": chain, "kind": "report", "made": clock()}
        connection.execute(insert(objects).values(**row, size=len(report)))
    clock.advance(20 * DAY)
    retain()  # A verification needs them.
    assert status(asking, chain)[0] == 1
    set_state(registry, verifications, state="done")
    set_state(registry, objects, keep_until=None)
    retain()
    assert status(asking, chain) == (1, clock() + 10 * DAY, None)
    clock.advance(10 * DAY)
    retain()
    assert status(asking, chain) == (0, None, clock())
    assert list(registry.objects.keys()) == [key_of(sha256)]


@pytest.mark.parametrize("ended", [{"state": "passed"}, {"detail": "another platform"}])
def test_an_answer_that_is_not_judged_yet_stays(registry, kept, retain, clock, ended):
    """Unless it cannot be judged: nobody waits for that of a chain that was given up."""
    asking, chain = kept
    asking.post(f"/v1/enrolments/{chain}/withdraw")
    with registry.database.begin() as connection:
        asked = {"id": "cd" * 16, "enrolment": chain, "kind": "checkpoint", "record": b"{}"}
        asked |= {"state": "answered", "detail": "", "made": clock(), "due": clock()}
        answer = hashlib.sha256(DATA).hexdigest()
        connection.execute(insert(challenges).values(**asked, answer=answer))
    clock.advance(31 * DAY)
    retain()
    assert status(asking, chain)[0] == 1
    set_state(registry, challenges, **ended)
    retain()
    assert status(asking, chain)[0] == 0


def test_what_was_let_go_is_not_kept_again(registry, kept, retain, clock):
    asking, chain = kept
    set_state(registry, objects, keep_until=clock())
    asking.post(f"/v1/enrolments/{chain}/withdraw")
    assert status(asking, chain)[1] == clock()
    retain()
    assert status(asking, chain)[0] == 0


def age(registry, sha256, seconds):
    path = registry.settings.data / "objects" / key_of(sha256)
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_file_without_a_row_is_swept_after_a_day(registry, kept, sweep):
    orphan, young, looked = (hashlib.sha256(data).hexdigest() for data in (b"a", b"b", b"c"))
    for data in (b"a", b"b", b"c"):
        registry.objects.put(key_of(hashlib.sha256(data).digest()), data)
    mine = hashlib.sha256(DATA).hexdigest()
    for sha256 in (orphan, looked, mine):
        age(registry, sha256, upkeep.ORPHAN_AGE + 60)
    age(registry, young, upkeep.ORPHAN_AGE - 60)
    with registry.database.begin() as connection:
        row = {"id": "ef" * 16, "asked": "x", "sha256": looked, "state": "waiting", "made": 1}
        connection.execute(insert(scans).values(row))
    assert list(upkeep.orphans(registry.database, registry.objects)) == [orphan]
    sweep()
    assert set(registry.objects.keys()) == {key_of(item) for item in (young, looked, mine)}
    with registry.database.read() as connection:
        told = connection.execute(select(events.c.detail).where(events.c.action == "objects.swept"))
        assert told.scalars().all() == ["1 files that nothing named"]


def test_a_kill_between_file_and_row_leaves_what_the_sweep_finds(
    registry, sending, sweep, monkeypatch
):
    """The upload is whole, its file put away, and the process is gone before the row."""
    data = os.urandom(500)
    upload = sending.begin(data).json()["id"]

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    begin = registry.database.begin
    put = registry.objects.put

    def put_then_die(key, source):
        put(key, source)
        monkeypatch.setattr(registry.database, "begin", killed)

    from polo.registry.uploads import service

    monkeypatch.setattr(registry.objects, "put", put_then_die)
    owner = sending.chain.prover.id
    with pytest.raises(KeyboardInterrupt):
        service.append(registry, owner, upload, 0, data)
    monkeypatch.setattr(registry.database, "begin", begin)
    monkeypatch.setattr(registry.objects, "put", put)
    sha256 = hashlib.sha256(data).hexdigest()
    age(registry, sha256, upkeep.ORPHAN_AGE + 60)
    sweep()
    assert list(registry.objects.keys()) == []
    # The prover goes on where it was, and the file is there again.
    assert sending.patch(upload, len(data), b"").json()["state"] == "stored"
    assert registry.objects.exists(key_of(sha256))


def test_what_a_killed_writer_left_is_swept(registry, sweep):
    folder = registry.settings.data / "objects" / "sha256" / "ab"
    folder.mkdir(parents=True)
    old, young, other = (folder / name for name in ("ab" * 32 + "#1", "ab" * 32 + "#2", "x#1"))
    for path in (old, young, other):
        path.write_bytes(b"half of it")
    for path in (old, other):
        os.utime(path, (1, 1))
    sweep()
    assert set(folder.iterdir()) == {young, other}
    assert list(registry.objects.keys()) == []

"""Backup under load, restore into the other kind of database, and the chain goes on there."""

import hashlib
import os
import shutil
import stat
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import live_chain
import pytest
from sqlalchemy import delete, insert, select, text, update
from starlette.testclient import TestClient

from polo.errors import FormatError, PoloError, StoreError
from polo.registry.app import create_app
from polo.registry.context import Registry
from polo.registry.database import Database
from polo.registry.events import service as events
from polo.registry.objects import key_of
from polo.registry.operations.archive import check
from polo.registry.operations.backup import backup
from polo.registry.operations.restore import restore
from polo.registry.schema import commitments, jobs, log_leaves, metadata, objects, uploads
from polo.registry.vault import KEY_FILE


def put(registry, chain, data):
    digest = hashlib.sha256(data).hexdigest()
    registry.objects.put(key_of(digest), data)
    values = {"sha256": digest, "enrolment": chain.id, "kind": "opening", "size": len(data)}
    with registry.database.begin() as connection:
        connection.execute(insert(objects).values(**values, made=registry.clock()))
    return digest


def chain_of(registry, number=1):
    chain = live_chain.enrol(registry, live_chain.identity(number))
    chain.clock = registry.clock
    return chain


@pytest.fixture
def other_settings(settings, request, tmp_path):
    """An empty registry over the other kind of database."""
    data = tmp_path / "restored"
    if settings.database.startswith("sqlite"):
        server = request.getfixturevalue("postgres")
        url = server.create()
        yield replace(settings, data=data, database=url, objects=f"file://{data / 'objects'}")
        server.drop(url)
    else:
        yield replace(
            settings,
            data=data,
            database=f"sqlite:///{data / 'registry.sqlite'}",
            objects=f"file://{data / 'objects'}",
        )


def rows_of(registry):
    """Everything in the database, to compare."""
    with registry.database.read() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in metadata.sorted_tables
        }


def test_a_backup_under_load_goes_on_in_the_other_database(
    registry, client, tmp_path, other_settings
):
    chains = [chain_of(registry, number) for number in range(4)]
    kept = put(registry, chains[0], b"an opening")
    for chain in chains:
        chain.commit(client)
    enough, stop = threading.Event(), threading.Event()

    def load(chain):
        while not stop.is_set():
            chain.commit(client)
            if len(chain.receipts) > 5:
                enough.set()

    threads = [threading.Thread(target=load, args=(chain,)) for chain in chains]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    seen = [len(chain.receipts) for chain in chains]
    path = tmp_path / "backup.tar"
    made = backup(registry.settings, path, clock=registry.clock)
    stop.set()
    for thread in threads:
        thread.join()

    # What was acknowledged before the backup began is in it; later ones may be.
    assert made.about.size >= sum(seen)
    assert made.objects == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    about = restore(other_settings, path, clock=registry.clock)
    assert about == made.about
    restored = Registry.open(other_settings, clock=registry.clock)
    try:
        assert restored.objects.get(key_of(kept)) == b"an opening"
        with TestClient(create_app(restored)) as there:
            for chain, before in zip(chains, seen, strict=True):
                listed = there.get(chain.path, params={"limit": 500}).json()["items"]
                found = [item["receipt"] for item in listed]
                assert before <= len(found) <= len(chain.receipts)
                # The chain of the backup goes on; the receipts given later are lost with the disk.
                mine = chain.receipts[: len(found)]
                assert [live_chain.Receipt.from_json(r, "r").to_bytes() for r in found] == mine
                chain.receipts = mine
                chain.commit(there)
                chain.commit(there)
        with restored.database.begin() as connection:
            events.note(connection, "after", "x", actor="test", now=1)
            restored.jobs.enqueue(connection, "after", "x")
    finally:
        restored.close()


def test_a_restored_registry_has_every_row(registry, client, tmp_path, other_settings):
    chain = chain_of(registry)
    for _ in range(3):
        chain.commit(client)
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "nothing", chain.id, due=registry.clock() + 9)
        events.note(connection, "done", chain.id, "ünïcode \u2603 \n", actor="test", now=7)
    registry.jobs.stop()  # Else it goes on between the backup and the look.
    path = tmp_path / "backup.tar"
    backup(registry.settings, path)
    before = rows_of(registry)
    restore(other_settings, path)
    restored = Registry.open(other_settings)
    try:
        assert rows_of(restored) == before
    finally:
        restored.close()


def test_a_backup_is_of_the_log_that_is_there(registry, client, tmp_path, other_settings):
    chain_of(registry).commit(client)
    path = tmp_path / "backup.tar"
    # As after `serve --port 9000`, where the backup was not told of the port.
    made = backup(replace(registry.settings, origin="another.test"), path)
    assert made.about.origin == registry.settings.origin
    restore(other_settings, path)


def test_standard_tools_can_check_a_backup(registry, tmp_path):
    chain = chain_of(registry)
    put(registry, chain, b"an opening")
    path = tmp_path / "backup.tar"
    backup(registry.settings, path)
    with tarfile.open(path) as tar:
        sums = tar.extractfile("SHA256SUMS").read().decode().splitlines()
        for line in sums:
            digest, name = line.split("  ")
            assert hashlib.sha256(tar.extractfile(name).read()).hexdigest() == digest
        assert len(sums) == len(tar.getnames()) - 1


def test_without_the_key_nothing_secret_is_in_it(registry, client, tmp_path, other_settings):
    chain = chain_of(registry)
    chain.commit(client)
    path = tmp_path / "backup.tar"
    backup(registry.settings, path, with_key=False)
    key = (registry.settings.data / KEY_FILE).read_bytes()
    assert key not in path.read_bytes()
    with pytest.raises(StoreError, match="without the data key"):
        restore(other_settings, path)
    other_settings.data.mkdir(mode=0o700)
    there = other_settings.data / KEY_FILE
    there.write_bytes(os.urandom(32))
    there.chmod(0o600)
    with pytest.raises(StoreError, match="does not open"):
        restore(other_settings, path)
    there.write_bytes(key)
    restore(other_settings, path)
    Registry.open(other_settings).close()


def test_without_files_the_object_store_must_be_there(registry, tmp_path, other_settings):
    put(registry, chain_of(registry), b"an opening")
    path = tmp_path / "backup.tar"
    assert backup(registry.settings, path, with_objects=False).objects == 0
    with pytest.raises(StoreError, match="not in the object store"):
        restore(other_settings, path)
    from_, to = registry.settings.data / "objects", other_settings.data / "objects"
    shutil.copytree(from_, to, dirs_exist_ok=True)
    restore(other_settings, path)


def test_pieces_of_uploads_and_files_whose_time_is_over_stay_out(
    registry, tmp_path, other_settings, monkeypatch
):
    chain = chain_of(registry)
    gone = put(registry, chain, b"old")
    with registry.database.begin() as connection:
        connection.execute(
            insert(uploads).values(
                id="u" * 32, enrolment=chain.id, kind="opening", size=3, sha256="0" * 64,
                received=1, state="open", made=1, expires=2,
            )
        )  # fmt: skip
        connection.execute(
            insert(jobs).values(
                kind="k", subject="s", queue="cpu", state="running", tries=1, due=0, held_until=9
            )
        )
    fetch = type(registry.objects).fetch

    def upkeep_first(store, key, to):
        with registry.database.begin() as connection:
            connection.execute(delete(objects))
        registry.objects.delete(key)
        fetch(store, key, to)

    monkeypatch.setattr(type(registry.objects), "fetch", upkeep_first)
    path = tmp_path / "backup.tar"
    made = backup(registry.settings, path)
    assert (made.objects, made.gone) == (0, 1)
    restore(other_settings, path)
    restored = Registry.open(other_settings)
    with restored.database.read() as connection:
        assert connection.execute(select(uploads)).first() is None
        assert connection.execute(select(objects).where(objects.c.sha256 == gone)).first() is None
        row = connection.execute(select(jobs)).one()
        assert (row.state, row.held_until) == ("waiting", None)
    restored.close()


def test_a_missing_file_fails_the_backup_and_leaves_none(registry, tmp_path):
    digest = put(registry, chain_of(registry), b"an opening")
    registry.objects.delete(key_of(digest))
    path = tmp_path / "here" / "backup.tar"
    path.parent.mkdir()
    with pytest.raises(StoreError, match="no such object"):
        backup(registry.settings, path)
    assert list(path.parent.iterdir()) == []


def test_nothing_is_written_over(registry, client, tmp_path, other_settings):
    chain_of(registry).commit(client)
    path = tmp_path / "backup.tar"
    backup(registry.settings, path)
    with pytest.raises(StoreError, match="something already"):
        backup(registry.settings, path)
    with pytest.raises(StoreError, match="a registry already"):
        restore(registry.settings, path)
    with pytest.raises(StoreError, match=r"of 'registry\.test/log', and the settings name"):
        restore(replace(other_settings, origin="another.test"), path)
    other_settings.data.mkdir(mode=0o700)
    (other_settings.data / KEY_FILE).write_bytes(bytes(32))
    with pytest.raises(StoreError, match="another registry's data key"):
        restore(other_settings, path)
    with pytest.raises(StoreError, match="no registry here"):
        backup(replace(other_settings, data=tmp_path / "nowhere"), tmp_path / "new.tar")


def test_damage_is_refused_wherever_it_is(registry, client, tmp_path, other_settings):
    chain = chain_of(registry)
    put(registry, chain, b"an opening")
    chain.commit(client)
    path = tmp_path / "backup.tar"
    backup(registry.settings, path)
    whole = path.read_bytes()
    broken = tmp_path / "broken.tar"
    for at in range(100, len(whole), len(whole) // 60):
        data = bytearray(whole)
        data[at] ^= 1
        broken.write_bytes(data)
        with pytest.raises(PoloError), broken.open("rb") as file:
            check(file, "broken")
    for size in (0, 511, 10_240, len(whole) // 2, len(whole) - 512):
        broken.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            restore(other_settings, broken)
    broken.write_bytes(whole + bytes(10_240))
    with pytest.raises(FormatError, match="something follows"):
        restore(other_settings, broken)
    assert not (other_settings.data / KEY_FILE).exists()
    restore(other_settings, path)


@pytest.mark.parametrize("what", ["entry", "receipt", "head"])
def test_a_backup_of_a_log_that_does_not_hold_is_refused(
    registry, client, tmp_path, other_settings, what
):
    """Its digests are right: it was made of a database that somebody had changed."""
    chain = chain_of(registry)
    for _ in range(4):
        chain.commit(client)
    with registry.database.begin() as connection:
        if what == "entry":
            changed = chain.entry(2, steps=9).to_bytes()
            connection.execute(
                update(log_leaves).where(log_leaves.c.index == 2).values(entry=changed)
            )
            connection.execute(
                update(commitments).where(commitments.c.index == 2).values(record=changed)
            )
        elif what == "receipt":
            receipt = live_chain.Receipt.from_bytes(chain.receipts[1], "receipt")
            later = replace(receipt, time=receipt.time + 1).to_bytes()
            connection.execute(
                update(commitments).where(commitments.c.index == 1).values(receipt=later)
            )
        else:
            connection.execute(delete(log_leaves).where(log_leaves.c.index == 3))
    path = tmp_path / "backup.tar"
    backup(registry.settings, path)
    with pytest.raises(StoreError):
        restore(other_settings, path)
    assert not (other_settings.data / KEY_FILE).exists()
    restored = Registry.open(other_settings, migrate=True)  # As new: no row was left.
    with restored.database.read() as connection:
        assert connection.execute(select(commitments)).first() is None
    restored.close()


def test_a_backup_is_a_plain_path(registry, tmp_path):
    made = backup(registry.settings, Path(tmp_path / "empty.tar"))
    assert (made.about.size, made.about.root) == (0, None)


def test_workers_hear_of_work_that_waited(registry, tmp_path, postgres):
    """A restored registry whose workers are elsewhere sends them what was waiting."""
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "verify", "x", due=registry.clock() + 9)
    path = tmp_path / "backup.tar"
    backup(registry.settings, path)
    there = replace(
        registry.settings, data=tmp_path / "there", database=postgres.create(), jobs="procrastinate"
    )
    restore(there, path, clock=registry.clock)
    database = Database(there.database)
    with database.read() as connection:
        number = connection.execute(select(jobs.c.id).where(jobs.c.kind == "verify")).scalar_one()
        sent = connection.execute(text("select args from procrastinate_jobs")).scalars().all()
    database.close()
    assert {"number": number} in sent

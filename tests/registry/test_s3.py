"""A bucket instead of a folder: a server that speaks S3, on a loopback port, over real HTTP."""

import hashlib
import os

import httpx2
import obstore
import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import select

from polo.errors import StoreError
from polo.registry.context import Registry
from polo.registry.objects import Objects, key_of
from polo.registry.operations import backup, doctor, restore
from polo.registry.schema import objects
from polo.registry.settings import Settings
from polo.registry.tasks.service import Tasks
from polo.registry.uploads import upkeep

BUCKET = "polo-registry"
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=00"
)


@pytest.fixture(scope="module")
def server():
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """An empty bucket, with its credentials where an operator puts them."""
    for name, value in {
        "AWS_ENDPOINT": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():
        monkeypatch.setenv(name, value)
    httpx2.post(f"{server}/moto-api/reset")
    made = httpx2.put(f"{server}/{BUCKET}", headers={"Authorization": _SIGNED})
    assert made.status_code == 200, made.text
    return f"s3://{BUCKET}/files"


def key(data: bytes) -> str:
    return key_of(hashlib.sha256(data).digest())


def test_what_is_put_comes_back(bucket, tmp_path):
    store, data = Objects(bucket), b"an opening"
    assert not store.exists(key(data))
    store.put(key(data), data)
    store.put(key(data), data)
    assert store.get(key(data)) == data
    assert store.size(key(data)) == len(data)
    assert obstore.get_range(store._store, key(data), start=3, end=7) == data[3:7]
    store.fetch(key(data), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    ((found, modified),) = store.listed()
    assert found == key(data)
    assert modified > 1_700_000_000
    store.delete(key(data))
    store.delete(key(data))
    assert not store.exists(key(data))
    with pytest.raises(StoreError, match="no such object"):
        store.get(key(data))


def test_large_files_go_in_parts(bucket, tmp_path):
    store, large = Objects(bucket), tmp_path / "large"
    large.write_bytes(os.urandom(12 * 2**20 + 7))
    name = key(large.read_bytes())
    store.put(name, large)
    store.check(name)
    store.fetch(name, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()


def test_damage_in_the_bucket_is_found(bucket, server):
    store = Objects(bucket)
    store.put(key(b"weights"), b"weights")
    obstore.put(store._store, key(b"weights"), b"weighty")
    with pytest.raises(StoreError, match="not those that were put there"):
        store.get(key(b"weights"))


def test_a_bucket_that_is_not_there_is_said(bucket):
    with pytest.raises(StoreError, match="object store says"):
        Objects("s3://polo-elsewhere/files").put(key(b"x"), b"x")


def test_backup_doctor_sweep_and_restore_over_a_bucket(bucket, tmp_path, clock, monkeypatch):
    monkeypatch.setattr(Tasks, "trouble", lambda *_: None)  # It takes seconds, for nothing here.
    settings = Settings(data=tmp_path / "data", objects=bucket, origin="registry.test/log")
    import live_chain

    registry = Registry.open(settings, clock=clock)
    chain = live_chain.enrol(registry, live_chain.identity(1))
    data = b"a checkpoint"
    registry.objects.put(key(data), data)
    sha256 = hashlib.sha256(data).hexdigest()
    row = {"sha256": sha256, "enrolment": chain.id, "kind": "checkpoint", "size": len(data)}
    with registry.database.begin() as connection:
        connection.execute(objects.insert().values(**row, made=clock()))
    registry.objects.put(key(b"left behind"), b"left behind")
    assert list(upkeep.orphans(registry.database, registry.objects)) == []  # It is too young.
    registry.close()
    lines = {(line.about, line.state) for line in doctor.examine(settings, everything=True)}
    assert ("files", "ok") in lines
    made = backup.backup(settings, tmp_path / "backup.tar")
    assert (made.objects, made.gone) == (1, 0)
    Objects(bucket).delete(key(data))
    other = Settings(data=tmp_path / "new", objects=f"s3://{BUCKET}/new", origin=settings.origin)
    restore.restore(other, tmp_path / "backup.tar")
    assert Objects(other.objects).get(key(data)) == data
    opened = Registry.open(other, clock=clock)
    with opened.database.read() as connection:
        assert connection.execute(select(objects.c.sha256)).scalars().all() == [sha256]
    opened.close()
    broken = list(doctor.examine(settings))
    assert [line for line in broken if line.about == "files" and line.state == "bad"]

"""Nobody fills the disk with uploads: on a full one, others could not commit."""

import shutil

import pytest

from polo.registry.uploads import partial, service


def test_a_chain_keeps_so_many_files_for_a_shard(sending, refused, monkeypatch):
    monkeypatch.setattr(service, "MOST_KEPT", 2)
    kept = [sending.send(data) for data in (b"one", b"two")]
    assert {item["state"] for item in kept} == {"stored"}
    refused(sending.begin(b"three"), 429, "upload.too-many")
    # The same again is no other file, another shard and kind have their own room.
    assert sending.begin(b"two").json()["state"] == "stored"
    assert sending.begin(b"three", shard=2).status_code == 201
    assert sending.begin(b"three", "record").status_code == 201


@pytest.mark.parametrize("left", [-1, 0])
def test_uploads_leave_room_for_the_database(sending, refused, monkeypatch, left):
    begun = sending.begin(b"later").json()
    free = partial.SPARE + len(b"later") + left
    real = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=free))
    if left < 0:
        refused(sending.begin(b"other"), 507, "upload.no-space")
        refused(sending.patch(begun["id"], 0, b"later"), 507, "upload.no-space")
    else:
        assert sending.begin(b"other").status_code == 201
        assert sending.patch(begun["id"], 0, b"later").json()["state"] == "stored"

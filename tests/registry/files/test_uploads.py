"""Uploads: in pieces, to the agreed digest, and nothing that was acknowledged is lost."""

import dataclasses
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from polo.registry.jobs import handlers
from polo.registry.objects import key_of
from polo.registry.schema import events, objects, uploads
from polo.registry.uploads import partial, service
from polo.registry.uploads.service import MOST_OPEN
from polo.weights.checkpoint import HeldCheckpoint
from polo.weights.files import header_of, write_checkpoint

DATA = bytes(range(256)) * 40


def checkpoint(layout, fill=b"\0"):
    parts = []
    write_checkpoint(
        HeldCheckpoint(layout, bytearray(fill * layout.size)), lambda d: parts.append(bytes(d))
    )
    return b"".join(parts)


@pytest.fixture
def layout():
    import live_chain

    return live_chain.LAYOUT


def test_a_file_comes_in_pieces_and_is_stored(sending, registry):
    done = sending.send(DATA, step=3000)
    assert done["state"] == "stored"
    assert registry.objects.get(key_of(done["sha256"])) == DATA
    with registry.database.read() as connection:
        row = connection.execute(select(objects)).one()
    assert (row.kind, row.size, row.enrolment) == ("opening", len(DATA), sending.chain.id)
    assert list(partial.all_of(registry.settings.data)) == []


def test_who_has_the_file_need_not_send_it_again(registry, sending, clock):
    first = sending.send(DATA)
    clock.advance(5)
    again = sending.begin(DATA).json()
    assert (again["state"], again["received"]) == ("stored", len(DATA))
    assert sending.begin(DATA, shard=2).json()["id"] != first["id"]
    # However often it is said: one row for each place, and the newest counts.
    with registry.database.read() as connection:
        rows = connection.execute(select(uploads.c.id, uploads.c.shard, uploads.c.made)).all()
    assert sorted(rows, key=lambda row: row.shard)[0] == (first["id"], 1, clock())
    assert len(rows) == 2


def test_one_goes_on_where_one_was(sending, refused):
    upload = sending.begin(DATA).json()["id"]
    assert sending.patch(upload, 0, DATA[:100]).json()["received"] == 100
    answer = sending.patch(upload, 0, DATA[:100])
    refused(answer, 409, "upload.offset")
    assert answer.headers["Upload-Offset"] == "100"
    assert sending.begin(DATA).json()["id"] == upload
    asked = sending.asking.get(f"/v1/uploads/{upload}")
    assert (asked.json()["received"], asked.headers["Upload-Offset"]) == (100, "100")
    assert sending.patch(upload, 100, DATA[100:]).json()["state"] == "stored"
    assert sending.patch(upload, len(DATA), b"").json()["state"] == "stored"
    refused(sending.patch(upload, 0, DATA[:1]), 409, "upload.ended")


def test_the_wrong_digest_is_refused_and_removed(sending, registry, refused):
    upload = sending.begin(DATA).json()["id"]
    refused(sending.patch(upload, 0, DATA[::-1]), 422, "upload.wrong-digest")
    refused(sending.patch(upload, 0, DATA), 409, "upload.refused")
    assert list(registry.objects.keys()) == []
    assert list(partial.all_of(registry.settings.data)) == []
    with registry.database.read() as connection:
        assert connection.execute(select(objects)).all() == []
        actions = set(connection.execute(select(events.c.action)).scalars())
    assert "upload.wrong-digest" in actions
    assert sending.send(DATA)["state"] == "stored"


def test_sizes_are_bounded_by_kind(sending, layout, refused):
    huge = 10**13
    for kind in ("opening", "checkpoint", "record"):
        refused(sending.begin(DATA, kind, size=huge), 422, "upload.wrong-size")
    whole = checkpoint(layout)
    refused(sending.begin(whole, "checkpoint", size=len(whole) - 1), 422, "upload.wrong-size")
    refused(sending.begin(DATA, "answer"), 409, "upload.not-asked")
    refused(sending.begin(DATA, "proof"), 409, "upload.not-asked")
    refused(sending.begin(DATA, "virus"), 422, "body.invalid")
    refused(sending.begin(DATA, shard=10_001), 422, "body.invalid")
    refused(sending.begin(DATA, shard=0), 422, "upload.wrong-shard")
    refused(sending.begin(DATA, size=0), 422, "body.invalid")
    refused(sending.begin(DATA, sha256="x" * 64), 422, "body.invalid")


def test_a_piece_beyond_the_size_writes_nothing(sending, refused):
    upload = sending.begin(DATA).json()["id"]
    refused(sending.patch(upload, 0, DATA + b"x"), 422, "upload.too-long")
    assert sending.asking.get(f"/v1/uploads/{upload}").json()["received"] == 0


def test_a_checkpoint_of_the_layout_and_no_other(sending, layout, refused):
    whole = checkpoint(layout)
    assert sending.send(whole, "checkpoint")["state"] == "stored"
    header = len(header_of(layout))
    other = whole[:header].replace(b'"weight"', b'"height"') + whole[header:]
    upload = sending.begin(other, "checkpoint").json()["id"]
    refused(sending.patch(upload, 0, other), 422, "upload.wrong-layout")
    truncated = whole[:header] + whole[header + 4096 :]
    refused(sending.begin(truncated, "checkpoint"), 422, "upload.wrong-size")


def test_only_the_prover_uploads(sending, client_of, refused):
    import live_chain

    other = client_of(live_chain.identity(2))
    refused(other.post("/v1/uploads", json=sending.wanted(DATA)), 403, "upload.not-yours")
    upload = sending.begin(DATA).json()["id"]
    for method in ("get", "delete"):
        refused(getattr(other, method)(f"/v1/uploads/{upload}"), 404, "upload.missing")
    piece = other.patch(f"/v1/uploads/{upload}", content=b"x", headers={"Upload-Offset": "0"})
    refused(piece, 404, "upload.missing")
    refused(sending.begin(DATA, enrolment="ab" * 32), 404, "enrolment.missing")


def test_not_too_many_at_a_time(sending, refused):
    made = [sending.begin(DATA + bytes([at])).json()["id"] for at in range(MOST_OPEN)]
    refused(sending.begin(DATA), 429, "upload.too-many")
    assert sending.asking.delete(f"/v1/uploads/{made[0]}").status_code == 204
    refused(sending.asking.get(f"/v1/uploads/{made[0]}"), 404, "upload.missing")
    assert sending.begin(DATA).status_code == 201


def test_what_is_not_finished_in_time_goes(sending, registry, clock, refused, work):
    upload = sending.begin(DATA).json()["id"]
    sending.patch(upload, 0, DATA[:10])
    clock.advance(registry.settings.upload_days * 86_400 + 1)
    refused(sending.patch(upload, 10, DATA[10:]), 410, "upload.expired")
    handlers.load()
    handlers.HANDLERS["uploads.expire"](registry, "")
    refused(sending.asking.get(f"/v1/uploads/{upload}"), 404, "upload.missing")
    assert list(partial.all_of(registry.settings.data)) == []


def test_racing_pieces_leave_the_file_whole(sending, registry):
    """Eight threads send the same pieces; each byte is written once, in its place."""
    data = os.urandom(200_000)
    identity = sending.chain.prover.id
    upload = sending.begin(data).json()["id"]
    gate, codes = threading.Barrier(8), set()

    def race(_: int) -> None:
        gate.wait()
        while (at := service.get(registry, identity, upload)).state == "open":
            try:
                piece = data[at.received : at.received + 5000]
                service.append(registry, identity, upload, at.received, piece)
            except service.Problem as problem:
                codes.add(problem.code)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(race, range(8)))
    assert codes <= {"upload.busy", "upload.offset", "upload.ended"}
    done = service.get(registry, identity, upload)
    assert done.state == "stored"
    assert registry.objects.get(key_of(done.sha256)) == data


def test_a_full_disk_is_said_and_costs_nothing(sending, registry, monkeypatch, refused):
    upload = sending.begin(DATA).json()["id"]
    sending.patch(upload, 0, DATA[:100])
    real = os.pwrite

    def full(handle, data, at):
        if at > 150:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, bytes(data)[:60], at)

    monkeypatch.setattr(os, "pwrite", full)
    refused(sending.patch(upload, 100, DATA[100:]), 507, "upload.no-space")
    monkeypatch.undo()
    assert partial.path_of(registry.settings.data, upload).stat().st_size == 100
    assert sending.patch(upload, 100, DATA[100:]).json()["state"] == "stored"


def test_a_store_that_is_full_can_be_tried_again(sending, registry, monkeypatch, refused):
    upload = sending.begin(DATA).json()["id"]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(registry.objects, "put", full)
    refused(sending.patch(upload, 0, DATA), 507, "upload.no-space")
    assert sending.asking.get(f"/v1/uploads/{upload}").json()["received"] == len(DATA)
    monkeypatch.undo()
    assert sending.patch(upload, len(DATA), b"").json()["state"] == "stored"


def test_bytes_that_were_never_acknowledged_are_overwritten(sending, registry):
    """As after a kill between the write and the row."""
    upload = sending.begin(DATA).json()["id"]
    sending.patch(upload, 0, DATA[:100])
    with partial.path_of(registry.settings.data, upload).open("ab") as file:
        file.write(b"rubbish" * 5000)
    assert sending.patch(upload, 100, DATA[100:]).json()["state"] == "stored"


def test_a_lost_partial_file_is_said(sending, registry, refused):
    upload = sending.begin(DATA).json()["id"]
    sending.patch(upload, 0, DATA[:100])
    partial.remove(registry.settings.data, upload)
    refused(sending.patch(upload, 100, DATA[100:]), 409, "upload.lost")


def test_the_same_bytes_are_of_one_kind(sending, refused):
    sending.send(DATA)
    refused(sending.begin(DATA, "record"), 409, "upload.other-kind")


def test_files_go_when_their_time_is_over(sending, registry, clock, client_of):
    import live_chain

    mine = sending.send(DATA)
    prover = live_chain.identity(3)
    other = type(sending)(client_of(prover), live_chain.enrol(registry, prover))
    other.send(DATA)
    handlers.load()
    retain = handlers.HANDLERS["objects.retain"]
    sending.asking.post(f"/v1/enrolments/{sending.chain.id}/withdraw")
    clock.advance(registry.settings.keep_days * 86_400 + 1)
    retain(registry, "")
    with registry.database.read() as connection:
        held = connection.execute(select(objects.c.enrolment)).scalars().all()
        kept = connection.execute(select(uploads.c.enrolment)).scalars().all()
        removed = connection.execute(
            select(events.c.subject).where(events.c.action == "objects.removed")
        ).scalars()
        assert list(removed) == [sending.chain.id]
    assert held == kept == [other.chain.id]
    assert registry.objects.exists(key_of(mine["sha256"]))
    other.asking.post(f"/v1/enrolments/{other.chain.id}/withdraw")
    clock.advance(registry.settings.keep_days * 86_400 + 1)
    retain(registry, "")
    assert list(registry.objects.keys()) == []


def test_pieces_that_another_server_has_are_said_to_be_there(sending, registry, refused, tmp_path):
    """Two servers on one database, each with a folder of its own."""
    upload = sending.begin(DATA).json()["id"]
    sending.patch(upload, 0, DATA[:100])
    settings, here = registry.settings, partial.server_of(registry.settings.data)
    assert partial.server_of(settings.data) == here
    registry.settings = dataclasses.replace(settings, data=tmp_path / "other server")
    try:
        refused(sending.patch(upload, 100, DATA[100:]), 421, "upload.elsewhere")
        fresh = sending.begin(DATA).json()
        assert (fresh["id"] != upload, fresh["received"]) == (True, 0)
        assert sending.patch(fresh["id"], 0, DATA).json()["state"] == "stored"
    finally:
        registry.settings = settings
    assert sending.patch(upload, 100, DATA[100:]).json()["state"] == "stored"

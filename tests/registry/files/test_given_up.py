"""What a prover cannot do with files: hide one from the count, or leave answers behind."""

import hashlib
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select

from polo.protocol.challenge import Challenge, Place
from polo.registry.challenges import service as challenging
from polo.registry.commitments import recorded
from polo.registry.objects import key_of
from polo.registry.schema import challenges, objects, uploads
from polo.registry.uploads import service
from polo.registry.uploads.partial import Partial

DATA = b"record" * 20


def held(registry):
    """States of all uploads, and how many objects there are."""
    with registry.database.read() as connection:
        states = connection.execute(select(uploads.c.state)).scalars().all()
        count = connection.execute(select(func.count()).select_from(objects)).scalar_one()
    return states, count


@pytest.fixture
def meanwhile(monkeypatch):
    """Lets something happen once, right after a method has given its answer."""

    def arrange(owner, name, happen):
        real, left = getattr(owner, name), [happen]

        def slow(*given):
            found = real(*given)
            if left:
                left.pop()()
            return found

        monkeypatch.setattr(owner, name, slow)

    return arrange


def test_a_file_that_was_faster_than_giving_up_stays_counted(registry, sending, refused, meanwhile):
    upload = sending.begin(DATA, "record").json()["id"]
    meanwhile(service, "get", lambda: sending.patch(upload, 0, DATA))
    refused(sending.asking.delete(f"/v1/uploads/{upload}"), 409, "upload.ended")
    assert held(registry) == (["stored"], 1)


@pytest.mark.parametrize("step", ["sha256", "put"])
def test_a_file_given_up_while_it_was_checked_is_not_kept(
    registry, sending, refused, meanwhile, step
):
    upload = sending.begin(DATA, "record").json()["id"]
    owner = Partial if step == "sha256" else registry.objects
    meanwhile(owner, step, lambda: sending.asking.delete(f"/v1/uploads/{upload}"))
    refused(sending.patch(upload, 0, DATA), 404, "upload.missing")
    assert held(registry) == ([], 0)
    assert not list(registry.objects.listed())


def test_answers_are_few_and_all_of_them_go(registry, sending, refused):
    asked = Challenge(bytes(32), (Place(1, 0),), (1,), False, 1)
    row = {"id": "ab" * 16, "enrolment": sending.chain.id, "kind": "replay", "shard": 1}
    row |= {"record": asked.to_bytes(), "state": "open", "detail": "", "made": 1, "due": 2**40}
    with registry.database.begin() as connection:
        connection.execute(challenges.insert().values(row))
    for number in range(service.MOST_ANSWERS):
        named = sending.send(DATA + bytes([number]), "answer", shard=1)["id"]
    refused(sending.begin(DATA, "answer", shard=1), 429, "upload.too-many")
    url = f"/v1/challenges/{row['id']}/answer"
    assert sending.asking.post(url, json={"upload": named}).status_code == 202
    # So that no receipt is given; nothing was committed here.
    withdrawn = sending.asking.post(f"/v1/enrolments/{sending.chain.id}/withdraw")
    assert withdrawn.status_code == 200, withdrawn.text
    with registry.database.begin() as connection:
        found = challenging.find(connection, row["id"])
        challenging.end(registry, connection, found, passed=True, detail="it came out")
        until = connection.execute(select(objects.c.keep_until)).scalars().all()
    assert until == [registry.clock()] * service.MOST_ANSWERS


def test_records_that_no_entry_names_are_read_once(registry, tmp_path, monkeypatch):
    """However often somebody commits with them: each is 5 MiB, and there may be 32 for a shard."""
    from polo.evidence.replay.record import digest_of

    fetched, real = [], registry.objects.fetch

    def fetch(key, to):
        fetched.append(key)
        real(key, to)

    monkeypatch.setattr(registry.objects, "fetch", fetch)
    monkeypatch.setattr(recorded, "_DIGESTS", {})
    datas = [DATA + bytes([number]) for number in range(3)]
    files = [hashlib.sha256(data).hexdigest() for data in datas]
    for sha256, data in zip(files, datas, strict=True):
        registry.objects.put(key_of(sha256), data)
    into, naming = tmp_path / "record", SimpleNamespace(evidence={"replay": bytes(32)})
    for _ in range(2):
        assert not recorded.fetch(registry.objects, files, naming, into)
        assert not into.exists()
    assert fetched == [key_of(sha256) for sha256 in files]
    naming.evidence["replay"] = digest_of(datas[1])
    assert recorded.fetch(registry.objects, files, naming, into)
    assert into.read_bytes() == datas[1]
    assert fetched[3:] == [key_of(files[1])]

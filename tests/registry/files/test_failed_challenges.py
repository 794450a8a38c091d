"""What a registry asked of a chain and did not get, its own verdict must say."""

import hashlib
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from polo.protocol import signing
from polo.protocol.records import File, Manifest, Receipt, Retention
from polo.protocol.verdicts import SignedVerdict
from polo.registry.operations import figures
from polo.registry.pages import desk
from polo.registry.problems import Problem
from polo.registry.schema import challenges, enrolments, events, jobs, uploads
from polo.registry.verifications import child, sandbox


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch):
    """Jobs are done when a test says so."""
    from polo.registry.jobs import Jobs

    monkeypatch.setattr(Jobs, "start", lambda *_, **__: None)


@pytest.fixture
def manifest(registry, sending):
    """A chain of one shard with made-up roots, closed."""
    import live_chain

    chain = sending.chain
    chain.clock = registry.clock
    chain.commit(sending.asking.client)
    chain.commit(sending.asking.client)
    start, shard = (Receipt.from_bytes(data, "receipt") for data in chain.receipts)
    layout = live_chain.LAYOUT.to_bytes()
    made = Manifest(
        chain.record,
        replace(chain.entry(0).start, receipt=start),
        (replace(chain.entry(1).shard, receipt=shard),),
        Retention("thin", 1, False),
        (File("layout.json", len(layout), hashlib.sha256(layout).digest()),),
        True,
        0,
        None,
    )
    signed = signing.sign(made, chain.prover)
    url = f"/v1/enrolments/{chain.id}/close"
    assert sending.asking.post(url, content=signed.to_bytes()).status_code == 200
    return signed


@pytest.fixture
def _accepting(monkeypatch, manifest):
    """A child that finds nothing wrong with the proof itself."""

    def run(registry, folder, request, **_):
        (folder / child.REPORT).write_text("ACCEPTED")
        check = {"name": "mark", "level": "chain", "status": "passed", "shard": 1, "ancestor": 0}
        check |= {"place": "", "detail": "", "figures": {}}
        said = {"outcome": "accepted", "headline": "ACCEPTED", "levels": [], "checks": [check]}
        return {"verdict": said, "proof": manifest.digest.hex()}

    monkeypatch.setattr(sandbox, "run", run)


def ask(registry, name, state):
    """Let the registry have asked for the last checkpoint, with this end."""
    row = {"id": "ab" * 16, "enrolment": name, "kind": "checkpoint", "shard": 1, "state": state}
    row |= {"record": b"{}", "detail": "", "made": 1, "due": 2**40}
    with registry.database.begin() as connection:
        connection.execute(challenges.insert().values(row))


def verdict_of(sending, work):
    url = f"/v1/enrolments/{sending.chain.id}/verifications"
    made = sending.asking.post(url, json={})
    assert made.status_code == 202, made.text
    work()
    done = sending.asking.get(f"/v1/verifications/{made.json()['id']}").json()
    return done, done["verdict"] and SignedVerdict.from_json(done["verdict"], "verdict")


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("passed", "accepted"), ("failed", "rejected"), ("answered", "undecided")],
)
@pytest.mark.usefixtures("_accepting")
def test_a_verdict_says_what_became_of_challenges(registry, sending, work, state, outcome):
    ask(registry, sending.chain.id, state)
    done, verdict = verdict_of(sending, work)
    assert (done["outcome"], verdict.outcome) == (outcome, outcome)
    assert ("challenge" in {check.name for check in verdict.checks}) == (state != "passed")
    page = sending.asking.get(f"/v1/verifications/{done['id']}/report")
    # No page that says ACCEPTED beside a verdict that says something else.
    assert (page.status_code, verdict.report is None) == (
        (200, False) if state == "passed" else (404, True)
    )
    # Nor a link that leads to one.
    shown = sending.asking.client.get(f"/verifications/{done['id']}")
    assert ("/report" in shown.text) == (state == "passed")
    # What came of it, anybody may know.
    about = sending.asking.client.get(f"/v1/enrolments/{sending.chain.id}").json()
    assert about["verdict"] == outcome


@pytest.mark.usefixtures("_accepting")
def test_a_failed_chain_is_rejected_without_a_failed_challenge(registry, sending, work):
    own = update(enrolments).where(enrolments.c.id == sending.chain.id)
    with registry.database.begin() as connection:
        connection.execute(own.values(state="failed"))
    assert verdict_of(sending, work)[0]["outcome"] == "rejected"


@pytest.mark.usefixtures("_accepting")
def test_a_verdict_waits_for_a_checkpoint_that_is_being_checked(registry, sending, work):
    ask(registry, sending.chain.id, "answered")
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "challenges.check", "ab" * 16, due=2**40)
    done, verdict = verdict_of(sending, work)
    assert (done["state"], verdict) == ("waiting", None)
    with registry.database.read() as connection:
        states = dict(connection.execute(select(jobs.c.kind, jobs.c.state)).all())
    assert states == {"challenges.check": "waiting", "verify": "waiting"}


def test_an_answer_that_comes_with_the_end_does_not_undo_it(
    registry, sending, refused, monkeypatch
):
    """Two transactions at once, on PostgreSQL: one saw the challenge open, one ended it."""
    import live_chain

    from polo.registry.challenges import service

    size = live_chain.LAYOUT.size
    ask(registry, sending.chain.id, "open")
    real = service.uploads.stored

    def ended(connection, *given):
        connection.execute(update(challenges).values(state="failed"))
        return real(connection, *given)

    with registry.database.begin() as connection:
        row = {"id": "cd" * 16, "enrolment": sending.chain.id, "kind": "checkpoint", "shard": 1}
        row |= {"size": size, "sha256": "00" * 32, "received": size, "state": "stored"}
        connection.execute(uploads.insert().values(**row, made=1, expires=2**40))
    monkeypatch.setattr(service.uploads, "stored", ended)
    url = f"/v1/challenges/{'ab' * 16}/answer"
    refused(sending.asking.post(url, json={"upload": "cd" * 16}), 409, "challenge.over")


def test_who_withdraws_before_a_challenge_is_due_has_failed_it(registry, sending, clock):
    from polo.registry.challenges import work

    ask(registry, sending.chain.id, "open")
    with registry.database.begin() as connection:
        connection.execute(update(challenges).values(due=registry.clock() + 60))
    url = f"/v1/enrolments/{sending.chain.id}"
    assert sending.asking.post(f"{url}/withdraw").json()["state"] == "withdrawn"
    clock.advance(61)
    work.expire(registry, "")
    assert sending.asking.get(url).json()["state"] == "failed"


@pytest.mark.usefixtures("manifest")
def test_a_proof_that_is_made_to_be_slow_is_tried_once(registry, sending, work, clock, monkeypatch):
    tried = []

    def run(*_, **__):
        tried.append(1)
        raise sandbox.SlowError("took longer than 6 hours")

    monkeypatch.setattr(sandbox, "run", run)
    done, _ = verdict_of(sending, work)
    clock.advance(86_400)
    work()
    assert (done["state"], len(tried)) == ("broken", 1)


def detail_of(registry):
    with registry.database.read() as connection:
        return connection.execute(select(challenges.c.state, challenges.c.detail)).one()


def test_a_check_that_breaks_tells_strangers_nothing_of_the_machine(
    registry, sending, work, clock, monkeypatch
):
    from polo.registry.challenges import work as working

    def broken(*_):
        raise OSError("no such file: /srv/polo/objects")

    ask(registry, sending.chain.id, "answered")
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "challenges.check", "ab" * 16)
    monkeypatch.setattr(working, "_checked", broken)
    while work():
        clock.advance(1000)
    state, detail = detail_of(registry)
    assert (state, "broke off" in detail, "/srv" in detail) == ("answered", True, False)
    with registry.database.read() as connection:
        noted = select(events.c.detail).where(events.c.action == "challenge.stuck")
        assert "/srv/polo/objects" in connection.execute(noted).scalar_one()


def test_a_word_about_a_check_does_not_change_how_it_ended(registry, sending):
    from polo.registry.challenges import service

    ask(registry, sending.chain.id, "passed")
    service.stuck(registry, "ab" * 16, "too late")
    assert tuple(detail_of(registry)) == ("passed", "")
    with registry.database.read() as connection:
        assert "challenge.stuck" not in connection.execute(select(events.c.action)).scalars().all()


def test_what_ended_meanwhile_is_not_checked_again(registry, sending, monkeypatch):
    """Two transactions at once, on PostgreSQL: one saw the answer not judged, one judged it."""
    from polo.registry.challenges import service

    real = service.find

    def ended(connection, challenge):
        row = real(connection, challenge)
        connection.execute(update(challenges).values(state="passed", detail="it came out"))
        return row

    ask(registry, sending.chain.id, "answered")
    monkeypatch.setattr(service, "find", ended)
    with registry.database.begin() as connection:
        with pytest.raises(Problem, match="nothing to check"):
            service.check_again(registry, connection, "ab" * 16, actor="me", request=None, now=1)
        assert connection.execute(select(challenges.c.detail)).scalar() == "it came out"
    with registry.database.read() as connection:
        assert connection.execute(select(jobs.c.id)).first() is None


def test_a_check_that_is_about_to_end_is_not_asked_for_in_vain(registry, sending):
    """It has said why it could not tell; a job that runs is not put in again."""
    from polo.registry.challenges import service

    ask(registry, sending.chain.id, "answered")
    with registry.database.begin() as connection:
        registry.jobs.enqueue(connection, "challenges.check", "ab" * 16)
        connection.execute(update(jobs).values(state="running", held_until=2**40))
    service.stuck(registry, "ab" * 16, "another platform")
    who = {"actor": "me", "request": None, "now": 1}
    with pytest.raises(Problem, match="is being checked"), registry.database.begin() as connection:
        service.check_again(registry, connection, "ab" * 16, **who)
    assert detail_of(registry).detail == "another platform"
    with registry.database.begin() as connection:
        connection.execute(update(jobs).values(state="done"))
        service.check_again(registry, connection, "ab" * 16, **who)
        assert connection.execute(select(jobs.c.state)).scalar() == "waiting"
    assert detail_of(registry).detail == ""


def test_steps_of_a_closed_chain_are_judged_with_its_proof(registry, sending):
    from polo.registry.challenges import service

    ask(registry, sending.chain.id, "answered")
    with registry.database.begin() as connection:
        connection.execute(update(challenges).values(shard=None, kind="replay"))
        with pytest.raises(Problem, match="judged with its proof") as refusal:
            service.check_again(registry, connection, "ab" * 16, actor="me", request=None, now=1)
    assert sending.chain.id in refusal.value.advice


def test_who_withdraws_a_chain_that_has_just_failed_does_not_undo_it(registry, sending):
    """Two transactions at once, on PostgreSQL: one saw the chain open, one has ended it."""
    from polo.registry.enrolments import service

    with registry.database.begin() as connection:
        found = service.get(connection, sending.chain.id)
        connection.execute(update(enrolments).values(state="failed"))
        with pytest.raises(Problem, match="is failed"):
            service.withdraw(registry, connection, found, None)
        assert service.get(connection, sending.chain.id).state == "failed"


def test_what_is_stuck_is_said_until_the_chain_is_given_up(registry, sending):
    def said():
        with registry.database.read() as connection:
            rows = desk.values(connection, with_tokens=False)["challenges"]
        return [row.detail for row in rows], figures.text(registry).decode()

    ask(registry, sending.chain.id, "answered")
    assert "\npolo_challenges_stuck 0.0\n" in said()[1]
    with registry.database.begin() as connection:
        connection.execute(update(challenges).values(detail="another platform"))
        row = {"id": "cd" * 16, "enrolment": sending.chain.id, "kind": "checkpoint", "shard": 2}
        row |= {"state": "open", "record": b"{}", "detail": "", "made": 1, "due": 1}
        connection.execute(challenges.insert().values(row))
    listed, told = said()
    assert listed == ["another platform", ""]  # Before what is due earlier.
    assert "\npolo_challenges_stuck 1.0\n" in told
    sending.asking.post(f"/v1/enrolments/{sending.chain.id}/withdraw")
    listed, told = said()
    assert listed == []
    assert "\npolo_challenges_stuck 0.0\n" in told

"""Verifications: asked for, done in a process of their own, signed, and resumed after a kill."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, update

from polo.evidence.replay import platform
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.records import File, Manifest, Receipt, Retention
from polo.protocol.verdicts import SignedVerdict
from polo.registry.context import Registry
from polo.registry.objects import key_of
from polo.registry.schema import (
    challenges,
    commitments,
    enrolments,
    events,
    jobs,
    verifications,
)
from polo.registry.verifications import sandbox
from polo.registry.verifications import work as working


def closed(registry, sending, shards=2):
    """Commit to made-up roots and close the chain; its manifest."""
    import live_chain

    chain = sending.chain
    chain.clock = registry.clock
    for _ in range(shards + 1):
        chain.commit(sending.asking.client)
    start, *rest = [chain.entry(number) for number in range(shards + 1)]
    receipts = [Receipt.from_bytes(data, "receipt") for data in chain.receipts]
    layout = live_chain.LAYOUT.to_bytes()
    files = (File("layout.json", len(layout), hashlib.sha256(layout).digest()),)
    manifest = Manifest(
        chain.record,
        replace(start.start, receipt=receipts[0]),
        tuple(replace(e.shard, receipt=r) for e, r in zip(rest, receipts[1:], strict=True)),
        Retention("thin", 1, False),
        files,
        True,
        0,
        None,
    )
    signed = signing.sign(manifest, chain.prover)
    url = f"/v1/enrolments/{chain.id}/close"
    answer = sending.asking.post(url, content=signed.to_bytes())
    assert answer.status_code == 200, answer.text
    return signed


@pytest.fixture
def asked(registry, sending):
    manifest = closed(registry, sending)
    answer = sending.asking.post(f"/v1/enrolments/{sending.chain.id}/verifications", json={})
    assert answer.status_code == 202, answer.text
    return manifest, answer.json()["id"]


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch):
    """Jobs are done when a test says so."""
    from polo.registry.jobs import Jobs

    monkeypatch.setattr(Jobs, "start", lambda *_, **__: None)


@pytest.mark.slow
def test_a_verdict_is_signed_and_kept(registry, sending, asked, work, person, client_of, refused):
    import live_chain

    manifest, number = asked
    url = f"/v1/verifications/{number}"
    assert sending.asking.get(url).json()["state"] == "waiting"
    refused(sending.asking.get(url + "/report"), 404, "verification.no-report")
    stranger = client_of(live_chain.identity(7))
    refused(stranger.get(url), 404, "verification.missing")
    assert person("auditor").get(url).json()["state"] == "waiting"
    again = sending.asking.post(f"/v1/enrolments/{sending.chain.id}/verifications", json={})
    refused(again, 409, "verification.running")
    assert work() >= 1
    done = sending.asking.get(url).json()
    assert done["state"] == "done", done
    # Nothing but roots was ever there: no mark can be read, and the task is unknown.
    assert done["outcome"] in ("undecided", "rejected")
    verdict = SignedVerdict.from_json(done["verdict"], "verdict")
    signing.check(verdict, sending.chain.record.issuer, Ed25519Verifier(), place="verdict")
    assert verdict.proof == manifest.digest
    assert {check.name for check in verdict.checks} >= {"manifest", "issuer", "signature"}
    page = sending.asking.get(url + "/report")
    assert hashlib.sha256(page.content).digest() == verdict.report
    assert "sandbox" in page.headers["content-security-policy"]
    assert person("auditor").get(url).json()["outcome"] == done["outcome"]
    assert sending.asking.client.get(url).json()["verdict"] == done["verdict"]
    refused(stranger.get(f"{url}/report"), 404, "enrolment.missing")
    with registry.database.read() as connection:
        actions = set(connection.execute(select(events.c.action)).scalars())
    assert {"verification.asked", "verification.done"} <= actions


def test_marks_that_a_verification_read_are_noted_once(registry, sending):
    closed(registry, sending, shards=3)

    def check(name, shard, matches, ancestor=0):
        figures = {} if matches is None else {"matches": matches, "bits": 128}
        return {"name": name, "shard": shard, "ancestor": ancestor, "figures": figures}

    checks = [check("mark", 1, 127), check("mark", 3, 128), check("mark", 2, 5, ancestor=1)]
    checks += [check("accuracy", 2, None), check("mark", 2, None)]
    with registry.database.begin() as connection:
        working._note_marks(connection, sending.chain.id, {"verdict": {"checks": checks}})
        again = {"verdict": {"checks": [check("mark", 1, 3)]}}
        working._note_marks(connection, sending.chain.id, again)
    with registry.database.read() as connection:
        order = select(commitments.c.matches).order_by(commitments.c.shard)
        assert list(connection.execute(order).scalars()) == [None, 127, None, 128]


def test_what_cannot_be_verified_is_said(registry, sending, refused):
    url = f"/v1/enrolments/{sending.chain.id}/verifications"
    refused(sending.asking.post(url, json={}), 409, "verification.not-closed")
    refused(sending.asking.post(url, json={"upload": "ab" * 16}), 409, "verification.not-closed")
    refused(sending.asking.get(f"/v1/verifications/{'ab' * 16}"), 404, "verification.missing")
    closed(registry, sending)
    refused(sending.asking.post(url, json={"upload": "ab" * 16}), 404, "upload.missing")
    with registry.database.begin() as connection:
        row = {"id": "a", "enrolment": sending.chain.id, "kind": "replay", "state": "open"}
        row |= {"record": b"{}", "detail": "", "made": 1, "due": 2**40}
        connection.execute(challenges.insert().values(row))
    refused(sending.asking.post(url, json={}), 409, "verification.challenges-open")


@pytest.mark.slow
def test_a_bundle_that_is_none_is_rejected_and_kept_apart(registry, sending, work):
    """Hostile bytes reach the child alone, and end in a verdict."""
    closed(registry, sending)
    name = sending.chain.id
    for junk in (os.urandom(50_000), b"bundle.json\0" + bytes(4000)):
        upload = sending.send(junk, "proof")
        url = f"/v1/enrolments/{name}/verifications"
        made = sending.asking.post(url, json={"upload": upload["id"]}).json()
        work()
        done = sending.asking.get(f"/v1/verifications/{made['id']}").json()
        assert (done["state"], done["outcome"]) == ("done", "rejected"), done


def test_a_child_that_is_too_slow_or_not_wanted_any_more_ends(registry, monkeypatch):
    with sandbox.room(registry) as folder:
        (folder / "slow.py").write_text("import time; time.sleep(600)\n")
        monkeypatch.setattr(sandbox.child, "__name__", "slow")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setattr(registry, "settings", replace(registry.settings, verify_seconds=1))
        begun = time.monotonic()
        with pytest.raises(sandbox.ChildError, match="longer than 1 s"):
            sandbox.run(registry, folder, {"do": "nothing"})
        assert time.monotonic() - begun < 20
        registry.jobs.stopping.set()
        with pytest.raises(sandbox.Later):
            sandbox.run(registry, folder, {"do": "nothing"})
    assert not folder.exists()


def test_the_child_gets_no_secret_of_the_registry(registry, monkeypatch, tmp_path):
    monkeypatch.setenv("POLO_REGISTRY_DATABASE", "postgresql://user:password@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    passed = sandbox._environment(tmp_path)
    assert not {"POLO_REGISTRY_DATABASE", "AWS_SECRET_ACCESS_KEY"} & set(passed)


def test_the_child_computes_as_the_registry_was_told_to(monkeypatch, tmp_path):
    """Else steps come out otherwise in it than anywhere else on the machine."""
    told = {name: "1" for names in platform.KERNELS.values() for name in names}
    told |= {"ATEN_CPU_CAPABILITY": "avx2", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert told.items() <= sandbox._environment(tmp_path).items()


def test_memory_is_limited(tmp_path):
    """The limit is the child's own, and holds for what it allocates."""
    code = (
        "from polo.registry.verifications import child\n"
        "child._limit(2**28, 60, 2**20)\nbytearray(2**29)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MemoryError" in done.stderr


SERVER = """
import sys, time
from pathlib import Path
from polo.registry.jobs import queue, runner, handlers
queue.LEASE = runner.LEASE = 2
from polo.registry.context import Registry
from polo.registry.settings import Settings
from polo.registry.verifications import child, sandbox
if sys.argv[4] == "hang":
    # A child that says that it has begun, and then takes for ever.
    sandbox.child.__name__ = "slow"
    real = sandbox._environment
    sandbox._environment = lambda *given: {**real(*given), "PYTHONPATH": sys.argv[3]}
handlers.load()
handlers.PERIODIC.clear()
registry = Registry.open(
    Settings(data=Path(sys.argv[1]), database=sys.argv[2], origin="registry.test/log"))
registry.jobs.start(registry)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_verification(
    registry, sending, asked, settings, tmp_path, wait_for
):
    """The process dies by kill -9, its child with it; the next one verifies from the start."""
    _, number = asked
    with registry.database.begin() as connection:
        connection.execute(update(jobs).values(due=1))  # These processes go by the real clock.
    (tmp_path / "slow.py").write_text(
        "import os, sys, time\n"
        "from polo.registry.verifications import child\n"
        "child._die_with_parent()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", SERVER, settings.data, settings.database, tmp_path]
    first = subprocess.Popen([*map(str, command), "hang"])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        assert state_of(registry, number) == "running"
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    child = int((tmp_path / "pid").read_text())
    wait_for(lambda: not Path(f"/proc/{child}").exists() or zombie(child))
    second = subprocess.Popen([*map(str, command), "go"])
    try:
        wait_for(lambda: state_of(registry, number) == "done", 90)
    finally:
        second.kill()
        second.wait()
    with registry.database.read() as connection:
        row = connection.execute(select(verifications)).one()
    SignedVerdict.from_bytes(bytes(row.verdict), "verdict")
    assert registry.objects.exists(key_of(row.report))


def test_what_fails_for_good_is_said(registry, sending, asked, work, clock, monkeypatch):
    """A registry that cannot verify says so, and blames nobody."""
    _, number = asked

    def broken(*_, **__):
        raise sandbox.ChildError("ended with 1: no torch")

    monkeypatch.setattr(sandbox, "run", broken)
    while work():
        clock.advance(1000)
    done = sending.asking.get(f"/v1/verifications/{number}").json()
    assert (done["state"], done["outcome"]) == ("broken", None)
    assert "no torch" in done["progress"]
    with registry.database.read() as connection:
        assert connection.execute(select(enrolments.c.state)).scalar() == "closed"
        assert connection.execute(select(jobs.c.state).where(jobs.c.kind == "verify")).one()[0] == (
            "broken"
        )


def state_of(registry: Registry, number: str) -> str:
    with registry.database.read() as connection:
        found = select(verifications.c.state).where(verifications.c.id == number)
        return str(connection.execute(found).scalar())


def zombie(number: int) -> bool:
    return ") Z" in Path(f"/proc/{number}/stat").read_text()

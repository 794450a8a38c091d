"""The job of verifications."""

import hashlib
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select, update

from polo.protocol.challenge import Challenge
from polo.registry.challenges import service as challenges
from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.jobs import handler
from polo.registry.objects import key_of
from polo.registry.schema import issuer_keys, objects, verifications
from polo.registry.verifications import child, sandbox, service
from polo.registry.verifications.assembly import Holdings
from polo.registry.writing import insert_new

_NOTE_EVERY = 2


def _broken(registry: Registry, verification: str, error: str) -> None:
    """It failed for the last time, and an operator must look."""
    now = registry.clock()
    with registry.database.begin() as connection:
        connection.execute(
            update(verifications)
            .where(verifications.c.id == verification, verifications.c.state != "done")
            .values(state="broken", ended=now, progress=error[:256])
        )
        note(connection, "verification.broken", verification, error, actor="registry", now=now)


@handler("verify", give_up=_broken)
def verify(registry: Registry, verification: str) -> None:
    """Verify a closed chain, and sign the verdict."""
    with registry.database.begin() as connection:
        row = service.find(connection, verification)
        if row.state == "done":
            return
        _set(connection, row, state="running", begun=registry.clock(), progress="fetching files")
        holdings = Holdings.load(registry, connection, row.enrolment)
        asked = _replay(connection, row)
        trust = connection.execute(
            select(issuer_keys.c.key).where(issuer_keys.c.use == "issuer")
        ).scalars()
        keys = [bytes(key).hex() for key in trust]
    with sandbox.room(registry) as folder:
        _lay_out(registry, row, holdings, asked, folder)
        request = {"do": "verify", "trust": keys, "task": holdings.task, "name": holdings.id}
        request["accuracy"] = registry.settings.verify_accuracy
        telling = _Telling(registry, row)
        result = sandbox.run(registry, folder, request, weights=holdings.weights, progress=telling)
        report = (folder / child.REPORT).read_bytes()
    _conclude(registry, row, holdings, result, report, asked)


def _lay_out(
    registry: Registry, row: Row[Any], holdings: Holdings, asked: Row[Any] | None, folder: Path
) -> None:
    """Put what the child needs into its folder."""
    if row.bundle:
        registry.objects.fetch(key_of(row.bundle), folder / child.PROOF)
    else:
        holdings.write(registry, folder / child.PROOF)
    if asked is not None:
        drawn = Challenge.from_bytes(bytes(asked.record), "challenge")
        (folder / child.CHALLENGE).write_bytes(drawn.to_bytes())
        if asked.answer:
            registry.objects.fetch(key_of(asked.answer), folder / child.ANSWER_FILE)


def _replay(connection: Any, row: Row[Any]) -> Row[Any] | None:
    """The replay challenge of the chain, if there is one."""
    rows = challenges.of_enrolment(connection, row.enrolment)
    return next((each for each in rows if each.kind == "replay"), None)


def _conclude(
    registry: Registry,
    row: Row[Any],
    holdings: Holdings,
    result: dict[str, Any],
    report: bytes,
    asked: Row[Any] | None,
) -> None:
    """Store verdict and report, and end the replay challenge that the verification decided."""
    assert holdings.manifest is not None
    if result["proof"] != holdings.manifest.digest.hex():
        result = _other(result)
    sha256 = hashlib.sha256(report)
    registry.objects.put(key_of(sha256.digest()), report)
    now = registry.clock()
    kept = {"sha256": sha256.hexdigest(), "enrolment": row.enrolment, "kind": "report"}
    with registry.database.begin() as connection:
        registry.database.lock(connection, "objects")
        insert_new(connection, objects, [{**kept, "size": len(report), "made": now}])
        if asked is not None and asked.state == "answered":
            _end_replay(registry, connection, asked, result)
        verdict = service.signed(registry, connection, holdings, result, report=sha256.digest())
        _set(
            connection,
            row,
            state="done",
            ended=now,
            progress="done",
            outcome=verdict.outcome,
            report=sha256.hexdigest(),
            verdict=verdict.to_bytes(),
        )
        note(
            connection,
            "verification.done",
            row.id,
            f"{verdict.outcome}: {verdict.headline}",
            actor="registry",
            now=now,
        )


def _other(result: dict[str, Any]) -> dict[str, Any]:
    """A bundle of another proof than the one the chain was closed with: whatever it is worth."""
    detail = "the bundle holds another manifest than the one that the chain was closed with"
    check = {"name": "manifest", "level": "chain", "status": "failed", "shard": 0, "ancestor": 0}
    check |= {"place": "manifest.json", "detail": detail, "figures": {}}
    verdict = result["verdict"]
    checks = [check, *verdict["checks"]]
    headline = f"REJECTED: manifest: {detail}"
    changed = {"outcome": "rejected", "headline": headline, "checks": checks}
    return {**result, "verdict": {**verdict, **changed}}


def _end_replay(
    registry: Registry, connection: Any, asked: Row[Any], result: dict[str, Any]
) -> None:
    levels = {item["level"]: item for item in result["verdict"]["levels"]}
    found = levels.get("replay", {"outcome": "undecided", "found": ""})
    if found["outcome"] in ("passed", "failed"):
        passed = found["outcome"] == "passed"
        challenges.end(registry, connection, asked, passed=passed, detail=found["found"])


def _set(connection: Any, row: Row[Any], **values: Any) -> None:
    connection.execute(update(verifications).where(verifications.c.id == row.id).values(**values))


class _Telling:
    """Notes progress in the row, now and then."""

    def __init__(self, registry: Registry, row: Row[Any]) -> None:
        self._registry = registry
        self._row = row
        self._last = 0.0

    def __call__(self, words: str) -> None:
        if time.monotonic() - self._last > _NOTE_EVERY:
            self._last = time.monotonic()
            with self._registry.database.begin() as connection:
                _set(connection, self._row, progress=words[:256])

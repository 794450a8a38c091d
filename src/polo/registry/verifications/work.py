"""The job of verifications."""

import hashlib
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from polo.checks import Status
from polo.protocol.challenge import Challenge
from polo.registry.challenges import service as challenges
from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.jobs import Later, handler
from polo.registry.objects import key_of
from polo.registry.schema import commitments, issuer_keys, objects, verifications
from polo.registry.uploads import retention
from polo.registry.verifications import child, sandbox, service
from polo.registry.verifications.assembly import Holdings, row_of
from polo.registry.writing import insert_new

_NOTE_EVERY = 2
_LOOK_AGAIN = 5


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
    # Reading a long chain takes a while, in which others may write.
    with registry.database.read() as connection:
        row = service.find(connection, verification)
        if row.state == "done":
            return
        if _being_checked(connection, row.enrolment):
            raise Later(_LOOK_AGAIN)
        holdings = Holdings.load(registry, connection, row.enrolment)
        asked = _replay(connection, row)
        streamed = _streamed(connection, row)
        trust = connection.execute(
            select(issuer_keys.c.key).where(issuer_keys.c.use == "issuer")
        ).scalars()
        keys = [bytes(key).hex() for key in trust]
    with registry.database.begin() as connection:
        _set(connection, row, state="running", begun=registry.clock(), progress="fetching files")
    with sandbox.room(registry) as folder:
        _lay_out(registry, row, holdings, asked, folder)
        request: dict[str, Any] = {
            "do": "verify",
            "trust": keys,
            "task": holdings.task,
            "name": holdings.id,
        }
        request |= {"accuracy": registry.settings.verify_accuracy, "streamed": streamed}
        telling = _Telling(registry, row)
        try:
            result = sandbox.run(
                registry, folder, request, weights=holdings.weights, progress=telling
            )
        except sandbox.SlowError as error:
            # Not again: a proof that is made to be slow would keep others waiting for days.
            _broken(registry, verification, str(error))
            return
        report = (folder / child.REPORT).read_bytes()
    _conclude(registry, row, holdings, result, report, asked)


def _being_checked(connection: Connection, enrolment: str) -> bool:
    """Whether what was shown of a shard is still to be looked at; the verdict waits for it."""
    shown = [
        each.id
        for each in challenges.of_enrolment(connection, enrolment)
        if each.shard is not None and each.state == "answered"
    ]
    return challenges.is_being_checked(connection, shown)


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
    return next((each for each in rows if each.kind == "replay" and each.shard is None), None)


def _streamed(connection: Connection, row: Row[Any]) -> list[tuple[int, int]]:
    """Shards whose steps were run again while the chain grew, and how many segments each."""
    return [
        (each.shard, len(Challenge.from_bytes(bytes(each.record), "challenge").segments))
        for each in challenges.of_enrolment(connection, row.enrolment)
        if each.kind == "replay" and each.shard is not None and each.state == "passed"
    ]


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
    sha256 = hashlib.sha256(report)
    registry.objects.put(key_of(sha256.digest()), report)
    now = registry.clock()
    kept = {"sha256": sha256.hexdigest(), "enrolment": row.enrolment, "kind": "report"}
    with registry.database.begin() as connection:
        registry.database.lock(connection, "objects")
        insert_new(connection, objects, [{**kept, "size": len(report), "made": now}])
        same = result["proof"] == holdings.manifest.digest.hex()
        if same:
            _note_marks(connection, row.enrolment, result)
        if same and asked is not None and asked.state == "answered":
            _end_replay(registry, connection, asked, result)
        against = _other() if not same else _unmet(connection, row.enrolment)
        if against is not None:
            result = _overruled(result, against)
        # A page that says something else than the verdict is not shown with it.
        shown = None if against is not None else sha256
        verdict = service.signed(
            registry, connection, holdings, result, report=shown.digest() if shown else None
        )
        _set(
            connection,
            row,
            state="done",
            ended=now,
            progress="done",
            outcome=verdict.outcome,
            report=shown.hexdigest() if shown else None,
            verdict=verdict.to_bytes(),
        )
        retention.settle(registry, connection, row.enrolment)
        note(
            connection,
            "verification.done",
            row.id,
            f"{verdict.outcome}: {verdict.headline}",
            actor="registry",
            now=now,
        )


def _note_marks(connection: Connection, enrolment: str, result: dict[str, Any]) -> None:
    """Write down which marks were read in this verification, where none was before."""
    read = [
        {"number": check["shard"], "found": int(check["figures"]["matches"])}
        for check in result["verdict"]["checks"]
        if check["name"] == "mark" and not check["ancestor"] and "matches" in check["figures"]
    ]
    if read:
        connection.execute(
            update(commitments)
            .where(
                commitments.c.enrolment == enrolment,
                commitments.c.shard == bindparam("number"),
                commitments.c.matches.is_(None),
            )
            .values(matches=bindparam("found")),
            read,
        )


def _other() -> dict[str, Any]:
    """A bundle of another proof than the one the chain was closed with: whatever it is worth."""
    detail = "the bundle holds another manifest than the one that the chain was closed with"
    return _check("manifest", "failed", detail, place="manifest.json")


def _unmet(connection: Connection, enrolment: str) -> dict[str, Any] | None:
    """What the registry asked of the chain and did not get, as a check; None if it got it all."""
    asked = challenges.of_enrolment(connection, enrolment)
    failed = [each for each in asked if each.state == "failed"]
    if failed or row_of(connection, enrolment).state == "failed":
        why = f": {failed[0].kind} of shard {failed[0].shard or 0}" if failed else ""
        return _check("challenge", "failed", f"the chain failed what the registry asked{why}")
    if any(each.state != "passed" for each in asked if each.shard is not None):
        detail = "what the registry asked for of a shard is not checked yet"
        return _check("challenge", Status.UNDECIDED.value, detail)
    return None


def _check(name: str, status: str, detail: str, *, place: str = "") -> dict[str, Any]:
    check = {"name": name, "level": "chain", "status": status, "shard": 0, "ancestor": 0}
    return {**check, "place": place, "detail": detail, "figures": {}}


def _overruled(result: dict[str, Any], check: dict[str, Any]) -> dict[str, Any]:
    """The verdict with a check of the registry's own, which the proof alone does not show."""
    verdict = result["verdict"]
    failed = check["status"] == "failed"
    if not failed and verdict["outcome"] == "rejected":
        changed = {}
    else:
        said = "REJECTED" if failed else "COULD NOT DECIDE"
        outcome = "rejected" if failed else "undecided"
        changed = {"outcome": outcome, "headline": f"{said}: {check['name']}: {check['detail']}"}
    checks = [check, *verdict["checks"]]
    return {**result, "verdict": {**verdict, "checks": checks, **changed}}


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

"""The jobs of challenges: checking what was shown, drawing from records, ending what is late."""

from typing import Any

from sqlalchemy import Row, select

from polo.protocol.challenge import Challenge
from polo.registry.challenges import service
from polo.registry.context import Registry
from polo.registry.jobs import Later, handler
from polo.registry.objects import key_of
from polo.registry.schema import challenges, enrolments
from polo.registry.verifications import child, sandbox
from polo.registry.verifications.assembly import Holdings

_LOOK_AGAIN = 30


def _broke(registry: Registry, challenge: str, error: str) -> None:
    """The check failed for the last time; how, may be about this machine, and is not for all."""
    shown = "the check itself broke off, again and again; whoever runs the registry sees why"
    service.stuck(registry, challenge, error, shown=shown)


@handler(service.CHECK, give_up=_broke)
def check(registry: Registry, challenge: str) -> None:
    """Check what was shown of a shard: a checkpoint's root and how good it is, or drawn steps."""
    with registry.database.read() as connection:
        row = service.find(connection, challenge)
        if row.state != "answered" or row.shard is None:
            return
        holdings = Holdings.load(registry, connection, row.enrolment)
    result = (_checked if row.kind == "checkpoint" else _replayed)(registry, row, holdings)
    if "undecided" in result:
        # It would come out so again. Whoever runs the registry must find a machine that can tell.
        service.stuck(registry, challenge, str(result["undecided"]))
        return
    with registry.database.begin() as connection:
        service.end(
            registry, connection, row, passed=result["passed"], detail=str(result["detail"])
        )


def _checked(registry: Registry, row: Row[Any], holdings: Holdings) -> dict[str, Any]:
    with sandbox.room(registry) as folder:
        registry.objects.fetch(key_of(row.answer), folder / child.CHECKPOINT)
        (folder / child.LAYOUT).write_bytes(holdings.layout)
        (folder / child.MANIFEST).write_bytes(holdings.so_far().to_bytes())
        request = {"do": "checkpoint", "shard": row.shard, "task": holdings.task}
        request["accuracy"] = registry.settings.verify_accuracy
        try:
            return sandbox.run(registry, folder, request, weights=holdings.weights)
        except sandbox.RefusedError as error:
            return {"passed": False, "detail": str(error)}


def _replayed(registry: Registry, row: Row[Any], holdings: Holdings) -> dict[str, Any]:
    """Run the drawn steps of the newest shard again."""
    with sandbox.room(registry) as folder:
        proof = folder / child.PROOF
        holdings.write_so_far(registry, proof)
        (folder / child.CHALLENGE).write_bytes(bytes(row.record))
        registry.objects.fetch(key_of(row.answer), folder / child.ANSWER_FILE)
        request = {"do": "replay", "task": holdings.task, "leaf": holdings.entries[-1].leaf.hex()}
        request["accuracy"] = registry.settings.verify_accuracy
        try:
            return sandbox.run(registry, folder, request, weights=holdings.weights)
        except sandbox.RefusedError as error:
            return {"passed": False, "detail": str(error)}
        except sandbox.SlowError as error:
            # Not again: an answer that is made to be slow would keep others waiting for days.
            return {"undecided": str(error)}


@handler("challenges.draw")
def draw(registry: Registry, enrolment: str) -> None:
    """Draw the replay challenge of a closed chain, once its records are here."""
    now = registry.clock()
    with registry.database.read() as connection:
        holdings = Holdings.load(registry, connection, enrolment)
        row = connection.execute(select(enrolments).where(enrolments.c.id == enrolment)).one()
    if row.state != "closed" or holdings.manifest is None:
        return
    within = service.answer_within(holdings.enrolment.terms)
    if lacking := [path for path in holdings.missing() if path.startswith("evidence/replay/")]:
        if now <= row.changed + within:
            raise Later(_LOOK_AGAIN)
        with registry.database.begin() as connection:
            why = f"{lacking[0]} was not uploaded in time, so no step could be drawn"
            service.fail_chain(connection, enrolment, why, now)
        return
    with sandbox.room(registry) as folder:
        holdings.write(registry, folder / child.PROOF, only="evidence/replay/")
        try:
            result = sandbox.run(registry, folder, {"do": "draw"})
        except sandbox.RefusedError as error:
            with registry.database.begin() as connection:
                service.fail_chain(connection, enrolment, f"its records: {error}", now)
            return
    drawn = Challenge.from_json(result["challenge"], "challenge")
    with registry.database.begin() as connection:
        registry.database.lock(connection, f"draw of {enrolment}")
        service.open_replay(connection, enrolment, drawn, now=now, due=now + within)


@handler("challenges.expire", every=30)
def expire(registry: Registry, _subject: str) -> None:
    """Fail what was not answered in time."""
    now = registry.clock()
    late = (challenges.c.state == "open") & (challenges.c.due < now)
    with registry.database.read() as connection:
        found = connection.execute(select(challenges.c.id).where(late)).scalars().all()
    for challenge in found:
        with registry.database.begin() as connection:
            row = service.find(connection, challenge)
            if row.state == "open":
                detail = "it was not answered in time; an unanswered challenge is a failed one"
                service.end(registry, connection, row, passed=False, detail=detail)

"""Drawing challenges, taking answers, and what follows from how they end."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from polo.evidence.receipts.rules import replays
from polo.protocol import canonical
from polo.protocol.challenge import Challenge, Place
from polo.protocol.detection import MILLION
from polo.protocol.entries import Entry
from polo.protocol.fields import Bytes, Integer, Record, of
from polo.protocol.records import MAX_SHARDS, Manifest, Terms
from polo.registry.commitments.answers import Waiting
from polo.registry.commitments.chains import Chain
from polo.registry.commitments.recorded import Recorded
from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.problems import CODES, Problem
from polo.registry.schema import challenges, enrolments, jobs, objects
from polo.registry.uploads import service as uploads

ANSWER_WITHIN = 86_400
"""Seconds that a prover has to answer, where the terms do not say."""

CHECK = "challenges.check"
"""The kind of job that looks at an answer."""

UPLOADS = {"checkpoint": "checkpoint", "replay": "answer"}
"""The kind of upload that answers each kind of challenge."""

CODES.update(
    {
        "challenge.being-checked": "The answer is being checked at this moment.",
        "challenge.late": "The challenge was not answered in time, so it is a failed one.",
        "challenge.missing": "There is no such challenge, or it is not yours.",
        "challenge.over": "The challenge was answered, or has ended.",
        "challenge.wrong-file": "The file does not answer this challenge.",
    }
)

_RANDOM = secrets.SystemRandom()


@dataclass(frozen=True)
class CheckpointAsked(Record):
    """That a whole checkpoint is asked for.

    Attributes:
        enrolment: Digest of the enrolment.
        shard: The shard that ends in it; 0 for the start.
        root: Root that it must have.
    """

    enrolment: bytes = of(Bytes(32))
    shard: int = of(Integer(0, MAX_SHARDS))
    root: bytes = of(Bytes(32))


def draw(
    connection: Connection, chain: Chain, entry: Entry, now: int, recorded: Recorded | None
) -> Waiting | None:
    """Decide whether an entry that is going into the log waits for a challenge, and open it.

    A replay shows the checkpoint, too, so that one of them is asked for at most.

    Args:
        connection: The transaction that appends the entry.
        chain: The chain.
        entry: The entry, which the prover cannot change any more, nor the record that it names.
        now: The time.
        recorded: What that record says, where steps may be drawn.
    """
    if not chain.streams or entry.shard is None:
        return None
    asked: Record
    if recorded is not None and _RANDOM.randrange(MILLION) < chain.replays:
        kind, asked = "replay", _steps(chain, entry, now, recorded)
    elif _RANDOM.randrange(MILLION) < chain.number("checkpoints"):
        kind, asked = "checkpoint", CheckpointAsked(entry.enrolment, entry.number, entry.root)
    else:
        return None
    due = now + answer_within(chain.terms)
    made = _open(connection, chain.id, kind, asked, now=now, due=due, shard=entry.number)
    return Waiting(made, kind, due)


def _steps(chain: Chain, entry: Entry, now: int, recorded: Recorded) -> Challenge:
    """Segments of the newest shard, drawn, and its sealing; bound to its leaf in the log."""
    recipe = chain.recipe
    assert recipe is not None
    count = min(recipe.draws, recorded.segments)
    numbers = recorded.always.union(_RANDOM.sample(range(recorded.segments), count))
    places = tuple(Place(entry.number, number) for number in sorted(numbers))
    # Where the terms forgive rounding, ends are needed if the platforms turn out to differ.
    return Challenge(entry.leaf, places, (entry.number,), recipe.tolerance > 0, now)


def closed(registry: Registry, connection: Connection, enrolment: str, manifest: Manifest) -> None:
    """Draw what is drawn when a chain is closed, as part of the transaction that closes it."""
    now, terms = registry.clock(), manifest.terms
    due = now + answer_within(terms)
    for shard in _drawn(connection, enrolment, manifest):
        root = manifest.root_before(shard + 1)
        asked = CheckpointAsked(manifest.enrolment.digest, shard, root)
        _open(connection, enrolment, "checkpoint", asked, now=now, due=due, shard=shard)
    # What was drawn while the chain grew is not drawn again: the prover has let go of the weights.
    if any(item.level == "replay" for item in terms.evidence) and not replays(terms):
        registry.jobs.enqueue(connection, "challenges.draw", enrolment)


def _drawn(connection: Connection, enrolment: str, manifest: Manifest) -> Iterator[int]:
    """Shards whose checkpoint is asked for after the close; the last one always is."""
    last = len(manifest.shards)
    if manifest.terms.history not in ("streaming", "after-close") or not last:
        return
    if manifest.terms.history == "after-close":
        rate = int(_settings(manifest.terms).get("checkpoints", "0"))
        yield from (x for x in range(1, last) if _RANDOM.randrange(MILLION) < rate)
    shown = connection.execute(
        select(challenges.c.id).where(
            challenges.c.enrolment == enrolment,
            challenges.c.shard == last,
            challenges.c.kind == "checkpoint",
            challenges.c.state == "passed",
        )
    ).first()
    if shown is None:
        yield last


def open_replay(
    connection: Connection, enrolment: str, drawn: Challenge, *, now: int, due: int
) -> str:
    """Open the replay challenge of a closed chain; the one that is there stays."""
    known = connection.execute(
        select(challenges.c.id).where(
            challenges.c.enrolment == enrolment,
            challenges.c.kind == "replay",
            challenges.c.shard.is_(None),
        )
    ).scalar()
    return known or _open(connection, enrolment, "replay", drawn, now=now, due=due)


def answer(registry: Registry, identity: str, challenge: str, upload: str) -> Row[Any]:
    """Take an answer: a stored upload of the right kind, before the challenge is due."""
    now = registry.clock()
    with registry.database.begin() as connection:
        row = owned(connection, identity, challenge)
        file = uploads.stored(connection, row.enrolment, upload, UPLOADS[row.kind])
        if file.shard != row.shard:
            detail = f"the upload is about shard {file.shard}, the challenge about {row.shard}"
            raise Problem(422, "challenge.wrong-file", detail)
        if row.state != "open":
            if row.answer == file.sha256:
                return row
            raise Problem(409, "challenge.over", f"the challenge is {row.state}")
        if row.due < now:
            raise Problem(409, "challenge.late", f"the challenge was due {now - row.due} s ago")
        # Another request, or the end of its time, may have been faster: one answer counts.
        taken = connection.execute(
            update(challenges)
            .where(challenges.c.id == challenge, challenges.c.state == "open")
            .values(state="answered", answer=file.sha256)
        )
        if taken.rowcount != 1:
            raise Problem(409, "challenge.over", "the challenge was answered or ended meanwhile")
        # A replay of the closed chain is judged with the proof.
        if row.shard is not None:
            _have_checked(registry, connection, row)
        note(connection, "challenge.answered", challenge, actor=identity, now=now)
        return owned(connection, identity, challenge)


def end(
    registry: Registry, connection: Connection, row: Row[Any], *, passed: bool, detail: str
) -> None:
    """Note how a challenge ended; a receipt that waited is given, or the chain fails."""
    now = registry.clock()
    state = "passed" if passed else "failed"
    done = connection.execute(
        update(challenges)
        .where(challenges.c.id == row.id, challenges.c.state == row.state)
        .values(state=state, detail=detail[:2000], ended=now)
    )
    if done.rowcount != 1:
        return
    note(connection, f"challenge.{state}", row.id, detail, actor="registry", now=now)
    if not passed:
        fail_chain(connection, row.enrolment, f"challenge {row.id}: {detail}", now)
        return
    if _waits(connection, row):
        from polo.registry.commitments.service import release

        release(registry, connection, row.enrolment, row.shard)
    # After the enrolment's row, as when a chain is withdrawn, so that no two wait for each other.
    if row.kind == "replay" and row.shard is not None:
        _let_go(connection, row, now)


def stuck(registry: Registry, challenge: str, why: str, *, shown: str = "") -> None:
    """Note that an answer cannot be checked: nobody's fault for sure, so an operator must look.

    Args:
        registry: The registry.
        challenge: The challenge's id.
        why: The reason, for the events.
        shown: What everybody may read of it, on the chain's page, if not all.
    """
    with registry.database.begin() as connection:
        if _described(connection, challenge, (shown or why)[:2000]):
            now = registry.clock()
            note(connection, "challenge.stuck", challenge, why, actor="registry", now=now)


def check_again(
    registry: Registry,
    connection: Connection,
    challenge: str,
    *,
    actor: str,
    request: str | None,
    now: int,
) -> Row[Any]:
    """Have an answer checked once more that could not be: by another machine, or with more time."""
    row = find(connection, challenge)
    if row.shard is None:
        raise Problem(
            409,
            "challenge.over",
            "steps of a closed chain are judged with its proof",
            advice=f"Ask for a verification: POST /v1/enrolments/{row.enrolment}/verifications.",
        )
    if not _described(connection, challenge, ""):
        state = find(connection, challenge).state
        raise Problem(409, "challenge.over", f"the challenge is {state}: nothing to check")
    if is_being_checked(connection, [challenge]):
        # A job that has said why and is about to end would not be done again.
        raise Problem(
            409,
            "challenge.being-checked",
            "its answer is being checked, or waits for it",
            advice="Look again in a moment: how it ends is seen then.",
        )
    _have_checked(registry, connection, row)
    note(connection, "challenge.again", challenge, actor=actor, request=request, now=now)
    return find(connection, challenge)


def _described(connection: Connection, challenge: str, detail: str) -> bool:
    """Say something of a challenge whose answer is not judged; whether it is such a one."""
    # What its end said must stay, should that have come meanwhile.
    shown = (challenges.c.id == challenge) & (challenges.c.state == "answered")
    return connection.execute(update(challenges).where(shown).values(detail=detail)).rowcount == 1


def is_being_checked(connection: Connection, ids: Sequence[str]) -> bool:
    """Whether an answer to one of these challenges is still to be looked at."""
    query = select(jobs.c.id).where(
        jobs.c.kind == CHECK, jobs.c.subject.in_(ids), jobs.c.state.in_(("waiting", "running"))
    )
    return bool(ids) and connection.execute(query).first() is not None


def _have_checked(registry: Registry, connection: Connection, row: Row[Any]) -> None:
    named = select(enrolments.c.task).where(enrolments.c.id == row.enrolment)
    queue = registry.tasks.queue_of(connection.execute(named).scalar_one())
    registry.jobs.enqueue(connection, CHECK, row.id, queue=queue)


def _let_go(connection: Connection, row: Row[Any], now: int) -> None:
    """Keep answers no longer: they are large, hold samples, and have shown what they can."""
    # One that was uploaded and never named can answer nothing any more, either.
    held = (objects.c.kind == "answer") & (objects.c.enrolment == row.enrolment)
    connection.execute(update(objects).where(held).values(keep_until=now))


def fail_chain(connection: Connection, enrolment: str, why: str, now: int) -> None:
    """The chain has failed; nothing more is taken for it."""
    # One that was withdrawn in view of a challenge is no better than one that did not answer.
    alive = enrolments.c.state != "failed"
    done = connection.execute(
        update(enrolments)
        .where(enrolments.c.id == enrolment, alive)
        .values(state="failed", changed=now)
    )
    if done.rowcount:
        note(connection, "enrolment.failed", enrolment, why, actor="registry", now=now)


def of_enrolment(connection: Connection, enrolment: str) -> list[Row[Any]]:
    """All challenges of a chain, oldest first."""
    asked = select(challenges).where(challenges.c.enrolment == enrolment)
    order = (challenges.c.made, challenges.c.shard, challenges.c.id)
    return list(connection.execute(asked.order_by(*order)))


def owned(connection: Connection, identity: str, challenge: str) -> Row[Any]:
    """A challenge of the caller's."""
    row = find(connection, challenge)
    owner = connection.execute(
        select(enrolments.c.identity).where(enrolments.c.id == row.enrolment)
    ).scalar()
    if owner != identity:
        raise Problem(404, "challenge.missing", "there is no such challenge of yours")
    return row


def find(connection: Connection, challenge: str) -> Row[Any]:
    """A challenge by its id."""
    row = connection.execute(select(challenges).where(challenges.c.id == challenge)).first()
    if row is None:
        raise Problem(404, "challenge.missing", "there is no such challenge")
    return row


def to_json(row: Row[Any]) -> dict[str, Any]:
    """A challenge as answers show it."""
    return {
        "id": row.id,
        "enrolment": row.enrolment,
        "kind": row.kind,
        "shard": row.shard,
        "state": row.state,
        "detail": row.detail,
        "made": row.made,
        "due": row.due,
        "ended": row.ended,
        "record": canonical.parse(bytes(row.record), place="challenge"),
    }


def answer_within(terms: Terms) -> int:
    """Seconds that a prover has to answer."""
    return int(_settings(terms).get("answer_within", ANSWER_WITHIN))


def _settings(terms: Terms) -> dict[str, str]:
    found = [item.settings for item in terms.evidence if item.level == "receipts"]
    return dict(found[0]) if found else {}


def _waits(connection: Connection, row: Row[Any]) -> bool:
    """Whether a receipt waits for this challenge: it was drawn while the chain was open."""
    if row.shard is None:
        return False
    state = connection.execute(
        select(enrolments.c.state).where(enrolments.c.id == row.enrolment)
    ).scalar()
    return state == "open"


def _open(
    connection: Connection,
    enrolment: str,
    kind: str,
    asked: Record,
    *,
    now: int,
    due: int,
    shard: int | None = None,
) -> str:
    made = secrets.token_hex(16)
    values: dict[str, Any] = {"id": made, "enrolment": enrolment, "shard": shard, "kind": kind}
    values |= {"record": asked.to_bytes(), "state": "open", "made": now, "due": due, "detail": ""}
    connection.execute(challenges.insert().values(values))
    note(connection, "challenge.drawn", made, f"{kind} {shard or ''}", actor="registry", now=now)
    return made

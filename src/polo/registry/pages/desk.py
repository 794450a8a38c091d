"""What the operator's page reads from the tables; the newest or the most pressing of each."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, not_, select

from polo.registry import schema
from polo.registry.enrolments.past import GOING, STUCK
from polo.registry.pages import queries
from polo.registry.tokens import service as tokens

MOST = 50


@dataclass(frozen=True)
class JobLine:
    """A job that waits, runs, or broke."""

    id: int
    kind: str
    subject: str
    queue: str
    state: str
    tries: int
    due: int
    error: str | None


@dataclass(frozen=True)
class PendingChallenge:
    """A challenge that nobody has answered yet, or whose answer is being checked, or cannot be."""

    id: str
    enrolment: str
    shard: int | None
    kind: str
    state: str
    due: int
    detail: str


@dataclass(frozen=True)
class EventLine:
    """Something that somebody did."""

    time: int
    actor: str
    action: str
    subject: str
    detail: str


@dataclass(frozen=True)
class IdentityLine:
    """A registered identity."""

    id: str
    name: str
    role: str
    registered: int
    revoked: int | None


def values(connection: Connection, *, with_tokens: bool) -> dict[str, Any]:
    """Everything on the operator's page."""
    return {
        "chains": queries.chains(connection, limit=MOST),
        "challenges": _challenges(connection),
        "jobs": _jobs(connection),
        "identities": _identities(connection),
        "tokens": tokens.page(connection, limit=MOST) if with_tokens else None,
        "events": _events(connection),
    }


def job(connection: Connection, number: int) -> JobLine | None:
    """One job."""
    table = schema.jobs
    row = connection.execute(select(*_job_columns()).where(table.c.id == number)).first()
    return None if row is None else JobLine(*row)


def _job_columns() -> list[Any]:
    c = schema.jobs.c
    return [c.id, c.kind, c.subject, c.queue, c.state, c.tries, c.due, c.error]


def _jobs(connection: Connection) -> list[JobLine]:
    table = schema.jobs
    found: list[JobLine] = []
    for state in ("broken", "running", "waiting"):  # One at a time: each reads along the index.
        query = select(*_job_columns()).where(table.c.state == state)
        found += [JobLine(*row) for row in connection.execute(query.limit(MOST))]
    return found


def _challenges(connection: Connection) -> list[PendingChallenge]:
    c, chains = schema.challenges.c, schema.enrolments.c
    query = select(c.id, c.enrolment, c.shard, c.kind, c.state, c.due, c.detail)
    # Of a chain that was given up nobody waits for an answer, and many such must not hide others.
    query = query.join(schema.enrolments, chains.id == c.enrolment).where(chains.state.in_(GOING))
    query = query.where(c.state.in_(("open", "answered"))).order_by(not_(STUCK), c.due).limit(MOST)
    return [PendingChallenge(*row) for row in connection.execute(query)]


def _identities(connection: Connection) -> list[IdentityLine]:
    c = schema.identities.c
    query = select(c.id, c.name, c.role, c.registered, c.revoked)
    query = query.order_by(c.registered.desc(), c.id.desc()).limit(MOST)
    return [IdentityLine(*row) for row in connection.execute(query)]


def _events(connection: Connection) -> list[EventLine]:
    c = schema.events.c
    query = select(c.time, c.actor, c.action, c.subject, c.detail)
    query = query.order_by(c.id.desc()).limit(MOST)
    return [EventLine(*row) for row in connection.execute(query)]

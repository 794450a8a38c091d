"""Noting events, and reading them back."""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from polo.registry.schema import events

MAX_DETAIL = 2000


@dataclass(frozen=True)
class Event:
    """One thing that somebody did.

    Attributes:
        id: Counts up.
        time: When, in seconds since 1970.
        actor: Who: an identity's id, `token <id>`, or `registry`.
        action: What, as a word such as `identity.revoked`.
        subject: Id of what it was done to.
        detail: More, in words.
        request: Id of the request, if it was one.
    """

    id: int
    time: int
    actor: str
    action: str
    subject: str
    detail: str
    request: str | None


def note(
    connection: Connection,
    action: str,
    subject: str,
    detail: str = "",
    *,
    actor: str,
    request: str | None = None,
    now: int,
) -> None:
    """Note an event in the transaction that it happens in, so that there is no one without it."""
    connection.execute(
        insert(events).values(
            time=now,
            actor=actor[:128],
            action=action,
            subject=subject[:64],
            detail=detail[:MAX_DETAIL],
            request=request,
        )
    )


def page(
    connection: Connection, *, after: int = 0, limit: int = 100, subject: str | None = None
) -> list[Event]:
    """Events in the order they happened, from after an id on."""
    query = select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
    if subject is not None:
        query = query.where(events.c.subject == subject)
    return [Event(**row) for row in connection.execute(query).mappings()]

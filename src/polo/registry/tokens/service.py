"""Making tokens, which are shown once, and signing in with them.

The database has their SHA-256 alone; they are 32 random bytes, so no slow hash is needed.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from polo.registry.callers import SCOPES, TOKEN_PREFIX, token_hash
from polo.registry.events.service import note
from polo.registry.problems import Problem
from polo.registry.schema import sessions, tokens

DAY = 24 * 3600


@dataclass(frozen=True)
class Token:
    """What is known of a token; the token itself is not."""

    id: str
    name: str
    role: str
    scopes: tuple[str, ...]
    made: int
    expires: int
    revoked: int | None


def make(
    connection: Connection,
    name: str,
    role: str,
    scopes: Collection[str],
    *,
    days: int,
    actor: str,
    request: str | None = None,
    now: int,
) -> tuple[Token, str]:
    """A new token: what is kept of it, and the token, which nobody can look up again."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    chosen = Token(
        secrets.token_hex(8),
        name,
        role,
        tuple(word for word in SCOPES if word in scopes),
        now,
        now + days * DAY,
        None,
    )
    connection.execute(
        insert(tokens).values(
            id=chosen.id,
            hash=token_hash(secret),
            name=name,
            role=role,
            scopes=" ".join(chosen.scopes),
            made=now,
            expires=chosen.expires,
        )
    )
    detail = f"{name}: {role}, {' '.join(chosen.scopes)}, {days} days"
    note(connection, "token.made", chosen.id, detail, actor=actor, request=request, now=now)
    return chosen, secret


def are_there_any(connection: Connection) -> bool:
    """Whether a token was ever made."""
    return bool(connection.execute(select(func.count()).select_from(tokens)).scalar())


def page(connection: Connection, *, after: str = "", limit: int = 100) -> list[Token]:
    """Tokens by id, from after one on."""
    query = select(tokens).where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)
    return [
        Token(r.id, r.name, r.role, tuple(r.scopes.split()), r.made, r.expires, r.revoked)
        for r in connection.execute(query)
    ]


def revoke(
    connection: Connection, token: str, *, actor: str, request: str | None = None, now: int
) -> None:
    """End a token and its sessions; a second time changes nothing."""
    found = connection.execute(select(tokens.c.revoked).where(tokens.c.id == token)).first()
    if found is None:
        raise Problem(404, "token.missing", f"there is no token {token[:32]!r}")
    connection.execute(delete(sessions).where(sessions.c.token == token))
    if found.revoked is None:
        connection.execute(update(tokens).where(tokens.c.id == token).values(revoked=now))
        note(connection, "token.revoked", token, actor=actor, request=request, now=now)


def sign_in(
    connection: Connection, secret: str, *, hours: int, request: str | None = None, now: int
) -> tuple[str, int]:
    """A new session for whoever has a token.

    Returns:
        The session's cookie and when it ends.
    """
    row = connection.execute(
        select(tokens.c.id, tokens.c.expires).where(
            tokens.c.hash == token_hash(secret), tokens.c.revoked.is_(None), tokens.c.expires > now
        )
    ).first()
    if row is None:
        raise Problem(401, "caller.bad-token", "the token is unknown, expired or revoked")
    cookie = secrets.token_urlsafe(32)
    ends = min(row.expires, now + hours * 3600)
    connection.execute(delete(sessions).where(sessions.c.expires <= now))
    connection.execute(
        insert(sessions).values(hash=token_hash(cookie), token=row.id, made=now, expires=ends)
    )
    actor = f"token {row.id}"
    note(connection, "session.made", row.id, actor=actor, request=request, now=now)
    return cookie, ends


def sign_out(connection: Connection, cookie_hash: bytes) -> None:
    """End a session."""
    connection.execute(delete(sessions).where(sessions.c.hash == cookie_hash))

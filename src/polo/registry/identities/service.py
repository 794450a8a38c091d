"""Registering keys, changing them, and taking them out of use.

An identity's id is the fingerprint of the key it was registered with, and stays when the key
changes. A key belongs to one identity, for ever: one that was rotated out cannot come back.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from polo.keys import is_weak
from polo.protocol.records import identity_of
from polo.registry.events.service import note
from polo.registry.problems import Problem
from polo.registry.schema import identities, identity_keys


@dataclass(frozen=True)
class KeyPeriod:
    """A key, and when it counted."""

    key: bytes
    since: int
    until: int | None


@dataclass(frozen=True)
class Identity:
    """A registered identity."""

    id: str
    key: bytes
    name: str
    role: str
    registered: int
    revoked: int | None
    keys: tuple[KeyPeriod, ...]


def register(
    connection: Connection, key: bytes, name: str, *, request: str | None, now: int
) -> Identity:
    """Register a key whose possession was shown; the same key again gives what is there."""
    held = connection.execute(
        select(identity_keys.c.identity).where(identity_keys.c.key == key)
    ).scalar()
    if held is not None:
        found = get(connection, held)
        if found.key == key and found.name == name and found.revoked is None:
            return found
        raise Problem(409, "identity.known", f"the key is registered, as identity {held}")
    chosen = identity_of(key).hex()
    values = {"id": chosen, "key": key, "name": name, "role": "prover", "registered": now}
    try:
        with connection.begin_nested():
            connection.execute(insert(identities).values(values))
            connection.execute(insert(identity_keys).values(key=key, identity=chosen, since=now))
    except IntegrityError as error:
        raise Problem(409, "identity.known", "the key is registered already") from error
    note(connection, "identity.registered", chosen, name, actor=chosen, request=request, now=now)
    return get(connection, chosen)


def holding(connection: Connection, key: bytes) -> Identity:
    """The identity that a key is, or was, the key of."""
    query = select(identity_keys.c.identity).where(identity_keys.c.key == key)
    held = connection.execute(query).scalar()
    if held is None:
        raise Problem(404, "identity.missing", "no identity has or had this key")
    return get(connection, held)


def get(connection: Connection, identity: str) -> Identity:
    """An identity by its id."""
    row = connection.execute(select(identities).where(identities.c.id == identity)).first()
    if row is None:
        raise Problem(404, "identity.missing", f"there is no identity {identity[:64]!r}")
    query = select(identity_keys).where(identity_keys.c.identity == identity)
    order = (identity_keys.c.since, identity_keys.c.until.is_(None), identity_keys.c.key)
    periods = tuple(
        KeyPeriod(bytes(item.key), item.since, item.until)
        for item in connection.execute(query.order_by(*order))
    )
    return Identity(
        row.id, bytes(row.key), row.name, row.role, row.registered, row.revoked, periods
    )


def rotate(
    connection: Connection, identity: str, new: bytes, *, actor: str, request: str | None, now: int
) -> Identity:
    """Put a new key in the place of an identity's; whoever calls has checked both signatures."""
    current = get(connection, identity)
    if current.revoked is not None:
        raise Problem(409, "identity.revoked", "the identity was revoked")
    if is_weak(new):
        raise Problem(422, "caller.weak-key", "a key of small order, or not canonical")
    try:
        with connection.begin_nested():
            connection.execute(insert(identity_keys).values(key=new, identity=identity, since=now))
    except IntegrityError as error:
        raise Problem(409, "identity.known", "the new key is registered already") from error
    old = identity_keys.c.key == current.key
    connection.execute(update(identity_keys).where(old).values(until=now))
    connection.execute(update(identities).where(identities.c.id == identity).values(key=new))
    detail = f"{current.key.hex()} -> {new.hex()}"
    note(connection, "identity.rotated", identity, detail, actor=actor, request=request, now=now)
    return get(connection, identity)


def revoke(
    connection: Connection,
    identity: str,
    reason: str,
    *,
    actor: str,
    request: str | None,
    now: int,
) -> Identity:
    """Take an identity out of use, for good; what it did stays. A second time changes nothing."""
    current = get(connection, identity)
    if current.revoked is not None:
        return current
    mine = identities.c.id == identity
    connection.execute(update(identities).where(mine).values(revoked=now))
    note(connection, "identity.revoked", identity, reason, actor=actor, request=request, now=now)
    return get(connection, identity)


def set_role(
    connection: Connection,
    identity: str,
    role: str,
    *,
    actor: str,
    request: str | None,
    now: int,
) -> Identity:
    """Make an identity a prover, an auditor or an operator."""
    get(connection, identity)
    mine = identities.c.id == identity
    connection.execute(update(identities).where(mine).values(role=role))
    note(connection, "identity.role", identity, role, actor=actor, request=request, now=now)
    return get(connection, identity)

"""The log's keys: which of them sign a checkpoint now, and how one takes over from another."""

from sqlalchemy import Connection, exists, func, insert, or_, select

from polo.errors import TermsError
from polo.keys import Ed25519Verifier, Identity
from polo.protocol.log_notes import Checkpoint, Note, NoteKey
from polo.protocol.log_rollover import MAX_ROLLOVERS, Lineage, sign_rollover
from polo.protocol.log_tree import EMPTY_ROOT
from polo.registry.log import service
from polo.registry.schema import enrolments, issuer_keys, log_rollovers
from polo.registry.vault import LOG, Vault

BESIDE = 30 * 86_400
"""Seconds after its end that a chain still finds checkpoints by the key that its terms name."""

_SLACK = 86_400
"""Seconds by which clocks of two machines may differ: a key that signs too long does no harm."""

_KEYS = (
    select(issuer_keys.c.key, issuer_keys.c.until)
    .where(issuer_keys.c.use == LOG)
    .order_by(issuer_keys.c.until.desc().nulls_first())
)


def signers(vault: Vault, connection: Connection, now: int) -> tuple[Identity, ...]:
    """Whoever signs checkpoints: the newest key, and older ones that terms of chains name.

    A chain is verified by the key in its terms, so that key goes on signing, beside the newer one,
    for as long as the chain runs.
    """
    return tuple(
        vault.log_key_of(connection, bytes(key))
        for key, until in connection.execute(_KEYS).all()
        if until is None or _is_named(connection, until, now)
    )


def _is_named(connection: Connection, until: int, now: int) -> bool:
    """Whether terms of a chain that runs, or ran not long ago, may name a key of before."""
    named = exists().where(
        enrolments.c.issued <= until + _SLACK,
        or_(enrolments.c.state == "open", enrolments.c.changed > now - BESIDE),
    )
    return bool(connection.execute(select(named)).scalar())


def rotate(vault: Vault, connection: Connection, origin: str, now: int) -> Identity:
    """Let a new key take over; the caller holds the locks of the log and of the keys."""
    count = connection.execute(select(func.count()).select_from(log_rollovers)).scalar_one()
    if count >= MAX_ROLLOVERS:
        raise TermsError(
            f"the log's key has changed {count} times, and nobody follows more changes than that",
            place="log_rollovers",
            advice="Keep the key, or begin another log: a registry with another origin.",
        )
    old = vault.log_key(connection)
    new = vault.rotate(connection, now, LOG)
    head = service.newest(connection)
    at = Checkpoint(origin, head.size if head else 0, head.root if head else EMPTY_ROOT)
    note = str(sign_rollover(at, old, new))
    row = {"old": old.public_key, "new": new.public_key, "time": now, "note": note}
    connection.execute(insert(log_rollovers).values(row))
    return new


def rollovers(connection: Connection) -> list[str]:
    """What was signed about each change of the key, the oldest first."""
    order = (log_rollovers.c.time, issuer_keys.c.since)
    query = select(log_rollovers.c.note).join(issuer_keys, issuer_keys.c.key == log_rollovers.c.new)
    return list(connection.execute(query.order_by(*order)).scalars())


def lineage(connection: Connection, origin: str, key: bytes) -> Lineage:
    """All keys of the log, by what they signed of each other."""
    notes = [Note.parse(text, place="log_rollovers") for text in rollovers(connection)]
    return Lineage.of(NoteKey(origin, key), notes, Ed25519Verifier(), place="log_rollovers")

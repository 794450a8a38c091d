"""Every chain's seeds at hand: what a scan needs, without reading a document for each chain.

A seed tells where a mark sits, so seeds are sealed like the secrets they come from. Rows follow
from the commitments and κ: they are made when a scan needs them, and could be dropped at any time.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from polo.ownership.scan import Chain, Kind, Lot
from polo.protocol import derivation
from polo.protocol.entries import leaf_hash, nonce_after
from polo.protocol.layout import Layout
from polo.protocol.records import Enrolment, Terms, identity_of
from polo.registry.commitments.chains import about_secret
from polo.registry.context import Registry
from polo.registry.schema import commitments, enrolments, marks
from polo.registry.writing import insert_new

_AT_ONCE = 200


@dataclass(frozen=True)
class Known:
    """A chain as the table has it.

    Attributes:
        chain: Its seeds.
        kind: Digest of its layout, carrier and scheme.
        first: Place in the log of the first mark's shard.
    """

    chain: Chain
    kind: bytes
    first: int


def refresh(registry: Registry) -> int:
    """Bring the table up to date; how many chains had grown."""
    grown = 0
    while True:
        with registry.database.read() as connection:
            rows = connection.execute(_STALE.limit(_AT_ONCE)).mappings().all()
            fresh = [_row(registry, connection, row) for row in rows]
        if not fresh:
            return grown
        with registry.database.begin() as connection:
            _write(connection, fresh)
        grown += len(fresh)


def known(registry: Registry, connection: Connection, only: str | None = None) -> Iterator[Known]:
    """Every chain that has a mark, or one of them."""
    query = select(marks, enrolments.c.identity).join(
        enrolments, enrolments.c.id == marks.c.enrolment
    )
    if only is not None:
        query = query.where(marks.c.enrolment == only)
    for row in connection.execute(query):
        seeds = registry.vault.open(bytes(row.seeds), _about(row.enrolment))
        yield Known(Chain(row.enrolment, seeds, True, row.identity), bytes(row.kind), row.first)


def lots(connection: Connection, chains: list[Known]) -> list[Lot]:
    """Chains by kind; of each kind one enrolment is read."""
    by_kind: dict[bytes, list[Chain]] = {}
    for item in chains:
        by_kind.setdefault(item.kind, []).append(item.chain)
    return [Lot(_kind(connection, own[0].name), own) for own in by_kind.values()]


_SHARDS = func.coalesce(marks.c.shards, 0)
_STALE = (
    select(
        enrolments.c.id,
        enrolments.c.record,
        enrolments.c.secret,
        enrolments.c.shards,
        marks.c.seeds,
        _SHARDS.label("there"),
    )
    .outerjoin(marks, marks.c.enrolment == enrolments.c.id)
    .where(enrolments.c.shards > _SHARDS)
    .order_by(enrolments.c.id)
)
"""Chains with more receipts than marks."""


def _row(registry: Registry, connection: Connection, row: RowMapping) -> dict[str, Any]:
    enrolment = Enrolment.from_bytes(bytes(row["record"]), "enrolment")
    secret = registry.vault.open(bytes(row["secret"]), about_secret(row["id"]))
    seeds = registry.vault.open(bytes(row["seeds"]), _about(row["id"])) if row["seeds"] else b""
    seeds += b"".join(_seeds(connection, row, enrolment, secret))
    first = connection.execute(
        select(commitments.c.index).where(
            commitments.c.enrolment == row["id"], commitments.c.shard == 1
        )
    ).scalar_one()
    return {
        "enrolment": row["id"],
        "kind": kind_digest(enrolment.terms),
        "shards": row["shards"],
        "first": first,
        "seeds": registry.vault.seal(seeds, _about(row["id"])),
        "there": row["there"],
    }


def _seeds(
    connection: Connection, row: RowMapping, enrolment: Enrolment, secret: bytes
) -> Iterator[bytes]:
    """Seeds of the shards that are new: each comes from the commitment before."""
    before = connection.execute(
        select(commitments.c.shard, commitments.c.root, commitments.c.record)
        .where(
            commitments.c.enrolment == row["id"],
            commitments.c.shard >= row["there"],
            commitments.c.shard < row["shards"],
        )
        .order_by(commitments.c.shard)
    )
    for shard, root, record in before:
        nonce = nonce_after(secret, shard, leaf_hash(bytes(record)))
        yield derivation.seed(
            root=bytes(root),
            shard=shard + 1,
            nonce=nonce.nonce,
            identity=identity_of(enrolment.identity),
            terms=enrolment.terms.digest,
        )


def _write(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Add rows or bring them up to date, unless another scan has done so meanwhile."""
    there = {row["enrolment"]: row.pop("there") for row in rows}
    new = {key for (key,) in insert_new(connection, marks, rows)}
    for row in rows:
        if row["enrolment"] not in new:
            connection.execute(
                update(marks)
                .where(
                    marks.c.enrolment == row["enrolment"],
                    marks.c.shards == there[row["enrolment"]],
                )
                .values(row)
            )


def _kind(connection: Connection, enrolment: str) -> Kind:
    row = connection.execute(
        select(enrolments.c.record, enrolments.c.layout).where(enrolments.c.id == enrolment)
    ).one()
    terms = Enrolment.from_bytes(bytes(row.record), "enrolment").terms
    return Kind(Layout.from_bytes(bytes(row.layout), "layout"), terms.carrier, terms.scheme)


def kind_digest(terms: Terms) -> bytes:
    """The same for chains whose marks lie and read alike."""
    state = hashlib.sha256(terms.layout)
    state.update(terms.scheme.to_bytes())
    for name in terms.carrier:
        state.update(hashlib.sha256(name.encode()).digest())
    return state.digest()


def _about(enrolment: str) -> str:
    """What the vault binds a chain's seeds to."""
    return f"seeds of {enrolment}"

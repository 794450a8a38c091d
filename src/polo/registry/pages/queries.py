"""What the pages read from the tables. Every list is bounded and reads along an index.

Nothing here selects a nonce, an opening or a secret, so that no template can show one.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from polo.protocol.detection import MILLION, Reading
from polo.protocol.records import MAX_SHARDS, Enrolment
from polo.protocol.verdicts import SignedVerdict
from polo.registry import schema
from polo.registry.uploads.retention import Kept, standing

PAGE = 25
WAITING = ("waiting", "running")
"""States of a job or a verification that something will still come of."""


@dataclass(frozen=True)
class ChainLine:
    """A chain in a list."""

    id: str
    task: str
    name: str
    state: str
    shards: int
    issued: int
    changed: int
    outcome: str | None


@dataclass(frozen=True)
class Challenge:
    """What the registry wanted to see of a chain, without what exactly it drew."""

    id: str
    shard: int | None
    kind: str
    state: str
    detail: str
    made: int
    due: int
    ended: int | None

    @property
    def is_stuck(self) -> bool:
        """Whether the registry could not check the answer."""
        return self.state == "answered" and bool(self.detail)


@dataclass(frozen=True)
class Said:
    """What a prover says of a shard, as far as pages show it."""

    matches: int
    steps: int
    metrics: Mapping[str, int]


@dataclass(frozen=True)
class ShardLine:
    """One commitment of a chain.

    Attributes:
        number: The shard's number; 0 for the start.
        said: What the prover says of it; None for the start.
        time: When the registry had it.
        index: Its place in the log.
        receipted: Whether its receipt was given.
        read: Bits that the registry itself read right in the opening; None if it read none.
        bits: Bits of a mark.
        seconds: Time since the commitment before; None for the start.
        challenges: What was asked about this shard.
    """

    number: int
    said: Said | None
    time: int
    index: int
    receipted: bool
    read: int | None
    bits: int
    seconds: int | None
    challenges: tuple[Challenge, ...] = ()

    @property
    def reading(self) -> Reading | None:
        """The mark as the registry read it, or as the prover says; None for the start."""
        if self.said is None:
            return None
        matches = self.said.matches if self.read is None else self.read
        return Reading(self.bits, min(matches, self.bits))

    def metric(self, name: str) -> float | None:
        """A figure that the prover measured."""
        value = self.said.metrics.get(name) if self.said else None
        return None if value is None else value / MILLION


@dataclass(frozen=True)
class VerificationLine:
    """A verification, without its checks."""

    id: str
    enrolment: str
    state: str
    made: int
    begun: int | None
    ended: int | None
    progress: str
    outcome: str | None

    @property
    def is_public(self) -> bool:
        """Whether everybody may see it: there is a verdict."""
        return self.state == "done"


@dataclass(frozen=True)
class Chain:
    """A chain as far as everybody may see it."""

    id: str
    name: str
    identity: str
    state: str
    count: int
    changed: int
    record: Enrolment
    lines: Sequence[ShardLine] = ()
    open_challenges: Sequence[Challenge] = ()
    late_challenges: Sequence[Challenge] = ()
    verifications: Sequence[VerificationLine] = field(default_factory=tuple)
    kept: Kept = Kept(0, None, None)
    seen: int = 0

    @property
    def metric(self) -> str:
        """Name of the figure that the terms ask for."""
        return self.record.terms.task.metric

    @property
    def shards(self) -> list[ShardLine]:
        """All commitments but the start."""
        return [line for line in self.lines if line.said]

    @property
    def is_live(self) -> bool:
        """Whether more is to come."""
        busy = any(item.state in WAITING for item in self.verifications)
        return self.state == "open" or busy or bool(self.open_challenges)


@dataclass(frozen=True)
class Head:
    """A signed checkpoint of the log."""

    size: int
    root: bytes
    time: int
    note: str
    witnesses: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class LogLine:
    """One entry of the log in a list."""

    index: int
    enrolment: str
    shard: int
    task: str
    root: bytes
    time: int


def chains(
    connection: Connection, *, before: tuple[int, str] | None = None, limit: int = PAGE
) -> list[ChainLine]:
    """The chains that were enrolled last, newest first."""
    table = schema.enrolments
    query = _chain_lines().order_by(table.c.issued.desc(), table.c.id.desc()).limit(limit)
    if before is not None:
        issued, key = before
        older = (table.c.issued == issued) & (table.c.id < key)
        query = query.where((table.c.issued < issued) | older)
    return [ChainLine(*row) for row in connection.execute(query)]


def _chain_lines() -> Select[Any]:
    table, who, checks = schema.enrolments, schema.identities, schema.verifications
    done = select(checks.c.outcome).where(
        checks.c.enrolment == table.c.id, checks.c.outcome.is_not(None)
    )
    newest = done.order_by(checks.c.ended.desc(), checks.c.id).limit(1)
    return select(
        table.c.id,
        table.c.task,
        who.c.name,
        table.c.state,
        table.c.shards,
        table.c.issued,
        table.c.changed,
        newest.scalar_subquery(),
    ).join(who, who.c.id == table.c.identity)


def chain(connection: Connection, key: str) -> Chain | None:
    """A chain with all its commitments; None if there is none of that id."""
    table, who = schema.enrolments, schema.identities
    columns = (table.c.record, table.c.state, table.c.shards, table.c.changed, who.c.id, who.c.name)
    query = select(*columns).join(who, who.c.id == table.c.identity).where(table.c.id == key)
    row = connection.execute(query).first()
    if row is None:
        return None
    record = Enrolment.from_bytes(bytes(row[0]), "enrolment")
    asked = challenges(connection, key)
    return Chain(
        id=key,
        name=row[5],
        identity=row[4],
        state=row[1],
        count=row[2],
        changed=row[3],
        record=record,
        lines=_shard_lines(connection, key, record.terms.scheme.bits, asked),
        open_challenges=[item for item in asked if item.state in ("open", "answered")],
        late_challenges=[item for item in asked if item.shard is None],
        verifications=verifications(connection, key),
        kept=standing(connection, key),
        seen=seen(connection, key),
    )


def version(connection: Connection, key: str, *, everything: bool) -> str | None:
    """A word that changes whenever a chain's page does; None if there is no such chain.

    Args:
        connection: A transaction.
        key: The chain's id.
        everything: Whether verifications without a verdict are on the page.
    """
    table, asked, checks = schema.enrolments, schema.challenges, schema.verifications
    own = select(table.c.state, table.c.shards, table.c.changed).where(table.c.id == key)
    row = connection.execute(own).first()
    if row is None:
        return None
    given = select(func.count(), func.max(schema.commitments.c.time)).where(
        schema.commitments.c.enrolment == key, schema.commitments.c.receipt.is_not(None)
    )
    states = (
        select(asked.c.id, asked.c.state, func.length(asked.c.detail))
        .where(asked.c.enrolment == key)
        .order_by(asked.c.id)
    )
    runs = select(checks.c.id, checks.c.state, checks.c.progress).where(checks.c.enrolment == key)
    if not everything:
        runs = runs.where(checks.c.state == "done")
    found = [
        [list(item) for item in connection.execute(query)]
        for query in (given, states, runs.order_by(checks.c.id))
    ]
    kept = dataclasses.astuple(standing(connection, key))
    return json.dumps([list(row), *found, kept, seen(connection, key)])


def seen(connection: Connection, key: str) -> int:
    """How many entries of a chain stand under a checkpoint that a witness cosigned."""
    newest = witnessed(connection)
    own = schema.commitments.c.enrolment == key
    under = schema.commitments.c.index < (newest[0] if newest else 0)
    query = select(func.count()).select_from(schema.commitments).where(own, under)
    return connection.execute(query).scalar_one()


def challenges(connection: Connection, key: str) -> list[Challenge]:
    """Everything that was asked about a chain, oldest first."""
    table = schema.challenges
    query = select(*_challenge_columns()).where(table.c.enrolment == key).order_by(table.c.made)
    return [Challenge(*row) for row in connection.execute(query.limit(MAX_SHARDS))]


def _challenge_columns() -> list[Any]:
    """All but the record: before the answer nobody needs to know what exactly was drawn."""
    table = schema.challenges.c
    return [
        table.id,
        table.shard,
        table.kind,
        table.state,
        table.detail,
        table.made,
        table.due,
        table.ended,
    ]


def _shard_lines(
    connection: Connection, key: str, bits: int, asked: Sequence[Challenge]
) -> list[ShardLine]:
    table = schema.commitments
    columns = (table.c.record, table.c.time, table.c.index, table.c.receipt.is_not(None))
    query = select(*columns, table.c.matches).where(table.c.enrolment == key)
    rows = connection.execute(query.order_by(table.c.shard)).all()
    by_shard: dict[int | None, list[Challenge]] = {}
    for item in asked:
        by_shard.setdefault(item.shard, []).append(item)
    lines: list[ShardLine] = []
    for row in rows:
        seconds = row[1] - lines[-1].time if lines else None
        lines.append(_shard_line(row, bits, seconds, by_shard))
    return lines


def _shard_line(
    row: Sequence[Any], bits: int, seconds: int | None, asked: dict[int | None, list[Challenge]]
) -> ShardLine:
    # Checked field by field when it was committed; ten thousand at once are only read here.
    shard = json.loads(row[0])["shard"]
    said = shard and Said(shard["matches"], shard["steps"], shard["metrics"])
    number = shard["shard"] if shard else 0
    own = tuple(asked.get(number, ()))
    return ShardLine(number, said, row[1], row[2], bool(row[3]), row[4], bits, seconds, own)


def verifications(connection: Connection, key: str, limit: int = PAGE) -> list[VerificationLine]:
    """The verifications of a chain, newest first."""
    table = schema.verifications
    query = select(*_verification_columns()).where(table.c.enrolment == key)
    query = query.order_by(table.c.made.desc(), table.c.id).limit(limit)
    return [VerificationLine(*row) for row in connection.execute(query)]


def _verification_columns() -> list[Any]:
    table = schema.verifications.c
    return [
        table.id,
        table.enrolment,
        table.state,
        table.made,
        table.begun,
        table.ended,
        table.progress,
        table.outcome,
    ]


@dataclass(frozen=True)
class Verified:
    """A verification with its verdict, once there is one."""

    line: VerificationLine
    verdict: SignedVerdict | None
    start: str


def verification(connection: Connection, key: str) -> Verified | None:
    """A verification; None if there is none of that id."""
    table, chain = schema.verifications, schema.enrolments
    query = select(*_verification_columns(), table.c.verdict, chain.c.record)
    query = query.join(chain, chain.c.id == table.c.enrolment).where(table.c.id == key)
    row = connection.execute(query).first()
    if row is None:
        return None
    *line, verdict, record = tuple(row)
    return Verified(
        VerificationLine(*line),
        SignedVerdict.from_bytes(bytes(verdict), "verdict") if verdict is not None else None,
        Enrolment.from_bytes(bytes(record), "enrolment").terms.start.kind,
    )


def head(connection: Connection) -> Head | None:
    """The log's latest signed checkpoint, with who cosigned it; None while the log is empty."""
    table, signed = schema.log_heads, schema.cosignatures
    query = select(table.c.size, table.c.root, table.c.time, table.c.note)
    row = connection.execute(query.order_by(table.c.size.desc()).limit(1)).first()
    if row is None:
        return None
    lines = select(signed.c.witness, signed.c.time).where(signed.c.size == row[0])
    found = [(name, time) for name, time in connection.execute(lines.order_by(signed.c.witness))]
    return Head(*row, witnesses=found)


def witnessed(connection: Connection) -> tuple[int, int] | None:
    """The largest size that any witness cosigned, and when."""
    table = schema.cosignatures
    query = select(table.c.size, table.c.time).order_by(table.c.size.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else (row[0], row[1])


def log_lines(
    connection: Connection, *, before: int | None = None, limit: int = PAGE
) -> list[LogLine]:
    """The newest entries of the log."""
    table, chain = schema.commitments, schema.enrolments
    columns = (table.c.index, table.c.enrolment, table.c.shard, chain.c.task, table.c.root)
    query = select(*columns, table.c.time).join(chain, chain.c.id == table.c.enrolment)
    if before is not None:
        query = query.where(table.c.index < before)
    return [
        LogLine(*row)
        for row in connection.execute(query.order_by(table.c.index.desc()).limit(limit))
    ]


def scan(connection: Connection, key: str) -> tuple[Row[Any], dict[str, Any] | None] | None:
    """A scan of a found file, with its result's JSON from the end on."""
    table = schema.scans
    row = connection.execute(select(table).where(table.c.id == key)).first()
    if row is None:
        return None
    return row, None if row.result is None else json.loads(row.result)

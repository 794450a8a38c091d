"""Doing a scan: every other chain's marks, looked for in one model."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select, update

from polo.errors import PoloError, StoreError
from polo.protocol import signing
from polo.protocol.records import Enrolment
from polo.protocol.uniqueness import MAX_CLAIMS, Resemblance, Uniqueness
from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.jobs import Later, handler
from polo.registry.log import service as log
from polo.registry.objects import key_of
from polo.registry.observing import LOGGER
from polo.registry.scans import child
from polo.registry.scans.room import SPARE
from polo.registry.scans.service import JOB, Scan, forget, get, stored_checkpoint
from polo.registry.schema import commitments, enrolments, identities, scans
from polo.registry.verifications import sandbox

if TYPE_CHECKING:
    from polo.ownership.scan import Lot
    from polo.registry.scans.marks import Known

MOST_ANCESTORS = 1000
MOST_COMPARED = 8
"""Claims for which the other chain's own weights are looked at, too."""

SECONDS = 1800
"""How long one look at one file may take."""

_NO_ROOM = 300
"""Seconds to wait where the disk has no room to look at a file."""

MUTUAL = (
    "each chain's marks are in the other's committed checkpoint: by the rule of containment "
    "neither came first, so the log's order decides"
)
CONTAINED = "its marks are in this chain's committed checkpoint, and not the reverse: it came first"
ONE_SIDED = "its marks are in this chain's committed checkpoint; its own checkpoint is not here"


@dataclass(frozen=True)
class Subject:
    """The chain whose checkpoint is looked at.

    Attributes:
        enrolment: Its enrolment.
        owner: The identity it belongs to.
        place: Place in the log of the commitment to these weights.
        ancestors: Enrolments that it says it goes on from.
    """

    enrolment: str
    owner: str
    place: int
    ancestors: frozenset[str]

    def relation(self, enrolment: str, owner: str) -> str:
        """What another chain is to it."""
        if enrolment in self.ancestors:
            return "parent"
        return "own" if owner == self.owner else "none"


def give_up(registry: Registry, scan: str, error: str) -> None:
    """Note that a scan failed for good; how, may be about this machine, and is in its job."""
    LOGGER.warning("scan %s is given up: %s", scan, error)
    _end(registry, scan, "broken", {"problem": "the scan failed, again and again"})
    with registry.database.read() as connection:
        asked = get(connection, scan)
    if asked.enrolment is None:
        forget(registry, asked.sha256)


@handler(JOB, give_up=give_up)
def work(registry: Registry, scan: str) -> None:
    """Do a scan; it can be done again from the beginning."""
    with registry.database.begin() as connection:
        asked = get(connection, scan)
        if asked.state in ("done", "broken"):
            return
        connection.execute(update(scans).where(scans.c.id == scan).values(state="running"))
    try:
        _scan(registry, asked)
    except sandbox.ChildError as error:
        # Not again: a file that is made to be slow, or too large, would keep others waiting. What
        # the process said last may be about this machine.
        LOGGER.warning("scan %s of %s: %s", scan, asked.sha256, error)
        slow = isinstance(error, sandbox.SlowError)
        why = str(error) if slow else "the process that looked at it broke off"
        _end(registry, scan, "broken", {"problem": f"it could not be scanned: {why}"})
    except PoloError as error:
        _end(registry, scan, "broken", {"problem": str(error), "advice": error.advice})
    if asked.enrolment is None:
        forget(registry, asked.sha256)


def _scan(registry: Registry, asked: Scan) -> None:
    from polo.registry.scans import marks

    marks.refresh(registry)
    with registry.database.read() as connection:
        subject = _subject(connection, asked)
        head = log.newest(connection)
        known = [
            item for item in marks.known(registry, connection) if item.chain.name != asked.enrolment
        ]
        lots = marks.lots(connection, known)
    found = _looked(registry, asked, lots)
    if "problem" in found:
        _end(registry, asked.id, "broken", found)
        return
    reverse = _reverse(registry, subject, [claim["enrolment"] for claim in found["claims"]])
    by_name = {item.chain.name: item for item in known}
    with registry.database.read() as connection:
        claims = [
            _claim(connection, claim, by_name[claim["enrolment"]], subject, reverse)
            for claim in found["claims"]
        ]
    shown = {"format": "polo/scan-result/1", **found, "problem": "", "claims": claims}
    size = head.size if head else 0
    statement = _statement(registry, asked, shown, size) if subject is not None else None
    _end(registry, asked.id, "done", shown, statement)


def _looked(registry: Registry, asked: Scan, lots: "list[Lot]") -> dict[str, Any]:
    """What a process of its own finds in the file; it is hostile, whoever sent it."""
    key = key_of(asked.sha256)
    size = registry.objects.size(key)
    if size is None:
        raise StoreError("the file is not here any more")
    if shutil.disk_usage(registry.settings.data).free < size + SPARE:
        raise Later(_NO_ROOM)
    with sandbox.room(registry) as folder:
        registry.objects.fetch(key, folder / child.MODEL)
        request: dict[str, Any] = {"do": "scan", "root": "", "shard": asked.shard}
        if asked.enrolment is not None:
            layout, request["root"] = _committed(registry, asked)
            (folder / child.LAYOUT).write_bytes(layout)
        return sandbox.run(
            registry,
            folder,
            request,
            weights=size,
            module=child.__name__,
            secret=child.packed(lots),
            seconds=min(SECONDS, registry.settings.verify_seconds),
        )


def _committed(registry: Registry, asked: Scan) -> tuple[bytes, str]:
    """The layout of a chain, and the root that it committed to."""
    with registry.database.read() as connection:
        row = connection.execute(
            select(enrolments.c.layout, commitments.c.root)
            .join(commitments, commitments.c.enrolment == enrolments.c.id)
            .where(enrolments.c.id == asked.enrolment, commitments.c.shard == asked.shard)
        ).one()
    return bytes(row.layout), bytes(row.root).hex()


def _subject(connection: Connection, asked: Scan) -> Subject | None:
    if asked.enrolment is None:
        return None
    row = connection.execute(
        select(enrolments.c.identity, commitments.c.index.label("place"))
        .join(commitments, commitments.c.enrolment == enrolments.c.id)
        .where(enrolments.c.id == asked.enrolment, commitments.c.shard == asked.shard)
    ).one()
    above = frozenset(_ancestors(connection, asked.enrolment))
    return Subject(asked.enrolment, row.identity, row.place, above)


def _ancestors(connection: Connection, enrolment: str) -> Iterator[str]:
    at: str | None = enrolment
    for _ in range(MOST_ANCESTORS):
        at = connection.execute(select(enrolments.c.parent).where(enrolments.c.id == at)).scalar()
        if at is None:
            return
        yield at


def _reverse(registry: Registry, subject: Subject | None, others: list[str]) -> dict[str, bool]:
    """Whether the subject's marks are in others' last checkpoints, as far as those are here."""
    from polo.registry.scans import marks

    if subject is None or not others:
        return {}
    with registry.database.read() as connection:
        own = marks.known(registry, connection, only=subject.enrolment)
        lots = marks.lots(connection, list(own))
    held: dict[str, bool] = {}
    for other in others[:MOST_COMPARED]:
        with registry.database.read() as connection:
            last = connection.execute(
                select(func.max(commitments.c.shard)).where(commitments.c.enrolment == other)
            ).scalar_one()
            sha256 = stored_checkpoint(connection, other, last)
        if sha256 is None:
            continue
        stand_in = Scan("", other, last, "", sha256, "", 0)
        with contextlib.suppress(PoloError):
            found = _looked(registry, stand_in, lots)
            if "problem" not in found:
                held[other] = bool(found["claims"])
    return held


def _claim(
    connection: Connection,
    claim: dict[str, Any],
    known: "Known",
    subject: Subject | None,
    reverse: dict[str, bool],
) -> dict[str, Any]:
    """A claim that stands, as the result shows it."""
    row = connection.execute(
        select(enrolments.c.task, enrolments.c.issued, enrolments.c.state, identities.c.name)
        .join(identities, identities.c.id == enrolments.c.identity)
        .where(enrolments.c.id == claim["enrolment"])
    ).one()
    about = {"name": row.name, "task": row.task, "state": row.state, "issued": row.issued}
    shown = {**claim, **about}
    if subject is None:
        return shown
    mutual = reverse.get(claim["enrolment"])
    # A chain that has the other's marks as well says nothing by having been copied from.
    start = _start(connection, subject.enrolment) if mutual else subject.place
    return shown | {
        "earlier": known.first < start,
        "relation": subject.relation(claim["enrolment"], claim["owner"]),
        "containment": {None: ONE_SIDED, True: MUTUAL, False: CONTAINED}[mutual],
    }


def _start(connection: Connection, enrolment: str) -> int:
    """Place in the log of a chain's first mark."""
    query = select(func.min(commitments.c.index)).where(
        commitments.c.enrolment == enrolment, commitments.c.shard >= 1
    )
    place: int = connection.execute(query).scalar_one()
    return place


def _statement(registry: Registry, asked: Scan, shown: dict[str, Any], size: int) -> Uniqueness:
    """What the registry signs of it, by the key that signed the enrolment."""
    with registry.database.begin() as connection:
        row = connection.execute(
            select(enrolments.c.record, commitments.c.root)
            .join(commitments, commitments.c.enrolment == enrolments.c.id)
            .where(enrolments.c.id == asked.enrolment, commitments.c.shard == asked.shard)
        ).one()
        enrolment = Enrolment.from_bytes(bytes(row.record), "enrolment")
        issuer = registry.vault.issuer_of(connection, enrolment.issuer)
    # Those that speak against it come first, should there be too many to list.
    claims = sorted(shown["claims"], key=lambda c: (c["relation"] != "none", not c["earlier"]))
    said = Uniqueness(
        enrolment.digest,
        bytes(row.root),
        registry.settings.origin,
        size,
        shown["chains"],
        shown["unread"],
        registry.clock(),
        tuple(
            Resemblance(
                bytes.fromhex(claim["enrolment"]),
                claim["earlier"],
                claim["relation"],
                math.floor(-claim["log2_p"]),
            )
            for claim in claims[:MAX_CLAIMS]
        ),
    )
    return signing.sign(said, issuer)


def _end(
    registry: Registry,
    scan: str,
    state: str,
    result: dict[str, Any],
    statement: Uniqueness | None = None,
) -> None:
    now = registry.clock()
    with registry.database.begin() as connection:
        connection.execute(
            update(scans)
            .where(scans.c.id == scan)
            .values(
                state=state,
                ended=now,
                chains=result.get("chains"),
                result=json.dumps(result).encode(),
                statement=statement.to_bytes() if statement else None,
            )
        )
        claims = len(result.get("claims", ()))
        detail = result.get("problem") or f"{claims} claims among {result['chains']} chains"
        note(connection, f"scan.{state}", scan, str(detail)[:500], actor="registry", now=now)

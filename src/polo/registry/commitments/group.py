"""One group of entries, checked and appended in one transaction.

What is read here is read inside the transaction, behind the log's lock, so that several server
processes can write to one database. Few statements serve the whole group, whatever its size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from polo.errors import PoloError
from polo.keys import Identity
from polo.protocol.entries import Entry, live_nonce
from polo.registry.commitments.answers import Answer, Place, Receipted, Waiting, receipt_of
from polo.registry.commitments.chains import Chain
from polo.registry.commitments.recorded import Recorded, missing
from polo.registry.commitments.rules import (
    Standing,
    Submission,
    check_caller,
    check_turn,
    repeated,
    unopened,
)
from polo.registry.commitments.standing import Earlier, Known, learn
from polo.registry.log import service as log
from polo.registry.log.growing import Appended, Growth
from polo.registry.problems import Problem
from polo.registry.schema import challenges, commitments, enrolments, objects
from polo.registry.writing import add_all, change_all, insert_new, together

Draw = Callable[[Connection, Chain, Entry, int, Recorded | None], Waiting | None]
"""Decides whether an entry's receipt waits for a challenge, and opens the challenge."""

Result = Answer | PoloError

_ASKED = select(challenges.c.id, challenges.c.kind, challenges.c.due)


@dataclass(frozen=True)
class _New:
    """An entry that goes into the log with this group."""

    submission: Submission
    index: int
    waiting: Waiting | None


@dataclass
class Group:
    """Works on one group; used once.

    Attributes:
        connection: A write transaction that holds the log's lock.
        submissions: The entries, in the order they came.
        growth: The log.
        origin: The log's name.
        signers: The log's keys, the newest first.
        draw: Decides about challenges.
        now: The time.
        appended: What was added to the log, if anything was.
    """

    connection: Connection
    submissions: Sequence[Submission]
    growth: Growth
    origin: str
    signers: Sequence[Identity]
    draw: Draw
    now: int
    appended: Appended | None = field(default=None, init=False)

    def settle(self) -> list[Result]:
        """Check all, append what holds, and say what answers each. Nothing is committed yet."""
        self._head = log.newest(self.connection)
        # The log's time never goes back, whatever the clock does.
        self.now = max(self.now, self._head.time if self._head else 0)
        frontier = self.growth.frontier(self.connection, self._head)
        self._known: Known = learn(self.connection, self.submissions)
        self._new: dict[tuple[str, bytes], _New] = {}
        self._first = frontier.size
        found = [self._decided(submission) for submission in self.submissions]
        if not self._new:
            return [item for item in found if not isinstance(item, _New)]
        entries = [item.submission.data for item in self._new.values()]
        insert_new(self.connection, objects, self._attached())
        with together(self.connection):
            self.appended = self.growth.append(
                self.connection, frontier, entries, self.signers, now=self.now
            )
            answers = self._written(self.appended)
        return [answers[item.index] if isinstance(item, _New) else item for item in found]

    def _decided(self, submission: Submission) -> Result | _New:
        try:
            return self._decide(submission)
        except PoloError as error:
            return error

    def _decide(self, submission: Submission) -> Answer | _New:
        """Refuse an entry, answer one that is in the log already, or take it in."""
        given, chain, entry = submission.authorization, submission.chain, submission.entry
        request = (given.key, given.nonce)
        if request not in self._known.fresh:
            raise Problem(401, "caller.replayed", "a request with this nonce was here before")
        self._known.fresh.discard(request)
        standing = self._known.standings.get(chain.id)
        if standing is None:
            raise Problem(404, "enrolment.missing", "there is no such enrolment")
        check_caller(standing, given)
        new = self._new.get((chain.id, entry.root))
        if new and new.submission.data == submission.data:
            return new
        earlier = self._known.earlier.get((chain.id, entry.root))
        if earlier and earlier.record == submission.data:
            return self._again(submission, earlier)
        check_turn(standing, chain, entry, self.now)
        if new or earlier:
            raise repeated(new.submission.entry.number if new else earlier.shard)  # type: ignore[union-attr]
        if chain.streams and entry.opening:
            here = (entry.opening.hex(), chain.id) in self._known.opened
            opened = here or submission.attached is not None
            # Without a reading it was not this entry's turn when it came.
            if not opened or submission.matches is None:
                raise unopened(chain, entry.number)
        if chain.replays and entry.shard and submission.recorded is None:
            raise missing(chain, entry.number)
        return self._taken(submission, standing)

    def _taken(self, submission: Submission, standing: Standing) -> _New:
        chain, entry = submission.chain, submission.entry
        waiting = None
        if chain.draws:
            waiting = self.draw(self.connection, chain, entry, self.now, submission.recorded)
        new = _New(submission, self._first + len(self._new), waiting)
        self._new[chain.id, entry.root] = new
        standing.last, standing.root = entry.number, entry.root
        standing.time, standing.waits = self.now, waiting is not None
        return new

    def _again(self, submission: Submission, earlier: Earlier) -> Answer:
        """The answer to an entry that is in the log: the same receipt, or the same challenge."""
        if earlier.receipt is None:
            return asked(self.connection, submission.chain.id, earlier.shard)
        assert self._head is not None
        path = log.inclusion(self.connection, earlier.index, self._head.size)
        return Receipted(
            submission.data,
            earlier.receipt,
            live_nonce(submission.chain.secret, submission.entry),
            Place(earlier.index, self._head.size, path, self._head.note),
        )

    def _written(self, appended: Appended) -> dict[int, Answer]:
        """Sign the receipts and write the commitments; answers by index in the log."""
        rows, counts, answers = [], {}, {}
        for new in self._new.values():
            chain, entry = new.submission.chain, new.submission.entry
            answer = new.waiting or self._receipted(new, appended)
            answers[new.index] = answer
            if isinstance(answer, Receipted):
                counts[chain.id] = entry.number
            rows.append(
                {
                    "enrolment": chain.id,
                    "shard": entry.number,
                    "root": entry.root,
                    "record": new.submission.data,
                    "index": new.index,
                    "time": self.now,
                    "receipt": answer.receipt if isinstance(answer, Receipted) else None,
                    "opening": entry.opening.hex() if chain.streams and entry.opening else None,
                    "matches": new.submission.matches,
                }
            )
        add_all(self.connection, commitments, rows)
        changes = [
            {"shards": count, "changed": self.now, "id": chain} for chain, count in counts.items()
        ]
        change_all(self.connection, enrolments, "id", changes)
        return answers

    def _attached(self) -> list[dict[str, Any]]:
        """Rows of the openings that came with the new entries."""
        return [
            {
                "sha256": new.submission.entry.opening.hex(),
                "enrolment": new.submission.chain.id,
                "kind": "opening",
                "size": new.submission.attached,
                "made": self.now,
            }
            for new in self._new.values()
            if new.submission.attached is not None and new.submission.entry.opening
        ]

    def _receipted(self, new: _New, appended: Appended) -> Receipted:
        chain, entry = new.submission.chain, new.submission.entry
        receipt, nonce = receipt_of(
            chain,
            entry,
            appended.known[0, new.index],
            origin=self.origin,
            index=new.index,
            time=self.now,
        )
        place = Place(new.index, appended.size, appended.path(new.index), appended.note)
        return Receipted(new.submission.data, receipt, nonce, place)


def asked(connection: Connection, enrolment: str, shard: int) -> Waiting:
    """The challenge that a receipt waits for."""
    row = connection.execute(
        _ASKED.where(challenges.c.enrolment == enrolment, challenges.c.shard == shard)
        .order_by(challenges.c.made.desc(), challenges.c.id)
        .limit(1)
    ).first()
    if row is None:
        raise Problem(409, "commitment.waiting", "the receipt is not given yet")
    return Waiting(row.id, row.kind, row.due)

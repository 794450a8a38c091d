"""What is refused of an entry, and under which code."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polo.errors import LimitError, PoloError
from polo.keys import Ed25519Verifier
from polo.protocol import chain as chains
from polo.protocol.entries import Entry
from polo.protocol.log_tiles import MAX_ENTRY
from polo.protocol.requests import Authorization
from polo.registry.commitments.chains import Chain
from polo.registry.problems import CODES, Problem

if TYPE_CHECKING:
    from polo.registry.commitments.recorded import Recorded

CODES.update(
    {
        "commitment.broken": "The body is no entry in canonical form.",
        "commitment.bad-signature": "The entry is not signed by the enrolled identity.",
        "commitment.differs": "Another entry was committed for this shard before.",
        "commitment.failed-mark": "The mark does not read well enough in the opening.",
        "commitment.limits": "The shard is not one that the terms allow.",
        "commitment.missing": "Nothing was committed for this shard.",
        "commitment.missing-opening": "The terms ask for openings, and this one is not here.",
        "commitment.out-of-order": "It is not this shard's turn.",
        "commitment.queue-full": "Too many commitments are waiting; `Retry-After` says how long.",
        "commitment.repeated-root": "The chain had these very weights before.",
        "commitment.too-fast": "The terms ask for more time between two commitments.",
        "commitment.too-many": "The terms allow no more shards.",
        "commitment.waiting": "The commitment before this one waits for a challenge.",
        "commitment.wrong-enrolment": "The entry belongs to another enrolment.",
        "commitment.wrong-link": "The shard does not start where the chain ended.",
    }
)


@dataclass(frozen=True)
class Submission:
    """An entry on its way to the log, with all signatures checked.

    Attributes:
        chain: The chain it is for.
        entry: The entry.
        data: Its bytes, as they came.
        authorization: Who sent it; the nonce of the request is not spent yet.
        matches: Bits that read right in its opening; None if the terms ask for none.
        recorded: What its record says, where steps may be drawn from it; None else, and where it
            was not this entry's turn when it came.
        request: The request's id, for the events.
        attached: Bytes of the opening that came with it and is on the disk; None if none did.
    """

    chain: Chain
    entry: Entry
    data: bytes
    authorization: Authorization
    matches: int | None = None
    request: str | None = None
    recorded: "Recorded | None" = None
    attached: int | None = None


@dataclass
class Standing:
    """How far a chain is. The sequencer moves it on inside its transaction.

    Attributes:
        key: The key that the identity signs requests with now.
        revoked: Whether the identity was revoked.
        state: State of the enrolment.
        last: Number of the newest commitment; None before the start.
        root: Its root.
        time: When it was noted.
        waits: Whether it has no receipt yet.
    """

    key: bytes
    revoked: bool
    state: str
    last: int | None
    root: bytes
    time: int
    waits: bool


def readable(data: bytes, chain: Chain) -> Entry:
    """The entry in a body, of this chain and signed by its prover; else a `Problem`."""
    try:
        if len(data) > MAX_ENTRY:
            raise LimitError(f"{len(data)} bytes; the log takes at most {MAX_ENTRY}")
        entry = Entry.from_bytes(data, "entry")
    except PoloError as error:
        raise Problem(
            422,
            "commitment.broken",
            str(error),
            advice="Send the canonical bytes of a polo/entry/1 record.",
        ) from error
    if entry.enrolment.hex() != chain.id:
        raise Problem(
            422, "commitment.wrong-enrolment", f"the entry is for {entry.enrolment.hex()[:16]}…"
        )
    key = chain.record.identity
    if not Ed25519Verifier().verify(key, signed_part(data, entry), entry.signature):
        raise Problem(
            422,
            "commitment.bad-signature",
            f"the entry's signature is not that of key {key.hex()[:16]}…, which is enrolled",
        )
    return entry


def signed_part(data: bytes, entry: Entry) -> bytes:
    """What `entry.message()` gives, cut out of the entry's bytes instead of encoded anew.

    They are canonical, so the signature stands in one way in one place, before `start`; nothing
    else in an entry is a text of 128 letters.
    """
    signature = b'"signature":"%b",' % entry.signature.hex().encode()
    return b"polo signature 1\n" + data.replace(signature, b"", 1)


def check_caller(standing: Standing, authorization: Authorization) -> None:
    """Refuse whoever is not the chain's prover."""
    if standing.revoked:
        raise Problem(403, "caller.revoked", "this identity was revoked")
    if standing.key != authorization.key:
        raise Problem(
            403,
            "enrolment.not-yours",
            "the request is not signed by the key of the enrolled identity",
        )


def check_turn(standing: Standing, chain: Chain, entry: Entry, now: int) -> None:
    """Refuse an entry whose turn it is not."""
    _check_state(standing)
    number, wanted = entry.number, 0 if standing.last is None else standing.last + 1
    if number < wanted:
        raise Problem(
            409,
            "commitment.differs",
            f"another entry stands in the log for {_named(number)}",
            advice="What was committed stays. Go on from the receipt that you were given.",
        )
    if number > wanted:
        raise Problem(
            409, "commitment.out-of-order", f"{_named(wanted)} comes next, not {_named(number)}"
        )
    if standing.waits:
        raise Problem(
            409,
            "commitment.waiting",
            f"{_named(wanted - 1)} waits for the answer to a challenge",
            advice="Answer the challenge first; it is among the enrolment's challenges.",
        )
    if number > chain.terms.shards.most:
        raise Problem(
            409,
            "commitment.too-many",
            f"the terms allow {chain.terms.shards.most} shards",
            advice="Close the enrolment with the manifest.",
        )
    ready = standing.time + chain.fastest
    if number and now < ready:
        raise Problem(
            429,
            "commitment.too-fast",
            f"the terms ask for {chain.fastest} seconds between two commitments",
            headers={"Retry-After": str(ready - now)},
        )
    _check_shard(standing, chain, entry)


def _check_state(standing: Standing) -> None:
    if standing.state != "open":
        raise Problem(
            409, f"enrolment.{standing.state}", f"the enrolment is {standing.state}: nothing more"
        )


def _check_shard(standing: Standing, chain: Chain, entry: Entry) -> None:
    start = chain.terms.start
    if entry.shard is None:
        if start.kind == "parent" and entry.root != start.parent:
            raise Problem(
                422, "commitment.limits", "the terms name another model to start from than this"
            )
        return
    if entry.shard.previous != standing.root:
        raise Problem(
            409, "commitment.wrong-link", "the shard does not start from the weights of the last"
        )
    fault = next(chains.shard_faults(chain.terms, entry.shard), None)
    if fault:
        raise Problem(422, "commitment.limits", fault.detail)


def repeated(number: int) -> Problem:
    """The root stood in the chain before."""
    return Problem(
        422,
        "commitment.repeated-root",
        f"the root is that of {_named(number)} again",
        advice="Train at least one step between two shards.",
    )


def unopened(chain: Chain, number: int) -> Problem:
    """The opening that the terms ask for is not here."""
    return Problem(
        409,
        "commitment.missing-opening",
        f"the opening of {_named(number)} was not uploaded for {chain.id[:16]}…",
        advice="Send it with the entry, or upload it as kind `opening` first.",
    )


@functools.cache
def _named(number: int) -> str:
    return f"shard {number}" if number else "the start"

"""What the page of one chain shows, put together from its rows."""

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from sqlalchemy import Connection

from polo.checks import Status
from polo.protocol.detection import MILLION
from polo.registry.pages import queries, render, terms
from polo.registry.pages.queries import Chain, Challenge, ShardLine
from polo.registry.pages.render import figure

MOST_ROWS = 100
MOST_KEPT = 64
"""Written pages in memory, the least used forgotten first; the longest has half a megabyte."""

_LOOKS = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.UNDECIDED: "open",
    Status.NOTE: "note",
}
_WANTED = {"checkpoint": "whole checkpoint", "replay": "replay"}
_ENDS = {
    "open": ("open", "asked for"),
    "answered": ("open", "being checked"),
    "stuck": ("open", "could not be checked"),
    "passed": ("passed", "passed"),
    "failed": ("failed", "failed"),
}


@dataclass(frozen=True)
class Row:
    """A line of the table of shards: its figures, its checks, and what pointing at it says."""

    line: ShardLine
    checks: Sequence[tuple[str, str]]
    tip: str


@dataclass(frozen=True)
class Shown:
    """A chain's page: the part that changes, the values around it, and its version."""

    tag: str
    live: Markup
    values: Mapping[str, Any]


_KEPT: OrderedDict[str, Shown] = OrderedDict()
_LOCK = threading.Lock()


def shown(
    connection: Connection,
    key: str,
    to: int | None = None,
    *,
    unless: str | None = None,
    everything: bool = False,
) -> Shown | None:
    """The page of a chain, written anew only when something has changed.

    Args:
        connection: A transaction.
        key: The chain's id.
        to: The newest shard to list; all figures and charts are of the whole chain.
        unless: A version that need not be written.
        everything: Show verifications that have no verdict yet, too.

    Returns:
        The page; None if there is no such chain.
    """
    version = queries.version(connection, key, everything=everything)
    if version is None:
        return None
    named = f"{key} {everything} {version}"
    tag = f'"{hashlib.sha256(named.encode()).hexdigest()[:32]}"'
    if tag == unless:
        return Shown(tag, Markup(), {})
    with _LOCK:
        kept = _KEPT.get(tag) if to is None else None
    if kept is None:
        kept = _write(connection, key, tag, to, everything)
    if to is None:
        with _LOCK:
            _KEPT[tag] = kept
            _KEPT.move_to_end(tag)
            while len(_KEPT) > MOST_KEPT:
                _KEPT.popitem(last=False)
    return kept


def _write(connection: Connection, key: str, tag: str, to: int | None, everything: bool) -> Shown:
    chain = queries.chain(connection, key)
    assert chain is not None
    if not everything:
        public = tuple(item for item in chain.verifications if item.is_public)
        chain = dataclasses.replace(chain, verifications=public)
    live = render.written("chain_live.html", _live(chain, to))
    around = {
        "chain": dataclasses.replace(chain, lines=()),
        "terms": list(terms.explained(chain.record.terms)),
        "levels": terms.levels(chain.record.terms),
        "to": to,
        "live": live,
    }
    return Shown(tag, live, around)


def _live(chain: Chain, to: int | None) -> dict[str, Any]:
    # Imported late: it brings numpy with it, which the server starts without.
    from polo.registry.pages import plots

    listed = [line for line in chain.lines if to is None or line.number <= to]
    rows = listed[-MOST_ROWS:]
    rates = [line.reading.eta for line in chain.shards if line.reading]
    return {
        "chain": chain,
        "tiles": plots.tiles(chain),
        "plots": list(plots.plots(chain)),
        "found": {_LOOKS[plots.status_of(chain, line)] for line in chain.shards},
        "rows": [
            Row(line, list(_checks(chain, line)), plots.tip(chain, line)) for line in reversed(rows)
        ],
        "older": rows[0].number - 1 if len(listed) > len(rows) else None,
        "to": to,
        "lowest": min(rates, default=None),
        "needed": f"{chain.record.terms.thresholds.verify / MILLION:g}",
        "newest": chain.lines[-1] if chain.lines else None,
        "asked": _newest_asked(chain),
        "witnesses": any(item.settings.get("witnesses") for item in chain.record.terms.evidence),
        "saying": saying(chain),
    }


def _newest_asked(chain: Chain) -> list[Challenge]:
    asked = [*(item for line in chain.lines for item in line.challenges), *chain.late_challenges]
    return sorted(asked, key=lambda item: item.made, reverse=True)[:MOST_ROWS]


def _checks(chain: Chain, line: ShardLine) -> Iterator[tuple[str, str]]:
    """What was checked of a shard, as pairs of a look and words."""
    from polo.registry.pages import plots

    if line.said is None:
        yield "note", "start, no mark"
    elif line.read is None:
        yield "note", "mark not read here yet"
    else:
        look = "passed" if plots.status_of(chain, line) is not Status.FAILED else "failed"
        yield look, f"mark read: {line.read} of {line.bits} bits"
    for item in line.challenges:
        state = "stuck" if item.is_stuck else item.state
        look, end = _ENDS.get(state, ("note", state))
        yield look, f"{_WANTED.get(item.kind, item.kind)} {end}"


def saying(chain: Chain) -> str:
    """The newest change in one sentence, for those who do not see the page change."""
    if chain.open_challenges:
        return "The registry waits for an answer to a challenge."
    newest = chain.lines[-1] if chain.lines else None
    if newest is None or chain.state != "open":
        return f"The chain is {chain.state}."
    if newest.reading is None:
        return "The start is committed."
    return f"Shard {newest.number} is committed, η {figure(newest.reading.eta)}."

"""The owners of a model, as a report and a terminal show them."""

import datetime
from collections.abc import Sequence

from polo.checks import Check, Status, counted
from polo.verifier.charts import Markup, tag
from polo.verifier.verdict import Owner, Verdict

MOST_OWNERS = 24
_FIRST = 3
_HOW = {"trained": "trained it", "transfer": "got it by transfer"}
_SIGNED = {
    Status.PASSED: ("✓", "both signed", "passed"),
    Status.FAILED: ("✕", "the transfer does not hold", "failed"),
    Status.UNDECIDED: ("?", "the transfer could not be checked", "open"),
}


def selected(owners: Sequence[Owner], most: int = MOST_OWNERS) -> list[Owner | int]:
    """All owners, or the first and the last with the number of those left out in between."""
    if len(owners) <= most:
        return list(owners)
    last = most - _FIRST
    return [*owners[:_FIRST], len(owners) - most, *owners[-last:]]


def shards_of(owner: Owner) -> str:
    """Which shards are an owner's.

    >>> shards_of(Owner("00", "", 4, 6, 0, "transfer")), shards_of(Owner("00", "", 4, 4, 0, ""))
    ('shards 4 to 6', 'shard 4')
    """
    if owner.last <= owner.first:
        return f"shard {owner.first}" if owner.last == owner.first else "no shard"
    return f"shards {owner.first} to {owner.last}"


def date_of(owner: Owner) -> str:
    """The day an owner was enrolled."""
    try:
        return f"{datetime.datetime.fromtimestamp(owner.enrolled, datetime.UTC):%Y-%m-%d}"
    except (OverflowError, ValueError, OSError):
        return "at a time that no calendar has"


def section(verdict: Verdict) -> Markup:
    """A timeline of the owners; nothing where there has been only one."""
    if len(verdict.owners) < 2:
        return Markup("")
    numbers = {id(owner): number for number, owner in enumerate(verdict.owners)}
    items = []
    for owner in selected(verdict.owners):
        if isinstance(owner, int):
            items.append(tag("li", tag("span", counted(owner, "owner") + " more"), class_="gap"))
        else:
            items.append(_item(verdict, owner, numbers[id(owner)]))
    text = (
        "Each chain goes on where the one before it ends; shards are counted through all of them. "
        "Offline nobody sees whether an owner handed the model to somebody else, too."
    )
    return tag(
        "section",
        tag("h2", "Owners"),
        tag("p", text, class_="quiet"),
        tag("ol", *items, class_="owners"),
    )


def _item(verdict: Verdict, owner: Owner, number: int) -> Markup:
    now = number == len(verdict.owners) - 1
    name = [tag("b", owner.name or f"Owner {number + 1}")]
    if now:
        name += [Markup(" "), tag("span", "this proof", class_="badge")]
    how = [tag("span", _HOW.get(owner.how, owner.how))]
    if number:
        glyph, words, shape = _SIGNED[_status(verdict, number)]
        how += [Markup("<br>"), tag("span", f"{glyph} {words}", class_=f"is-{shape}")]
    return tag(
        "li",
        tag("div", *name, tag("code", owner.id, class_="hex", title=owner.id)),
        tag("div", shards_of(owner)),
        tag("div", *how),
        tag("div", f"enrolled {date_of(owner)}", class_="quiet"),
        class_="now" if now else "then",
    )


def _status(verdict: Verdict, number: int) -> Status:
    """How the checks of the transfer to an owner ended; owners are counted from 0."""
    last = number == len(verdict.owners) - 1
    place = "transfer.json" if last else f"ancestors/{number + 1:06d}/transfer.json"
    found = {check.status for check in verdict.checks if _is_transfer(check, place)}
    for status in (Status.FAILED, Status.UNDECIDED, Status.PASSED):
        if status in found:
            return status
    return Status.UNDECIDED


def _is_transfer(check: Check, place: str) -> bool:
    return check.name == "transfer" and check.place == place

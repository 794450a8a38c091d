"""What a verdict says of each shard, for tables, charts and the drawn chain."""

from collections.abc import Sequence
from dataclasses import dataclass

from polo.checks import Check, Status
from polo.verifier.findings import figure
from polo.verifier.levels import FINAL, weight
from polo.verifier.verdict import Verdict

_SEVERITY = (Status.FAILED, Status.UNDECIDED, Status.PASSED)
_RANKS = (*_SEVERITY, Status.NOTE)


@dataclass(frozen=True)
class ShardRow:
    """What a verdict says of one shard.

    Attributes:
        shard: Its number.
        worst: The worst of its checks, whatever its level; None if it has none.
        mark: The check of its mark, or of the nonce that the mark could not be derived without.
        accuracy: The check of its accuracy.
        claim: The check of what the prover said of its accuracy.
    """

    shard: int
    worst: Check | None
    mark: Check | None
    accuracy: Check | None
    claim: Check | None

    @property
    def status(self) -> Status | None:
        """How its worst check ended; None if it has none."""
        return self.worst.status if self.worst else None

    @property
    def words(self) -> str:
        """How it ended, in a word: the level that did not pass, where the chain's checks did."""
        if self.beyond:
            return self.beyond.level
        status = self.status or Status.UNDECIDED
        return "undecided" if status is Status.UNDECIDED else status.value

    @property
    def beyond(self) -> Check | None:
        """What did not pass of a level above the chain, where the chain's own checks did."""
        if self.worst and self.worst.level not in ("chain", FINAL):
            return None if self.status is Status.PASSED else self.worst
        return None


def shard_rows(verdict: Verdict) -> list[ShardRow]:
    """What is known of each shard that was shown, oldest first; empty if none was looked at."""
    named = {name: verdict.per_shard(name) for name in ("mark", "accuracy", "claim")}
    # Where a nonce is missing there is no check of the mark: the nonce's own stands for it.
    named["mark"] = verdict.per_shard("nonce") | named["mark"] | verdict.per_shard("residual")
    worst: dict[int, Check] = {}
    for check in verdict.checks:
        own = check.shard and not check.ancestor
        if own and (check.status in _SEVERITY or check.name == "residual"):
            worst[check.shard] = min(worst.get(check.shard, check), check, key=_badness)
    if not worst:
        return []
    total = verdict.facts.get("shards")
    # A hostile file name can carry any number, so the count in the manifest goes first.
    last = total if isinstance(total, int) else max((*named["mark"], *named["accuracy"], 0))
    return [
        ShardRow(
            shard,
            worst.get(shard),
            *(named[name].get(shard) for name in ("mark", "accuracy", "claim")),
        )
        for shard in (range(1, last + 1) if verdict.shown is None else verdict.shown)
    ]


def _badness(check: Check) -> tuple[int, int]:
    return _RANKS.index(check.status), weight(check)


def selected(
    rows: Sequence[ShardRow], *, first: int, worst: int, last: int, most: int
) -> list[ShardRow]:
    """All rows, or if there are more than `most` the first, the worst and the last."""
    if len(rows) <= most:
        return list(rows)
    by_goodness = sorted(rows, key=_goodness)
    bad = [row for row in by_goodness[:worst] if row.status != Status.PASSED]
    kept = {row.shard for row in (*rows[:first], *(bad or by_goodness[:1]), *rows[-last:])}
    # A gap of one shard takes as much room as the shard.
    kept |= {shard + 1 for shard in kept if shard + 2 in kept}
    return [row for row in rows if row.shard in kept]


def _goodness(row: ShardRow) -> tuple[int, float]:
    rank = _SEVERITY.index(row.status) if row.status else 1
    eta = figure(row.mark, "eta")
    return rank, 2.0 if eta is None else eta


def untested(verdict: Verdict, rows: Sequence[ShardRow]) -> str:
    """A sentence if accuracy was not measured on every shard."""
    if verdict.shown is not None:
        text = "The model was not shown: nothing here says how good it is"
        held = any(check.name == "delivered" for check in verdict.of(Status.PASSED))
        more = "" if held else ", or that a file you hold is the one that this proof ends in"
        return f"{text}{more}."
    tested = sum(figure(row.accuracy, "measured") is not None for row in rows)
    if not tested:
        return "Accuracy was not measured, so nothing here says how good the model is."
    if tested < len(rows):
        return f"Accuracy was measured on {tested} of {len(rows)} shards only."
    return ""

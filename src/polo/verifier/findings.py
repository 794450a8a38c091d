"""What the levels found: figures gathered from their checks, and one line for each."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polo.checks import Check, Status, counted, listed, numbered, probability

MOST_WORDS = 120
_COUNTED = ("mark", "nonce", "root", "record", "segment", "sealing", "receipt")
_HEURISTICS = ("downhill", "loss", "movement", "path")


def figure(check: Check | None, name: str) -> float | None:
    """A check's number, if there is one and it is finite."""
    value = check.figures.get(name) if check else None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


@dataclass(frozen=True)
class Replayed:
    """What level replay ran again.

    Attributes:
        records: The record of each shard, by shard.
        segments: The checks of the segments that were asked for, in the order of the run.
        sealings: The checks of sealings.
        data: The check of the samples that were shown, if there is one.
        draw: The check that sums them up, if it came so far.
    """

    records: dict[int, Check]
    segments: tuple[Check, ...]
    sealings: tuple[Check, ...]
    data: Check | None
    draw: Check | None

    @classmethod
    def of(cls, checks: Iterable[Check]) -> "Replayed":
        """Gather it from the checks of a verdict."""
        own = [check for check in checks if check.level == "replay" and not check.ancestor]
        named: dict[str, list[Check]] = {}
        for check in own:
            named.setdefault(check.name, []).append(check)
        known = (check for check in named.get("record", ()) if figure(check, "segments"))
        told = (check for check in named.get("segment", ()) if "segment" in check.figures)
        segments = sorted(told, key=lambda check: (check.shard, figure(check, "segment") or 0))
        sealings = sorted(named.get("sealing", ()), key=lambda check: check.shard)
        draw = next((check for check in named.get("draw", ()) if "run" in check.figures), None)
        records = {check.shard: check for check in known if check.shard}
        data, ordered = next(iter(named.get("data", ())), None), dict(sorted(records.items()))
        return cls(ordered, tuple(segments), tuple(sealings), data, draw)

    @property
    def total(self) -> int:
        """Segments of the whole chain."""
        recorded = sum(int(figure(check, "segments") or 0) for check in self.records.values())
        return recorded or int(figure(self.draw, "segments") or 0)

    @property
    def steps(self) -> int:
        """Steps of the whole chain."""
        return sum(int(figure(check, "steps") or 0) for check in self.records.values())

    @property
    def passed(self) -> int:
        """Segments that came out as recorded."""
        return sum(check.status is Status.PASSED for check in self.segments)

    @property
    def exact(self) -> int:
        """Segments that came out to the bit."""
        good = (check for check in self.segments if check.status is Status.PASSED)
        return sum("distance" not in check.figures for check in good)

    @property
    def tenth(self) -> float | None:
        """Chance that who faked a tenth of the steps escaped."""
        return figure(self.draw, "escape_tenth")

    @property
    def single(self) -> float | None:
        """Chance that who faked a single segment, no large move, escaped."""
        return figure(self.draw, "escape_single")

    @property
    def grown(self) -> tuple[int, int] | None:
        """Shards that were drawn from while the chain grew, and all of them; None if none was."""
        drawn, shards = (figure(self.draw, name) for name in ("grown", "shards"))
        return None if drawn is None or shards is None else (int(drawn), int(shards))

    @property
    def whole(self) -> float | None:
        """Chance that a whole faked shard escaped, where shards were drawn from as they came."""
        return figure(self.draw, "escape_shard")

    def _grown(self, drawn: int, shards: int) -> str:
        """What was run again while the chain grew, in a few words."""
        run = int(figure(self.draw, "run") or 0)
        segments, all_shards = counted(self.total, "segment"), counted(shards, "shard")
        return f"{run} of {segments} run again while the chain grew, in {drawn} of {all_shards}"

    def figures(self) -> str:
        """Its figures, in one line."""
        if self.grown:
            said = self._grown(*self.grown)
            if self.whole is not None and self.single is not None:
                said += f"; a whole shard faked escapes with {probability(self.whole)}"
                said += f", one segment with {probability(self.single)}"
            return said
        said = f"{len(self.segments)} of {counted(self.total, 'segment')}"
        if self.steps and (steps := figure(self.draw, "steps")):
            said += f" ({steps / self.steps:.1%} of all steps)"
        said += f" and {counted(len(self.sealings), 'sealing')} run again"
        if self.tenth is not None and self.single is not None:
            said += f"; a tenth faked escapes with {probability(self.tenth)}"
            said += f", one segment with {probability(self.single)}"
        return said

    def sentence(self) -> str:
        """What was run again and came out, and who escapes; for where all of it passed."""
        if self.grown:
            said = self._grown(*self.grown)
            if self.whole is not None:
                said += f"; a whole shard faked escapes with probability {probability(self.whole)}"
            return said
        run = len(self.segments)
        exact = "all to the bit" if self.exact == run else f"{self.exact} to the bit"
        if self.exact < run:
            exact += ", the others as close as honest repetitions"
        said = f"{run} of {counted(self.total, 'segment')} run again, {exact}"
        if self.tenth is not None:
            said += f"; a tenth faked escapes with probability {probability(self.tenth)}"
        return said


@dataclass(frozen=True)
class Progressed:
    """What level progress saw.

    Attributes:
        whole: The checks of the run as a whole, by name.
        shards: The figures of each shard, by shard.
    """

    whole: dict[str, Check]
    shards: dict[int, Check]

    @classmethod
    def of(cls, checks: Iterable[Check]) -> "Progressed":
        """Gather it from the checks of a verdict."""
        own = [check for check in checks if check.level == "progress" and not check.ancestor]
        whole = {check.name: check for check in own if check.name in _HEURISTICS if not check.shard}
        shards = {check.shard: check for check in own if is_shard_note(check)}
        return cls(whole, dict(sorted(shards.items())))

    def figures(self) -> str:
        """Its figures, in one line."""
        whole, said = self.whole, []
        if (z := figure(whole.get("downhill"), "z")) is not None:
            said.append(f"z = {z:.1f} at first")
        first, last = figure(whole.get("loss"), "start"), figure(whole.get("loss"), "last")
        if first is not None and last is not None:
            said.append(f"held-out loss {first:.3g} → {last:.3g}")
        if (moved := figure(whole.get("movement"), "moved")) is not None:
            said.append(f"moves {moved:.3g} × noise")
        if (straight := figure(whole.get("path"), "straight")) is not None:
            said.append(f"straightness {straight:.2f}")
        return f"heuristics: {', '.join(said)}" if said else "heuristics"


@dataclass(frozen=True)
class Logged:
    """What level receipts saw.

    Attributes:
        receipts: The receipts that hold, by shard; 0 is the start.
        dates: The check that sums them up, if it came so far.
        witness: What is said of witnesses, if anything is.
    """

    receipts: dict[int, Check]
    dates: Check | None
    witness: Check | None

    @classmethod
    def of(cls, checks: Iterable[Check]) -> "Logged":
        """Gather it from the checks of a verdict."""
        own = [check for check in checks if check.level == "receipts" and not check.ancestor]
        held = (check for check in own if check.name == "receipt" and "time" in check.figures)
        dates = next((check for check in own if "first" in check.figures), None)
        witness = next((check for check in own if check.name == "witness"), None)
        return cls(dict(sorted((check.shard, check) for check in held)), dates, witness)

    @property
    def witnessed(self) -> bool:
        """Whether others than the registry are asked for; a note says that nobody is."""
        return self.witness is None or self.witness.status is not Status.NOTE

    def figures(self) -> str:
        """Its figures, in one line."""
        said = self.dates.detail if self.dates else counted(len(self.receipts), "receipt")
        if self.witness is None or not self.witnessed:
            return f"{said}; dates by the registry's word"
        quorum, total = (figure(self.witness, name) or 0 for name in ("quorum", "witnesses"))
        return f"{said}; seen by {quorum:.0f} of {total:.0f} witnesses"


@dataclass(frozen=True)
class Looked:
    """What level uniqueness saw: the registry's statement, if it holds."""

    statement: Check | None

    @classmethod
    def of(cls, checks: Iterable[Check]) -> "Looked":
        """Gather it from the checks of a verdict."""
        own = (check for check in checks if check.name == "unique" and not check.ancestor)
        return cls(next(own, None))

    def figures(self) -> str:
        """Its figures, in one line."""
        return self.statement.detail if self.statement else "nothing was said"


HELD: dict[str, Callable[[Iterable[Check]], str]] = {
    "receipts": lambda checks: Logged.of(checks).figures(),
    "uniqueness": lambda checks: Looked.of(checks).figures(),
    "progress": lambda _: "by heuristics it looks like training",
    "replay": lambda checks: Replayed.of(checks).sentence(),
}
"""What levels above the chain say where they passed."""


def is_shard_note(check: Check) -> bool:
    """Whether a check only holds one shard's figures of level progress."""
    return check.level == "progress" and check.status is Status.NOTE and check.shard > 0


def summary(level: str, status: Status, checks: Sequence[Check]) -> str:
    """What a level found, in one line.

    Args:
        level: The level.
        status: How it ended.
        checks: All checks of the verdict.
    """
    own = [check for check in checks if check.level == level]
    if status is Status.PASSED:
        return _held(level, own)
    bad = [check for check in own if check.status is status]
    if {check.name for check in bad} <= {"evidence"}:
        return "not looked at"
    groups: dict[str, list[Check]] = {}
    for check in bad:
        groups.setdefault(check.name, []).append(check)
    words = "failed" if status is Status.FAILED else "undecided"
    # Checks of the whole proof have nothing to count: their names do.
    alone = [name for name, group in groups.items() if len(group) == 1 and not group[0].shard]
    said = [f"{listed(alone)} {words}"] if alone else []
    for name in (name for name in groups if name not in alone):
        total = sum(check.name == name and check.status is not Status.NOTE for check in own)
        many = f"{name}s" if name in _COUNTED else f"{name} checks"
        places = _briefly(groups[name])
        said.append(f"{len(groups[name])} of {total} {many} {words}{places}")
    return "; ".join(said)


def _held(level: str, own: Sequence[Check]) -> str:
    if level == "receipts":
        return Logged.of(own).figures()
    if level == "uniqueness":
        return Looked.of(own).figures()
    if level == "progress":
        return Progressed.of(own).figures()
    if level == "replay":
        return Replayed.of(own).figures()
    for check in own:
        if check.name == "ownership":
            return check.detail
    marks = [check for check in own if check.name == "mark" and not check.ancestor]
    rates = [eta for check in marks if (eta := figure(check, "eta")) is not None]
    if not rates:
        return f"{counted(sum(check.status is Status.PASSED for check in own), 'check')} passed"
    said = f"{counted(len(marks), 'mark')}, weakest η = {min(rates):.4f}"
    tested = {check.shard: check for check in own if check.name == "accuracy" if check.shard}
    last = figure(tested[max(tested)], "measured") if tested else None
    return said if last is None else f"{said}; {last:.4f} on the public test at the end"


def _briefly(checks: Sequence[Check]) -> str:
    """Where checks lie, in brackets: one by its segment, several by their shards."""
    if len(checks) == 1:
        return f" ({', '.join(checks[0].where)})" if checks[0].where else ""
    shards = [check.shard for check in checks if check.shard]
    return f" ({numbered('shard', shards)})" if shards else ""


def places_of(checks: Sequence[Check]) -> str:
    """Shards and segments that checks concern, or only the shards where that would be long."""
    segments: dict[int, list[int]] = {}
    for check in checks:
        if (segment := figure(check, "segment")) is not None:
            segments.setdefault(check.shard, []).append(int(segment))
    parts = [f"shard {shard}, {numbered('segment', at)}" for shard, at in segments.items()]
    places = "; ".join(parts)
    return places if len(places) <= MOST_WORDS else numbered("shard", segments)


def shortened(checks: Sequence[Check], most: int) -> list[tuple[list[list[Check]], int]]:
    """Groups of alike checks: what to show of each, and how many more it has.

    Segments that all say the same are shown as one. Where there still are more than `most`, every
    group gets its share, so that many failures of one kind do not hide the others.
    """
    groups: dict[tuple[str, str, Status], dict[object, list[Check]]] = {}
    for at, check in enumerate(checks):
        group = groups.setdefault((check.level, check.name, check.status), {})
        same = (check.detail, check.advice) if check.name == "segment" else at
        group.setdefault(same, []).append(check)
    total = sum(map(len, groups.values()))
    share = most if total <= most else max(3, most // len(groups))
    entries = [list(group.values()) for group in groups.values()]
    return [(group[:share], sum(map(len, group[share:]))) for group in entries]

"""What recorded trainings say about schemes, in sentences; every number comes from the rows."""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from polo.checks import counted
from polo.embedding.forging import FREE
from polo.protocol.detection import MILLION
from polo_lab.experiments.schemes_rows import PLAIN, Row, defaults_of
from polo_lab.experiments.statistics import CONFIDENCE, clopper_pearson, mean_interval

CLOSE = 0.005
"""Accuracy within half a point of unmarked training counts as kept."""

RUINED = 0.02
"""A model that loses more than two points is another one, to its owner and to a thief."""


@dataclass(frozen=True)
class Told:
    """How often a classifier was right, over all seeds, with its exact interval."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """Trainings that differ in nothing but the seed.

    Attributes:
        task: The course.
        scheme: The scheme.
        bits: Bits of each mark.
        load: Load, in millionths.
        strength: λ, in millionths.
        budget: Largest edit of the finishing step, in millionths.
        rows: The trainings.
        sizes: Bits of each mark, where several sizes are put together.
    """

    task: str
    scheme: str
    bits: int
    load: int
    strength: int
    budget: int
    rows: tuple[Row, ...]
    sizes: tuple[int, ...] = ()

    def values(self, name: str) -> list[float]:
        """One figure of every training that has it."""
        return [value for row in self.rows if (value := getattr(row, name)) is not None]

    def loss(self, name: str, against: str) -> list[float]:
        """One figure less another, training by training."""
        pairs = ((getattr(row, name), getattr(row, against)) for row in self.rows)
        return [one - other for one, other in pairs if one is not None and other is not None]

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """Everything but load and seed."""
        return self.task, self.scheme, self.bits, self.strength, self.budget

    @property
    def told(self) -> Told | None:
        """What the classifiers of all seeds did together."""
        judged = [(row.told, row.told_blocks) for row in self.rows if row.told is not None]
        blocks = sum(count for _, count in judged)
        if not blocks:
            return None
        hits = round(sum(rate * count for rate, count in judged))
        # The better of two classifiers was taken: half of what may be missed is for each.
        return Told(hits / blocks, *clopper_pearson(hits, blocks, 1 - (1 - CONFIDENCE) / 2))

    def by_seed(self, values: Callable[["Group"], Sequence[float]]) -> list[float]:
        """The mean of some values for each seed: sizes of one seed have their start in common."""
        seeds = dict.fromkeys(row.seed for row in self.rows)
        apart = (replace(self, rows=tuple(r for r in self.rows if r.seed == s)) for s in seeds)
        found = (values(group) for group in apart)
        return [sum(own) / len(own) for own in found if own]

    @property
    def label(self) -> str:
        """Size, load and λ, as a sentence names them, and the budget where it is not usual."""
        said = f"{self.bits} bits at {self.load / MILLION:g}, λ = {self.strength / MILLION:g}"
        usual = round(defaults_of(self.scheme).budget * MILLION)
        return said if self.budget == usual else f"{said}, budget {self.budget / MILLION:g}"


def grouped(rows: Sequence[Row]) -> list[Group]:
    """Rows with marks that fit, by everything but the seed, in order."""
    found: dict[tuple[str, str, int, int, int, int], list[Row]] = {}
    for row in rows:
        if row.scheme != PLAIN and not row.problem:
            found.setdefault(row.key[:-1], []).append(row)
    groups = [Group(*key, tuple(own)) for key, own in found.items()]
    names = list(dict.fromkeys(group.scheme for group in groups))
    return sorted(
        groups, key=lambda g: (names.index(g.scheme), g.budget, g.strength, g.load, g.bits)
    )


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """What the rows show, all together and scheme by scheme; and what does not hold."""
    yield from _overall(grouped(rows))
    for task in dict.fromkeys(row.task for row in rows):
        own = grouped([row for row in rows if row.task == task])
        lines = [
            f"- **{scheme}**: " + " ".join(_about([g for g in own if g.scheme == scheme]))
            for scheme in dict.fromkeys(group.scheme for group in own)
        ]
        if lines:
            yield "\n".join([f"On {task}:", "", *lines])


def _overall(groups: Sequence[Group]) -> Iterator[str]:
    # What is left of a model that marks have ruined can hardly be made worse.
    whole = [replace(g, rows=tuple(row for row in g.rows if not _spoilt(row))) for g in groups]
    costs = [cost for group in whole for cost in group.loss("accuracy", "least_forged")]
    if not costs:
        return
    cheap = sum(cost < FREE for cost in costs)
    if cheap <= len(costs) / 2:
        dear = len(costs) - cheap
        yield f"Forging just enough bits costs half a point and more in {dear} of {len(costs)}."
        return
    yield (
        "Forging is cheap with every scheme: whoever turns just enough bits for a verifier, "
        f"without data, loses less than half a point in {cheap} of {len(costs)} models, and at "
        f"most {100 * max(costs):.1f} points.{_left_out(groups)} Effort is shown by replay and by "
        "live receipts, not by a scheme."
    )


def _left_out(groups: Sequence[Group]) -> str:
    """What is said of models that marks have ruined."""
    spoilt = [row for group in groups for row in group.rows if _spoilt(row)]
    if not spoilt:
        return ""
    kinds = dict.fromkeys(f"{row.scheme} on {row.task}" for row in spoilt)
    return (
        f" Not among them are {counted(len(spoilt), 'model')} that their own marks had cost more "
        f"than {100 * RUINED:g} points ({', '.join(kinds)})."
    )


def _about(groups: Sequence[Group]) -> Iterator[str]:
    yield _fidelity(groups)
    yield from _spared(groups)
    yield _sealing(groups)
    if all(not group.values("residual_mean") for group in groups):
        return
    yield _lasting(groups)
    yield _forgery(groups)
    yield _stealth(groups)


def by_load(groups: Sequence[Group]) -> list[Group]:
    """Groups of one scheme and λ put together by load: sizes and seeds that all loads have."""
    return _swept(groups, lambda g: (g.scheme, g.strength, g.budget), lambda g: g.load)


def by_strength(groups: Sequence[Group]) -> list[Group]:
    """The same by λ, at one load."""
    return _swept(groups, lambda g: (g.scheme, g.load, g.budget), lambda g: g.strength)


def by_budget(groups: Sequence[Group]) -> list[Group]:
    """The same by what the finishing step may do, at one load and λ."""
    return _swept(groups, lambda g: (g.scheme, g.load, g.strength), lambda g: g.budget)


def _swept(
    groups: Sequence[Group], same: Callable[[Group], object], along: Callable[[Group], int]
) -> list[Group]:
    found = []
    for kind in dict.fromkeys(map(same, groups)):
        own = [group for group in groups if same(group) == kind]
        parts = [[g for g in own if along(g) == x] for x in sorted({along(g) for g in own})]
        # A mean over other sizes or seeds would say more about those than about what was varied.
        common = set.intersection(*({_cell(row) for g in part for row in g.rows} for part in parts))
        if len(parts) > 1 and common:
            found += [_together(part, common) for part in parts]
    return found


def _cell(row: Row) -> tuple[int, int]:
    return row.bits, row.seed


def _together(groups: Sequence[Group], common: Collection[tuple[int, int]]) -> Group:
    """Groups of several sizes as one, with what others have, too: sizes and seeds."""
    rows = tuple(row for group in groups for row in group.rows if _cell(row) in common)
    return replace(groups[0], rows=rows, sizes=tuple(sorted({row.bits for row in rows})))


def of_defaults(groups: Sequence[Group]) -> Iterator[str]:
    """What other loads, budgets and λ do, against each scheme's own, with all else the same."""
    for field, less, more in (
        (
            "load",
            "Marks lighter than a scheme's own load",
            "Marks heavier than a scheme's own load",
        ),
        ("budget", "Finishing budgets below a scheme's own", "Finishing budgets above it"),
        ("strength", "λ below a scheme's own", "λ above it"),
    ):
        pairs = _beside_own(groups, field)
        for words, chosen in (
            (less, [(g, u) for g, u in pairs if getattr(g, field) < getattr(u, field)]),
            (more, [(g, u) for g, u in pairs if getattr(g, field) > getattr(u, field)]),
        ):
            if chosen:
                yield f"{words}, in {counted(len(chosen), 'case')}: {_changed(chosen)}"


def _beside_own(groups: Sequence[Group], field: str) -> list[tuple[Group, Group]]:
    """Groups whose load, budget or λ is not the scheme's own, each with the one whose it is."""

    def own(group: Group) -> bool:
        usual = round(getattr(defaults_of(group.scheme), field) * MILLION)
        return bool(getattr(group, field) == usual)

    def rest(group: Group) -> tuple[object, ...]:
        names = ("task", "scheme", "bits", "load", "strength", "budget")
        return tuple(getattr(group, name) for name in names if name != field)

    usual = {rest(group): group for group in groups if own(group)}
    beside = ((g, usual[rest(g)]) for g in groups if not own(g) and rest(g) in usual)
    return [pair for one, other in beside if (pair := _alike(one, other)) is not None]


def _alike(one: Group, other: Group) -> tuple[Group, Group] | None:
    """Two groups with the seeds that both have: means over other seeds are of other trainings."""
    seeds = {row.seed for row in one.rows} & {row.seed for row in other.rows}
    if not seeds:
        return None

    def cut(group: Group) -> Group:
        return replace(group, rows=tuple(row for row in group.rows if row.seed in seeds))

    return cut(one), cut(other)


def _changed(pairs: Sequence[tuple[Group, Group]]) -> str:
    worse = sum(_lost(group)[0] - _lost(usual)[0] > CLOSE for group, usual in pairs)
    better = sum(_lost(usual)[0] - _lost(group)[0] > CLOSE for group, usual in pairs)
    return (
        f"{_fewer(pairs)} seal fewer shards than at its own; accuracy is more than half a point "
        f"better in {better} and worse in {worse}; the finishing step's edit is smaller in "
        f"{_smaller(pairs, 'edit')}; marks in the finished model read better in "
        f"{_smaller(pairs, 'residual_mean', -1)}, and after overwriting in "
        f"{_smaller(pairs, 'thief_mean', -1)}."
    )


def _fewer(pairs: Sequence[tuple[Group, Group]]) -> int:
    return sum(_rate(group) < _rate(usual) for group, usual in pairs)


def _smaller(pairs: Sequence[tuple[Group, Group]], name: str, sign: int = 1) -> int:
    means = [_means(group, usual, name) for group, usual in pairs]
    return sum(sign * one < sign * other for one, other in means)


def _means(one: Group, other: Group, name: str) -> tuple[float, float]:
    """Means of a figure over the seeds in which both groups have it; NaN where there are none."""
    there = [{row.seed: value for row in group.rows if (value := getattr(row, name)) is not None}
             for group in (one, other)]  # fmt: skip
    seeds = there[0].keys() & there[1].keys()
    if not seeds:
        return math.nan, math.nan
    first, second = (sum(own[seed] for seed in seeds) / len(seeds) for own in there)
    return first, second


def _rate(group: Group) -> float:
    """Sealed shards for each epoch."""
    return sum(row.shards for row in group.rows) / sum(row.epochs for row in group.rows)


def _fidelity(groups: Sequence[Group]) -> str:
    """How many cases keep accuracy; an interval that reaches both ways decides nothing."""
    if all(len(group.rows) == 1 for group in groups):
        return _once(groups)
    lost = [_lost(group) for group in groups]
    kept = sum(mean + half <= CLOSE for mean, half in lost)
    worse = sum(mean - half > CLOSE for mean, half in lost)
    text = (
        f"of {counted(len(groups), 'case')} accuracy stays within half a point of unmarked "
        f"training in {kept}, falls by more in {worse}, and is not settled by so few seeds in "
        f"{len(groups) - kept - worse}."
    )
    if worse:
        clear = [(group, one) for group, one in zip(groups, lost, strict=True) if one[0] > one[1]]
        worst, (mean, _) = max(clear, key=lambda item: item[1][0])
        text += f" The most is lost with {worst.label}: {100 * mean:.1f} points."
    return text


def _once(groups: Sequence[Group]) -> str:
    """The same of single trainings, which have no interval."""
    lost = [(_lost(group)[0], group) for group in groups]
    kept = sum(points <= CLOSE for points, _ in lost)
    most, worst = max(lost, key=lambda item: item[0])
    text = (
        f"of {counted(len(groups), 'case')} with one seed, which settles nothing, accuracy is "
        f"within half a point of unmarked training in {kept}."
    )
    if most > CLOSE:
        text += f" The most is lost with {worst.label}: {100 * most:.1f} points."
    return text


def _spared(groups: Sequence[Group]) -> Iterator[str]:
    """The least that each size costs where none keeps accuracy, and what λ and load do about it."""
    lost = {id(group): _lost(group)[0] for group in groups}
    told = []
    for bits in sorted({group.bits for group in groups}):
        best = min((g for g in groups if g.bits == bits), key=lambda g: lost[id(g)])
        if lost[id(best)] > CLOSE:
            told.append(f"{100 * lost[id(best)]:.1f} points with {best.label}")
    if not told:
        return
    yield f"The least that a size costs is {'; '.join(told)}."
    settings = ("bits", "load", "strength", "budget")
    for what, along in (
        ("A stronger λ", "strength"),
        ("A heavier load, on fewer blocks,", "load"),
        ("A larger finishing budget", "budget"),
    ):
        same = [name for name in settings if name != along]
        # What helps at one budget may harm at another: they are counted apart.
        found: dict[int, list[bool]] = {}
        for one, other in itertools.product(groups, groups):
            alike = all(getattr(one, name) == getattr(other, name) for name in same)
            if (
                getattr(one, along) < getattr(other, along)
                and alike
                and (pair := _alike(one, other))
            ):
                budget = 0 if along == "budget" else one.budget
                less = _lost(pair[1])[0] < _lost(pair[0])[0]
                found.setdefault(budget, []).append(less)
        told = []
        for budget, cheaper in sorted(found.items()):
            where = f" at a finishing budget of {budget / MILLION:g}" if len(found) > 1 else ""
            told.append(f"in {sum(cheaper)} of {counted(len(cheaper), 'comparison')}{where}")
        if told:
            yield f"{what} with all else the same costs less {', and '.join(told)}."


def _lost(group: Group) -> tuple[float, float]:
    mean, half = mean_interval(group.loss("accuracy", "plain_accuracy"))
    return -mean, half


def _sealing(groups: Sequence[Group]) -> str:
    slow = [group for group in groups if _rate(group) < 1]
    if not slow:
        return "Every epoch ends in a shard."
    worst = min(slow, key=_rate)
    more = f" in {len(slow)} of {len(groups)} cases" if len(groups) > 1 else ""
    return (
        f"Not every epoch ends in a shard{more}; the fewest are with {worst.label}: "
        f"{_rate(worst):.2f} an epoch."
    )


def _lasting(groups: Sequence[Group]) -> str:
    left = min(value for group in groups for value in group.values("residual_mean"))
    judged = [row for group in groups for row in group.rows if row.claimed is not None]
    text = f"All marks together read η ≥ {left:.2f} in the finished model"
    if not judged:
        return text + "."
    named = sum(bool(row.claimed) for row in judged)
    text += f"; after overwriting the owner is named in {named} of {len(judged)} models"
    dear = sum(not row.claimed and _ruined(row) for row in judged)
    return text + (f", and {dear} of the others are ruined." if dear else ".")


def _spoilt(row: Row) -> bool:
    """Whether marks cost more accuracy than a buyer would take."""
    if row.plain_accuracy is None or row.accuracy is None:
        return False
    return row.plain_accuracy - row.accuracy > RUINED


def _ruined(row: Row) -> bool:
    """Whether a thief lost more accuracy than a buyer would take."""
    if row.thief_accuracy is None or row.accuracy is None:
        return False
    return row.accuracy - row.thief_accuracy > RUINED


def _forgery(groups: Sequence[Group]) -> str:
    whole = _forged(groups, "forged")
    least = _forged(groups, "least_forged")
    if whole[1] <= FREE:
        losses = [loss for group in groups for loss in group.loss("accuracy", "forged")]
        return (
            f"Forging costs {100 * max(whole[1], 0):.1f} points at most on average over seeds, and "
            f"{100 * max(*losses, 0):.1f} in a single model: ask for more than the chain."
        )
    return (
        f"Forging all bits costs up to {100 * whole[1]:.1f} points ({whole[0].label}); just enough "
        f"of them up to {100 * max(least[1], 0):.1f}."
    )


def _forged(groups: Sequence[Group], name: str) -> tuple[Group, float]:
    costs = [(group, group.loss("accuracy", name)) for group in groups]
    means = [(group, sum(values) / len(values)) for group, values in costs if values]
    return max(means, key=lambda item: item[1])


def _stealth(groups: Sequence[Group]) -> str:
    told = [(group, group.told) for group in groups if group.told is not None]
    if not told:
        return "There were too few blocks for a classifier."
    seen = [(group, found) for group, found in told if found and found.low > 0.5]
    if not seen:
        return "No classifier told its blocks from unmarked ones."
    worst = max(seen, key=lambda item: item[1].rate)
    return (
        f"A classifier tells its blocks from unmarked ones in {len(seen)} of {len(told)} cases, at "
        f"best {worst[1].rate:.0%} of them ({worst[0].label})."
    )

"""What the shown samples are: different ones, on which training depends.

A prover chooses the data, and may choose some on which steps cost less than they seem to, or that
leave a smaller network to train.

Specification: docs/protocol.md, sections 16.3 and 17.10.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from polo.checks import Check, Status, counted
from polo.evidence.replay import likeness
from polo.evidence.replay.distinct import LEAST_DISTINCT, distinct_bound, duplicates
from polo.evidence.replay.likeness import Likeness
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.shown import Samples
from polo.evidence.replay.timeline import LEVEL
from polo.protocol.challenge import Place
from polo.protocol.detection import MILLION
from polo.protocol.records import Terms

_TOO_LITTLE = (
    "Rates and samples that are far too large silence units, and losses that are flat where a "
    "sample is learned leave most of a batch without a gradient. Rates that have come down too "
    "far, and weights of 16 bits, leave steps to rounding."
)

_GUESSED = (
    "At rates as small as these, what is forgiven on another platform is much of a step. Verify on "
    "a platform like the prover's."
)

SURE_WORK = 0.9
"""If the first points leave as much, no more are looked at."""

LEAST_WORK = 0.6
"""Part of the work that steps seem to take, which whoever leaves out all that changes nothing must
still do: silent units, what rounding swallows, and copies. More than half, since it is measured at
some points only, and who has half of the work to do is not to pass by their luck."""


class Width(NamedTuple):
    """Part of the products of a step that must be made.

    Attributes:
        live: Without those of silent units.
        exact: Without what rounding swallows, too.
        forgiven: And without what may be guessed within what is forgiven.
    """

    live: float
    exact: float
    forgiven: float


class Teaching:
    """What a verification has seen of the samples.

    Args:
        terms: The terms.
        recipe: The recipe that they fix.
    """

    def __init__(self, terms: Terms, recipe: Recipe) -> None:
        self._terms = terms
        self._recipe = recipe
        self._seen: dict[int, bytes] = {}
        self._effects: dict[Place, float] = {}
        self._allowed: dict[Place, float] = {}
        self._exact: list[Place] = []
        self._likenesses: dict[Place, Likeness | None] = {}
        self._widths: list[Width] = []
        self._ran = False

    def add(self, samples: Samples) -> None:
        """Take note of a segment's samples."""
        self._seen |= samples.opening.contents

    def note(self, place: Place, effect: float | None) -> None:
        """Take note of how far exchanging a sample took a segment's first step."""
        self._ran = True
        if effect is not None:
            self._effects[place] = effect

    def judged(self, place: Place, check: Check) -> None:
        """Take note of how a segment was judged: to the bit, or within an allowance."""
        if check.status is Status.PASSED:
            if "distance" in check.figures:
                self._allowed[place] = float(check.figures["allowed"])
            else:
                self._exact.append(place)

    @property
    def forgiving(self) -> bool:
        """Whether segments passed within an allowance only."""
        return bool(self._allowed)

    @property
    def passed(self) -> tuple[Place, ...]:
        """All segments that passed."""
        return (*self._allowed, *self._exact)

    def allowed(self, place: Place) -> float:
        """What a segment was allowed to be off by; 0 if it came out to the bit."""
        return self._allowed.get(place, 0.0)

    @property
    def comparable(self) -> tuple[Place, ...]:
        """Segments whose samples are compared: those that passed within an allowance, if any."""
        return tuple(self._allowed) or tuple(self._exact)

    def compare(self, place: Place, found: Likeness | None) -> bool:
        """Take note of how alike the samples of a batch are; returns whether that settles it."""
        self._likenesses[place] = found
        return found is None or found.share >= self._bounds.clear

    @property
    def _bounds(self) -> likeness.Bounds:
        return likeness.FORGIVEN if self.forgiving else likeness.EXACT

    def measure(self, widths: Sequence[Width]) -> None:
        """Take note of which part of their products some more steps must make."""
        self._widths += widths

    def checks(self) -> Iterator[Check]:
        """What can be said of the samples once all segments were run."""
        if self._seen:
            yield self._distinct()
        if self._effects:
            yield self._effect()
        elif self._ran:
            detail = "no sample could be exchanged for another, so nobody knows whether they matter"
            yield Check("effect", Status.UNDECIDED, detail, level=LEVEL)
        if self._likenesses:
            yield self._likeness()
        if self._widths:
            yield self._wide()

    @property
    def surely_wide(self) -> bool:
        """Whether what was measured so far leaves no doubt."""
        return bool(self._widths) and self._mean().forgiven * self._passes() >= SURE_WORK

    def _mean(self) -> Width:
        return Width(*(sum(part) / len(self._widths) for part in zip(*self._widths, strict=True)))

    def _wide(self) -> Check:
        """Whether most of a step must be computed: what changes nothing costs nothing."""
        measured, least, width = len(self._widths), LEAST_WORK, self._mean()
        exact, work = (part * self._passes() for part in (width.exact, width.forgiven))
        detail = (
            f"at {counted(measured, 'point')} of the run {width.live:.0%} of a step's products "
        )
        detail += f"change something, and {width.exact:.0%} something that rounding does not "
        detail += f"swallow; who leaves out the rest, and copies, has {exact:.0%} of the work"
        detail += f", and {work:.0%} by guessing within what is forgiven" if work < exact else ""
        detail += f", at least {least:.0%} asked"
        status, advice = Status.PASSED, ""
        if work < least <= exact:
            status, advice = Status.UNDECIDED, _GUESSED
        elif work < least:
            status, advice = self._short, _TOO_LITTLE
        figures = {"width": width.live, "depth": width.exact, "work": work, "measured": measured}
        return Check("width", status, detail, figures=figures, advice=advice, level=LEVEL)

    def _passes(self) -> float:
        """Part of a pass over a batch that is left to who passes copies once."""
        share = min(1.0, self._share()) if any(self._likenesses.values()) else 1.0
        if share < self._bounds.least:
            return 1.0  # A check of its own fails by that.
        # To the bit, every row must still enter the sums over rows.
        return share if self.forgiving else (2 * share + 1) / 3

    @property
    def _short(self) -> Status:
        """How a check of samples ends that falls short of what is asked.

        Where training did not begin with a drawn start, the model may know its samples already.
        """
        return Status.FAILED if self._terms.start.kind == "derived" else Status.UNDECIDED

    def _share(self) -> float:
        """Part of a batch that stands for itself: by the last one if that is clear, or the mean."""
        shares = [each.share for each in self._likenesses.values() if each is not None]
        return shares[-1] if shares[-1] >= self._bounds.clear else sum(shares) / len(shares)

    def _drowned(self, place: Place, effect: float) -> bool:
        """Whether an exchange is lost in what is forgiven.

        A good part of a batch may be left out and come out within the allowance, if each sample
        takes the step no farther than the allowance over the root of the batch.
        """
        return effect <= self.allowed(place) / math.sqrt(self._recipe.batch)

    def _effect(self) -> Check:
        """Whether steps depend on their samples; else they cost nothing to make up."""
        least, tried = self._recipe.effect / MILLION, len(self._effects)
        idle = [at for at, effect in self._effects.items() if not effect]
        share = 1 - len(idle) / tried
        detail = f"in {tried} segments one sample was exchanged for another; it "
        detail += f"changed the step in {share:.0%}, at least {least:.0%} asked"
        if idle:
            detail += f"; not in {idle[0]}"
        figures = {"tried": tried, "changed": share}
        enough = share >= least
        if self._allowed:
            # A model may have learned most of its samples; half must still be seen in its steps.
            clear = 1 - sum(self._drowned(*item) for item in self._effects.items()) / tried
            detail += f"; by more than is forgiven in {clear:.0%}, at least {least / 2:.0%} asked"
            figures["clear"] = clear
            enough = enough and clear >= least / 2
        status = Status.PASSED if enough else Status.FAILED
        advice = "Losses that are flat where a sample is learned (hinges; cross-entropy that has "
        advice += "come down to exactly zero) need fewer steps, smoothed labels or less `effect`."
        advice = advice if status is Status.FAILED else ""
        return Check("effect", status, detail, figures=figures, advice=advice, level=LEVEL)

    def _distinct(self) -> Check:
        """Whether what was shown can come from as many different samples as were declared."""
        shown, repeated = len(self._seen), duplicates(self._seen.values())
        possible = distinct_bound(shown, repeated, self._recipe.samples)
        detail = f"{counted(shown, 'sample')} of {self._recipe.samples} were shown, {repeated} of "
        detail += f"them twice under other numbers; at most {possible:.0%} can be distinct"
        status = Status.PASSED if possible >= LEAST_DISTINCT else Status.FAILED
        figures = {"shown": shown, "repeated": repeated, "distinct": possible}
        return Check("data", status, detail, figures=figures, level=LEVEL)

    def _likeness(self) -> Check:
        """Whether a batch has as many different things to teach as it has samples."""
        found = {at: each for at, each in self._likenesses.items() if each is not None}
        if not found:
            detail = "batches of a single sample have no copies"
            return Check("copies", Status.PASSED, detail, level=LEVEL)
        *_, (place, last) = found.items()
        bounds, share = self._bounds, self._share()
        counts = f"{len(last.families)} of {last.tried}"
        detail = f"in a batch ({place}) {counts} samples that were compared make gradients of their"
        detail += f" own; by that {share:.0%} of a batch stand for themselves, at least "
        detail += f"{bounds.least:.0%} asked"
        status = Status.PASSED if share >= bounds.least else self._short
        figures = {"tried": last.tried, "different": len(last.families), "share": share}
        advice = "Ask the prover for data that differ from each other, or bring the data yourself."
        advice = "" if status is Status.PASSED else advice
        return Check("copies", status, detail, figures=figures, advice=advice, level=LEVEL)

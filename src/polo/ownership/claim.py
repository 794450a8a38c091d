"""What came of looking for somebody's marks in a model."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polo.protocol import combination
from polo.protocol.combination import CLAIM_LOG2_P, ReadMark
from polo.protocol.detection import Reading


class Finding(enum.IntEnum):
    """Whether a claim stands; the number is the command line's exit code."""

    CLAIM = 0
    NO_CLAIM = 1
    UNDECIDED = 2

    @property
    def words(self) -> str:
        """The finding as a person reads it."""
        return ("CLAIM STANDS", "NO CLAIM", "COULD NOT DECIDE")[self]


@dataclass(frozen=True)
class Tries:
    """How often luck had a chance, all of it corrected for.

    Attributes:
        chains: Chains that were looked for.
        log2_matchings: log2 of the assignments of tensors that content chose among.
        readings: Readings of the model: as it is, and aligned.
        log2_selections: log2 of the selections of marks that the claimant chose among.
    """

    chains: int = 1
    log2_matchings: float = 0.0
    readings: int = 1
    log2_selections: float = 0.0

    @property
    def log2(self) -> float:
        """log2 of all tries together."""
        counted = math.log2(self.chains * self.readings)
        return counted + self.log2_matchings + self.log2_selections

    def sentence(self) -> str:
        """The tries in words; empty if there was only one.

        >>> Tries(chains=20, log2_matchings=7.5).sentence()
        '20 chains, 2^7.5 matchings'
        """
        said = [f"{self.chains} chains"] if self.chains > 1 else []
        said += [f"{self.readings} readings"] if self.readings > 1 else []
        said += [f"2^{self.log2_matchings:.1f} matchings"] if self.log2_matchings else []
        if self.log2_selections:
            said.append(f"2^{self.log2_selections:.1f} selections of marks")
        return ", ".join(said)


@dataclass(frozen=True)
class Claim:
    """One claimant's marks in one model.

    It is no boolean, and using it as one raises: ask for `finding`.

    Attributes:
        proof: The claimant's proof.
        owner: The claimant's identity; empty if the proof could not be read.
        issuer: Who signed the claimant's terms, by the reader's name for them.
        marks: What was read of every mark that could be derived, oldest first.
        tries: What the result is corrected for.
        coverage: Part of the carrier's weights that was found.
        how: How the weights were found, for a reader.
        absent: Shards whose nonce is not here.
        problem: Why nothing could be decided; empty otherwise.
        advice: What to do about it.
        screened: Whether the quick look at some bits ruled this claimant out.
    """

    proof: str
    owner: str = ""
    issuer: str = ""
    marks: tuple[ReadMark, ...] = ()
    tries: Tries = field(default_factory=Tries)
    coverage: float = 0.0
    how: str = ""
    absent: tuple[int, ...] = ()
    problem: str = ""
    advice: str = ""
    screened: bool = False

    def __bool__(self) -> bool:
        raise TypeError("a claim is no boolean; compare claim.finding with polo.ownership.Finding")

    @property
    def log2_combined(self) -> float:
        """log2 p of all marks together, before the correction for tries."""
        return combination.combine(self.marks)

    @property
    def log2_p(self) -> float:
        """log2 p of the claim, corrected for everything that was tried."""
        return combination.correct(self.log2_combined, self.tries.log2)

    @property
    def log2_best(self) -> float:
        """log2 p that these bits would reach if every one of them matched."""
        perfect = [
            ReadMark(mark.shard, Reading(mark.reading.bits, mark.reading.bits), mark.live)
            for mark in self.marks
        ]
        return combination.correct(combination.combine(perfect), self.tries.log2)

    @property
    def bits(self) -> int:
        """Bits that could be read."""
        return sum(mark.reading.bits for mark in self.marks)

    @property
    def eta(self) -> float:
        """Detection rate over all bits that could be read; a half where there are none."""
        matches = sum(mark.reading.matches for mark in self.marks)
        return matches / self.bits if self.bits else 0.5

    @property
    def finding(self) -> Finding:
        """Whether the claim stands."""
        if self.problem:
            return Finding.UNDECIDED
        if self.screened:
            return Finding.NO_CLAIM
        if self.log2_p <= CLAIM_LOG2_P:
            return Finding.CLAIM
        return Finding.NO_CLAIM if self.log2_best <= CLAIM_LOG2_P else Finding.UNDECIDED

    def sentence(self) -> str:
        """The finding in one line."""
        who = f"{self.owner[:16]}…" if self.owner else self.proof
        if self.problem:
            return f"{Finding.UNDECIDED.words}: {who}: {self.problem}"
        if self.screened:
            return f"{Finding.NO_CLAIM.words}: {who} (ruled out by the screen)"
        figures = f"η = {self.eta:.4f} over {len(self.marks)} marks, log2 p = {self.log2_p:.1f}"
        if self.finding is Finding.UNDECIDED:
            return (
                f"{Finding.UNDECIDED.words}: {who}: only {self.bits} bits could be read, too few "
                f"for a claim ({self.coverage:.0%} of the carrier was found)"
            )
        return f"{self.finding.words}: {who}: {figures}"

    def to_json(self) -> dict[str, Any]:
        """The claim as JSON."""
        return {
            "proof": self.proof,
            "finding": self.finding.name.lower(),
            "owner": self.owner,
            "issuer": self.issuer,
            "log2_p": self.log2_p,
            "log2_p_before_correction": self.log2_combined,
            "tries": {
                "chains": self.tries.chains,
                "log2_matchings": self.tries.log2_matchings,
                "readings": self.tries.readings,
                "log2_selections": self.tries.log2_selections,
            },
            "eta": self.eta,
            "bits": self.bits,
            "coverage": self.coverage,
            "how": self.how,
            "screened_out": self.screened,
            "nonces_not_here": list(self.absent),
            "problem": self.problem,
            "advice": self.advice,
            "marks": [_mark_json(mark) for mark in self.marks],
        }


def _mark_json(mark: ReadMark) -> Mapping[str, Any]:
    reading = mark.reading
    return {
        "shard": mark.shard,
        "bits": reading.bits,
        "matches": reading.matches,
        "eta": reading.eta if reading.bits else None,
        "log2_p": reading.log2_p if reading.bits else 0.0,
        "nonce": "live" if mark.live else "offline",
    }

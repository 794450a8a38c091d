"""What a claim says: its finding, its figures and its words."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from polo.ownership import Claim, Finding, Identification
from polo.ownership.claim import Tries
from polo.protocol.combination import ReadMark
from polo.protocol.detection import Reading


def claim_of(*marks: tuple[int, int], live: bool = False, **fields: Any) -> Claim:
    read = tuple(
        ReadMark(at, Reading(bits, matches), live) for at, (bits, matches) in enumerate(marks, 1)
    )
    return Claim("proof", owner="ab" * 32, issuer="issuer", marks=read, **fields)


FOUND = claim_of((256, 250), (256, 256))
OTHER = replace(FOUND, owner="cd" * 32)
NOTHING = claim_of((256, 130), (256, 120))
TOO_FEW = claim_of((100, 100), coverage=0.2)
BROKEN = Claim("proof", problem="it is torn")
SCREENED = Claim("proof", owner="ab" * 32, screened=True)


@pytest.mark.parametrize(
    ("claim", "finding", "words"),
    [
        (FOUND, Finding.CLAIM, "CLAIM STANDS: abababababababab…: η = 0.9883 over 2 marks"),
        (NOTHING, Finding.NO_CLAIM, "NO CLAIM: abababababababab…: η = 0.4883"),
        (TOO_FEW, Finding.UNDECIDED, "only 100 bits could be read, too few for a claim (20%"),
        (BROKEN, Finding.UNDECIDED, "COULD NOT DECIDE: proof: it is torn"),
        (SCREENED, Finding.NO_CLAIM, "ruled out by the screen"),
        (Claim("proof"), Finding.UNDECIDED, "only 0 bits"),
    ],
)
def test_findings_and_their_words(claim: Claim, finding: Finding, words: str) -> None:
    assert claim.finding is finding
    assert words in claim.sentence()


@pytest.mark.parametrize("claim", [FOUND, NOTHING, TOO_FEW, BROKEN, SCREENED, Claim("proof")])
def test_a_claim_is_no_boolean_and_is_json(claim: Claim) -> None:
    with pytest.raises(TypeError, match="no boolean"):
        bool(claim)
    written = json.loads(json.dumps(claim.to_json(), allow_nan=False))
    assert written["finding"] == claim.finding.name.lower()
    assert len(written["marks"]) == len(claim.marks)


def test_a_problem_outweighs_any_figures() -> None:
    assert claim_of((256, 256), problem="odd").finding is Finding.UNDECIDED


def test_exit_codes_are_those_of_the_command_line() -> None:
    assert [int(finding) for finding in Finding] == [0, 1, 2]
    assert [f.words for f in Finding] == ["CLAIM STANDS", "NO CLAIM", "COULD NOT DECIDE"]


@pytest.mark.parametrize(
    ("tries", "log2"),
    [
        (Tries(), 0.0),
        (Tries(8), 3.0),
        (Tries(8, readings=2), 4.0),
        (Tries(8, 10.5, 2, 7.25), 21.75),
    ],
)
def test_all_tries_are_charged(tries: Tries, log2: float) -> None:
    claim = claim_of((256, 200), live=True, tries=tries)
    assert tries.log2 == pytest.approx(log2)
    assert claim.log2_p == pytest.approx(claim.log2_combined + log2)
    found = claim.to_json()["tries"]
    assert 2 ** found["log2_matchings"] * 2 ** found["log2_selections"] * found["chains"] * found[
        "readings"
    ] == pytest.approx(2**log2)


def test_the_threshold_is_two_to_the_minus_sixty_four() -> None:
    """One live mark: as many matches as it takes, and one fewer."""
    needed = next(m for m in range(257) if Reading(256, m).log2_p <= -64)
    assert claim_of((256, needed), live=True).finding is Finding.CLAIM
    assert claim_of((256, needed - 1), live=True).finding is Finding.NO_CLAIM
    # Offline the same takes 2^-128, and two chains that were tried a bit more.
    offline = next(m for m in range(257) if Reading(256, m).log2_p <= -128)
    assert claim_of((256, offline)).finding is Finding.CLAIM
    assert claim_of((256, offline - 1)).finding is Finding.NO_CLAIM


def test_what_the_bits_could_reach_tells_no_claim_from_undecided() -> None:
    """128 perfect offline bits are 2^-64; with one fewer nobody could tell."""
    assert claim_of((128, 128)).finding is Finding.CLAIM
    assert claim_of((128, 66)).finding is Finding.NO_CLAIM
    assert claim_of((127, 66)).finding is Finding.UNDECIDED
    assert claim_of((128, 66), tries=Tries(2)).finding is Finding.UNDECIDED
    assert claim_of((0, 0), (0, 0)).finding is Finding.UNDECIDED
    assert claim_of((0, 0)).eta == 0.5


def test_marks_without_bits_are_written_without_a_rate() -> None:
    marks = claim_of((0, 0), (8, 6)).to_json()["marks"]
    assert marks[0]["eta"] is None
    assert (marks[1]["eta"], marks[1]["nonce"]) == (0.75, "offline")


def identification(*claims: Claim) -> Identification:
    return Identification("model", "a file", claims)


@pytest.mark.parametrize(
    ("claims", "finding", "words"),
    [
        ((), Finding.UNDECIDED, "COULD NOT DECIDE: no proof was given"),
        ((FOUND,), Finding.CLAIM, "CLAIM STANDS: abab"),
        ((FOUND, BROKEN, NOTHING), Finding.CLAIM, "CLAIM STANDS: abab"),
        ((FOUND, OTHER, NOTHING), Finding.CLAIM, "2 of 3 claims stand; polo compare"),
        ((FOUND, FOUND, NOTHING), Finding.CLAIM, "CLAIM STANDS: abab"),
        ((NOTHING,), Finding.NO_CLAIM, "NO CLAIM: abab"),
        ((NOTHING, SCREENED), Finding.NO_CLAIM, "none of 2 chains is in this model"),
        ((NOTHING, BROKEN), Finding.UNDECIDED, "it is torn"),
        ((TOO_FEW,), Finding.UNDECIDED, "only 100 bits"),
    ],
)
def test_an_identification_sums_its_claims_up(
    claims: tuple[Claim, ...], finding: Finding, words: str
) -> None:
    result = identification(*claims)
    assert result.finding is finding
    assert words in result.headline()
    assert str(result) == result.headline()
    written = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert written["exit_code"] == int(finding)
    with pytest.raises(TypeError, match="no boolean"):
        bool(result)


def test_the_best_that_the_bits_could_reach_is_never_weaker_than_what_they_did() -> None:
    for claim in (FOUND, NOTHING, TOO_FEW):
        assert claim.log2_best <= claim.log2_p
        assert math.isfinite(claim.log2_best)

"""Attacks on evidence of effort: proofs of training that never, or hardly, took place.

Each attack is an object with a name, what the attacker knows, what data it holds, what it means to
spend, a sentence, and `run(case, folder)`, which makes a proof and says what it cost. `ATTACKS` has
them all. They share `forging`, a prover without scruples.
"""

from polo_lab.attacks.effort.detour import Detour
from polo_lab.attacks.effort.few_steps import FewSteps
from polo_lab.attacks.effort.games import Game
from polo_lab.attacks.effort.grafts import Graft
from polo_lab.attacks.effort.grinding import Grinding
from polo_lab.attacks.effort.idling import Idling
from polo_lab.attacks.effort.inflation import Inflation
from polo_lab.attacks.effort.interpolation import Interpolation
from polo_lab.attacks.effort.loudness import HighRate, LoudSamples
from polo_lab.attacks.effort.masking import Masking, Truncation
from polo_lab.attacks.effort.reuse import Reuse
from polo_lab.attacks.effort.saturation import Saturation
from polo_lab.attacks.effort.silence import SilentSamples, SwallowedCopies
from polo_lab.attacks.effort.skipping import Skipping
from polo_lab.attacks.effort.spoofing import Spoofing
from polo_lab.attacks.effort.stillness import StandingStill, StraightLines
from polo_lab.attacks.effort.subset import TinySubset
from polo_lab.effort.case import Attack

ATTACKS: tuple[Attack, ...] = (
    Inflation("stolen"),
    Inflation("drawn"),
    Inflation("drawn", rough=0.02),
    Interpolation("straight"),
    Interpolation("curved"),
    Interpolation("noisy"),
    Interpolation("curved", trained=1),
    FewSteps(0.2),
    Graft("denied"),
    Graft("admitted"),
    Graft("momentum"),
    Graft("sealing"),
    Graft("hops"),
    Idling("identity"),
    Idling("no rate"),
    Idling("no loss"),
    Idling("one batch"),
    TinySubset(16, varied=False),
    TinySubset(16, varied=True),
    TinySubset(16, varied=True, relabelled=0.2),
    SilentSamples(0.1),
    SwallowedCopies(0.2),
    SwallowedCopies(0.36),
    LoudSamples(75.0, 0.03),
    HighRate(),
    StandingStill(),
    StandingStill(near=True),
    StraightLines(),
    Masking(0.2, exact=False),
    Masking(0.2, exact=True),
    Truncation(4),
    Saturation("momentum"),
    Saturation("aimed"),
    Detour(),
    Reuse("own"),
    Reuse("other"),
    Grinding(32),
    Skipping(0.02),
    Skipping(0.1),
    Skipping(0.25),
    Skipping(0.5),
    Skipping(0.5, "small"),
    Spoofing("near"),
    Spoofing("small"),
    Spoofing("batches"),
    Game("silence"),
    Game("another state"),
)
"""All attacks, in the order of the table."""

__all__ = ["ATTACKS"]

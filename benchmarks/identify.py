"""Whose model is it: one chain, a thousand chains, and how surely the screen lets the right one in.

All chains but one are idle (`idle.py`). The marks of that one are pressed into a ResNet-18 by the
finishing step alone; for the screen's power with a chosen part of their bits wrong.
"""

import hashlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.figures import Benchmark, Figure, Target, amount_of, missing, time_of
from benchmarks.idle import BITS, MARKS, Issuer
from benchmarks.measure import Samples, Spread, interleave
from benchmarks.resnet import ResNetDigits
from benchmarks.weakened import Weakened
from polo.keys import save_public
from polo.ownership import Finding, identify, screen
from polo.ownership.claimant import Claimant
from polo.ownership.identification import SCREEN_FROM
from polo.ownership.screen import Screen
from polo.protocol.combination import CLAIM_LOG2_P
from polo.weights import MemoryCheckpoint, checkpoint_of, commit
from polo.weights.files import write_checkpoint

CHAINS = 1000
WEAK_CHAINS = 10
TRIALS = 1000
DOUBT = 0.025

_ONE = Target("at most", 2.0)
_MANY = Target("at most", 20.0)
_POWER = Target("at least", 0.999)
_CLAIM = Target("at most", CLAIM_LOG2_P)
_HASHED = "plain SHA-256 of the model"
_HASH = "import hashlib, sys; hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256')"
_FULL = "all chains in full"


class Stage:
    """A marked model, its owner's chain and many idle ones, as files."""

    def __init__(self, folder: Path, chains: int) -> None:
        self.issuer = Issuer()
        self.trusted = {self.issuer.key.public_key: "issuer"}
        self.trust = folder / "issuer.pub"
        save_public(self.issuer.key.public_key, self.trust)
        torch.manual_seed(1)
        model, other = ResNetDigits().build_model(), ResNetDigits().build_model()
        owner = self.issuer.enrol(0)
        owner.press(model)
        last = checkpoint_of(model)
        self.model = save(last, folder / "model.safetensors")
        strange = save(checkpoint_of(other), folder / "other.safetensors")
        root = commit(last).root
        self.proofs = [self.issuer.write(owner, folder / "owner", self.model, root)]
        self.proofs += [
            self.issuer.write(self.issuer.enrol(number), folder / str(number), strange)
            for number in range(1, chains)
        ]

    def call(self, proofs: Sequence[Path]) -> None:
        """Identify in this process."""
        result = identify(self.model, proofs, trust=self.trust)
        _check(result.finding is Finding.CLAIM and result.claims[0].proof == str(proofs[0]))

    def command(self, script: Path, proofs: Sequence[Path]) -> None:
        """Identify as a user does, in a fresh process."""
        given = ["--trust", str(self.trust), "--proof", *map(str, proofs)]
        done = command.python(str(script), "identify", str(self.model), *given)
        _check(done.returncode == int(Finding.CLAIM), done.stderr)

    def hash_model(self) -> None:
        """Plain SHA-256 of the model, the least that anybody does to it."""
        with self.model.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def run(quick: bool) -> Iterator[Figure]:
    """Times first, then the screen."""
    chains, rounds, few, trials = (8, 1, 1, 3) if quick else (CHAINS, 15, 3, TRIALS)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), chains)
        yield from one_chain(stage, rounds)
        yield from many_chains(stage, few)
        yield from power(stage, trials)
        yield weak_owner(stage, Path(folder))


def one_chain(stage: Stage, rounds: int) -> Iterator[Figure]:
    """The owner's chain alone, as a call and as a command."""
    note = f"ResNet-18, {MARKS} marks of {BITS} bits, files in the page cache"
    proofs = stage.proofs[:1]
    samples = interleave({_HASHED: stage.hash_model, "call": lambda: stage.call(proofs)}, rounds)
    yield time_of("one chain, the call", samples, "call", _HASHED, target=_ONE, note=note)
    name, script = "one chain, the command", command.polo()
    if script is None:
        yield missing(name, "s", command.ABSENT, _ONE)
        return
    fresh = f"{_HASHED} in a fresh Python"
    samples = interleave(
        {
            fresh: lambda: command.python("-c", _HASH, str(stage.model)),
            "command": lambda: stage.command(script, proofs),
        },
        rounds,
    )
    yield time_of(name, samples, "command", fresh, target=_ONE, note=note)


def many_chains(stage: Stage, rounds: int) -> Iterator[Figure]:
    """All chains, only the first of which is in the model."""
    few = stage.proofs[: SCREEN_FROM - 1]
    share = len(stage.proofs) / len(few)
    sides: dict[str, Callable[[], Any]] = {
        _FULL: lambda: stage.call(few),
        "call": lambda: stage.call(stage.proofs),
    }
    script = command.polo()
    if script is not None:
        sides["command"] = lambda: stage.command(script, stage.proofs)
    samples: Samples = interleave(sides, rounds)
    samples[_FULL] = [share * seconds for seconds in samples[_FULL]]
    note = (
        f"one of {len(stage.proofs)} chains is in the model; files in the page cache, the others' "
        f"last checkpoints are one file, linked; reading all in full is extrapolated from "
        f"{len(few)}, which are too few to be screened"
    )
    for side in sides:
        if side != _FULL:
            name = f"{len(stage.proofs)} chains, the {side}"
            yield time_of(name, samples, side, _FULL, target=_MANY, note=note)


def power(stage: Stage, trials: int) -> Iterator[Figure]:
    """How surely the screen lets a chain in whose bits are right with probability 0.62."""
    proofs = stage.proofs[1 : 1 + WEAK_CHAINS]
    weak = Weakened(ResNetDigits().build_model().state_dict(), screen.ETA, seed=1)
    through, asked, rates = 0, screen.screen_of(screen.BITS), []
    for proof in proofs:
        claimant = Claimant(proof, stage.trusted)
        chosen = list(screen.sample(claimant))
        for _ in range(trials):
            rates.append(weak.press(claimant, chosen))
            worth, asked = screen.passes(claimant, weak.source, chosen)
            through += worth
            weak.restore()
    yield amount_of(
        f"power of the screen at η {screen.ETA:g}, computed",
        "of the chains",
        [asked.surely],
        target=_POWER,
        note=f"{asked.least} of {asked.bits} bits let a chain through",
        details={"unmarked_let_through": asked.false_pass},
    )
    total = trials * len(proofs)
    yield Figure(
        f"power of the screen at η {screen.ETA:g}, measured",
        "of the chains",
        share(through, total),
        target=_POWER,
        note=f"{through} of {total} trials got through, on {len(proofs)} chains; the interval is "
        "that of Clopper and Pearson",
        details={"mean_η_pressed": statistics.fmean(rates)},
    )


def weak_owner(stage: Stage, folder: Path) -> Figure:
    """The whole way, for an owner all of whose marks read at about 0.62."""
    others, proof = stage.proofs[2 : 2 + WEAK_CHAINS], stage.proofs[1]
    weak = Weakened(ResNetDigits().build_model().state_dict(), screen.ETA, seed=2)
    claimant = Claimant(proof, stage.trusted)
    marks, _ = claimant.marks()
    for mark in marks:
        weak.press(claimant, [(mark, list(range(mark.mark.groups)))])
    found = save(weak.checkpoint(), folder / "weak.safetensors")
    result = identify(found, [*others, proof], trust=stage.trust)
    claim = next(claim for claim in result.claims if claim.proof == str(proof))
    rates = {"mean_η": claim.eta, "worst_η": min((m.reading.eta for m in claim.marks), default=0)}
    return amount_of(
        f"an owner at η {screen.ETA:g} among {len(others) + 1} chains, by the call",
        "log2 p",
        [claim.log2_p],
        target=_CLAIM,
        note="ruled out by the screen" if claim.screened else f"{len(claim.marks)} marks",
        details=rates,
    )


def save(checkpoint: MemoryCheckpoint, path: Path) -> Path:
    """Write a model file."""
    with path.open("wb") as out:
        write_checkpoint(checkpoint, out.write)
    return path


def share(count: int, total: int) -> Spread:
    """A share with its exact 95 % interval; `Screen.power` is the binomial tail that it takes."""
    low = _root(lambda p: Screen(total, count).power(p) - DOUBT) if count else 0.0
    high = 1.0
    if count < total:
        high = _root(lambda p: DOUBT - 1 + Screen(total, count + 1).power(p))
    found = count / total
    return Spread(found, found, found, low, high)


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _check(holds: bool, detail: str = "") -> None:
    if not holds:
        raise RuntimeError(f"the owner was not named {detail}")


BENCHMARK = Benchmark("identify", "whose model it is, out of one chain and of many", run)

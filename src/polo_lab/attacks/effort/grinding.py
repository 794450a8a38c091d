"""Grinding: try many roots, and go on from the one whose next mark is nearly there by luck."""

from pathlib import Path

import numpy as np

from polo.protocol import chain
from polo.watermark.mark import derive
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import MemoryCheckpoint
from polo.weights.hashing import commit
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import Snapshot, copied
from polo_lab.attacks.effort.walking import walk
from polo_lab.effort.case import Attempt, Case


class Grinding:
    """Inflation whose checkpoints are chosen among many, so that marks need smaller edits.

    The nonces of an offline enrolment are all known, so a forger knows what mark and what order
    each candidate leads to.

    Args:
        tries: Candidates for each checkpoint.
    """

    knowledge = "a finished model of the task, and all nonces"
    data = "none"
    budget = "no gradients; hashes and readings"

    def __init__(self, tries: int = 32) -> None:
        self._tries = tries
        self.name = f"grinding, {tries} roots a shard"
        self.description = (
            f"tries {tries} checkpoints a shard and keeps the one whose next mark reads best in "
            "the stolen weights, then makes up the record"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        stolen = case.victim.state
        forgery = Forgery(case, folder)
        forgery.begin()
        gained: list[int] = []
        target = copied(stolen)
        for _ in range(forgery.shards):
            walk(forgery, target, rough=0.002)
            best = self._best(forgery, gained) if forgery.shard < forgery.shards else None
            target = copied(forgery.seal(hidden=best).model)
        mean = float(np.mean(gained)) if gained else 0.0
        bits = forgery.terms.scheme.bits
        return forgery.finish(f"{mean:.1f} of {bits} bits gained by {self._tries} tries")

    def _best(self, forgery: Forgery, gained: list[int]) -> Snapshot:
        """Weights to seal: those of many, a digit apart, that suit the next mark best."""
        sealed = forgery.previewed()
        found: list[tuple[int, int]] = []
        for number in range(self._tries):
            found.append((fit(forgery, _varied(sealed, number)), number))
        luckiest = max(found)
        gained.append(luckiest[0] - forgery.terms.scheme.bits // 2)
        return _varied(sealed, luckiest[1])


def fit(forgery: Forgery, sealed: Snapshot) -> int:
    """Bits of the next shard's mark that a checkpoint reads already, if it is taken."""
    checkpoint = MemoryCheckpoint(sealed.model)
    nonce = forgery.nonce(forgery.shard + 1)
    record = forgery.who.enrolment.record
    seed = chain.seed_of(record, nonce, previous=commit(checkpoint).root)
    mark = derive(forgery.terms, forgery.carrier, seed)
    return read(mark, values_of(mark, forgery.carrier, checkpoint)).matches


def _varied(snapshot: Snapshot, number: int) -> Snapshot:
    """The same weights but for one of them, by an amount that nobody misses."""
    model = copied(snapshot.model)
    name = min(name for name, tensor in model.items() if tensor.is_floating_point())
    model[name].view(-1)[0] *= 1 + number * 1e-6
    return Snapshot(model, snapshot.rest)

"""What a proof says about the weights that are released: W_S, an earlier shard, an average.

A proof ends in W_S, to the bit. Many release other weights: an exponential moving average (EMA),
the average of several epochs (SWA), or the best epoch. The marks of a chain sit in different
blocks and stay in the weights, so an average of trained weights still holds them; how well is for
every mark a number that can be read.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from polo.errors import PoloError
from polo.ownership import Claim, Finding, identify
from polo.ownership.claimant import Claimant
from polo.ownership.matching import MatchedSource, Matcher
from polo.ownership.sources import floats
from polo.protocol.combination import ReadMark
from polo.protocol.layout import Layout
from polo.protocol.records import Manifest
from polo.prover.results import Proof
from polo.storage.bundle import opened
from polo.storage.folder import ProofFolder
from polo.storage.model import Fitted, last_checkpoint
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.found import open_found
from polo.weights.found_model import FoundModel
from polo.weights.hashing import commit
from polo.weights.live import found_of

Model = torch.nn.Module | Mapping[str, Any] | str | Path
"""Weights: live, a state dict, or a file."""

_PIECE = 2**20


@dataclass(frozen=True)
class Released:
    """What a proof says about released weights.

    It is no boolean, and using it as one raises: ask for `finding`.

    Attributes:
        claim: The chain's marks in these weights, as `polo.identify` reads them.
        shards: Sealed shards of the proof.
        shard: The shard that ended in exactly these weights (0: the start); None if none did.
        distance: ‖W − W_S‖ / ‖W_S‖ over the tensors that carry marks; None where the proof does
            not hold W_S, or the tensors were not found.
    """

    claim: Claim
    shards: int
    shard: int | None
    distance: float | None

    def __bool__(self) -> bool:
        raise TypeError("this is no boolean; compare released.finding with polo.ownership.Finding")

    @property
    def finding(self) -> Finding:
        """Whether `polo.identify` names the owner of the chain."""
        return self.claim.finding

    @property
    def marks(self) -> tuple[ReadMark, ...]:
        """What was read of every mark, oldest first: `mark.shard`, `mark.reading.eta` and so on."""
        return self.claim.marks

    @property
    def proven(self) -> bool:
        """Whether these are the very weights that the proof ends in."""
        return self.shard == self.shards

    def headline(self) -> str:
        """The result in one sentence."""
        return f"{self._what()}; {self.claim.sentence()}"

    def __str__(self) -> str:
        return self.headline()

    def _what(self) -> str:
        if self.proven:
            return f"these are W_{self.shards}, the weights that the proof ends in"
        if self.shard is not None:
            return f"these are W_{self.shard} of {self.shards}, exactly"
        far = "" if self.distance is None else f", {self.distance:.1%} of its norm away from it"
        return f"these are not W_{self.shards}, which the proof ends in{far}"


def released(proof: Proof | str | Path, model: Model) -> Released:
    """Read all marks of your own proof in the weights that you release.

        result = polo.released("proof/", ema.module)
        result.headline(), [mark.reading.eta for mark in result.marks]

    Whoever signed the proof's terms is trusted here, since the proof is yours. What a stranger
    would find out is what `polo.identify` says of the released file.

    Args:
        proof: The proof, with its nonces.
        model: What is released: a model, an `AveragedModel`, a state dict, or a file.

    Raises:
        PoloError: The proof or the model cannot be read.
    """
    path = proof.path if isinstance(proof, Proof) else Path(proof)
    if isinstance(model, AveragedModel):
        model = model.module
    with opened(path) as folder, _found(model) as found:
        manifest = ProofFolder(folder).manifest()
        issuer = manifest.enrolment.issuer
        (claim,) = identify(found, [folder], trust=issuer).claims
        if claim.problem:
            raise PoloError(claim.problem, place=str(path), advice=claim.advice)
        claimant = Claimant(folder, {issuer: claim.issuer})
        shard = _exactly(manifest, claimant.layout, model)
        return Released(claim, claimant.shards, shard, _distance(claimant, found))


def _found(model: Model) -> FoundModel:
    return open_found(Path(model)) if isinstance(model, (str, Path)) else found_of(model)


def _exactly(manifest: Manifest, layout: Layout, model: Model) -> int | None:
    """The last shard whose root these weights have."""
    root = _root(layout, model)
    roots = [manifest.start.root, *(shard.root for shard in manifest.shards)]
    return max((at for at, known in enumerate(roots) if known == root), default=None)


def _root(layout: Layout, model: Model) -> bytes | None:
    try:
        if not isinstance(model, (str, Path)):
            live = checkpoint_of(model)
            return commit(live).root if live.layout == layout else None
        with last_checkpoint(model) as file:
            return commit(Fitted(file, layout, str(model))).root
    except PoloError:
        # Another format, other tensors, NaN: whatever it is, it is no shard to the bit.
        return None


def _distance(claimant: Claimant, found: FoundModel) -> float | None:
    """How far the weights that carry marks are from W_S, relative to its norm."""
    with contextlib.closing(claimant.checkpoints()) as kept:
        number, last = next(kept, (-1, None))
        if last is None or number != claimant.shards:
            return None
        return _relative(claimant, last, found)


def _relative(claimant: Claimant, last: Checkpoint, found: FoundModel) -> float | None:
    matching = Matcher(found).match(claimant.carrier, last)
    source = MatchedSource(found, matching)
    apart = norm = 0.0
    for at in matching.matches:
        elements = claimant.layout.tensors[at].elements
        for start in range(0, elements, _PIECE):
            stop = min(start + _PIECE, elements)
            there = source.weights(at, start, stop)
            assert there is not None
            own = floats(last, at, start, stop).astype(np.float64)
            apart += float(np.square(there - own).sum())
            norm += float(np.square(own).sum())
    # NaN and infinity are no distance.
    return math.sqrt(apart / norm) if norm and math.isfinite(apart) else None

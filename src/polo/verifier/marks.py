"""The marks of a proof: each derived again, and read from its opening or its checkpoint."""

import os
import threading
from collections.abc import Callable, Container, Iterator

from polo.checks import Check, Status, problem
from polo.errors import PoloError, TermsError
from polo.keys import Ed25519Verifier
from polo.protocol import chain
from polo.protocol.carrier import Carrier
from polo.protocol.records import Manifest, Nonce
from polo.storage import openings
from polo.storage.folder import ProofFolder, checkpoint_path, nonce_path, opening_path
from polo.watermark.mark import derive
from polo.watermark.reading import OpenedCheckpoint, read, values_of
from polo.watermark.schemes import scheme
from polo.weights.checkpoint import Checkpoint
from polo.weights.hashing import commit

_FORKING = threading.RLock()
"""Held while a mark is read and while this process is forked, as by a task that loads data: numbers
are multiplied by threads of the matrix library, which are no more in the child, and whose lock it
would hold for ever."""

os.register_at_fork(
    before=_FORKING.acquire, after_in_parent=_FORKING.release, after_in_child=_FORKING.release
)


class Marks:
    """All marks of a proof, newest to oldest.

    Args:
        folder: The proof.
        manifest: Its manifest.
        carrier: Where marks may lie.
        sound: Files that are here as signed.
        is_shown: Whether this part of the proof has a file; what is left out is not missed.
        threads: Threads for hashing a checkpoint that has no opening.

    Attributes:
        nonces: The nonces that were found, by shard.
        total: How many shards there are.
        done: How many of them are done with.
    """

    def __init__(
        self,
        folder: ProofFolder,
        manifest: Manifest,
        carrier: Carrier,
        *,
        sound: Container[str],
        is_shown: Callable[[str], bool],
        threads: int | None,
    ) -> None:
        self._folder, self._manifest, self._carrier = folder, manifest, carrier
        self._sound, self._is_shown = sound, is_shown
        self._threads = threads
        self.nonces: dict[int, Nonce] = {}
        self.total, self.done = len(manifest.shards), 0

    def checks(self) -> Iterator[Check]:
        """What there is to say about every one."""
        try:
            scheme(self._manifest.terms.scheme.name)
        except TermsError as error:
            yield Check("mark", Status.UNDECIDED, str(error), advice=error.advice)
            return
        walk = chain.ChainWalk(self._manifest, Ed25519Verifier())
        while (shard := walk.shard) is not None:
            self.done = self.total - shard
            if not self._is_shown(nonce_path(shard)):
                walk.skip()
                continue
            yield from self._one(walk, shard)

    def _one(self, walk: chain.ChainWalk, shard: int) -> Iterator[Check]:
        place = nonce_path(shard)
        if place not in self._sound:
            walk.skip()
            yield Check(
                "nonce",
                Status.UNDECIDED,
                "the nonce is not here, so the mark was not checked",
                shard=shard,
                place=place,
                advice="Ask the prover for the verifier's bundle or a disclosure.",
            )
            return
        try:
            nonce = self._folder.nonce(shard)
            query = walk.open(nonce, place=place)
        except PoloError as error:
            walk.skip()
            yield problem("nonce", error, shard=shard)
            return
        self.nonces[shard] = nonce
        yield Check("nonce", Status.PASSED, "the issuer committed to it", shard=shard)
        check = self._mark(walk, query)
        yield check
        claimed, found = self._manifest.shards[shard - 1].matches, check.figures.get("matches")
        if found not in (None, claimed):
            detail = f"the prover says {claimed} bits read right, {found} do"
            yield Check("reading", Status.FAILED, detail, shard=shard)

    def _mark(self, walk: chain.ChainWalk, query: chain.MarkQuery) -> Check:
        shard, carrier = query.shard, self._carrier
        mark = derive(walk.terms, carrier, query.seed)
        source: Checkpoint
        try:
            if opening_path(shard) in self._sound:
                place = opening_path(shard)
                where = carrier.leaves(mark.blocks)
                path = self._folder.file(place)
                opening = openings.load(path, carrier.layout, where, place=place)
                root = opening.root(carrier.layout, where, place=place)
                source = OpenedCheckpoint(carrier.layout, opening.chunks)
                values = values_of(mark, carrier, source)
            elif checkpoint_path(shard) in self._sound:
                place = checkpoint_path(shard)
                with self._folder.checkpoint(shard, carrier.layout) as whole:
                    root = commit(whole, threads=self._threads).root
                    values = values_of(mark, carrier, whole)
            else:
                walk.skip()
                return Check(
                    "mark",
                    Status.UNDECIDED,
                    "neither opening nor checkpoint is here, so the mark was not checked",
                    shard=shard,
                )
        except PoloError as error:
            walk.skip()
            return problem("mark", error, shard=shard)
        if root != query.root:
            walk.skip()
            detail = "what is opened does not belong to the committed weights"
            return Check("mark", Status.FAILED, detail, shard=shard, place=place)
        try:
            with _FORKING:
                found = read(mark, values)
        except TermsError as error:
            # The scheme is of a package that the verifier installed: no fault of the prover's.
            walk.skip()
            return problem("mark", error, Status.UNDECIDED, shard=shard)
        result = walk.read(found.matches)
        reading = result.reading
        return Check(
            "mark",
            Status.PASSED if result.passed else Status.FAILED,
            f"η = {reading.eta:.4f}, {reading.matches} of {reading.bits} bits, "
            f"log2 p = {reading.log2_p:.1f}",
            shard=shard,
            figures={
                "eta": reading.eta,
                "matches": reading.matches,
                "bits": reading.bits,
                "log2_p": reading.log2_p,
            },
        )

"""Ownership from the final model and the roots alone.

Every mark of the chain is derived from the signed roots and looked for in one model: the proof's
last checkpoint, or a file that was delivered. This shows whose model it is, and nothing about how
it came about: neither order nor history nor accuracy.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from polo._version import __version__
from polo.checks import Check, Status, counted, problem
from polo.errors import PoloError
from polo.ownership import Finding, identify
from polo.ownership.claim import Claim
from polo.ownership.claimant import Claimant, UntrustedError
from polo.protocol.combination import CLAIM_LOG2_P
from polo.protocol.detection import Reading
from polo.protocol.records import Bundle
from polo.storage.bundle import files_of, named, opened
from polo.storage.folder import checkpoint_path
from polo.verifier.levels import FINAL
from polo.verifier.policy import Policy
from polo.verifier.verdict import Verdict
from polo.weights.files import FileCheckpoint
from polo.weights.hashing import commit

_KINDS = {"buyer": "a disclosure", "public": "a public bundle"}


def verify_final(
    proof: Path, trusted: dict[bytes, str], model: Path | None, policy: Policy
) -> Verdict:
    """Read all marks from the final model."""
    run = _Final(proof, trusted, model, policy)
    checks: list[Check] = []
    try:
        for check in run.checks():
            checks.append(about(check, run.folder, proof))
    except OSError as error:
        checks.append(Check("files", Status.UNDECIDED, f"the system says: {error}", level=FINAL))
    return Verdict(str(proof), tuple(checks), run.facts, (FINAL,))


def about(check: Check, folder: Path, proof: Path) -> Check:
    """A check that speaks of the bundle instead of the folder it was unpacked into."""
    texts = (check.detail, check.place, check.advice)
    detail, place, advice = (named(text, folder, proof) for text in texts)
    return replace(check, detail=detail, place=place, advice=advice)


class _Final:
    def __init__(
        self, proof: Path, trusted: dict[bytes, str], model: Path | None, policy: Policy
    ) -> None:
        self._proof = proof
        self.folder = proof
        self._trusted = trusted
        self._model = model
        self._policy = policy
        self.facts: dict[str, str | int] = {}

    def checks(self) -> Iterator[Check]:
        """All checks, in order."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder = stack.enter_context(opened(self._proof))
                claimant = Claimant(self.folder, self._trusted)
                part = _part_of(claimant)
            except UntrustedError as error:
                yield problem("issuer", error, Status.UNDECIDED, level=FINAL)
                return
            except PoloError as error:
                yield problem("manifest", error, level=FINAL)
                return
            self._note(claimant)
            yield Check("issuer", Status.PASSED, f"{claimant.issuer} signed the terms", level=FINAL)
            yield Check(
                "signature", Status.PASSED, f"signed by {claimant.owner[:16]}…", level=FINAL
            )
            if self._policy.whole:
                yield from _whole(claimant, part)
            if self._model is None:
                root = self._root(claimant, part)
                yield root
                if root.status is not Status.PASSED:
                    return
            yield from self._ownership(claimant)

    def _note(self, claimant: Claimant) -> None:
        terms = claimant.manifest.terms
        self.facts = {
            "identity": claimant.owner,
            "issuer": claimant.issuer,
            "task": f"{terms.task.name} (version {terms.task.version})",
            "metric": terms.task.metric,
            "shards": claimant.shards,
            "bits": terms.scheme.bits,
            "scheme": f"{terms.scheme.name}, {terms.scheme.key} keys, {terms.scheme.bits} bits",
            "log2_p_threshold": CLAIM_LOG2_P,
            "final_root": claimant.manifest.last_root.hex(),
            "issued": claimant.manifest.enrolment.issued,
            "verified": int(time.time()),
            "version": __version__,
            "policy": "final model only" + (", whole proofs only" if self._policy.whole else ""),
        }

    def _root(self, claimant: Claimant, part: Bundle | None) -> Check:
        """Whether the last checkpoint is here, and is the one that the chain commits to."""
        place = checkpoint_path(claimant.shards)
        if part is not None:
            return Check(
                "root",
                Status.UNDECIDED,
                f"{_KINDS[part.kind]} holds no weights, so there is no model to look at",
                place=str(self._proof),
                advice="Give the model: polo verify … --final-only --model FILE",
                level=FINAL,
            )
        try:
            path = claimant.folder.file(place)
            with FileCheckpoint.canonical(path, claimant.layout) as last:
                root = commit(last, threads=self._policy.threads).root
        except PoloError as error:
            return problem("root", error, level=FINAL)
        same = root == claimant.manifest.last_root
        detail = f"root {root.hex()[:16]}…" if same else "the weights are not those of the chain"
        status = Status.PASSED if same else Status.FAILED
        return Check("root", status, detail, shard=claimant.shards, place=place, level=FINAL)

    def _ownership(self, claimant: Claimant) -> Iterator[Check]:
        last = claimant.folder.file(checkpoint_path(claimant.shards))
        model = self._model or last
        try:
            result = identify(model, [claimant.folder.path], trust=list(self._trusted))
        except PoloError as error:
            # A model that cannot be read decides nothing, whatever is wrong with it.
            yield problem("ownership", error, Status.UNDECIDED, level=FINAL)
            return
        claim, thresholds = result.claims[0], claimant.manifest.terms.thresholds
        for mark in claim.marks:
            reading = mark.reading
            held = reading.bits and reading.passes(thresholds.verify, thresholds.log2_p)
            yield Check(
                "residual",
                Status.PASSED if held else Status.NOTE,
                f"η = {reading.eta:.4f}, {reading.matches} of {reading.bits} bits"
                if reading.bits
                else "its weights were not found",
                shard=mark.shard,
                figures=_figures(reading),
                level=FINAL,
            )
        yield self._judged(claim)

    def _judged(self, claim: Claim) -> Check:
        statuses = {
            Finding.CLAIM: Status.PASSED,
            Finding.NO_CLAIM: Status.FAILED,
            Finding.UNDECIDED: Status.UNDECIDED,
        }
        detail = claim.problem or (
            f"{counted(len(claim.marks), 'mark')} together: η = {claim.eta:.4f}, "
            f"log2 p = {claim.log2_p:.1f}; {claim.coverage:.0%} of the carrier was found"
        )
        return Check(
            "ownership",
            statuses[claim.finding],
            detail,
            place=str(self._model or ""),
            figures={"eta": claim.eta, "log2_p": claim.log2_p, "coverage": claim.coverage},
            advice=claim.advice,
            level=FINAL,
        )


def _part_of(claimant: Claimant) -> Bundle | None:
    """What part of a proof is here; None if it says to be all of it."""
    bundle = claimant.folder.bundle()
    if bundle is not None:
        files_of(bundle, claimant.manifest)
    return bundle if bundle and bundle.kind != "verifier" else None


def _whole(claimant: Claimant, part: Bundle | None) -> Iterator[Check]:
    """Part of a proof is not enough for one who asked for a whole one."""
    listed = (claimant.folder.path / file.path for file in claimant.manifest.files)
    if part is not None or not all(map(os.path.lexists, listed)):
        detail = "only part of the proof is here, and a whole one was asked for"
        advice = "Ask the prover for the verifier's bundle."
        yield Check("bundle", Status.UNDECIDED, detail, advice=advice, level=FINAL)


def _figures(reading: Reading) -> dict[str, float | int | str]:
    if not reading.bits:
        return {"bits": 0, "matches": 0}
    return {
        "eta": reading.eta,
        "matches": reading.matches,
        "bits": reading.bits,
        "log2_p": reading.log2_p,
    }

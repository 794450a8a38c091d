"""Whose model is this? Every claimant's marks, looked for in one found model."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.errors import MissingError, PoloError
from polo.keys import Trust, TrustStore, trusted_keys
from polo.ownership.claim import Claim, Finding, Tries
from polo.ownership.claimant import Claimant
from polo.ownership.matching import MatchedSource, Matcher, Matching
from polo.ownership.reading import read_mark
from polo.ownership.screen import Screen, passes
from polo.protocol.combination import log2_selections
from polo.storage.bundle import opened
from polo.weights.checkpoint import Checkpoint
from polo.weights.found import open_found
from polo.weights.found_model import FoundModel

if TYPE_CHECKING:
    from polo.ownership.aligned import Aligner
    from polo.ownership.merged import Unmerger

SCREEN_FROM = 4
"""Claimants from which on a screen pays."""

Listener = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Identification:
    """What came of it.

    It is no boolean, and using it as one raises: ask for `finding`.

    Attributes:
        model: The found model; empty if it was open already.
        description: What kind of file it is.
        claims: One for every claimant, the strongest first.
        screen: The quick look that came first; None if there was none.
    """

    model: str
    description: str
    claims: tuple[Claim, ...]
    screen: Screen | None = None

    def __bool__(self) -> bool:
        raise TypeError(
            "an identification is no boolean; compare its finding with polo.ownership.Finding"
        )

    @property
    def finding(self) -> Finding:
        """A claim if one stands; undecided if none does and one could not be decided."""
        found = {claim.finding for claim in self.claims}
        if Finding.CLAIM in found:
            return Finding.CLAIM
        return Finding.UNDECIDED if Finding.UNDECIDED in found or not found else Finding.NO_CLAIM

    def headline(self) -> str:
        """The result in one sentence."""
        standing = [claim for claim in self.claims if claim.finding is Finding.CLAIM]
        if len({claim.owner for claim in standing}) > 1:
            count = f"{len(standing)} of {len(self.claims)} claims stand"
            return f"{count}; polo compare says who came first"
        if self.finding is Finding.NO_CLAIM and len(self.claims) > 1:
            return f"{Finding.NO_CLAIM.words}: none of {len(self.claims)} chains is in this model"
        first = next((c for c in self.claims if c.finding is self.finding), None)
        return (
            first.sentence() if first is not None else f"{self.finding.words}: no proof was given"
        )

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        looked = self.screen and {
            "bits": self.screen.bits,
            "least_matches": self.screen.least,
            "power_at_0.62": self.screen.surely,
            "false_pass": self.screen.false_pass,
        }
        return {
            "format": "polo/identification/1",
            "finding": self.finding.name.lower(),
            "exit_code": int(self.finding),
            "headline": self.headline(),
            "model": self.model,
            "description": self.description,
            "screen": looked,
            "claims": [claim.to_json() for claim in self.claims],
        }

    def __str__(self) -> str:
        return self.headline()


def identify(
    model: str | Path | FoundModel,
    proofs: Sequence[str | Path],
    *,
    trust: Trust | Iterable[Trust] | None = None,
    align: bool = False,
    base: str | Path | None = None,
    task: Any = None,
    listener: Listener | None = None,
) -> Identification:
    """Look for the marks of every proof in a found model.

    Args:
        model: The found model: a safetensors or GGUF file, a Hugging Face folder, or one that is
            open already.
        proofs: Proof folders or bundles, with their nonces.
        trust: Whose enrolments to accept; by default the user's own store.
        align: Where no claim stands, undo permutation, scaling and dummy neurons first, and
            read again. Needs torch, the task, and a proof that kept older checkpoints. Of an
            adapter's proof: take the adapter out of the task's base, whatever basis it has.
        base: The base model, a safetensors file, where a proof is of an adapter that may have been
            merged; nothing but the base that the terms name is taken. Needs scipy and a proof
            that kept older checkpoints.
        task: The task, or its name, for alignment; by default the one that the terms name.
        listener: Hears about progress.

    Raises:
        PoloError: The model itself cannot be read. What is wrong with a proof is said in its claim.
    """
    trusted = trusted_keys(TrustStore() if trust is None else trust)
    tell = listener or (lambda *_: None)
    with _reading(model) as found:
        aligner = aligner_for(task) if align else None
        unmerger = unmerger_for(base, task) if align or base else None
        search = _Search(found, trusted, len(proofs), aligner, unmerger)
        claims = []
        for at, proof in enumerate(proofs):
            tell("looking for marks", at, len(proofs))
            claims.append(search.claim(Path(proof)))
        claims.sort(key=lambda claim: (claim.finding, claim.log2_p))
        name = "" if isinstance(model, FoundModel) else str(model)
        return Identification(name, found.description, tuple(claims), search.screen)


def _reading(model: str | Path | FoundModel) -> contextlib.AbstractContextManager[FoundModel]:
    """The found model, opened; what somebody else opened they also close."""
    if isinstance(model, FoundModel):
        return contextlib.nullcontext(model)
    return open_found(Path(model))


def aligner_for(task: Any) -> "Aligner":
    """What undoes permutation and the like; needs torch, which only those who ask for it load."""
    try:
        from polo.ownership.aligned import Aligner
    except ImportError as error:
        raise MissingError(
            f"alignment needs torch and scipy: {error}",
            advice="pip install 'polo-proof[align]'",
        ) from error
    return Aligner(task)


def unmerger_for(base: str | Path | None, task: Any) -> "Unmerger":
    """What takes merged adapters out of a model."""
    from polo.ownership.merged import Unmerger

    return Unmerger(Path(base) if base else None, task)


class _Search:
    """One found model against many claimants."""

    def __init__(
        self,
        found: FoundModel,
        trusted: dict[bytes, str],
        chains: int,
        aligner: "Aligner | None",
        unmerger: "Unmerger | None",
    ) -> None:
        self._found = found
        self._trusted = trusted
        self._chains = chains
        self._aligner = aligner
        self._unmerger = unmerger
        self._matcher = Matcher(found)
        self._screening = chains >= SCREEN_FROM and aligner is None and unmerger is None
        self.screen: Screen | None = None

    def claim(self, proof: Path) -> Claim:
        """One claimant's marks; whatever is wrong with the proof is in the claim."""
        blank = Claim(str(proof), tries=Tries(self._chains))
        try:
            with opened(proof) as folder:
                # A chain that the screen rules out claims nothing, whoever signed it.
                claimant = Claimant(folder, self._trusted, signed=not self._screening)
                return self._claim(claimant, blank)
        except PoloError as error:
            where = "" if error.place in ("", str(proof)) else f"{error.place}: "
            return replace(blank, problem=f"{where}{error.message}", advice=error.advice)
        except OSError as error:
            return replace(blank, problem=f"the system says: {error}")

    def _claim(self, claimant: Claimant, blank: Claim) -> Claim:
        blank = replace(blank, owner=claimant.owner, issuer=claimant.issuer)
        with newest_checkpoint(claimant) as reference:
            matching = self._matcher.match(claimant.carrier, reference)
        if self._screening:
            if matching.coverage == 1.0:
                worth, self.screen = passes(claimant, MatchedSource(self._found, matching))
                if not worth:
                    return replace(blank, screened=True, coverage=1.0, how=_how(matching))
            claimant.check_signatures()
        claim = self._read(claimant, blank, matching)
        if claim.finding is Finding.CLAIM or claim.problem:
            return claim
        if _beside(claimant.carrier.names):
            if self._unmerger:
                return self._unmerger.better(claimant, self._found, claim)
            return replace(claim, advice="If the adapter was merged: --base BASE.safetensors")
        if _beside(self._found.tensors):
            problem = "adapters (LoRA) lie beside the weights, which alone are not the model"
            return replace(claim, problem=problem, advice="Merge them into the weights first.")
        if self._aligner:
            return self._aligner.better(claimant, self._found, claim)
        return replace(claim, advice="If neurons may have been permuted or added, try --align.")

    def _read(self, claimant: Claimant, blank: Claim, matching: Matching) -> Claim:
        source = MatchedSource(self._found, matching)
        marks, absent = claimant.marks()
        problem = "" if marks else "no nonce is here, so no mark can be derived"
        tries = replace(
            blank.tries,
            log2_matchings=matching.log2_choices,
            log2_selections=log2_selections(len(marks), claimant.shards),
        )
        return replace(
            blank,
            marks=tuple(read_mark(claimant, mark, source) for mark in marks),
            tries=tries,
            coverage=matching.coverage,
            how=_how(matching),
            absent=tuple(absent),
            problem=problem,
            advice="Give the verifier's bundle, or a disclosure." if problem else "",
        )


@contextlib.contextmanager
def newest_checkpoint(claimant: Claimant) -> Iterator[Checkpoint | None]:
    """The claimant's newest stored checkpoint, or None; nobody has checked its root."""
    with contextlib.closing(claimant.checkpoints()) as kept:
        try:
            newest = next(kept, None)
        except PoloError:
            newest = None
        yield newest[1] if newest else None


def _beside(names: Iterable[str]) -> bool:
    """Whether there are adapters, which have to be merged before the weights are the model."""
    return any("lora_" in name for name in names)


def _how(matching: Matching) -> str:
    told, found = matching.by_content, len(matching.matches)
    if not found:
        return "no tensor of the carrier was found"
    if told in (0, found):
        return f"tensors matched by {'content' if told else 'name'}"
    return f"{told} tensors matched by content, {found - told} by name"

"""Earlier owners: their proofs, and the transfers by which the model went from one to the next.

Each ancestor is verified by the rules of any other proof that shows its marks and no weights. What
is wrong with one of them is wrong with the proof that rests on it.

Specification: docs/protocol.md, section 10.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polo.checks import Check, Status, problem
from polo.errors import PoloError
from polo.keys import Ed25519Verifier
from polo.protocol import transfer
from polo.protocol.records import Manifest, identity_of
from polo.storage import ancestors
from polo.storage.folder import ANCESTORS_FOLDER, BUNDLE_FILE, TRANSFER_FILE, ProofFolder
from polo.storage.folder import ancestor_path as path_of
from polo.verifier.verdict import Owner

DOUBLE_SALE = (
    "offline nobody sees whether a seller handed the same model to somebody else, too; ask, or "
    "buy where a registry keeps the list"
)
MOST_PROBLEMS = 100
"""Most problems of one ancestor that are told: a hundred long chains may be broken everywhere."""

_KEPT_NOTES = ("start",)


@dataclass(frozen=True)
class Examined:
    """What came of one ancestor's proof.

    Attributes:
        checks: Its checks, as for a proof of its own.
        manifest: What it says; None if it could not be read.
    """

    checks: Sequence[Check]
    manifest: Manifest | None


class Lineage:
    """The owners before the one whose proof is verified.

    Args:
        folder: The proof.
        manifest: Its manifest.
        partial: Whether only part of the proof is shown, so that marks of earlier owners may be
            left out altogether.
    """

    def __init__(self, folder: ProofFolder, manifest: Manifest, *, partial: bool = False) -> None:
        self._folder = folder
        self._partial = partial
        self._last = manifest
        self._earlier: list[Manifest | None] = []

    def checks(self, examine: Callable[[Path], Examined]) -> Iterator[Check]:
        """All checks of all ancestors, oldest first, then one for each transfer.

        Args:
            examine: Verifies one proof that shows no weights.
        """
        if self._last.transfer is None:
            return
        try:
            paths = ancestors.found_in(self._folder)
        except PoloError as error:
            yield problem("transfer", error)
            return
        for number, path in enumerate(paths, start=1):
            yield from self._form(number, path)
            examined = examine(path)
            self._earlier.append(examined.manifest)
            yield from self._kept(examined.checks, number)
        manifests = [*self._earlier, self._last]
        for number in range(len(manifests)):
            yield from self._link(number, manifests[number - 1] if number else None)
        known = [manifest for manifest in manifests if manifest is not None]
        for fault in transfer.repeated(known):
            yield Check("transfer", Status.FAILED, fault.detail)
        yield Check("transfer", Status.NOTE, DOUBLE_SALE)
        detail = "of earlier owners no weights are here: their accuracy was not tested"
        yield Check("history", Status.NOTE, detail)

    def owners(self, names: Mapping[bytes, str]) -> tuple[Owner, ...]:
        """Everybody who has owned the model, oldest first; empty unless all of them are known.

        Args:
            names: What the verifier calls public keys.
        """
        manifests = [*self._earlier, self._last]
        known = [manifest for manifest in manifests if manifest is not None]
        if len(known) < len(manifests) or known[0].transfer is not None:
            return ()
        found, before = [], 0
        for manifest in known:
            key = manifest.enrolment.identity
            found.append(
                Owner(
                    id=identity_of(key).hex(),
                    name=names.get(key, ""),
                    first=before + 1,
                    last=before + len(manifest.shards),
                    enrolled=manifest.enrolment.issued,
                    how="trained" if manifest.transfer is None else "transfer",
                )
            )
            before += len(manifest.shards)
        return tuple(found)

    def _form(self, number: int, path: Path) -> Iterator[Check]:
        """An ancestor says that it shows marks alone; otherwise weights would be missed."""
        try:
            bundle = ProofFolder(path).bundle()
        except PoloError:
            return  # It is a problem of the ancestor's own checks.
        if bundle is None or bundle.kind == "verifier":
            place = f"{path_of(number)}/{BUNDLE_FILE}"
            detail = "does not say which marks of this owner are shown"
            yield Check("files", Status.FAILED, detail, place=place, ancestor=number)

    def _kept(self, checks: Sequence[Check], number: int) -> Iterator[Check]:
        """An ancestor's checks, less notes that say nothing here and problems beyond counting."""
        problems = 0
        for check in checks:
            problems += check.status in (Status.FAILED, Status.UNDECIDED)
            told = check.status is Status.PASSED or problems <= MOST_PROBLEMS
            if told and (check.status is not Status.NOTE or check.name in _KEPT_NOTES):
                yield self._placed(check, number)

    def _placed(self, check: Check, number: int) -> Check:
        """A check of an ancestor's proof, as one of the proof that carries it."""
        place = f"{path_of(number)}/{check.place}" if check.place else path_of(number)
        unread = check.name == "mark" and not check.shard and check.status is Status.UNDECIDED
        status = Status.NOTE if unread and self._partial else check.status
        return replace(check, place=place, ancestor=number, status=status)

    def _link(self, number: int, seller: Manifest | None) -> Iterator[Check]:
        """The transfer to the owner with this number, counted from 0."""
        last = number == len(self._earlier)
        buyer = self._last if last else self._earlier[number]
        folder = "" if last else f"{path_of(number + 1)}/"
        if buyer is None:
            return
        if number == 0:
            if buyer.transfer is not None:
                detail = "this owner got the model from somebody whose proof is not here"
                yield Check("transfer", Status.UNDECIDED, detail, place=path_of(1))
            return
        place = f"{folder}{TRANSFER_FILE}"
        if seller is None or buyer.transfer is None:
            detail = "the proof before it, or after it, does not tell of a transfer"
            status = Status.UNDECIDED if seller is None else Status.FAILED
            yield Check("transfer", status, detail, place=place)
            return
        yield from self._transfer(ProofFolder(self._folder.path / folder), seller, buyer, place)

    def _transfer(
        self, folder: ProofFolder, seller: Manifest, buyer: Manifest, place: str
    ) -> Iterator[Check]:
        try:
            handed = folder.transfer()
            transfer.check(handed, Ed25519Verifier(), place=place)
        except PoloError as error:
            yield replace(problem("transfer", error), place=place)
            return
        details = [fault.detail for fault in transfer.faults(handed, seller, buyer)]
        if handed.digest != buyer.transfer:
            details.append("it is not the transfer that the signed manifest names")
        for detail in details:
            yield Check("transfer", Status.FAILED, detail, place=place)
        if handed.index is not None and not details:
            detail = "it names a place in a log, which this release cannot look up"
            yield Check("transfer", Status.UNDECIDED, detail, place=place)
        elif not details:
            names = [identity_of(key).hex()[:16] for key in (handed.seller, handed.buyer)]
            detail = f"{names[0]}… handed it to {names[1]}…; both signed"
            yield Check("transfer", Status.PASSED, detail, place=place)


def belongs(name: str, manifest: Manifest) -> bool:
    """Whether something in a proof's folder is what `Lineage` looks into."""
    return name == ANCESTORS_FOLDER and manifest.transfer is not None


def advice_on(name: str) -> str:
    """What to do about something of a transfer that the signed manifest does not bind."""
    if name in (ANCESTORS_FOLDER, TRANSFER_FILE):
        return (
            "If polo transfer complete was interrupted, run it again: that finishes it. Going on "
            "with the training removes it."
        )
    return ""

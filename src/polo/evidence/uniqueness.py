"""Level uniqueness in a verification: the registry's statement about the last weights.

Specification: docs/protocol.md, section 20.
"""

from collections.abc import Container, Iterator

from polo.checks import Check, Status, counted, problem
from polo.errors import FormatError, PoloError, SignatureError
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.records import Manifest
from polo.protocol.uniqueness import Uniqueness
from polo.storage.folder import ProofFolder, uniqueness_path
from polo.weights.files import open_plain

LEVEL = "uniqueness"
MAX_FILE = 512 * 1024

_ASK = "Ask the registry to look for other chains in the last checkpoint (POST /v1/scans)."


def uniqueness(folder: ProofFolder, manifest: Manifest, listed: Container[str]) -> Iterator[Check]:
    """The check of the level.

    Args:
        folder: The proof.
        manifest: What it says.
        listed: Paths of the files that are here as signed.
    """
    place = uniqueness_path(len(manifest.shards))
    settings = next(item.settings for item in manifest.terms.evidence if item.level == LEVEL)
    if settings:
        detail = f"level {LEVEL} has no settings; here is {sorted(settings)[0]!r}"
        yield Check("evidence", Status.FAILED, detail, place="terms", level=LEVEL)
        return
    if place not in listed:
        detail = "the registry's statement about the last checkpoint is not here"
        yield Check("unique", Status.UNDECIDED, detail, place=place, advice=_ASK, level=LEVEL)
        return
    try:
        found = _read(folder, place)
        _check(found, manifest, place)
    except PoloError as error:
        yield problem("unique", error, level=LEVEL)
        return
    yield _judged(found, place)


def _read(folder: ProofFolder, place: str) -> Uniqueness:
    with open_plain(folder.file(place)) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise FormatError(f"more than {MAX_FILE} bytes", place=place)
    return Uniqueness.from_bytes(data, place)


def _check(found: Uniqueness, manifest: Manifest, place: str) -> None:
    enrolment = manifest.enrolment
    signing.check(found, enrolment.issuer, Ed25519Verifier(), place=place)
    if found.enrolment != enrolment.digest:
        raise SignatureError("the statement is about another enrolment", place=place)
    if found.root != manifest.last_root:
        raise SignatureError("the statement is about other weights than the last", place=place)
    last = manifest.shards[-1].receipt if manifest.shards else manifest.start.receipt
    if last is not None and found.size <= last.index:
        raise SignatureError("it was signed before the last shard was in the log", place=place)


def _judged(found: Uniqueness, place: str) -> Check:
    figures = {"chains": found.chains, "unread": found.unread, "log_size": found.size}
    figures |= {"claims": len(found.claims), "time": found.time}
    if objections := found.objections:
        names = ", ".join(f"{claim.enrolment.hex()[:16]}…" for claim in objections[:3])
        rarest = max(claim.rarity for claim in objections)
        detail = (
            f"marks of {counted(len(objections), 'earlier chain')} are in the last checkpoint: "
            f"{names} (log2 p = {-rarest})"
        )
        return Check("unique", Status.FAILED, detail, place=place, figures=figures, level=LEVEL)
    detail = f"none of {counted(found.chains, 'chain')} is in the last checkpoint"
    if found.claims:
        detail += f", but for {len(found.claims)} of its own lineage, or later ones"
    return Check("unique", Status.PASSED, detail, figures=figures, level=LEVEL)

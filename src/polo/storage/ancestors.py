"""The proofs of a model's earlier owners, which a proof of a bought model carries with it.

`ancestors/000001` is the first owner's, and so on; each is what its owner showed of their proof:
signatures, nonces and openings, no weights. Links between them are checked wherever they are read.

Specification: docs/protocol.md, section 12.5.
"""

import itertools
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polo.errors import ChainError, FormatError, LimitError, StoreError
from polo.keys import Ed25519Verifier
from polo.protocol import canonical, chain, signing, transfer
from polo.protocol.records import Bundle, File, Manifest
from polo.storage import atomic
from polo.storage.folder import (
    ANCESTORS_FOLDER,
    BUNDLE_FILE,
    LAYOUT_FILE,
    MANIFEST_FILE,
    TRANSFER_FILE,
    ProofFolder,
    ancestor_path,
    limits_of,
    nonce_path,
    opening_path,
)
from polo.weights.files import open_plain

_COPY_BYTES = 2**20


@dataclass(frozen=True)
class Link:
    """One owner of a model: where their proof lies, and what it says."""

    folder: ProofFolder
    manifest: Manifest


def lineage(proof: Path | str) -> list[Link]:
    """The proofs of all owners of a model, oldest first, the given one last.

    Signatures and links between them are checked, marks and files are not.
    """
    own = ProofFolder(proof)
    folders = [own]
    if own.manifest().transfer is not None:
        folders = [*(ProofFolder(path) for path in found_in(own)), own]
    links = [Link(folder, signed_manifest(folder)) for folder in folders]
    for before, after in itertools.pairwise(links):
        place = str(after.folder.path / TRANSFER_FILE)
        handed = after.folder.transfer()
        transfer.check(handed, Ed25519Verifier(), place=place)
        refuse(transfer.faults(handed, before.manifest, after.manifest), place)
        if handed.digest != after.manifest.transfer:
            raise FormatError("is not the transfer that the manifest binds", place=place)
    return links


def found_in(folder: ProofFolder) -> list[Path]:
    """Where the proofs of earlier owners lie, oldest first.

    Raises:
        PoloError: They are not there, are too many, or something else is among them.
    """
    within = folder.path / ANCESTORS_FOLDER
    if within.is_symlink() or (within.exists() and not within.is_dir()):
        raise FormatError("is not a folder", place=ANCESTORS_FOLDER)
    if not within.exists():
        raise StoreError(
            "the proofs of the earlier owners are not here",
            place=ANCESTORS_FOLDER,
            advice="Ask the prover for the complete proof.",
        )
    with os.scandir(within) as entries:
        found: list[tuple[str, bool]] = []
        for entry in entries:
            if len(found) == transfer.MAX_ANCESTORS:
                most = transfer.MAX_ANCESTORS
                raise LimitError(f"more than {most} entries", place=ANCESTORS_FOLDER)
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
    wanted = [ancestor_path(number) for number in range(1, max(1, len(found)) + 1)]
    odd = [f"{ANCESTORS_FOLDER}/{name}" for name, plain in sorted(found) if not plain]
    odd += sorted({f"{ANCESTORS_FOLDER}/{name}" for name, _ in found} - set(wanted))
    if odd:
        raise FormatError("is not the proof of an earlier owner", place=odd[0][:200])
    if not found:
        raise StoreError("holds no proof of an earlier owner", place=ANCESTORS_FOLDER)
    return [folder.path / name for name in wanted]


def signed_manifest(folder: ProofFolder) -> Manifest:
    """The manifest of a proof whose issuer and owner signed what they must."""
    manifest, verifier, place = folder.manifest(), Ed25519Verifier(), str(folder.path)
    enrolment = manifest.enrolment
    signing.check(enrolment, enrolment.issuer, verifier, place=f"{place}: enrolment")
    signing.check(manifest, enrolment.identity, verifier, place=f"{place}/{MANIFEST_FILE}")
    return manifest


def refuse(faults: Iterable[chain.Fault], place: str) -> None:
    """Raise the first of some faults, if there is one."""
    for fault in faults:
        at = f"{place}: shard {fault.shard}" if fault.shard else place
        raise ChainError(f"{fault.check}: {fault.detail}", place=at)


def copy_all(links: Sequence[Link], proof: Path) -> None:
    """Put the proofs of all earlier owners into a proof, in place of what was there."""
    within = proof / ANCESTORS_FOLDER
    if within.is_symlink():
        raise StoreError("is a link; remove it", place=str(within))
    if within.is_dir():
        shutil.rmtree(within)
    for number, link in enumerate(links, start=1):
        _copy(link, proof / ancestor_path(number))
    atomic.sync_folder(proof)


def _copy(link: Link, target: Path) -> None:
    """Copy what a proof shows, but for its weights, as it was signed."""
    folder, manifest = link.folder, link.manifest
    listed = {file.path: file for file in manifest.files}
    if LAYOUT_FILE not in listed:
        raise FormatError("is not in the signed list of files", place=LAYOUT_FILE)
    folder.check_file(listed[LAYOUT_FILE], canonical.MAX_DOCUMENT_BYTES)
    layout = folder.layout()
    shown = [shard.shard for shard in manifest.shards if _shows(folder, shard.shard, listed)]
    if not shown:
        raise StoreError(
            "shows no mark, so a verifier could not check its chain",
            place=str(folder.path),
            advice="Ask the seller for the nonces and openings of some shards: polo disclose",
        )
    names = [path(shard) for shard in shown for path in (nonce_path, opening_path)]
    most_bytes = limits_of(layout, manifest.terms.scheme)
    for name in [LAYOUT_FILE, *names]:
        _copy_file(folder, listed[name], target / name, most_bytes(name))
    atomic.write(target / BUNDLE_FILE, Bundle("buyer", tuple(shown)).to_bytes())
    if manifest.transfer is not None:
        atomic.write(target / TRANSFER_FILE, folder.transfer().to_bytes())
    atomic.write(target / MANIFEST_FILE, manifest.to_bytes())


def _shows(folder: ProofFolder, shard: int, listed: dict[str, File]) -> bool:
    names = (nonce_path(shard), opening_path(shard))
    return all(name in listed and (folder.path / name).is_file() for name in names)


def _copy_file(folder: ProofFolder, file: File, target: Path, most: int) -> None:
    """Copy one file of a stranger's proof, and check the copy."""
    if file.size > most:
        raise LimitError(f"{file.size} bytes; it can have {most} at most", place=file.path)
    with open_plain(folder.file(file.path)) as source, atomic.replacing(target) as copy:
        left = file.size + 1
        while left and (piece := source.read(min(left, _COPY_BYTES))):
            copy.write(piece)
            left -= len(piece)
    # The copy, not the source: that may change while it is read.
    root = target.parents[file.path.count("/")]
    ProofFolder(root).check_file(file, most)

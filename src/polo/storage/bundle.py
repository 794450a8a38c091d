"""A proof, or part of it, as one file to hand on: a bundle.

Three kinds. *Public*: terms, identity, roots, metrics, receipts and signatures, without a nonce or
a weight. *Buyer*: that, with the nonces and openings of chosen shards. *Verifier*: everything. What
a bundle of a kind holds follows from the manifest in it, down to every byte of the archive but the
contents, so a reader has nothing to interpret and a hostile file nothing to choose.

Specification: docs/protocol.md, section 12.6.
"""

import contextlib
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from polo.errors import FormatError, LimitError, PoloError, StoreError
from polo.protocol import canonical
from polo.protocol.layout import Layout
from polo.protocol.records import Bundle, File, Manifest, Transfer
from polo.protocol.transfer import MAX_ANCESTORS
from polo.storage import atomic
from polo.storage.archive import ArchiveReader, ArchiveWriter, Source
from polo.storage.folder import (
    ANCESTORS_FOLDER,
    BUNDLE_FILE,
    LAYOUT_FILE,
    MANIFEST_FILE,
    MAX_BUNDLE_FILE,
    MAX_TRANSFER_FILE,
    TRANSFER_FILE,
    ProofFolder,
    ancestor_path,
    limits_of,
    nonce_path,
    opening_path,
)
from polo.weights.files import open_plain
from polo.weights.formats import real_path

SUFFIX = ".polo"
PUBLIC = Bundle("public", ())
_OTHERS = {
    b"PK": "a zip file",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstandard file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"{": "a JSON document",
}
_ANCESTOR = re.compile(rf"{ANCESTORS_FOLDER}/([0-9]{{6}})/{re.escape(BUNDLE_FILE)}\0".encode())


def whole(manifest: Manifest) -> Bundle:
    """The bundle of everything, for a verifier."""
    return Bundle("verifier", tuple(range(1, len(manifest.shards) + 1)))


def files_of(bundle: Bundle, manifest: Manifest) -> tuple[File, ...]:
    """The listed files that a bundle holds, in their order in it.

    Raises:
        FormatError: The bundle does not fit the manifest.
    """
    listed = {file.path: file for file in manifest.files}
    if [file.path for file in manifest.files] != sorted(listed) or LAYOUT_FILE not in listed:
        raise FormatError("its files are not sorted, or one is missing", place=MANIFEST_FILE)
    total = len(manifest.shards)
    shown = bundle.shards
    fits = {
        "public": not shown,
        "verifier": shown == tuple(range(1, total + 1)),
        "buyer": bool(shown) and list(shown) == sorted(set(shown)) and shown[-1] <= total,
    }
    if not fits[bundle.kind]:
        detail = f"a {bundle.kind} bundle of a proof of {total} shards does not show these"
        raise FormatError(detail, place=f"{BUNDLE_FILE}: shards")
    if bundle.kind == "verifier":
        chosen = set(listed)
    else:
        chosen = {LAYOUT_FILE, *map(nonce_path, shown), *map(opening_path, shown)}
    if missing := sorted(chosen - set(listed)):
        raise FormatError(f"the proof has no {missing[0]} to show", place=BUNDLE_FILE)
    layout = listed.pop(LAYOUT_FILE)
    return (layout, *(listed[path] for path in sorted(chosen - {LAYOUT_FILE})))


def write_bundle(proof: ProofFolder, out: Path | str, bundle: Bundle) -> None:
    """Write part of a proof, or all of it, as one file.

    Every file is compared with the signed manifest on the way. The same proof and kind give the
    same bytes. A bundle with nonces in it is readable by its owner alone.

    Args:
        proof: The proof, or what is here of it.
        out: The file to write; refused if it exists.
        bundle: Which part.
    """
    out = Path(out)
    if os.path.lexists(out):
        raise StoreError("exists already; a bundle is never overwritten", place=str(out))
    if out.resolve().is_relative_to(proof.path.resolve()):
        raise StoreError(
            "a bundle inside the proof would be a file that nobody signed",
            place=str(out),
            advice="Write it somewhere else.",
        )
    if not out.absolute().parent.is_dir():
        raise StoreError("there is no such folder", place=str(out.absolute().parent))
    files_of(bundle, proof.manifest())
    mode = 0o666 if bundle == PUBLIC else 0o600
    with atomic.replacing(out, mode=mode, unguessable=True) as file:
        archive = ArchiveWriter(file)
        transfer = _write_part(archive, proof, bundle, "")
        for number in _ancestors(proof, transfer):
            ancestor = ProofFolder(proof.file(ancestor_path(number)))
            part = PUBLIC
            if bundle.kind == "verifier":
                part = ancestor.bundle() or whole(ancestor.manifest())
            _write_part(archive, ancestor, part, ancestor_path(number) + "/")
        archive.close()


def read_bundle(path: Path | str, into: Path | str) -> Bundle:
    """Unpack a bundle into a new folder; after a failure nothing is left of it.

    Whether the proof holds is not checked here, only that every file is the one that the manifest
    lists.

    Args:
        path: The bundle.
        into: The folder to make; refused if it exists.

    Returns:
        Which part of the proof it is.
    """
    into = Path(into)
    if os.path.lexists(into):
        raise StoreError("exists already", place=str(into), advice="Give a new folder.")
    if not into.absolute().parent.is_dir():
        raise StoreError("there is no such folder", place=str(into.absolute().parent))
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.absolute().parent))
    try:
        bundle = _unpack(Path(path), temporary)
        for folder, _, names in os.walk(temporary):
            for name in names:
                _sync(Path(folder) / name)
            atomic.sync_folder(Path(folder))
        temporary.rename(into)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    atomic.sync_folder(into.absolute().parent)
    return bundle


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[Path]:
    """The folder of a proof: itself, or for a bundle a temporary one that it is unpacked into.

    Errors that leave the block tell of the bundle, not of the temporary folder.
    """
    path = Path(path)
    if not os.path.isfile(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="polo-") as temporary:
        try:
            _unpack(path, Path(temporary))
            yield Path(temporary)
        except PoloError as error:
            for name in ("message", "place", "advice"):
                setattr(error, name, named(getattr(error, name), Path(temporary), path))
            error.args = (error.message,)
            raise


def named(text: str, folder: Path, path: Path) -> str:
    """A text about an unpacked bundle, as one about the bundle.

    Args:
        text: The text.
        folder: Where the bundle was unpacked, or the proof itself.
        path: The bundle, or the proof itself.
    """
    return text if folder == path else text.replace(str(folder), str(path))


def glance(path: Path | str) -> tuple[Bundle | None, Manifest]:
    """What part of a proof a folder or a bundle is, and its manifest; nothing is checked."""
    path = Path(path)
    if not os.path.isfile(path):
        folder = ProofFolder(path)
        return folder.bundle(), folder.manifest()
    with _reading(path) as reader:
        return _heads(reader, "")


def _write_part(
    archive: ArchiveWriter, proof: ProofFolder, bundle: Bundle, prefix: str
) -> Transfer | None:
    manifest = proof.manifest()
    files = files_of(bundle, manifest)
    for name, data in (
        (BUNDLE_FILE, bundle.to_bytes()),
        (MANIFEST_FILE, manifest.to_bytes()),
    ):
        archive.add(prefix + name, len(data), io.BytesIO(data))
    for file in files:
        if not os.path.lexists(proof.file(file.path)):
            raise StoreError(
                "is not here, so it cannot be handed on",
                place=file.path,
                advice="Ask the prover for more of the proof, or show less.",
            )
        with open_plain(proof.file(file.path)) as source:
            if os.fstat(source.fileno()).st_size != file.size:
                raise FormatError("does not have the size that was signed", place=file.path)
            hashing = _Hashing(source)
            archive.add(prefix + file.path, file.size, hashing)
            hashing.check(file)
    if manifest.transfer is None:
        return None
    transfer = proof.transfer()
    data = transfer.to_bytes()
    _check_transfer(transfer, manifest)
    archive.add(prefix + TRANSFER_FILE, len(data), io.BytesIO(data))
    return transfer


def _ancestors(proof: ProofFolder, transfer: Transfer | None) -> Iterator[int]:
    """Numbers of the earlier owners whose proofs are here, the seller first."""
    count = 0
    while transfer and (proof.path / ancestor_path(count + 1)).is_dir():
        count += 1
    yield from range(count, 0, -1)


def _unpack(path: Path, into: Path) -> Bundle:
    """Unpack a bundle into an empty folder."""
    with _reading(path) as reader:
        bundle, transfer = _read_part(reader, into, "")
        number = None
        while transfer and (found := _ANCESTOR.match(reader.peek())):
            before, number = number, int(found[1])
            if not 1 <= number <= MAX_ANCESTORS or before not in (None, number + 1):
                raise FormatError("the earlier owners are not in order", place=str(path))
            transfer = _read_part(reader, into, ancestor_path(number) + "/", sold=transfer)[1]
        if number not in (None, 1):
            raise FormatError("an earlier owner is missing", place=str(path))
        reader.end()
    return bundle


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[ArchiveReader]:
    """Open a bundle; tell a file that is none at all from one that is broken."""
    # The user chose this path, so a link is followed.
    with open_plain(real_path(path)) as file:
        begin = os.pread(file.fileno(), 100, 0)
        if not begin.startswith(BUNDLE_FILE.encode() + b"\0"):
            kind = next((words for start, words in _OTHERS.items() if begin.startswith(start)), "")
            raise StoreError(
                f"is {kind}, no bundle" if kind else "is no bundle",
                place=str(path),
                advice=f"Give a file that polo export or polo disclose wrote (*{SUFFIX}).",
            )
        yield ArchiveReader(file, str(path))


def _read_part(
    reader: ArchiveReader, into: Path, prefix: str, *, sold: Transfer | None = None
) -> tuple[Bundle, Transfer | None]:
    """Unpack one proof: the bundle's own, or that of an earlier owner."""
    bundle, manifest = _heads(reader, prefix)
    if sold and manifest.digest != sold.proof:
        raise FormatError("it is not the proof that was handed on", place=prefix + MANIFEST_FILE)
    layout_file, *files = files_of(bundle, manifest)
    data = _document(reader, prefix + LAYOUT_FILE, canonical.MAX_DOCUMENT_BYTES)
    _check(layout_file, len(data), hashlib.sha256(data).digest())
    _check_sizes(files, Layout.from_bytes(data, prefix + LAYOUT_FILE), manifest)
    folder = into / prefix
    folder.mkdir(parents=True, exist_ok=True)
    if bundle.kind != "verifier":
        # A whole proof needs none, and with one it could not grow.
        (folder / BUNDLE_FILE).write_bytes(bundle.to_bytes())
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    (folder / LAYOUT_FILE).write_bytes(data)
    for file in files:
        _copy(reader, file, prefix, folder)
    return bundle, _read_transfer(reader, manifest, folder, prefix)


def _heads(reader: ArchiveReader, prefix: str) -> tuple[Bundle, Manifest]:
    data = _document(reader, prefix + BUNDLE_FILE, MAX_BUNDLE_FILE)
    bundle = Bundle.from_bytes(data, prefix + BUNDLE_FILE)
    data = _document(reader, prefix + MANIFEST_FILE, canonical.MAX_DOCUMENT_BYTES)
    return bundle, Manifest.from_bytes(data, prefix + MANIFEST_FILE)


def _document(reader: ArchiveReader, name: str, most: int) -> bytes:
    return b"".join(reader.pieces(reader.enter(name, most)))


def _check_sizes(files: list[File], layout: Layout, manifest: Manifest) -> None:
    most_bytes = limits_of(layout, manifest.terms.scheme)
    for file in files:
        most = most_bytes(file.path)
        if file.size > most:
            raise LimitError(f"{file.size} bytes; it can have {most} at most", place=file.path)


def _copy(reader: ArchiveReader, file: File, prefix: str, folder: Path) -> None:
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    size = reader.enter(prefix + file.path, file.size)
    state = hashlib.sha256()
    with target.open("xb") as out:
        for piece in reader.pieces(size):
            state.update(piece)
            out.write(piece)
    _check(file, size, state.digest())


def _read_transfer(
    reader: ArchiveReader, manifest: Manifest, folder: Path, prefix: str
) -> Transfer | None:
    if manifest.transfer is None:
        return None
    data = _document(reader, prefix + TRANSFER_FILE, MAX_TRANSFER_FILE)
    transfer = Transfer.from_bytes(data, prefix + TRANSFER_FILE)
    _check_transfer(transfer, manifest)
    (folder / TRANSFER_FILE).write_bytes(data)
    return transfer


def _check_transfer(transfer: Transfer, manifest: Manifest) -> None:
    if transfer.digest != manifest.transfer:
        raise FormatError("it is not the transfer that was signed", place=TRANSFER_FILE)


def _check(file: File, size: int, digest: bytes) -> None:
    if (size, digest) != (file.size, file.sha256):
        raise FormatError("its bytes are not those that were signed", place=file.path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


class _Hashing:
    """Hashes what is read through it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._state = hashlib.sha256()
        self._size = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._state.update(data)
        self._size += len(data)
        return data

    def check(self, file: File) -> None:
        _check(file, self._size, self._state.digest())

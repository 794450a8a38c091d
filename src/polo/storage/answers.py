"""The answer to a replay challenge as one file, to send: a tar file in exactly one form.

The challenge says which files there can be, so a reader has nothing to interpret. Members come in
the order of their names; a state that an optimizer does not have is left out.

Specification: docs/protocol.md, section 22.
"""

import os
from pathlib import Path

from polo.errors import FormatError, StoreError
from polo.protocol.challenge import ANSWER_FILE, PARTS, Challenge, sealed_file, sealing_file
from polo.storage.archive import ArchiveReader, ArchiveWriter
from polo.weights.files import open_plain


def names_of(challenge: Challenge) -> list[str]:
    """Names of all files that an answer can have, in order."""
    shown = [place.file(part) for place in challenge.segments for part in PARTS]
    sealed = [name(shard) for name in (sealing_file, sealed_file) for shard in challenge.sealings]
    return sorted([ANSWER_FILE, *shown, *sealed])


def pack(folder: Path | str, challenge: Challenge, out: Path | str) -> None:
    """Write the folder that `polo.evidence.replay.answer` made as one file.

    Args:
        folder: The answer.
        challenge: What it answers.
        out: The file to write, which must not exist yet.
    """
    folder, wanted = Path(folder), names_of(challenge)
    found = {path.name for path in folder.iterdir()}
    if strange := sorted(found - set(wanted)):
        raise StoreError(f"{strange[0]} belongs to no answer to this challenge", place=str(folder))
    if ANSWER_FILE not in found:
        raise StoreError(f"there is no {ANSWER_FILE}", place=str(folder))
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        archive = ArchiveWriter(file)
        for name in wanted:
            if name in found:
                with open_plain(folder / name) as source:
                    archive.add(name, os.fstat(source.fileno()).st_size, source)
        archive.close()
        file.flush()
        os.fsync(file.fileno())


def unpack(path: Path | str, challenge: Challenge, into: Path | str) -> None:
    """Write what `pack` packed into a new folder; anything else is refused.

    Args:
        path: The file, from anybody.
        challenge: What it must answer.
        into: The folder to make.
    """
    into = Path(into)
    with open_plain(Path(path)) as file:
        into.mkdir(mode=0o700)
        whole = os.fstat(file.fileno()).st_size
        reader = ArchiveReader(file, str(path))
        seen = set()
        for name in names_of(challenge):
            if reader.peek()[:100].rstrip(b"\0") != name.encode():
                continue
            size = reader.enter(name, whole)
            with (into / name).open("xb") as out:
                for piece in reader.pieces(size):
                    out.write(piece)
            seen.add(name)
        reader.end()
    if ANSWER_FILE not in seen:
        raise FormatError(f"there is no {ANSWER_FILE}", place=str(path))

"""The files of a proof: each is as signed, and there are no others."""

import itertools
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from polo.checks import Check, Status, counted, problem
from polo.errors import PoloError, StoreError
from polo.protocol import chain
from polo.protocol.layout import Layout
from polo.protocol.records import File, Manifest
from polo.storage.folder import MANIFEST_FILE, ProofFolder, limits_of
from polo.verifier import lineage, walking

MOST_STRANGERS = 100


def checks(
    folder: ProofFolder,
    manifest: Manifest,
    layout: Layout,
    *,
    shown: Collection[str] | None,
    earlier: bool,
    threads: int | None,
    tell: Callable[[str, int, int], None],
) -> Iterator[Check]:
    """What is wrong with the files, or that nothing is.

    Args:
        folder: The proof.
        manifest: Its manifest.
        layout: Its layout.
        shown: Files that this part of a proof has; None for all.
        earlier: Whether this is the proof of an earlier owner, inside of another.
        threads: Threads for hashing.
        tell: Hears about progress.
    """
    listed = [file for file in manifest.files if _expected(folder, file.path, shown)]
    wrong = False
    try:
        for check in itertools.chain(
            _misplaced(manifest),
            _strangers(folder, manifest, earlier),
            _damaged(folder, manifest, layout, listed, threads, tell),
        ):
            wrong = True
            yield check
    except PoloError as error:
        yield Check("files", Status.FAILED, str(error))
        return
    if not wrong:
        figures = {"files": len(listed), "bytes": sum(file.size for file in listed)}
        detail = f"{counted(len(listed), 'file')} as signed"
        if left_out := len(manifest.files) - len(listed):
            detail += f"; {left_out} left out, as this kind of bundle does"
        yield Check("files", Status.PASSED, detail, figures=figures)


def _expected(folder: ProofFolder, path: str, shown: Collection[str] | None) -> bool:
    """Whether a listed file must be as signed: it is shown, or it is there anyway."""
    return shown is None or path in shown or os.path.lexists(folder.path / path)


def _misplaced(manifest: Manifest) -> Iterator[Check]:
    for fault in chain.misplaced(manifest):
        yield Check("files", Status.FAILED, fault.detail, place=MANIFEST_FILE)


def _strangers(folder: ProofFolder, manifest: Manifest, earlier: bool) -> Iterator[Check]:
    """What lies in the folder and was not signed; proofs of earlier owners may."""
    names = folder.strangers(manifest)
    if not earlier:
        names = (name for name in names if not lineage.belongs(name, manifest))
    for name in itertools.islice(names, MOST_STRANGERS):
        yield Check(
            "files",
            Status.FAILED,
            "is in the folder but not in the signed manifest",
            place=name[:200],
            advice=lineage.advice_on(name)
            or "If the run was killed, resume it once: that removes leftovers.",
        )


def _damaged(
    folder: ProofFolder,
    manifest: Manifest,
    layout: Layout,
    listed: list[File],
    threads: int | None,
    tell: Callable[[str, int, int], None],
) -> Iterator[Check]:
    """Files that are missing, too large, or not as signed."""
    most = limits_of(layout, manifest.terms.scheme)
    outcomes = walking.at_once(
        lambda file: folder.check_file(file, most(file.path)), listed, threads
    )
    for at, (file, outcome) in enumerate(outcomes):
        tell("checking files", at, len(listed))
        shard = _shard_of(file.path, manifest)
        try:
            outcome.result()
        except StoreError as error:
            missing = isinstance(error.__cause__, (FileNotFoundError, PermissionError))
            yield Check(
                "files",
                Status.UNDECIDED if missing else Status.FAILED,
                error.message,
                place=file.path,
                shard=shard,
                advice="Ask the prover for the complete proof." if missing else "",
            )
        except PoloError as error:
            yield problem("files", error, shard=shard)


def _shard_of(path: str, manifest: Manifest) -> int:
    """The shard that a file of a proof belongs to; 0 if to none that the manifest lists."""
    digits = Path(path).name.partition(".")[0]
    number = int(digits) if digits.isdecimal() else 0
    return number if number <= len(manifest.shards) else 0

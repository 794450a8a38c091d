"""The files of a proof: each is as signed, and there are no others."""

import itertools
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from polo.checks import Check, Status, counted, problem
from polo.errors import PoloError, StoreError
from polo.protocol import chain
from polo.protocol.layout import Layout
from polo.protocol.records import File, Manifest
from polo.storage.folder import MANIFEST_FILE, ProofFolder, limits_of
from polo.verifier import lineage
from polo.verifier.hashers import MOST_THREADS, Hashers
from polo.weights.sharing import LARGE

MOST_STRANGERS = 100


class Files:
    """The files of a proof, hashed in the background from now on until all is said about them.

    Small ones come first: whoever reads marks needs those, and need not wait for the others. Then
    come the newest checkpoints, which are looked at first.

    A path is in here if the file is in the manifest, and as signed if it must be here; who asks
    waits for it.

    Args:
        folder: The proof.
        manifest: Its manifest.
        layout: Its layout.
        hashers: Hash large files.
        shown: Files that this part of a proof has; None for all.
        earlier: Whether this is the proof of an earlier owner, inside of another.
        threads: Threads for hashing.
    """

    def __init__(
        self,
        folder: ProofFolder,
        manifest: Manifest,
        layout: Layout,
        hashers: Hashers,
        *,
        shown: Collection[str] | None,
        earlier: bool,
        threads: int | None,
    ) -> None:
        self._folder, self._manifest, self._earlier = folder, manifest, earlier
        self._listed = [file for file in manifest.files if _expected(folder, file.path, shown)]
        most = limits_of(layout, manifest.terms.scheme)

        def check(file: File) -> None:
            folder.check_file(file, most(file.path), hashers.digest)

        self._paths = {file.path for file in manifest.files}
        self._pool = ThreadPoolExecutor(threads or min(MOST_THREADS, os.cpu_count() or 1))
        # A path may be listed twice; that is wrong, and is said elsewhere.
        self._outcomes: dict[str, list[Future[None]]] = {}
        try:
            newest = sorted(self._listed, key=lambda file: file.path, reverse=True)
            for file in sorted(newest, key=lambda file: file.size >= LARGE):
                self._outcomes.setdefault(file.path, []).append(self._pool.submit(check, file))
        except BaseException:
            self.close()
            raise

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str) or path not in self._paths:
            return False
        return all(one.exception() is None for one in self._outcomes.get(path, ()))

    def wait(self) -> None:
        """Wait until all are hashed, and no thread is left."""
        self._pool.shutdown()

    def close(self) -> None:
        """Hash no more; who is interrupted does not wait for files that have not begun."""
        self._pool.shutdown(cancel_futures=True)

    def checks(self, tell: Callable[[str, int, int], None]) -> Iterator[Check]:
        """What is wrong with the files, or that nothing is.

        Args:
            tell: Hears about progress.
        """
        wrong = False
        try:
            for check in itertools.chain(
                _misplaced(self._manifest),
                _strangers(self._folder, self._manifest, self._earlier),
                self._damaged(tell),
            ):
                wrong = True
                yield check
        except PoloError as error:
            yield Check("files", Status.FAILED, str(error))
            return
        if not wrong:
            listed = self._listed
            figures = {"files": len(listed), "bytes": sum(file.size for file in listed)}
            detail = f"{counted(len(listed), 'file')} as signed"
            if left_out := len(self._manifest.files) - len(listed):
                detail += f"; {left_out} left out, as this kind of bundle does"
            yield Check("files", Status.PASSED, detail, figures=figures)

    def _damaged(self, tell: Callable[[str, int, int], None]) -> Iterator[Check]:
        """Files that are missing, too large, or not as signed."""
        for at, file in enumerate(self._listed):
            tell("checking files", at, len(self._listed))
            shard = _shard_of(file.path, self._manifest)
            try:
                for outcome in self._outcomes[file.path]:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


def _shard_of(path: str, manifest: Manifest) -> int:
    """The shard that a file of a proof belongs to; 0 if to none that the manifest lists."""
    digits = Path(path).name.partition(".")[0]
    number = int(digits) if digits.isdecimal() else 0
    return number if number <= len(manifest.shards) else 0

"""Who was shown which marks: a private list beside the proof.

Whoever knows the nonce of a shard knows where its mark sits and could scrub it, so a mark that was
shown is no secret evidence any more. The list is kept in `<proof>.state/disclosures.json`. It knows
what `polo disclose` and `polo export` handed out, not what was copied otherwise or passed on.

Specification: docs/protocol.md, section 12.6.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from polo.errors import PoloError, StoreError
from polo.protocol import canonical
from polo.protocol.fields import Choice, Integer, ListOf, Nested, Record, Text, of
from polo.protocol.records import MAX_SHARDS, Bundle
from polo.storage import atomic
from polo.storage.bundle import write_bundle
from polo.storage.folder import ProofFolder, state_path_of
from polo.weights.files import open_plain

LEDGER_FILE = "disclosures.json"
_LOCK_FILE = "disclosures.lock"
_MOST_ENTRIES = 100_000
_MOST_NAME = 256


@dataclass(frozen=True)
class Disclosure(Record):
    """One bundle that somebody was given.

    Attributes:
        to: Who, as the one who gave it calls them.
        kind: `verifier` or `buyer`.
        shards: Shards whose marks it shows.
        made: Seconds since 1970.
    """

    to: str = of(Text(_MOST_NAME, r"[^\x00-\x1f\x7f]+"))
    kind: str = of(Choice(("verifier", "buyer")))
    shards: tuple[int, ...] = of(ListOf(Integer(1, MAX_SHARDS), MAX_SHARDS))
    made: int = of(Integer(0, canonical.MAX_SAFE_INTEGER))


@dataclass(frozen=True)
class Disclosures(Record):
    """Everything that was shown of a proof, oldest first."""

    FORMAT = "polo/disclosures/1"

    entries: tuple[Disclosure, ...] = of(ListOf(Nested(Disclosure), _MOST_ENTRIES))


def disclosures(proof: Path | str) -> tuple[Disclosure, ...]:
    """What was shown of a proof so far."""
    path = state_path_of(proof) / LEDGER_FILE
    if not os.path.lexists(path):
        return ()
    with open_plain(path) as file:
        data = file.read(canonical.MAX_DOCUMENT_BYTES + 1)
    try:
        return Disclosures.from_bytes(data, str(path)).entries
    except PoloError as error:
        raise StoreError(
            f"the list of what was shown cannot be read: {error.message}",
            place=str(path),
            advice="Bring it back from a backup. Without it nobody knows which marks are secret.",
        ) from error


def secret_marks(proof: Path | str, shards: int) -> list[int]:
    """Shards whose marks nobody was shown, as far as the list knows.

    Args:
        proof: The proof folder.
        shards: How many shards the proof has.
    """
    shown = {shard for entry in disclosures(proof) for shard in entry.shards}
    return [shard for shard in range(1, shards + 1) if shard not in shown]


def hand_out(proof: ProofFolder, out: Path | str, bundle: Bundle, to: str) -> None:
    """Write a bundle for somebody, and note who was shown what.

    The note is on disk before the bundle is: a crash in between leaves a mark that counts as shown
    and was not, never the other way round.

    Args:
        proof: The proof.
        out: The file to write.
        bundle: Which part; a public one is not noted.
        to: Who gets it.
    """
    if bundle.kind == "public":
        write_bundle(proof, out, bundle)
        return
    if not to.strip() or len(to) > _MOST_NAME or not to.isprintable():
        raise StoreError(
            f"say who gets it: a name of at most {_MOST_NAME} characters, on one line",
            place="--to",
        )
    entry = Disclosure(to, bundle.kind, bundle.shards, int(time.time()))
    with _held(state_path_of(proof.path)) as state:
        before = Disclosures(disclosures(proof.path))
        taken = os.path.lexists(out)
        _write(state, replace(before, entries=(*before.entries, entry)))
        try:
            write_bundle(proof, out, bundle)
        except BaseException:
            # Interrupted after the bundle got its name: then it can be handed on, and is.
            if taken or not os.path.lexists(out):
                _write(state, before)
            raise


def _write(state: Path, ledger: Disclosures) -> None:
    data = ledger.to_bytes()
    with atomic.replacing(state / LEDGER_FILE, mode=0o600) as file:
        file.write(data)


@contextlib.contextmanager
def _held(state: Path) -> Iterator[Path]:
    """One at a time; the lock of the prover is another one, since a run may go on for weeks."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(state / _LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield state
    finally:
        os.close(handle)

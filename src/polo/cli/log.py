"""`polo log`: looking after a registry's log."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from polo.cli.output import Flag, print_json, progress_bar
from polo.errors import StoreError

if TYPE_CHECKING:
    from polo.client.audit import Audited, Report
    from polo.client.log_reader import LogReader
    from polo.client.witnesses import Asked
    from polo.protocol.log_notes import Note, NoteKey

log = App(name="log", help="Look after a registry's log.")


@log.command
def audit(
    url: str,
    /,
    *,
    since: Path | None = None,
    proof: Path | None = None,
    save: Path | None = None,
    key: str | None = None,
    json: Flag = False,
) -> int:
    """Read a registry's log, believe nothing of it, and say what is wrong.

    Examples:
    polo log audit https://registry.example --save audited.json

    polo log audit https://registry.example --since checkpoint.txt --key NAME+ID+KEY

    Everything is computed again: the tree from its entries, the root that the
    log signed, that it only grew, and that every chain in it goes on where it
    ended. Exit code 0 nothing is wrong, 1 something is, 2 could not decide.

    Parameters
    ----------
    url
        Address of the registry.
    since
        An older checkpoint of the log, which it must go on from.
    proof
        A proof whose checkpoints it must go on from: is this the log that the prover was shown?
    save
        A file to keep what is known now; if it is there, only what is new is read.
    key
        The log's key, as terms with level receipts name it. By default that of
        the saved file, else that in the proof's terms, or else the one that the
        registry itself says.
    json
        Print JSON.
    """
    from polo.client import audit as auditing
    from polo.client.log_reader import LogReader

    before, older = _before(save), [*_notes(since, proof)]
    reader = LogReader(url)
    try:
        known, believed = _key(key, before, proof, reader)
        with progress_bar() as tell:
            report = auditing.audit(reader, known, before=before, since=older, listener=tell)
    finally:
        reader.close()
    if save and report.audited:
        _write(save, report.audited)
    if json:
        print_json(_json(report, known))
    else:
        _show(report, known, believed=believed)
    return 1 if report.findings else 0


@log.command
def witness(
    url: str,
    /,
    *,
    key: Path,
    name: str,
    save: Path,
    log_key: str | None = None,
    passphrase: Flag = False,
) -> int:
    """Audit a registry's log, and cosign it if it went on from what you saw before.

    Example: polo log witness https://registry.example --key witness.key
    --name witness.example --save seen.json

    Run it again and again, by a timer. Whoever asks for you in terms needs your
    key as it is printed, and so does the registry's operator (setting
    witnesses). Never lose the saved file: it is what you saw. Exit code 0
    cosigned or nothing new, 1 the log lies, and nothing was signed, 2 could not
    decide.

    Parameters
    ----------
    url
        Address of the registry.
    key
        Your private key, for this alone; polo keygen makes one.
    name
        Your name, as a witness: printable, without spaces and +.
    save
        What you saw of the log; only what is new is read.
    log_key
        The log's key; by default that of the saved file, or the one that the registry says.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    """
    import time

    from polo.cli.keys import passphrase_of
    from polo.client import audit as auditing
    from polo.client.log_reader import LogReader
    from polo.keys import Identity
    from polo.protocol import log_notes

    signer = Identity.load(key, passphrase_of() if passphrase else None)
    own = log_notes.NoteKey(name, signer.public_key, log_notes.COSIGNATURE)
    before, reader = _before(save), LogReader(url)
    try:
        known, believed = _key(log_key, before, None, reader)
        with progress_bar() as tell:
            report = auditing.audit(reader, known, before=before, listener=tell)
        _show(report, known, believed=believed)
        print(f"your key: {own.text}")
        if report.findings:
            return 1
        if report.audited:
            # Kept before it is signed: what was signed must never be forgotten.
            _write(save, report.audited)
        if report.checkpoint:
            note = log_notes.Note.parse(report.note, place=url)
            line = log_notes.cosign(note.text, name, signer, int(time.time()))
            # Alone, since others' lines under it would be taken, and ours left aside.
            reader.cosign(log_notes.Note(note.text, (line,)))
            print(f"cosigned, with {report.checkpoint.size} entries")
    finally:
        reader.close()
    return 0


@log.command
def collect(
    url: str, proof: Path, /, *, key: Path, passphrase: Flag = False, json: Flag = False
) -> int:
    """Fetch what witnesses said of your proof's entries since its receipts came.

    Example: polo log collect https://registry.example proof --key alice.key

    Where terms ask for witnesses, a receipt comes before they have cosigned.
    Run this once they have; the proof is signed anew. polo submit does it by
    itself before it closes the chain; a closed proof should stay as it is.
    Exit code 0 every entry was seen by enough of them, 2 not yet.

    Parameters
    ----------
    url
        Address of the registry.
    proof
        Your proof.
    key
        Your private key.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.cli.keys import passphrase_of
    from polo.client import witnesses
    from polo.client.log_reader import LogReader
    from polo.keys import Identity

    asked = _asked(proof)
    signer = Identity.load(key, passphrase_of() if passphrase else None)
    reader = LogReader(url)
    try:
        found = witnesses.collect(reader, proof, signer, asked)
    finally:
        reader.close()
    if json:
        print_json({"new": found.new, "missing": found.missing})
    else:
        print(f"{found.new} new, {found.missing} not seen by {asked.words} yet")
    return 2 if found.missing else 0


def _asked(proof: Path) -> "Asked":
    from polo.client.witnesses import Asked
    from polo.errors import TermsError
    from polo.storage.folder import ProofFolder

    asked = Asked.of(ProofFolder(proof).manifest().enrolment)
    if asked is None:
        raise TermsError("the terms ask for no witness", place=str(proof))
    return asked


def _key(
    text: str | None, before: "Audited | None", proof: Path | None, reader: "LogReader"
) -> tuple["NoteKey", bool]:
    """The log's key, and whether it is only the registry's own word."""
    from polo.client.checking import log_of
    from polo.protocol.log_notes import NoteKey
    from polo.storage.folder import ProofFolder

    if text is not None or before is not None:
        return NoteKey.parse(text or (before.key if before else ""), place="--key"), False
    if proof is not None:
        return log_of(ProofFolder(proof).manifest().enrolment)[1], False
    return reader.key(), True


def _before(save: Path | None) -> "Audited | None":
    from polo.client.audit import Audited

    if save is None or not save.exists():
        return None
    return Audited.from_bytes(_bytes(save), str(save))


def _notes(since: Path | None, proof: Path | None) -> Iterator["Note"]:
    """Older checkpoints: of a file, and of a proof."""
    from polo.client.witnesses import checkpoints_of

    if since is not None:
        yield _note(since)
    if proof is not None:
        yield from checkpoints_of(proof)


def _note(path: Path) -> "Note":
    from polo.protocol.log_notes import Note

    try:
        return Note.parse(_bytes(path).decode(), place=str(path))
    except UnicodeDecodeError as error:
        raise StoreError("is no text", place=str(path)) from error


def _bytes(path: Path) -> bytes:
    from polo.protocol import canonical
    from polo.weights.files import open_plain

    with open_plain(path) as file:
        return file.read(canonical.MAX_DOCUMENT_BYTES + 1)


def _write(path: Path, audited: "Audited") -> None:
    from polo.storage import atomic

    atomic.write(path, audited.to_bytes())


def _show(report: "Report", key: "NoteKey", *, believed: bool) -> None:
    from polo.checks import counted, plain

    for finding in report.findings:
        print(plain(f"✕ {finding}"))
    head = report.checkpoint
    if head is None and not report.findings:
        print("✓ the log is empty")
    elif head is not None and not report.findings:
        entries = f"{head.size} {'entry' if head.size == 1 else 'entries'}"
        print(plain(f"✓ {head.origin}: {entries} of {counted(report.chains, 'chain')}"))
        print(f"  root {head.root.hex()}, as signed; {report.read} of them read now")
    if report.keys and report.keys[-1] != key:
        print(plain(f"  its key changed, as the one before signed: {report.keys[-1].text}"))
    if report.unsigned:
        words = "of them carry signatures that nobody can check: the registry does not show whose"
        print(f"! {report.unsigned} {words}")
    if believed:
        print(plain(f"! the key is the registry's own word; keep it: --key {key.text}"))


def _json(report: "Report", key: "NoteKey") -> dict[str, object]:
    head = report.checkpoint
    return {
        "format": "polo/audit/1",
        "key": key.text,
        "keys": [item.text for item in report.keys],
        "checkpoint": report.note,
        "size": head.size if head else 0,
        "read": report.read,
        "chains": report.chains,
        "unsigned": report.unsigned,
        "findings": [{"entry": item.entry, "detail": item.detail} for item in report.findings],
    }

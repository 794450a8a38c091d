"""Closing a chain at its registry, and showing what it draws after that."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polo.client import witnesses
from polo.client.checking import LEVEL, Lies, check_secret
from polo.client.client import Client
from polo.client.http import Patience, distrust
from polo.client.log_reader import LogReader
from polo.client.uploads import Tell
from polo.errors import OutageError, PoloError, RegistryError, StoreError
from polo.protocol import signing
from polo.protocol.records import Manifest
from polo.protocol.uniqueness import Uniqueness
from polo.storage import received
from polo.storage.folder import ProofFolder, checkpoint_path, state_path_of, uniqueness_path
from polo.storage.statements import file_uniqueness

logger = logging.getLogger("polo.client")

RUNNING = ("waiting", "running")
"""States of a job that is not over."""

_LOOK = Patience(first=0.2, most=5.0)
_SCAN = 600.0


def close(
    client: Client,
    proof: Path,
    signer: signing.Signer,
    tell: Tell = lambda *_: None,
    *,
    wait: float = 0.0,
    unwitnessed: bool = False,
) -> Manifest:
    """Close a chain, and hold every nonce against the secret that the registry then shows.

    Where the terms name witnesses, what they cosigned is collected first, since the proof cannot
    change afterwards. Where the terms ask for it, the registry looks for other chains in the last
    checkpoint, and its statement becomes part of the proof. Nobody may hold the proof's lock
    meanwhile.

    Args:
        client: The registry.
        proof: The finished proof, with all receipts.
        signer: The prover's key.
        tell: Told of progress.
        wait: Most seconds to wait for witnesses.
        unwitnessed: Whether to close although they have not cosigned by then.

    Returns:
        The manifest that the chain was closed with.
    """
    manifest = ProofFolder(proof).manifest()
    name = manifest.enrolment.digest.hex()
    asked = witnesses.Asked.of(manifest.enrolment) if manifest.shards else None
    # What a closed chain lacks it lacks for good: its manifest is the one it was closed with.
    if asked and client.enrolment(name).get("state") == "open":
        manifest = _witnessed(client, proof, signer, asked, tell, wait, unwitnessed)
    if _lacks_statement(manifest):
        statement = stated(client, manifest, proof, tell)
        with Lies(client.url, "registry.wrong-statement", "its statement on other chains"):
            manifest = file_uniqueness(proof, statement, signer)
    # Steps to run again are drawn from the records, so they are best there when it closes.
    bring_records(client, manifest, proof, "evidence/replay/", tell)
    client.close_chain(manifest)
    check_secret(client.secret(name), manifest, proof, signer, place=client.url)
    received.note_closed(state_path_of(proof), manifest.digest)
    return manifest


def _witnessed(
    client: Client,
    proof: Path,
    signer: signing.Signer,
    asked: witnesses.Asked,
    tell: Tell,
    wait: float,
    unwitnessed: bool,
) -> Manifest:
    """The manifest with what witnesses cosigned of its entries; refused if they are too few."""
    reader = LogReader(client.url)
    waiting = f"waiting for {asked.words} to cosign"
    said = False

    def say() -> None:
        nonlocal said
        tell(waiting, 0, 1)
        if not said:
            logger.warning("%s, for at most %.0f seconds", waiting, wait)
            said = True

    try:
        witnesses.awaited(reader, proof, asked, seconds=wait, tell=say)
        found = witnesses.collect(reader, proof, signer, asked)
    finally:
        reader.close()
    if found.missing and not unwitnessed:
        raise OutageError(
            f"{found.missing} entries were not seen by {asked.words} yet, as the terms ask",
            place=client.url,
            advice="Try again later (polo submit PROOF), or close the chain without: --unwitnessed."
            " Nobody can accept it then.",
        )
    return ProofFolder(proof).manifest()


def bring_records(
    client: Client, manifest: Manifest, proof: Path, below: str, tell: Tell = lambda *_: None
) -> None:
    """Upload the records below a path of the proof; what the registry has is not sent again."""
    name = manifest.enrolment.digest.hex()
    for file in manifest.files:
        if file.path.startswith(below):
            shard = int(file.path.rpartition("/")[2][:6])
            client.upload(proof / file.path, enrolment=name, kind="record", shard=shard, tell=tell)


def asks_replay(manifest: Manifest) -> bool:
    """Whether the registry draws steps to run again when the chain is closed."""
    settings = {item.level: item.settings for item in manifest.terms.evidence}
    while_it_grew = manifest.terms.history == "streaming" and (
        settings.get(LEVEL, {}).get("replays", "0") != "0"
    )
    return "replay" in settings and not while_it_grew


def drawn_replays(
    client: Client, enrolment: str, tell: Tell = lambda *_: None, *, seconds: float
) -> list[dict[str, Any]]:
    """The replay challenges of a closed chain, once they are drawn.

    Args:
        client: The registry.
        enrolment: The enrolment.
        tell: Told of progress.
        seconds: Most seconds to wait for them.
    """

    def look() -> dict[str, Any]:
        found = [item for item in client.challenges(enrolment) if item.get("kind") == "replay"]
        # A chain whose records are no good has failed, and nothing is drawn from it any more.
        over = bool(found) or client.enrolment(enrolment).get("state") != "closed"
        return {"state": "done" if over else "running", "found": found}

    done = awaited(look, lambda _: tell("waiting for steps to be drawn", 0, 1), seconds=seconds)
    if done["state"] != "done":
        raise OutageError(
            f"no steps were drawn within {seconds:g} s",
            place=client.url,
            advice="Try again later: polo submit PROOF; nothing is lost.",
        )
    found: list[dict[str, Any]] = done["found"]
    return found


def stated(client: Client, manifest: Manifest, proof: Path, tell: Tell) -> Uniqueness:
    """The registry's statement on what other chains are in the last checkpoint."""
    name, last = manifest.enrolment.digest.hex(), len(manifest.shards)
    path = proof / checkpoint_path(last)
    client.upload(path, enrolment=name, kind="checkpoint", shard=last, tell=tell)
    scan = str(client.scan(name).get("id"))
    done = awaited(
        lambda: client.scanned(scan),
        lambda _: tell("looking for other chains", 0, 1),
        seconds=_SCAN,
    )
    if not done.get("statement"):
        raise OutageError(
            f"the scan of the last checkpoint is not over: {str(done.get('state'))[:40]}",
            place=client.url,
            advice="Try again later: polo submit PROOF; nothing is lost.",
        )
    try:
        return Uniqueness.from_json(done["statement"], "statement")
    except PoloError as error:
        raise distrust(f"its statement cannot be read: {error}", place=client.url) from error


def _lacks_statement(manifest: Manifest) -> bool:
    asked = any(item.level == "uniqueness" for item in manifest.terms.evidence)
    there = {file.path for file in manifest.files}
    last = len(manifest.shards)
    return asked and last > 0 and uniqueness_path(last) not in there


def awaited(
    look: Callable[[], dict[str, Any]], tell: Callable[[str], None], *, seconds: float
) -> dict[str, Any]:
    """Look again and again until a job is over, or the time.

    Args:
        look: Asks for the job.
        tell: Told in words how far it is.
        seconds: Most seconds to wait.
    """
    until = time.monotonic() + seconds
    for pause in _LOOK.waits():
        found = look()
        if found.get("state") not in RUNNING or time.monotonic() > until:
            return found
        tell(str(found.get("progress", ""))[:120])
        time.sleep(pause)
    raise AssertionError


def answer_checkpoints(
    client: Client, manifest: Manifest, proof: Path, tell: Tell = lambda *_: None
) -> list[dict[str, Any]]:
    """Answer all open challenges that ask for a checkpoint; returns the other open ones.

    Args:
        client: The registry.
        manifest: The proof.
        proof: Its folder.
        tell: Told of progress.
    """
    name, left = manifest.enrolment.digest.hex(), []
    for asked in client.challenges(name):
        if asked.get("state") != "open":
            continue
        shard = asked.get("shard")
        if asked.get("kind") != "checkpoint" or not isinstance(shard, int):
            left.append(asked)
            continue
        answer_checkpoint(client, name, str(asked["id"]), shard, proof, tell)
    return left


def answer_checkpoint(
    client: Client, enrolment: str, challenge: str, shard: int, proof: Path, tell: Tell
) -> None:
    """Upload the checkpoint that a challenge asks for."""
    path = proof / checkpoint_path(shard)
    if not path.exists():
        raise StoreError(
            f"the registry asks for the checkpoint of shard {shard}, which is not here",
            place=str(path),
            advice="Bring it back. Terms that draw after the close need retention='all'.",
        )
    upload = client.upload(path, enrolment=enrolment, kind="checkpoint", shard=shard, tell=tell)
    try:
        client.answer(challenge, upload)
    except RegistryError as error:
        # An earlier try, or an earlier run, has answered it.
        if isinstance(error, OutageError) or error.code != "challenge.over":
            raise

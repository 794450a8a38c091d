"""Closing a chain at its registry, and showing what it draws after that."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polo.client.checking import Lies, check_secret
from polo.client.client import Client
from polo.client.http import Patience, distrust
from polo.client.uploads import Tell
from polo.errors import OutageError, PoloError, RegistryError, StoreError
from polo.protocol import signing
from polo.protocol.records import Manifest
from polo.protocol.uniqueness import Uniqueness
from polo.storage.folder import ProofFolder, checkpoint_path, uniqueness_path
from polo.storage.statements import file_uniqueness

RUNNING = ("waiting", "running")
"""States of a job that is not over."""

_LOOK = Patience(first=0.2, most=5.0)
_SCAN = 600.0


def close(
    client: Client, proof: Path, signer: signing.Signer, tell: Tell = lambda *_: None
) -> Manifest:
    """Close a chain, and hold every nonce against the secret that the registry then shows.

    Where the terms ask for it, the registry first looks for other chains in the last checkpoint,
    and its statement becomes part of the proof. Nobody may hold the proof's lock meanwhile.

    Args:
        client: The registry.
        proof: The finished proof, with all receipts.
        signer: The prover's key.
        tell: Told of progress.

    Returns:
        The manifest that the chain was closed with.
    """
    manifest = ProofFolder(proof).manifest()
    if _lacks_statement(manifest):
        statement = stated(client, manifest, proof, tell)
        with Lies(client.url, "registry.wrong-statement", "its statement on other chains"):
            manifest = file_uniqueness(proof, statement, signer)
    client.close_chain(manifest)
    secret = client.secret(manifest.enrolment.digest.hex())
    check_secret(secret, manifest, proof, signer, place=client.url)
    return manifest


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

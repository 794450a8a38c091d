"""Handing a proof in from its folder: what a run that crashed, or was cut off, left to do."""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from polo.client.client import Client
from polo.client.closing import RUNNING, bring_records
from polo.client.enrolled import LiveEnrolment
from polo.client.uploads import Tell
from polo.errors import OutageError, RegistryError
from polo.receipts import NonceSource, Respond
from polo.storage.bundle import whole, write_bundle
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter

_LOOK = 0.25


def commit_open(
    writer: ProofWriter,
    source: NonceSource,
    *,
    seconds: float,
    respond: "Respond | None" = None,
    work: Callable[[], None] = lambda: None,
) -> bool:
    """Get the receipt of the newest shard, or of the start, if it is missing; whether it was.

    Args:
        writer: The proof.
        source: The registry, as the source of nonces.
        seconds: Most seconds to wait.
        respond: Answers what is drawn from the shard's steps before its receipt.
        work: Called again and again while the receipt is waited for; computes those answers.
    """
    manifest = writer.manifest
    assert manifest is not None
    newest = manifest.shards[-1] if manifest.shards else manifest.start
    if newest.receipt is not None:
        return False
    future = source.commit(replace(writer.submission(), respond=respond))
    until = time.monotonic() + seconds
    while not future.done() and time.monotonic() < until:
        work()
        wait([future], timeout=min(_LOOK, max(0.0, until - time.monotonic())))
    if not future.done():
        raise OutageError(
            f"no receipt for shard {len(manifest.shards)} within {seconds:g} s"
            + (f": {source.trouble}" if source.trouble else ""),
            advice="Try again later; nothing is lost.",
        )
    writer.complete(future.result())
    return True


def bring_files(client: Client, enrolment: LiveEnrolment, proof: Path, tell: Tell) -> str | None:
    """Bring what a verification needs: the records if openings were streamed, else everything.

    Args:
        client: The registry.
        enrolment: The enrolment.
        proof: The proof.
        tell: Told of progress.

    Returns:
        The upload of the bundle; None where the registry puts the proof together itself.
    """
    folder = ProofFolder(proof)
    manifest = folder.manifest()
    if enrolment.record.terms.history == "streaming":
        bring_records(client, manifest, proof, "evidence/", tell)
        return None
    with tempfile.TemporaryDirectory(prefix="polo-") as temporary:
        bundle = Path(temporary) / "proof.polo"
        write_bundle(folder, bundle, whole(manifest))
        return client.upload(bundle, enrolment=enrolment.id, kind="proof", tell=tell)


def accepted(client: Client, enrolment: str, proof: str) -> dict[str, Any] | None:
    """The newest verification that accepted this very proof; None if there is none.

    One that was rejected may have been for a file that came damaged, so that is tried again.

    Args:
        client: The registry.
        enrolment: The enrolment.
        proof: Digest of the manifest, in hexadecimal.
    """
    found = [
        item
        for item in client.verifications(enrolment)
        if item.get("outcome") == "accepted"
        and isinstance(item.get("verdict"), dict)
        and item["verdict"].get("proof") == proof
    ]
    return found[-1] if found else None


def verify(client: Client, enrolment: str, upload: str | None) -> str:
    """Have a chain verified, or find the verification that is under way; returns its id."""
    try:
        return str(client.verify(enrolment, upload)["id"])
    except RegistryError as error:
        if error.code != "verification.running":
            raise
    running = [v for v in client.verifications(enrolment) if v.get("state") in RUNNING]
    return str(running[-1]["id"]) if running else verify(client, enrolment, upload)

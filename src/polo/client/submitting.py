"""Handing a proof in from its folder: what a run that crashed, or was cut off, left to do."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

from polo.client.client import Client
from polo.client.closing import RUNNING
from polo.client.enrolled import LiveEnrolment
from polo.client.uploads import Tell
from polo.errors import OutageError, RegistryError
from polo.protocol.records import Manifest
from polo.receipts import NonceSource
from polo.storage.bundle import whole, write_bundle
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter


def commit_open(writer: ProofWriter, source: NonceSource, *, seconds: float) -> bool:
    """Get the receipt of the newest shard, or of the start, if it is missing; whether it was.

    Args:
        writer: The proof.
        source: The registry, as the source of nonces.
        seconds: Most seconds to wait.
    """
    manifest = writer.manifest
    assert manifest is not None
    newest = manifest.shards[-1] if manifest.shards else manifest.start
    if newest.receipt is not None:
        return False
    future = source.commit(writer.submission())
    wait([future], timeout=seconds)
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
        for shard, path in _records(manifest):
            client.upload(
                folder.file(path), enrolment=enrolment.id, kind="record", shard=shard, tell=tell
            )
        return None
    with tempfile.TemporaryDirectory(prefix="polo-") as temporary:
        bundle = Path(temporary) / "proof.polo"
        write_bundle(folder, bundle, whole(manifest))
        return client.upload(bundle, enrolment=enrolment.id, kind="proof", tell=tell)


def _records(manifest: Manifest) -> Iterator[tuple[int, str]]:
    for file in manifest.files:
        if file.path.startswith("evidence/"):
            yield int(file.path.rpartition("/")[2][:6]), file.path


def verify(client: Client, enrolment: str, upload: str | None) -> str:
    """Have a chain verified, or find the verification that is under way; returns its id."""
    try:
        return str(client.verify(enrolment, upload)["id"])
    except RegistryError as error:
        if error.code != "verification.running":
            raise
    running = [v for v in client.verifications(enrolment) if v.get("state") in RUNNING]
    return str(running[-1]["id"]) if running else verify(client, enrolment, upload)

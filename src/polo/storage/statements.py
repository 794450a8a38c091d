"""Filing a registry's statement that no other chain is in the last checkpoint."""

from pathlib import Path

from polo.errors import SignatureError
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.records import Manifest
from polo.protocol.uniqueness import Uniqueness
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter


def file_uniqueness(proof: Path | str, statement: Uniqueness, key: signing.Signer) -> Manifest:
    """Put the statement into a proof, and sign its manifest anew.

    Do so before the chain is closed at the registry, which keeps the manifest as it then is.

    Args:
        proof: The proof folder.
        statement: What the registry signed.
        key: The prover's key.

    Raises:
        SignatureError: The statement is of somebody else, or about other weights.
    """
    manifest = ProofFolder(proof).manifest()
    enrolment = manifest.enrolment
    signing.check(statement, enrolment.issuer, Ed25519Verifier(), place="statement")
    about = (statement.enrolment, statement.root)
    if about != (enrolment.digest, manifest.last_root):
        raise SignatureError(
            "the statement is not about this proof's last shard", place="statement"
        )
    writer = ProofWriter(proof, key, manifest.retention)
    try:
        return writer.add_statement(statement)
    finally:
        writer.close()

"""What the examples share: a folder to work in, and an enrolment to start from."""

import sys
import tempfile
from pathlib import Path

import polo
from polo.tasks.digits import Digits


def workplace() -> Path:
    """The folder named on the command line, or a temporary one."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix="polo-example-"))


def enrolled(folder: Path, task: Digits) -> tuple[Path, Path, Path]:
    """Play the issuer: keys for both parties, terms, and an enrolment.

    Returns:
        The enrolment folder, the trainer's private key, the issuer's public key.
    """
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    trainer.save(folder / "trainer.key")
    polo.keys.save_public(issuer.public_key, folder / "issuer.pub")
    terms = polo.make_terms(task, bits=256, shards=20)
    polo.enrol(terms, identity=trainer.public_key, issuer=issuer).save(folder / "enrolment")
    return folder / "enrolment", folder / "trainer.key", folder / "issuer.pub"

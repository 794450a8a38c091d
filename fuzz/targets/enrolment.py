"""An enrolment with its nonces, as an issuer hands it over."""

import json
from collections.abc import Iterator
from typing import Any

from fuzz import mutation, promises, proofs, sandbox
from fuzz.target import Target
from polo.protocol import canonical
from polo.protocol.records import NonceList
from polo.receipts import ENROLMENT_FILE, NONCES_FILE, OfflineEnrolment


def check(data: bytes) -> None:
    """Refused, or an enrolment whose signature and nonces hold."""
    try:
        value = json.loads(data)
        files = {ENROLMENT_FILE: value["enrolment"], NONCES_FILE: value["nonces"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if value.get("sign"):
        sign(files[ENROLMENT_FILE])
    folder = sandbox.folder("enrolment")
    for name, content in files.items():
        (folder / name).write_bytes(mutation.spell(content))
    with promises.refusals(), promises.confined():
        loaded = OfflineEnrolment.load(folder)
        loaded.check()
        promises.require(
            loaded.record.to_bytes() == (folder / ENROLMENT_FILE).read_bytes(),
            "an enrolment has one spelling",
        )
        for number in range(1, loaded.record.terms.shards.most + 1):
            loaded.nonces.of(number)


def sign(document: Any) -> None:
    """Put the issuer's signature on a document, if it has a place for one."""
    if isinstance(document, dict):
        document.pop("signature", None)
        message = b"polo signature 1\n" + mutation.spell(document)
        document["signature"] = proofs.ISSUER.sign(message).hex()


def seeds() -> Iterator[bytes]:
    """A real enrolment, to be signed again or not."""
    issued = proofs.enrolment()
    listed = NonceList(issued.record.digest, issued.drawn)
    for again in (0, 1):
        value = {"enrolment": issued.record.to_json(), "nonces": listed.to_json(), "sign": again}
        yield canonical.encode(value)


TARGET = Target(check, seeds, mutation.document)

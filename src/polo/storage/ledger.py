"""What a seller has handed on: a private list beside the proof, so that nothing is sold twice.

It guards against mistakes. Whoever means to sell twice only has to use a copy of the proof.
"""

import time
from pathlib import Path

from polo.errors import ChainError, PoloError, StoreError
from polo.protocol import canonical
from polo.protocol.records import Manifest, Transfer, identity_of
from polo.storage import atomic
from polo.weights.files import open_plain

LEDGER_FILE = "transfers.json"


def enter(ledger: Path, sale: Transfer, manifest: Manifest) -> None:
    """Note a sale, unless the model was sold to somebody else before."""
    entries = read(ledger)
    roots = {shard.root for shard in manifest.shards}
    for signed, earlier in entries:
        if earlier.buyer != sale.buyer and earlier.root in roots:
            day = time.strftime("%Y-%m-%d", time.gmtime(min(signed, 2**35)))
            raise ChainError(
                f"you handed this model to {identity_of(earlier.buyer).hex()[:16]}… on {day}",
                place=str(ledger),
                advice="A model has one owner at a time: they can hand it on, you cannot.",
            )
    if all(earlier.message() != sale.message() for _, earlier in entries):
        entries.append((int(time.time()), sale))
    document = [{"signed": signed, "transfer": item.to_json()} for signed, item in entries]
    with atomic.replacing(ledger, mode=0o600) as file:
        file.write(canonical.encode(document))


def read(path: Path) -> list[tuple[int, Transfer]]:
    """What was handed on, and when by the seller's clock, oldest first."""
    if not path.exists():
        return []
    with open_plain(path) as file:
        data = file.read(canonical.MAX_DOCUMENT_BYTES + 1)
    try:
        found = canonical.parse(data, place=str(path))
        if not isinstance(found, list):
            raise ValueError("it is no list")
        return [
            (int(entry["signed"]), Transfer.from_json(entry["transfer"], LEDGER_FILE))
            for entry in found
        ]
    except (PoloError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the list of what you handed on cannot be read: {error}",
            place=str(path),
            advice="Bring it back from a backup. It is what keeps you from selling twice.",
        ) from error

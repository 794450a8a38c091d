"""The process that opens a model which somebody sent, and looks for marks in it. Needs numpy.

Run as a program like that of verifications, with the same limits. Which marks to look for comes on
standard input and is never on the disk: who knows a seed knows where its mark sits.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.errors import PoloError, WeightsError
from polo.registry.verifications import child

if TYPE_CHECKING:
    from polo.ownership.claim import Claim
    from polo.ownership.scan import Lot

MODEL, LAYOUT = "model.safetensors", "layout.json"


def packed(lots: "list[Lot]") -> bytes:
    """What to look for, as the child reads it."""
    said = [
        {
            "layout": lot.kind.layout.to_json(),
            "names": list(lot.kind.names),
            "scheme": lot.kind.scheme.to_json(),
            "chains": [[chain.name, chain.owner, chain.seeds.hex()] for chain in lot.chains],
        }
        for lot in lots
    ]
    return json.dumps(said).encode()


def _unpacked(data: bytes) -> "list[Lot]":
    from polo.ownership.scan import Chain, Kind, Lot
    from polo.protocol.layout import Layout
    from polo.protocol.records import SchemeTerms

    return [
        Lot(
            Kind(
                Layout.from_json(lot["layout"], "layout"),
                tuple(lot["names"]),
                SchemeTerms.from_json(lot["scheme"], "scheme"),
            ),
            [
                Chain(name, bytes.fromhex(seeds), True, owner)
                for name, owner, seeds in lot["chains"]
            ],
        )
        for lot in json.loads(data)
    ]


def looked(request: dict[str, Any], told: bytes) -> dict[str, Any]:
    """The claims that stand in the file; or why it cannot be read.

    Args:
        request: The root that the file must have, if any, and of which shard.
        told: What to look for, as `packed` wrote it.
    """
    from polo.ownership.scan import power, scan

    lots = _unpacked(told)
    try:
        if request["root"]:
            _check_root(request["root"], request["shard"])
        found = scan(Path(MODEL), lots)
    except PoloError as error:
        # Where the registry keeps its files is nobody's business.
        said = {"problem": str(error), "advice": error.advice}
        return {name: text.replace(f"{Path.cwd()}/", "") for name, text in said.items()}
    return {
        "description": found.description,
        "chains": found.chains,
        "unread": found.absent,
        "let_through": list(found.through),
        "power": power(),
        "claims": [_claim(claim) for claim in found.standing],
    }


def _claim(claim: "Claim") -> dict[str, Any]:
    return {
        "enrolment": claim.proof,
        "owner": claim.owner,
        "eta": claim.eta,
        "marks": len(claim.marks),
        "bits": claim.bits,
        "coverage": claim.coverage,
        "log2_p": claim.log2_p,
        "finding": claim.finding.name.lower(),
    }


def _check_root(root: str, shard: int) -> None:
    """Refuse a file that is not what the chain committed to."""
    from polo.protocol.layout import Layout
    from polo.weights.files import FileCheckpoint
    from polo.weights.hashing import commit

    layout = Layout.from_bytes(Path(LAYOUT).read_bytes(), "layout")
    with FileCheckpoint.canonical(Path(MODEL), layout) as checkpoint:
        if commit(checkpoint).root.hex() != root:
            raise WeightsError(
                f"the uploaded checkpoint of shard {shard} is not the one committed to",
                advice="Upload the file that the proof has.",
            )


if __name__ == "__main__":
    sys.exit(child.serve({"scan": lambda asked: looked(asked, sys.stdin.buffer.read())}))

"""How large a file of each kind can be, from what the registry knows already."""

from sqlalchemy import Connection, select

from polo.protocol.canonical import MAX_DOCUMENT_BYTES
from polo.protocol.challenge import PARTS, Challenge
from polo.protocol.layout import Layout
from polo.protocol.records import Enrolment, Manifest
from polo.registry.problems import CODES, Problem
from polo.registry.schema import challenges
from polo.registry.settings import Settings

KINDS = ("opening", "checkpoint", "record", "answer", "proof")
_OF_SHARDS = ("opening", "checkpoint", "record")

CODES.update(
    {
        "upload.not-asked": "Nobody asked for a file of this kind, or not now.",
        "upload.wrong-shard": "The file is about a shard that the terms do not allow.",
        "upload.wrong-size": "A file of this kind cannot have this size.",
    }
)

_STATES = 8
"""Sizes of a checkpoint that one shown state can have: the weights, and an optimizer's tensors."""

_SAMPLES = 256 * 2**20
"""Bytes of samples of one segment."""


def check_shard(kind: str, shard: int | None, enrolment: Enrolment) -> None:
    """Refuse a shard that there cannot be, or a file of a shard without its number."""
    if kind not in _OF_SHARDS and not (kind == "answer" and shard):
        if shard is not None:
            raise Problem(422, "upload.wrong-shard", f"a file of kind {kind} is about no shard")
        return
    first = 0 if kind == "checkpoint" else 1
    if shard is None or not first <= shard <= enrolment.terms.shards.most:
        raise Problem(
            422,
            "upload.wrong-shard",
            f"a file of kind {kind} is about one of the shards {first} to "
            f"{enrolment.terms.shards.most}",
        )


def check_size(
    connection: Connection, settings: Settings, kind: str, size: int, chain: "Chain"
) -> None:
    """Refuse a size that a file of this kind cannot have."""
    least, most = _span(connection, kind, chain)
    if not least <= size <= min(most, settings.max_upload):
        bounds = str(most) if least == most else f"{least} to {min(most, settings.max_upload)}"
        raise Problem(
            422,
            "upload.wrong-size",
            f"{size} bytes; a file of kind {kind} has {bounds} here",
            advice="Is it of this enrolment, and of the layout that the terms name?",
        )


class Chain:
    """What bounds need of an enrolled chain.

    Args:
        id: The enrolment's digest, in hexadecimal.
        record: The enrolment's bytes.
        layout: The layout's bytes.
        manifest: The manifest's bytes, once there is one.
    """

    def __init__(self, id: str, record: bytes, layout: bytes, manifest: bytes | None) -> None:
        self.id = id
        self.enrolment = Enrolment.from_bytes(record, "enrolment")
        self._layout = layout
        self._manifest = manifest

    @property
    def layout(self) -> Layout:
        """Names, types and shapes of its checkpoints."""
        return Layout.from_bytes(self._layout, "layout")

    @property
    def manifest(self) -> Manifest | None:
        """What the prover closed the chain with."""
        return Manifest.from_bytes(self._manifest, "manifest") if self._manifest else None


def _span(connection: Connection, kind: str, chain: Chain) -> tuple[int, int]:
    # Here and not above: a registry starts without numpy.
    from polo.storage.folder import limits_of

    most_bytes = limits_of(chain.layout, chain.enrolment.terms.scheme)
    whole = most_bytes("checkpoints/")
    if kind == "checkpoint":
        return whole, whole
    if kind == "opening":
        return 1, most_bytes("openings/")
    if kind == "record":
        return 1, most_bytes("evidence/")
    if kind == "answer":
        return 1, _answer(connection, chain, whole)
    return 1, _proof(chain)


def _answer(connection: Connection, chain: Chain, whole: int) -> int:
    asked = connection.execute(
        select(challenges.c.record).where(
            challenges.c.enrolment == chain.id,
            challenges.c.kind == "replay",
            challenges.c.state == "open",
        )
    ).scalars()
    places = 0
    for data in asked:
        challenge = Challenge.from_bytes(bytes(data), "challenge")
        places = max(places, len(challenge.segments) + len(challenge.sealings))
    if not places:
        raise Problem(409, "upload.not-asked", "no replay is asked for")
    return MAX_DOCUMENT_BYTES + places * (len(PARTS) * 512 + _STATES * whole + _SAMPLES)


def _proof(chain: Chain) -> int:
    manifest = chain.manifest
    if manifest is None:
        raise Problem(409, "upload.not-asked", "the chain is not closed yet")
    # Earlier owners' proofs are in the bundle, too, and their sizes in none of our records.
    if manifest.transfer is not None:
        return 2**62
    listed = sum(file.size + 1024 for file in manifest.files)
    return listed + 2 * MAX_DOCUMENT_BYTES

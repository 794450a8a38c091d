"""What a verifier brings to level replay."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polo.protocol.challenge import Challenge


@dataclass(frozen=True)
class Request:
    """What a verifier brings to level replay.

    Attributes:
        challenge: What was drawn; None if nothing was yet.
        answer: Folder of the prover's answer; None if there is none.
        device: Where to run; by default where it was trained, if such a device is here.
        streamed: Segments that the verifier drew and ran again while the chain grew, by shard, all
            of which came out as recorded; None where it did not draw then.
    """

    challenge: Challenge | None = None
    answer: Path | None = None
    device: str | None = None
    streamed: Mapping[int, int] | None = None

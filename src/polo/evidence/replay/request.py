"""What a verifier brings to level replay."""

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
    """

    challenge: Challenge | None = None
    answer: Path | None = None
    device: str | None = None

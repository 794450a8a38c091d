"""What a prover is given and what it hands back: small records without behaviour."""

from dataclasses import dataclass
from pathlib import Path

from polo.protocol.detection import Reading
from polo.protocol.records import Manifest, Shard


@dataclass(frozen=True)
class Proof:
    """A proof that has been finished.

    Attributes:
        path: Its folder, to hand over.
        manifest: What it says.
    """

    path: Path
    manifest: Manifest

    def __repr__(self) -> str:
        return f"Proof({str(self.path)!r}, shards={self.shards}, outside={self.outside})"

    @property
    def shards(self) -> int:
        """Number of sealed shards."""
        return len(self.manifest.shards)

    @property
    def outside(self) -> int:
        """Optimizer steps after the last sealed shard, which the proof does not cover."""
        return self.manifest.outside


@dataclass(frozen=True)
class Progress:
    """What a check of the current shard found.

    Attributes:
        shard: Its number.
        reading: The mark as it was before any finishing step.
        sealed: The shard's record if it was sealed.
    """

    shard: int
    reading: Reading
    sealed: Shard | None

    def __repr__(self) -> str:
        state = "sealed" if self.sealed else "not sealed"
        read = f"{self.reading.matches}/{self.reading.bits}"
        return f"Progress(shard={self.shard}, bits read {read}, {state})"


@dataclass
class Timings:
    """Seconds spent on top of the user's training."""

    embedding: float = 0.0
    recording: float = 0.0
    sealing: float = 0.0

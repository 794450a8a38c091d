"""Where a proof stands inside somebody else's checkpoint.

A framework saves and restores weights, optimizer and counters by itself, at moments of its own.
What it restores may be older than the last sealed shard, or lie in the middle of the next one. So
a `Position` travels inside its checkpoint, and tells when the two come together again.
"""

from dataclasses import dataclass

import torch

from polo.errors import StoreError, WeightsError
from polo.protocol import canonical
from polo.protocol.fields import Bytes, Integer, Record, of
from polo.protocol.records import MAX_SHARDS, Manifest
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit

# Steps are still added to it, and the sum must fit into the record of a shard.
_COUNT = Integer(0, canonical.MAX_SAFE_INTEGER // 2)


@dataclass(frozen=True)
class Position(Record):
    """Where a proof stood when a framework saved its checkpoint.

    Attributes:
        shards: Sealed shards.
        root: Root of the last of them, or of the start.
        epochs: Epochs of the shard that was not sealed yet.
        steps: Its optimizer steps.
        total: Optimizer steps of the whole chain.
        weights: Root of the model's weights at that moment.
    """

    FORMAT = "polo-position-1"

    shards: int = of(Integer(0, MAX_SHARDS))
    root: bytes = of(Bytes(32))
    epochs: int = of(_COUNT)
    steps: int = of(_COUNT)
    total: int = of(_COUNT)
    weights: bytes = of(Bytes(32))

    def sealed_since(self, manifest: Manifest | None) -> int:
        """Shards that a proof has sealed since; refuses a proof that was never here."""
        if manifest is None:
            raise StoreError(
                f"the checkpoint that was restored belongs to a proof with {self.shards} sealed "
                "shards, and there is no proof in this store",
                advice="Bring the proof and its .state folder back, or train from the start.",
            )
        since = len(manifest.shards) - self.shards
        if since < 0:
            raise StoreError(
                f"the checkpoint that was restored was saved after shard {self.shards}, and the "
                f"proof in this store ends with shard {len(manifest.shards)}",
                advice="Bring the newer proof and its .state folder back, or restore an older "
                "checkpoint.",
            )
        if manifest.root_before(self.shards + 1) != self.root:
            raise StoreError(
                "the checkpoint that was restored belongs to another proof",
                advice="Restore a checkpoint of this run, or give this run a store of its own.",
            )
        return since

    def steps_since(self, manifest: Manifest) -> int:
        """Optimizer steps from here to the proof's last sealed shard."""
        return max(0, sum(shard.steps for shard in manifest.shards[self.shards :]) - self.steps)

    def is_of(self, model: torch.nn.Module) -> bool:
        """Whether a model holds the weights that were saved.

        False if it does not and the proof holds them, because they were just sealed; refuses a
        model that nobody can put right.
        """
        if commit(checkpoint_of(model)).root == self.weights:
            return True
        if self.weights == self.root:
            return False
        raise WeightsError(
            "the model does not hold the weights that its checkpoint was saved with",
            advice="Did the framework load all of it (look for missing keys in its log)? Was it "
            "overwritten while it was being saved? Restore a checkpoint that was saved right "
            "after a shard was sealed, or an older one: the proof brings the sealed weights.",
        )

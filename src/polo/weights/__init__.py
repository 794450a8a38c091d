"""Tensors to canonical bytes: layout, root, files, carriers.

    from polo import weights

    commitment = weights.commit(weights.checkpoint_of(model))
    commitment.root.hex()

`commit` streams: a model of any size, on any device, takes a few megabytes.
"""

from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint, checkpoint_of
from polo.weights.files import FileCheckpoint
from polo.weights.hashing import Commitment, commit, diff

__all__ = [
    "Checkpoint",
    "Commitment",
    "FileCheckpoint",
    "MemoryCheckpoint",
    "checkpoint_of",
    "commit",
    "diff",
]

"""Tensors to canonical bytes: layout, root, files, carriers.

    from polo import weights

    commitment = weights.commit(weights.checkpoint_of(model))
    commitment.root.hex()

`commit` streams: a model of any size, on any device, takes a few megabytes.

`open_found` reads somebody's model as numbers, be it quantised, sharded or both:

    with weights.open_found(path) as found:
        found.values("fc.weight")
"""

from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint, checkpoint_of
from polo.weights.files import FileCheckpoint
from polo.weights.found import FoundModel, FoundTensor, open_found
from polo.weights.hashing import Commitment, commit, diff

__all__ = [
    "Checkpoint",
    "Commitment",
    "FileCheckpoint",
    "FoundModel",
    "FoundTensor",
    "MemoryCheckpoint",
    "checkpoint_of",
    "commit",
    "diff",
    "open_found",
]

"""What a planned run will cost in disk and time, before it starts."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from polo.errors import MissingError
from polo.protocol import merkle
from polo.protocol.carrier import Carrier
from polo.protocol.digest import SIZE
from polo.protocol.layout import Layout
from polo.protocol.records import Terms
from polo.watermark.mark import carrier_of, derive
from polo.weights.files import header_of

_RECORD_BYTES = 900
"""A shard's record, its nonce and its lines in the list of files, as JSON."""

_TRIALS = 5


@dataclass(frozen=True)
class Plan:
    """Predictions for one run.

    Attributes:
        checkpoint: Bytes of one stored checkpoint.
        opening: Bytes of one opening.
        shards: Number of shards planned.
        step_seconds: Seconds that the mark's gradient adds to a step; None without torch.
    """

    checkpoint: int
    opening: int
    shards: int
    step_seconds: float | None

    def proof_bytes(self, kept: int) -> int:
        """Bytes of a proof that keeps so many checkpoints."""
        return kept * self.checkpoint + self.shards * (self.opening + _RECORD_BYTES)

    @property
    def all_bytes(self) -> int:
        """Bytes of a proof that keeps every checkpoint, W_0 included."""
        return self.proof_bytes(self.shards + 1)

    @property
    def thin_bytes(self) -> int:
        """Bytes of a thin proof."""
        return self.proof_bytes(1)

    @property
    def working_bytes(self) -> int:
        """Bytes beside the proof and while sealing: training state (Adam's, at most) and a copy."""
        return 4 * self.checkpoint


def plan(terms: Terms, layout: Layout, *, shards: int) -> Plan:
    """Predict what a run under these terms will take.

    Sizes follow from the layout; the time is measured here and now, on tensors of the same
    shapes, because it depends on the machine.
    """
    carrier = carrier_of(terms, layout)
    seed = hashlib.sha256(b"a mark like any other").digest()
    leaves = carrier.leaves(derive(terms, carrier, seed).blocks)
    hashes = merkle.multiproof_length(layout.leaf_count, list(leaves))
    opening = sum(leaf.length + 8 for leaf in leaves.values()) + hashes * SIZE + 300
    try:
        step = _step_seconds(terms, carrier, seed)
    except MissingError:
        step = None
    return Plan(len(header_of(layout)) + layout.size, opening, shards, step)


def _step_seconds(terms: Terms, carrier: Carrier, seed: bytes) -> float:
    try:
        import torch
    except ImportError as error:
        raise MissingError("torch is not installed") from error
    from polo.embedding.embedder import Embedder
    from polo.weights.dtypes import torch_dtype

    parameters = {}
    for at in carrier.tensors:
        tensor = carrier.layout.tensors[at]
        values = torch.zeros(tensor.shape, dtype=torch_dtype(tensor.dtype))
        parameters[tensor.name] = torch.nn.Parameter(values)
        parameters[tensor.name].grad = torch.zeros_like(values)
    embedder = Embedder(terms, carrier, seed, parameters)
    embedder.add_gradient()
    return _fastest(embedder.add_gradient) / terms.scheme.every


def _fastest(work: Callable[[], None]) -> float:
    took = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)

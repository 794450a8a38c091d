"""Checkpoints of a tiny model with a mark in them, made in closed form, and their openings."""

import numpy as np

from benchmarks.chains import LAYOUT, Prover
from polo.protocol import chain, commitment, merkle
from polo.protocol.commitment import Opening
from polo.protocol.records import Nonce
from polo.storage import openings
from polo.watermark.mark import carrier_of, derive


def marked(prover: Prover, nonce: Nonce, previous: bytes) -> tuple[bytes, bytes]:
    """The root of a checkpoint that carries the mark of a shard, and the opening's file.

    Args:
        prover: Whose.
        nonce: The shard's nonce.
        previous: Root of the checkpoint before.
    """
    terms = prover.record.terms
    carrier = carrier_of(terms, LAYOUT)
    mark = derive(terms, carrier, chain.seed_of(prover.record, nonce, previous=previous))
    values = np.zeros((carrier.blocks, terms.scheme.block), dtype="<f4")
    for group, block in enumerate(mark.blocks):
        signs = mark.signs(group).astype(np.float64)
        wanted = mark.bits[group] * 2.0 - 1.0
        values[block] = signs.T @ np.linalg.solve(signs @ signs.T, wanted)
    data = values.tobytes()
    chunks = [data[leaf.start : leaf.start + leaf.length] for leaf in LAYOUT.leaves()]
    hashes = [
        commitment.leaf_hash(leaf, chunk)
        for leaf, chunk in zip(LAYOUT.leaves(), chunks, strict=True)
    ]
    where = carrier.leaves(mark.blocks)
    path = tuple(merkle.multiproof(hashes, list(where)))
    opened = Opening({index: chunks[index] for index in where}, path)
    return commitment.root(LAYOUT, hashes), openings.encode(opened)

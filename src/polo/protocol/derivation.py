"""From the previous checkpoint to the next mark: seed, bits, positions, key.

Specification: docs/protocol.md, sections 6 and 7.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator

from polo.protocol.digest import tagged, u32

_WORD = 8


def seed(*, root: bytes, shard: int, nonce: bytes, identity: bytes, terms: bytes) -> bytes:
    """The seed of a shard's mark: the paper's H(W_{x-1}, x, μ, id), with the terms bound in.

    Args:
        root: Root of the checkpoint that ended the previous shard.
        shard: Number x of the shard that is to carry the mark, from 1.
        nonce: The verifier's nonce μ_x.
        identity: Fingerprint of the prover's key.
        terms: Digest of the terms.
    """
    return tagged("polo/seed/1", root, u32(shard), nonce, identity, terms)


def stream(seed: bytes, label: str, index: int, size: int) -> bytes:
    """The first `size` bytes of SHAKE-256 over the seed, a label and an index."""
    return streams(seed, label, (index,), size)


def streams(seed: bytes, label: str, indices: Iterable[int], size: int) -> bytes:
    """The same for several indices, one after the other."""
    name = label.encode("ascii")
    shake, start = hashlib.shake_256, bytes([len(name)]) + name + seed
    return b"".join([shake(start + u32(index)).digest(size) for index in indices])


def bits(seed: bytes, count: int) -> bytes:
    """The mark Λ: bit i is bit i mod 8, from the least significant, of byte i div 8."""
    return stream(seed, "polo/bits/1", 0, -(-count // 8))


def positions(seed: bytes, count: int, blocks: int) -> tuple[int, ...]:
    """The positions Y: `count` distinct blocks out of `blocks`, in the order drawn.

    Words of eight bytes, little-endian; a word at or above the largest multiple of `blocks`
    below 2^64 is dropped, so that every block is equally likely, and so is a repeated block.
    """
    if not 0 < count <= blocks:
        raise ValueError(f"{count} of {blocks} blocks")
    limit = 2**64 - 2**64 % blocks
    chosen: dict[int, None] = {}
    for word in _words(seed, 2 * count + 16):
        if word < limit:
            chosen.setdefault(word % blocks)
            if len(chosen) == count:
                break
    return tuple(chosen)


def key(seed: bytes, group: int, signs: int) -> bytes:
    """The key k of one group: `signs` signs, one bit each, 1 for plus; order as in `bits`."""
    return keys(seed, (group,), signs)


def keys(seed: bytes, groups: Iterable[int], signs: int) -> bytes:
    """The keys of several groups, one after the other, each beginning with a byte of its own."""
    return streams(seed, "polo/key/1", groups, -(-signs // 8))


def _words(seed: bytes, guess: int) -> Iterator[int]:
    """Words of the position stream without end; it is squeezed again when it runs out."""
    done = 0
    while True:
        data = stream(seed, "polo/positions/1", 0, guess * _WORD)
        for (word,) in struct.iter_unpack("<Q", data[done * _WORD :]):
            yield word
        done, guess = guess, guess * 2

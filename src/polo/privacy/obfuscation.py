"""Obfuscation: Gaussian noise on a random part of the weights outside the mark.

Where the noise goes and how large it is follow, by the integer sampler of the protocol, from a
secret that was committed to one shard earlier and from the verifier's nonce. Sealing is therefore
a step that can be replayed under audit, and noise is no place to hide a jump in. Showing the
secret removes that shard's obfuscation towards whoever sees it. No ε is claimed.

Specification: docs/protocol.md, section 11.
"""

import functools
import hmac
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.protocol import derivation, sampler
from polo.protocol.detection import MILLION
from polo.protocol.digest import tagged, u32

PIECE = 2**16
"""Weights that one call of the stream covers."""

_SCALE_BITS = 8
_UNSURE = 2**32


def secret_of(master: bytes, shard: int) -> bytes:
    """The secret s_x of a shard, from the secret that a prover keeps for a whole proof."""
    return hmac.digest(master, b"polo/shard-secret/1" + u32(shard), "sha256")


def secret_commitment(secret: bytes) -> bytes:
    """What the record one shard earlier says of a secret."""
    return tagged("polo/secret/1", secret)


def noise_seed(secret: bytes, nonce: bytes) -> bytes:
    """What Z and the noise of a shard are expanded from."""
    return tagged("polo/noise/1", secret, nonce)


def scale_of(values: NDArray[np.floating[Any]], sigma: int) -> float:
    """σ of one tensor: `sigma` millionths of its root mean square, to eight binary digits.

    So few digits, because the last ones of a float sum depend on the machine.
    """
    if not values.size:
        return 0.0
    with np.errstate(over="ignore"):
        double = values.astype(np.float64, copy=False).reshape(-1)
        rms = math.sqrt(float(np.dot(double, double)) / values.size)
    if not math.isfinite(rms):
        return 0.0  # Training has diverged; committing to these weights will say so.
    mantissa, exponent = math.frexp(rms * sigma / MILLION)
    return math.ldexp(round(math.ldexp(mantissa, _SCALE_BITS)), exponent - _SCALE_BITS)


def deviations(seed: bytes, piece: int, count: int) -> NDArray[np.int64]:
    """Gaussian deviations of one piece of a tensor, in sixty-fourths of σ.

    Args:
        seed: The tensor's own seed.
        piece: Number of the piece.
        count: How many deviations.
    """
    raw = derivation.stream(seed, "polo/gauss/1", piece, 8 * count)
    found: NDArray[np.int64] = _by_leading_bits()[np.frombuffer(raw, dtype="<u2")[3::4]]
    unsure = np.flatnonzero(found == _UNSURE)
    found[unsure] = _exactly(np.frombuffer(raw, dtype="<u8")[unsure])
    return found


def _exactly(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The deviations that words stand for: a sign, and 63 bits that thresholds are held against."""
    table = np.array(sampler.table(), dtype=np.uint64)
    magnitude = np.searchsorted(table, words & np.uint64(2**63 - 1), side="right")
    return np.where(words >> np.uint64(63), -magnitude, magnitude)


@functools.cache
def _by_leading_bits() -> NDArray[np.int64]:
    """Deviations by the first sixteen bits of a word, where those settle it, as they mostly do."""
    first = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    low, high = _exactly(first), _exactly(first + np.uint64(2**48 - 1))
    table = np.where(low == high, low, _UNSURE)
    table.setflags(write=False)
    return table


def noise(
    seed: bytes, tensor: int, elements: int, fraction: int
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.int64]]]:
    """Noise for one tensor, piece by piece.

    Args:
        seed: What `noise_seed` returned.
        tensor: The tensor's index in the layout.
        elements: Its number of weights.
        fraction: Millionths of the weights that are touched.

    Yields:
        First weight of a piece, touched weights within it, and the deviation of each in
        sixty-fourths of σ.
    """
    own = tagged("polo/noise-tensor/1", seed, u32(tensor))
    below = fraction * 256 // MILLION
    for piece, first in enumerate(range(0, elements, PIECE)):
        size = min(PIECE, elements - first)
        drawn = np.frombuffer(derivation.stream(own, "polo/select/1", piece, size), dtype=np.uint8)
        chosen = np.flatnonzero(drawn < below)
        yield first, chosen, deviations(own, piece, len(chosen))


def obfuscate(
    values: NDArray[np.floating[Any]],
    *,
    seed: bytes,
    tensor: int,
    fraction: int,
    sigma: int,
    spared: NDArray[np.intp],
) -> NDArray[np.float64]:
    """A flattened tensor with noise, in double precision.

    Args:
        values: Its weights, flat.
        seed: What `noise_seed` returned.
        tensor: The tensor's index in the layout.
        fraction: Millionths of the weights that are touched.
        sigma: Standard deviation, in millionths of the tensor's root mean square.
        spared: Weights that carry the mark and stay as they are.
    """
    noisy = values.astype(np.float64)
    scale = scale_of(noisy, sigma)
    for first, chosen, deviation in noise(seed, tensor, len(noisy), fraction):
        noisy[first + chosen] += deviation * (scale / sampler.STEPS)
    noisy[spared] = values[spared]
    return noisy

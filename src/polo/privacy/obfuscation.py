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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.protocol import derivation, sampler
from polo.protocol.detection import MILLION
from polo.protocol.digest import tagged, u32

PIECE = 2**16
"""Weights that one call of the stream covers."""

UNTOUCHED = -(2**15)
"""Stands where a deviation would, for a weight that gets none."""

_SCALE_BITS = 8
_UNSURE = UNTOUCHED


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
    """σ of one tensor, see `scale_by`."""
    with np.errstate(over="ignore"):
        double = values.astype(np.float64, copy=False).reshape(-1)
        return scale_by(float(np.dot(double, double)), values.size, sigma)


def scale_by(squares: float, count: int, sigma: int) -> float:
    """σ of one tensor: `sigma` millionths of its root mean square, to eight binary digits.

    So few digits, because the last ones of a float sum depend on the machine.

    Args:
        squares: The sum of its weights' squares.
        count: How many weights it has.
        sigma: Standard deviation, in millionths of the root mean square.
    """
    # Where training has diverged, committing to the weights will say so.
    if not count or not math.isfinite(squares):
        return 0.0
    mantissa, exponent = math.frexp(math.sqrt(squares / count) * sigma / MILLION)
    return math.ldexp(round(math.ldexp(mantissa, _SCALE_BITS)), exponent - _SCALE_BITS)


def deviations(seed: bytes, piece: int, count: int) -> NDArray[np.int16]:
    """Gaussian deviations of one piece of a tensor, in sixty-fourths of σ.

    Args:
        seed: The tensor's own seed.
        piece: Number of the piece.
        count: How many deviations.
    """
    raw = derivation.stream(seed, "polo/gauss/1", piece, 8 * count)
    found: NDArray[np.int16] = _by_leading_bits()[np.frombuffer(raw, dtype="<u2")[3::4]]
    unsure = np.flatnonzero(found == _UNSURE)
    found[unsure] = _exactly(np.frombuffer(raw, dtype="<u8")[unsure])
    return found


def _exactly(words: NDArray[np.uint64]) -> NDArray[np.int16]:
    """The deviations that words stand for: a sign, and 63 bits that thresholds are held against."""
    table = np.array(sampler.table(), dtype=np.uint64)
    found = np.searchsorted(table, words & np.uint64(2**63 - 1), side="right")
    magnitude = found.astype(np.int16)
    return np.where(words >> np.uint64(63), -magnitude, magnitude)


@functools.cache
def _by_leading_bits() -> NDArray[np.int16]:
    """Deviations by the first sixteen bits of a word, where those settle it, as they mostly do."""
    first = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    low, high = _exactly(first), _exactly(first + np.uint64(2**48 - 1))
    table = np.where(low == high, low, np.int16(_UNSURE))
    table.setflags(write=False)
    return table


def noise(seed: bytes, tensor: int, elements: int, fraction: int) -> NDArray[np.int16]:
    """Noise for one tensor: the deviation of each weight in sixty-fourths of σ, or `UNTOUCHED`.

    Args:
        seed: What `noise_seed` returned.
        tensor: The tensor's index in the layout.
        elements: Its number of weights.
        fraction: Millionths of the weights that are touched.
    """
    own = tagged("polo/noise-tensor/1", seed, u32(tensor))
    below = fraction * 256 // MILLION
    found = np.full(elements, UNTOUCHED, np.int16)
    for piece, first in enumerate(range(0, elements, PIECE)):
        part = found[first : first + PIECE]
        drawn = derivation.stream(own, "polo/select/1", piece, len(part))
        chosen = np.flatnonzero(np.frombuffer(drawn, dtype=np.uint8) < below)
        part[chosen] = deviations(own, piece, len(chosen))
    return found

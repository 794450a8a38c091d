"""Which scheme, how many bits and what load suit a model, by rules that docs/schemes.md measures.

Rules are few and each gives its reason. They ask what tensors there are and how many blocks those
hold; what the model is for they do not know. No scheme is advised for being hard to forge: a forger
who turns no more bits than a verifier asks for pays next to nothing with any of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from polo.protocol.detection import MILLION
from polo.watermark import schemes
from polo.watermark.capacity import Capacity
from polo.watermark.ednn import Ednn
from polo.watermark.fedipr import Fedipr
from polo.watermark.signed import Signed

SIZES = (1024, 512, 256, 128)
"""Bits worth asking for, the best first: 1024 at η = 0.70 are a chance of 2^-125, and more add to
the cost alone; 128 still pass the usual thresholds if nearly all of them are right."""

ROOM = 0.10
"""A mark in at most a tenth of the blocks leaves most of those before it as they are; where marks
take half of a carrier and more, each wears off the ones before."""

LIGHT = (31_250, 62_500, 125_000)
"""Loads, in millionths, the lightest first: the fewer bits a weight has a share in, the smaller is
the finishing step's edit, and the surer an epoch ends in a shard."""

_DENSE = 250_000
"""The load to fall back on where the carrier is too small for the scheme's own."""


@dataclass(frozen=True)
class Advice:
    """What to ask for.

    Attributes:
        scheme: The scheme.
        bits: Bits of each mark.
        load: Bits per weight of a block, in millionths.
        block: Weights per block.
        share: Part of the carrier's blocks that one mark takes.
        reasons: Why, a sentence each.
    """

    scheme: str
    bits: int
    load: int
    block: int
    share: float
    reasons: tuple[str, ...]


_Find = Callable[[Capacity, str], Advice | None]


def advise(fits: Mapping[str, Capacity]) -> Advice | None:
    """What suits a model; None if no mark fits into it.

    Args:
        fits: What the model can carry, by scheme; schemes that are left out are not advised.
    """
    for name, why, find in _attempts(fits):
        if name in fits and (found := find(fits[name], why)) is not None:
            return found
    return None


def _attempts(fits: Mapping[str, Capacity]) -> Iterator[tuple[str, str, _Find]]:
    """Schemes in the order in which they suit, with the reason."""
    lasting = "its marks stay in the finished model, and overwriting leaves enough of them"
    yield Ednn.name, lasting, _roomy
    if any("lora_" in name for own in fits.values() for name in own.names):
        # Measured: in a merged model signs read worse, but each takes a single weight.
        small = "this adapter is small, and signs take one weight for a bit"
        yield Signed.name, small, _roomy
        yield Signed.name, small, _tight
    yield Ednn.name, lasting, _tight
    scales = "only norm scales can carry a mark here"
    yield Fedipr.name, scales, _roomy
    yield Fedipr.name, scales, _tight


def _roomy(own: Capacity, why: str) -> Advice | None:
    """The best size that leaves room at the lightest load."""
    for bits in SIZES:
        for load in LIGHT:
            if not own.objection(bits, load) and own.share(bits, load) <= ROOM:
                return _advice(own, bits, load, (why, _size_reason(bits), _load_reason(load)))
    return None


def _tight(own: Capacity, why: str) -> Advice | None:
    """The least that a mark can take."""
    tight = (
        "the carrier is small: each mark overwrites part of the ones before, so that the fewest "
        "bits leave most of them"
    )
    # Measured: all of them seal every epoch, and the smaller a mark, the better old ones last.
    for load in (_own_load(own.scheme), _DENSE):
        for bits in reversed(SIZES):
            if not own.objection(bits, load) and own.share(bits, load) <= 1 / 2:
                return _advice(own, bits, load, (why, tight))
    return None


def _own_load(scheme: str) -> int:
    """The load, in millionths, that a scheme takes by default."""
    return round(schemes.scheme(scheme).defaults.load * MILLION)


def _advice(own: Capacity, bits: int, load: int, reasons: tuple[str, ...]) -> Advice:
    return Advice(own.scheme, bits, load, own.block, own.share(bits, load), reasons)


def _size_reason(bits: int) -> str:
    if bits == SIZES[0]:
        return f"{bits} bits leave luck no chance, and more would only cost"
    return f"{bits} bits are what leaves room for the marks of other shards"


def _load_reason(load: int) -> str:
    if load == LIGHT[0]:
        return "there is room to spread bits thinly, which keeps the finishing step's edit small"
    return f"a load of {load / MILLION:g} is the lightest that leaves nine tenths of the blocks"

"""Whose model is this: all marks of a chain, read from one found model.

    from polo import ownership

    result = ownership.identify("found.safetensors", ["proof/"], trust="issuer.pub")
    result.finding, result.headline()

`compare` decides which of two chains came first. A found model may be cast, quantised, pruned,
fine-tuned, renamed or cut into files; with `align` also permuted, rescaled or widened.
"""

from polo.ownership.claim import Claim, Finding
from polo.ownership.containment import Comparison, Order, compare
from polo.ownership.identification import Identification, identify

__all__ = [
    "Claim",
    "Comparison",
    "Finding",
    "Identification",
    "Order",
    "compare",
    "identify",
]

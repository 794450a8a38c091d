"""Undoes what leaves a network's function alone: permutation, scaling, dummy neurons, rotations.

    wiring = trace(model, inputs)
    aligned = align(found, reference, wiring)    # found weights in the reference's frame

`trace` needs torch, `align` numpy and scipy. The reference must be older than any mark that is
read afterwards, or unrelated weights match better than by chance.
"""

from polo.alignment.align import Aligned, AlignedGroup, align
from polo.alignment.rotation import align_lora
from polo.alignment.wiring import Wiring, trace

__all__ = ["Aligned", "AlignedGroup", "Wiring", "align", "align_lora", "trace"]

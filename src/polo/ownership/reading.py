"""Reading a mark where some of its weights may be missing.

A missing tensor takes whole bits away; which ones does not depend on what they should be, so the
bits that are left are still fair coins on weights made without knowledge of the mark.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from polo.ownership.claimant import DerivedMark
from polo.ownership.sources import WeightSource
from polo.protocol.carrier import Carrier
from polo.protocol.combination import ReadMark
from polo.protocol.detection import Reading
from polo.watermark import schemes
from polo.watermark.batch import within_range
from polo.watermark.mark import Mark
from polo.weights.found_model import Values


class Carrying(Protocol):
    """Whatever has a carrier."""

    @property
    def carrier(self) -> Carrier:
        """The tensors that hold the marks."""


def read_mark(
    claimant: Carrying,
    derived: DerivedMark,
    source: WeightSource,
    groups: Sequence[int] | None = None,
) -> ReadMark:
    """Read a mark, or some of its groups, as far as its weights are there.

    Args:
        claimant: Whose mark it is.
        derived: The mark.
        source: The weights to read it from.
        groups: Which groups; by default all.
    """
    mark = derived.mark
    wanted = range(mark.groups) if groups is None else groups
    rows = {group: _group(mark, claimant.carrier, source, group) for group in wanted}
    there = {group: row for group, row in rows.items() if row is not None}
    if not there:
        return ReadMark(derived.shard, Reading(0, 0), derived.live)
    values = np.array(list(there.values()), dtype=np.float64)
    right = schemes.matches(mark, within_range(values), list(there))
    return ReadMark(derived.shard, Reading(right.size, int(right.sum())), derived.live)


def _group(mark: Mark, carrier: Carrier, source: WeightSource, group: int) -> Values | None:
    """A group's weights; in a group of several blocks missing ones count as zero."""
    per_group = len(mark.blocks) // mark.groups
    blocks = mark.blocks[group * per_group : (group + 1) * per_group]
    found = [_block(carrier, source, block) for block in blocks]
    if len(found) == 1 or all(row is None for row in found):
        return found[0]
    return np.concatenate([np.zeros(carrier.block) if row is None else row for row in found])


def _block(carrier: Carrier, source: WeightSource, block: int) -> Values | None:
    where = carrier.locate(block)
    row = source.weights(where.tensor, where.element, where.element + carrier.block)
    return row if row is not None and bool(np.isfinite(row).all()) else None

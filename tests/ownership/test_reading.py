"""Marks whose weights are partly missing, broken or zero: bits go away, and chance stays chance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polo.ownership.claimant import Claimant
from polo.ownership.reading import read_mark
from polo.ownership.sources import ArraySource, CheckpointSource, found_in
from polo.protocol.detection import log2_tail
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import checkpoint_of

Arrays = dict[int, np.ndarray[Any, Any]]


@pytest.fixture(params=["block", "dense"])
def claimant(request: pytest.FixtureRequest, desk: Any, tmp_path: Path) -> Claimant:
    """Three marks of 128 bits over three tensors, of which every mark uses some of each."""
    rng = np.random.default_rng(0)
    state = {name: rng.normal(size=(16, 64)).astype(np.float32) for name in "abc"}
    layout = checkpoint_of(state).layout
    path = desk.idle(
        tmp_path / "chain", layout, shards=3, bits=128, load=0.0625, key=request.param, live=True
    )
    found: Claimant = desk.claimant(path)
    return found


def weights(seed: int = 1) -> Arrays:
    rng = np.random.default_rng(seed)
    return {at: rng.normal(size=(16, 64)).astype(np.float32) for at in range(3)}


def blocks_in(claimant: Claimant, shard: int, tensor: int) -> int:
    mark = claimant.mark(shard).mark
    return sum(claimant.carrier.locate(block).tensor == tensor for block in mark.blocks)


def reading(claimant: Claimant, arrays: Mapping[int, Any], shard: int = 1, **options: Any) -> Any:
    return read_mark(claimant, claimant.mark(shard), ArraySource(arrays), **options).reading


def test_a_whole_mark_reads_as_the_verifier_reads_it(claimant: Claimant) -> None:
    arrays = weights()
    checkpoint = checkpoint_of({name: arrays[at] for at, name in enumerate("abc")})
    for shard in (1, 2, 3):
        derived = claimant.mark(shard)
        expected = read(derived.mark, values_of(derived.mark, claimant.carrier, checkpoint))
        assert reading(claimant, arrays, shard) == expected
        found = read_mark(claimant, derived, CheckpointSource(checkpoint))
        assert (found.shard, found.reading, found.live) == (shard, expected, True)


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_a_missing_tensor_takes_away_the_bits_of_its_blocks(claimant: Claimant, shard: int) -> None:
    arrays = weights()
    del arrays[1]
    found = reading(claimant, arrays, shard)
    if claimant.manifest.terms.scheme.key == "dense":
        assert found.bits == 128
    else:
        assert found.bits == 128 - 16 * blocks_in(claimant, shard, 1)
    whole = reading(claimant, weights(), shard)
    assert 0 < found.bits <= whole.bits
    assert found.matches <= found.bits


def test_nothing_there_is_no_reading(claimant: Claimant) -> None:
    found = read_mark(claimant, claimant.mark(1), ArraySource({}))
    assert (found.reading.bits, found.reading.matches) == (0, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_with_one_broken_weight_is_not_read(claimant: Claimant, value: float) -> None:
    where = claimant.carrier.locate(claimant.mark(1).mark.blocks[0])
    arrays = weights()
    arrays[where.tensor].reshape(-1)[where.element + 7] = value
    found = reading(claimant, arrays)
    if claimant.manifest.terms.scheme.key == "dense":
        # Its block counts as zeros, so the others decide.
        zeroed = weights()
        zeroed[where.tensor].reshape(-1)[where.element : where.element + 256] = 0
        assert found == reading(claimant, zeroed)
    else:
        assert found.bits == 128 - 16
        others = reading(claimant, weights(), groups=range(1, 8))
        assert found == others


def test_weights_that_are_all_broken_are_no_reading(claimant: Claimant) -> None:
    arrays = {at: np.full((16, 64), np.nan, np.float32) for at in range(3)}
    assert reading(claimant, arrays).bits == 0


def test_zeros_match_nothing(claimant: Claimant) -> None:
    """A pruned block is there, and says nothing in favour of anybody."""
    found = reading(claimant, {at: np.zeros((16, 64), np.float32) for at in range(3)})
    assert (found.bits, found.matches) == (128, 0)
    assert found.log2_p == 0


@pytest.mark.parametrize("value", [1e-300, -1e300, 3e38, np.finfo(np.float64).max])
def test_odd_but_finite_weights_are_read(claimant: Claimant, value: float) -> None:
    found = reading(claimant, {at: np.full((16, 64), value) for at in range(3)})
    assert found.bits == 128


def test_some_groups_alone_add_up_to_the_whole(claimant: Claimant) -> None:
    mark = claimant.mark(2).mark
    parts = [reading(claimant, weights(), 2, groups=[g]) for g in range(mark.groups)]
    whole = reading(claimant, weights(), 2)
    assert sum(part.bits for part in parts) == whole.bits
    assert sum(part.matches for part in parts) == whole.matches
    assert reading(claimant, weights(), 2, groups=[]).bits == 0


def test_which_bits_are_missing_does_not_depend_on_what_they_should_be(desk: Any, tmp_path: Path
) -> None:  # fmt: skip
    """With a tensor away the rest is still chance: 400 marks, two-sided, wrong in 1 of 1000."""
    state = dict(zip("abc", weights().values(), strict=True))
    layout = checkpoint_of(state).layout
    path = desk.idle(tmp_path / "x", layout, shards=400, live=True, bits=128, load=0.0625)
    claimant = desk.claimant(path)
    arrays = {0: weights()[0], 2: np.abs(weights()[2])}
    source = ArraySource(arrays)
    found = [read_mark(claimant, mark, source).reading for mark in claimant.marks()[0]]
    bits, matches = sum(r.bits for r in found), sum(r.matches for r in found)
    assert 0.6 < bits / (400 * 128) < 0.73
    assert log2_tail(bits, matches) > -11
    assert log2_tail(bits, bits - matches) > -11


def test_a_checkpoint_reads_like_a_found_model() -> None:
    state = {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(5, dtype=np.float16),
        "steps": np.array([3], dtype=np.int64),
    }
    with found_in(checkpoint_of(state)) as found:
        assert set(found.tensors) == {"a.weight", "b"}
        assert found.values("a.weight").tolist() == state["a.weight"].tolist()
        assert found.read("b", 1, 3).tolist() == [1.0, 2.0]

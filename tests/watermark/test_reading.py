"""Reading is exact, and says nothing about weights that carry no mark."""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polo.errors import TermsError, WeightsError
from polo.protocol.carrier import Carrier
from polo.protocol.records import SchemeTerms
from polo.watermark import Mark, OpenedCheckpoint, read, reading, values_of
from polo.watermark.ednn import are_small, fixed_point, keyed_sums, matches, signed_sums
from polo.weights import MemoryCheckpoint, commit, dtypes
from polo.weights.checkpoint import Checkpoint


def mark_of(bits: int, blocks: tuple[int, ...], key: str = "block", seed: bytes = b"s") -> Mark:
    load = round(bits / len(blocks) / 256 * 1e6)
    terms = SchemeTerms("ednn", bits, 256, load, key, 1000, "sum", 1)
    assert terms.blocks == len(blocks)
    return Mark(terms, blocks, hashlib.sha256(seed).digest())


def exact_units(value: float) -> int:
    """A weight in units of 2^-40, by rational arithmetic; Python rounds halves to even."""
    return max(-(2**48), min(2**48, round(Fraction(value) * 2**40)))


def exact_sums(signs: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> list[int]:
    units = [exact_units(float(value)) for value in values]
    return [sum(int(s) * u for s, u in zip(row, units, strict=True)) for row in signs]


TINY = float(np.finfo(np.float64).smallest_subnormal)
UNIT = 2.0**-40
AWKWARD = np.array(
    [
        0.0, -0.0, TINY, -TINY, float(np.finfo(np.float32).smallest_subnormal), 1e-300,
        UNIT, -UNIT, UNIT / 2, -UNIT / 2, 1.5 * UNIT, 2.5 * UNIT, -1.5 * UNIT, -2.5 * UNIT,
        np.nextafter(UNIT / 2, 1), np.nextafter(UNIT / 2, 0), 0.1, -0.1, 1 / 3, 1.0, -1.0,
        256.0, -256.0, np.nextafter(256.0, 0), np.nextafter(256.0, 300), 257.0, -1e9, 1e30,
        -1e300, float(np.finfo(np.float64).max), -float(np.finfo(np.float64).max),
        2.0**23, 2.0**-23 + 1, 255.99999999,
    ]
)  # fmt: skip


def test_weights_become_multiples_of_two_to_the_minus_forty() -> None:
    assert fixed_point(AWKWARD).tolist() == [exact_units(float(value)) for value in AWKWARD]


def test_random_weights_of_every_size_become_the_exact_integers() -> None:
    random = np.random.default_rng(2)
    values = np.ldexp(random.normal(size=4000), random.integers(-60, 12, 4000))
    for array in (values, values.astype(np.float32), values.astype(np.float32) * 3):
        assert fixed_point(array).tolist() == [exact_units(float(value)) for value in array]


@pytest.mark.parametrize("weights", [1, 16, 256, 2048, 2**14])
@pytest.mark.parametrize("kind", ["random", "awkward", "largest", "heavy", "cancelling"])
def test_signed_sums_equal_big_integers(weights: int, kind: str) -> None:
    random = np.random.default_rng(weights)
    signs = random.choice(np.array([-1, 1], dtype=np.int8), (8, weights))
    if kind == "random":
        values = np.ldexp(random.normal(size=weights), random.integers(-45, 9, weights))
    elif kind == "awkward":
        values = np.resize(AWKWARD, weights)
    elif kind == "largest":
        # All signs with and all against the weights: the largest sums that there are.
        values = np.full(weights, -300.0)
        signs[0], signs[1] = 1, -1
    elif kind == "heavy":
        # Nearly as large, and with every bit of the fixed point in use.
        values = random.uniform(255, 256, weights)
        signs[0], signs[1] = 1, -1
    else:
        # Large weights that cancel and leave one unit.
        values = np.full(weights, 255.999)
        values[0] += UNIT if weights % 2 else 0
        signs[0] = np.where(np.arange(weights) % 2, 1, -1)
    assert signed_sums(signs, fixed_point(values)).tolist() == exact_sums(signs, values)


@st.composite
def keyed(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bits of keys and their factors, around the size from which two products are needed."""
    groups, rows, columns = (draw(st.integers(1, most)) for most in (3, 300, 40))
    largest = min(2**48, 2**53 // columns + draw(st.sampled_from([-1, 0, 1, 2**20])))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    units = random.integers(-largest, largest, (groups, columns), endpoint=True)
    if draw(st.booleans()):
        units = np.full((groups, columns), largest * draw(st.sampled_from([-1, 1])))
    plus = random.integers(0, 2, (groups, rows, columns), dtype=np.uint8)
    plus[:, 0] = draw(st.integers(0, 1))
    return plus, units


@settings(max_examples=100, deadline=None)
@given(keyed())
def test_keyed_sums_equal_big_integers(
    case: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> None:
    plus, units = case
    exact = ((2 * plus.astype(object) - 1) * units.astype(object)[:, None]).sum(axis=-1)
    assert keyed_sums(plus, units).tolist() == exact.tolist()
    assert keyed_sums(plus[0], units[0]).tolist() == exact[0].tolist()


def test_two_products_are_needed_from_where_one_may_round() -> None:
    odd = np.full((1, 64), 2**47, dtype=np.int64)
    assert are_small(odd)
    odd[0, 5] += 1
    assert not are_small(odd)
    assert not are_small(-odd)


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 600])
def test_sums_are_right_for_any_number_of_bits(rows: int) -> None:
    random = np.random.default_rng(rows)
    signs = random.choice(np.array([-1, 1], dtype=np.int8), (rows, 32))
    values = random.normal(size=32)
    assert signed_sums(signs, fixed_point(values)).tolist() == exact_sums(signs, values)


@pytest.mark.parametrize("key", ["block", "dense"])
def test_every_bit_is_the_sign_of_its_exact_sum(key: str) -> None:
    mark = mark_of(96, (4, 0, 2), key)
    values = np.random.default_rng(0).normal(size=(3, 256))
    values[1] = np.resize(AWKWARD, 256)
    groups = values.reshape(mark.groups, -1)
    expected = [
        [(total > 0) if wanted else (total < 0) for total, wanted in zip(sums, bits, strict=True)]
        for sums, bits in (
            (exact_sums(mark.signs(group), groups[group]), mark.bits[group])
            for group in range(mark.groups)
        )
    ]
    assert matches(mark, values, range(mark.groups)).tolist() == expected
    assert read(mark, values).matches == sum(map(sum, expected))


def test_a_sum_of_zero_matches_neither_bit() -> None:
    mark = mark_of(64, (0, 1))
    assert mark.bits.any()
    assert not mark.bits.all()
    assert read(mark, np.zeros((2, 256))).matches == 0
    assert read(mark, np.full((2, 256), UNIT / 2)).matches == 0  # halves round to even, to zero


def test_a_difference_of_one_unit_decides_a_bit() -> None:
    mark = mark_of(32, (0,))
    # Weights that cancel exactly on bit 0 ...
    values = np.where(np.arange(256) % 2, 1.0, -1.0) * mark.signs(0)[0]
    assert signed_sums(mark.signs(0), fixed_point(values))[0] == 0
    sign = 1 if mark.bits[0, 0] else -1
    for step, right in ((UNIT, True), (-UNIT, False)):
        moved = values.copy()
        # ... and one of them moved by the least that there is.
        moved[0] += step * sign * mark.signs(0)[0, 0]
        assert bool(matches(mark, moved.reshape(1, 256), [0])[0, 0]) is right


def test_the_order_of_blocks_is_the_marks_and_not_the_carriers() -> None:
    weights = np.arange(1024, dtype=np.float32).reshape(4, 256)
    checkpoint = MemoryCheckpoint({"w": weights})
    carrier = Carrier(checkpoint.layout, ("w",), 256)
    values = values_of(mark_of(96, (3, 0, 2)), carrier, checkpoint)
    assert values[:, 0].tolist() == [768, 0, 512]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_narrow_types_are_read_without_loss(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = (torch.randn(8, 256) * torch.logspace(-6, 2, 256)).to(dtype)
    checkpoint = MemoryCheckpoint({"w": weights})
    carrier = Carrier(checkpoint.layout, ("w",), 256)
    mark = mark_of(128, (7, 1, 0, 4))
    values = values_of(mark, carrier, checkpoint)
    assert np.array_equal(values, weights.double().numpy()[[7, 1, 0, 4]])
    as_double = MemoryCheckpoint({"w": weights.double()})
    assert read(mark, values) == read(mark, values_of(mark, carrier_for(as_double), as_double))


def carrier_for(checkpoint: Checkpoint) -> Carrier:
    return Carrier(checkpoint.layout, tuple(t.name for t in checkpoint.layout.tensors), 256)


def test_subnormal_halves_are_read_as_what_they_are() -> None:
    raw = torch.arange(-(2**15), 2**15).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        finite = raw.view(dtype)
        finite = finite[finite.isfinite()]
        finite = finite[: len(finite) // 256 * 256]
        checkpoint = MemoryCheckpoint({"w": finite})
        blocks = tuple(range(len(finite) // 256))
        mark = Mark(
            SchemeTerms("ednn", 8 * len(blocks), 256, 31250, "block", 1, "sum", 1),
            blocks,
            bytes(32),
        )
        values = values_of(mark, carrier_for(checkpoint), checkpoint)
        assert np.array_equal(values.reshape(-1), finite.double().numpy())


def test_openings_read_like_whole_checkpoints() -> None:
    torch.manual_seed(0)
    checkpoint = MemoryCheckpoint(
        {"a": torch.randn(40, 256), "b": torch.randn(9, 512).bfloat16(), "c": torch.randn(300)}
    )
    carrier = carrier_for(checkpoint)
    mark = mark_of(128, (3, 41, carrier.blocks - 1, 17))
    where = carrier.leaves(mark.blocks)
    assert len(where) < checkpoint.layout.leaf_count
    opening = commit(checkpoint).open(checkpoint, where)
    opened = OpenedCheckpoint(checkpoint.layout, opening.chunks)
    assert np.array_equal(values_of(mark, carrier, opened), values_of(mark, carrier, checkpoint))


def one_by_one(
    blocks: Sequence[int], carrier: Carrier, checkpoint: Checkpoint
) -> np.ndarray[Any, Any]:
    """What `values_of` finds, a block at a time."""
    rows = []
    for block in blocks:
        at, element = carrier.locate(block)
        tensor = carrier.layout.tensors[at]
        size = tensor.size // tensor.elements
        data = checkpoint.read(at, element * size, (element + carrier.block) * size)
        rows.append(dtypes.to_float(data, tensor.dtype))
    return np.stack(rows)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_blocks_of_any_types_are_read_as_they_are_one_by_one(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_TOGETHER", data.draw(st.sampled_from([1, 3, 256])))
        check_one_by_one(data)


def check_one_by_one(data: st.DataObject) -> None:
    kinds = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
    tensors = data.draw(st.lists(st.tuples(kinds, st.integers(256, 2000)), min_size=1, max_size=5))
    torch.manual_seed(0)
    state = {f"t{at}": torch.randn(size).to(kind) for at, (kind, size) in enumerate(tensors)}
    checkpoint = MemoryCheckpoint(state)
    carrier = carrier_for(checkpoint)
    every = st.permutations(range(carrier.blocks))
    blocks = data.draw(every)[: data.draw(st.integers(1, carrier.blocks))]
    mark = mark_of(8 * len(blocks), tuple(blocks))
    found, expected = values_of(mark, carrier, checkpoint), one_by_one(blocks, carrier, checkpoint)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_of_several_tensors_that_are_not_finite_the_marks_first_is_named() -> None:
    state = {"a": torch.zeros(512).half(), "b": torch.zeros(512), "c": torch.zeros(512).double()}
    for name in ("a", "b", "c"):
        state[name][300] = float("inf")
    checkpoint = MemoryCheckpoint(state)
    carrier = carrier_for(checkpoint)
    for blocks, name in (((0, 3, 1), "b"), ((2, 5, 3), "c"), ((4, 1, 5, 3), "a")):
        with pytest.raises(WeightsError) as caught:
            values_of(mark_of(8 * len(blocks), blocks), carrier, checkpoint)
        assert caught.value.place == name
    assert not values_of(mark_of(24, (0, 2, 4)), carrier, checkpoint).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_marks_are_not_read_out_of_weights_that_are_not_finite(bad: float) -> None:
    weights = torch.zeros(4, 256)
    weights[2, 5] = bad
    checkpoint = MemoryCheckpoint({"layer.weight": weights})
    mark = mark_of(64, (0, 2))
    with pytest.raises(WeightsError) as caught:
        values_of(mark, carrier_for(checkpoint), checkpoint)
    assert caught.value.place == "layer.weight"


def test_an_unknown_scheme_is_refused_by_name() -> None:
    terms = SchemeTerms("nobody", 32, 256, 125_000, "block", 1000, "sum", 1)
    with pytest.raises(TermsError, match="nobody"):
        read(Mark(terms, (0,), bytes(32)), np.ones((1, 256)))


def unmarked(kind: str) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(11)
    if kind == "normal":
        return random.normal(size=(8, 256)) * 0.05
    if kind == "all positive":
        return random.exponential(size=(8, 256))
    if kind == "one weight rules":
        values = random.normal(size=(8, 256)) * 1e-6
        values[:, 3] = 1.0
        return values
    # Marked for somebody else: pressed in with another seed.
    other = mark_of(256, tuple(range(8)), seed=b"somebody else")
    wanted = np.where(other.bits, 1.0, -1.0)
    return np.stack([wanted[at] @ other.signs(at) for at in range(8)]) * 0.01


@pytest.mark.parametrize(
    "kind", ["normal", "all positive", "one weight rules", "marked by another"]
)
@pytest.mark.parametrize("key", ["block", "dense"])
def test_unmarked_weights_match_like_fair_coins(kind: str, key: str) -> None:
    """Over 400 seeds: the mean, the spread and the shape of Binomial(256, ½)."""
    values = unmarked(kind)
    blocks = tuple(range(8))
    seeds, bits = 400, 256
    found = np.array(
        [read(mark_of(bits, blocks, key, b"%d" % at), values).matches for at in range(seeds)]
    )
    z = (found.sum() - seeds * bits / 2) / (seeds * bits / 4) ** 0.5
    assert abs(z) < 4.5
    spread = found.var(ddof=1) / (bits / 4)
    assert abs(spread - 1) < 4.5 * (2 / (seeds - 1)) ** 0.5
    # Thirds of the distribution, by the normal quantile: about 133 seeds each.
    low, high = bits / 2 - 0.4307 * 8, bits / 2 + 0.4307 * 8
    thirds = [(found < low).sum(), ((found >= low) & (found <= high)).sum(), (found > high).sum()]
    assert min(thirds) > 90


def test_a_pressed_mark_reads_perfectly_and_only_with_its_own_seed() -> None:
    mark = mark_of(256, tuple(range(8)))
    wanted = np.where(mark.bits, 1.0, -1.0)
    values = np.stack([wanted[at] @ mark.signs(at) for at in range(8)])
    assert read(mark, values).matches == 256
    assert read(mark_of(256, tuple(range(8)), seed=b"other"), values).matches < 180

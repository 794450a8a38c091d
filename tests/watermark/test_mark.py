"""Derived marks are laid out as the design says; rebuilt here from hashlib alone."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import polo
from polo.errors import CapacityError
from polo.protocol import derivation
from polo.protocol.carrier import Carrier
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import SchemeTerms
from polo.watermark import Mark, carrier_of, derive

SEED = hashlib.sha256(b"a seed").digest()


def scheme(
    bits: int = 64, block: int = 256, load: float = 0.125, key: str = "block"
) -> SchemeTerms:
    return SchemeTerms("ednn", bits, block, round(load * 1e6), key, 1000, "sum", 1)


def shake(label: str, index: int, size: int) -> bytes:
    data = bytes([len(label)]) + label.encode() + SEED + index.to_bytes(4, "little")
    return hashlib.shake_256(data).digest(size)


def bit(data: bytes, at: int) -> int:
    return data[at // 8] >> (at % 8) & 1


def drawn_blocks(blocks: int) -> Iterator[int]:
    """Blocks in the order of the stream, each once, without bias."""
    limit, seen = 2**64 // blocks * blocks, set()
    data = shake("polo/positions/1", 0, 8 * 10_000)
    for at in range(0, len(data), 8):
        word = int.from_bytes(data[at : at + 8], "little")
        if word < limit and word % blocks not in seen:
            seen.add(word % blocks)
            yield word % blocks


def layout_of(*shapes: tuple[int, ...]) -> Layout:
    tensors = tuple(Tensor(f"t{at}", "F32", shape) for at, shape in enumerate(shapes))
    return Layout(CHUNK_BYTES, tensors, ())


def mark_in(layout: Layout, terms: SchemeTerms) -> Mark:
    carrier = Carrier(layout, tuple(t.name for t in layout.tensors), terms.block)
    positions = drawn_blocks(carrier.blocks)
    return Mark(terms, tuple(next(positions) for _ in range(terms.blocks)), SEED)


@pytest.mark.parametrize(
    ("bits", "block", "load", "blocks"),
    [(64, 256, 0.125, 2), (256, 256, 0.125, 8), (512, 16, 1.0, 32), (96, 512, 0.0625, 3)],
)
def test_a_mark_takes_as_many_blocks_as_its_load_says(
    bits: int, block: int, load: float, blocks: int
) -> None:
    terms = scheme(bits, block, load)
    assert terms.blocks == blocks
    mark = mark_in(layout_of((blocks * block * 3,)), terms)
    assert (mark.groups, mark.group_bits, mark.group_weights) == (blocks, bits // blocks, block)


def test_derive_draws_the_blocks_of_the_position_stream(
    enrol: Callable[..., polo.OfflineEnrolment], task: polo.tasks.Task
) -> None:
    terms = enrol(bits=256).record.terms
    carrier = carrier_of(terms, polo.weights.checkpoint_of(task.build_model()).layout)
    positions = drawn_blocks(carrier.blocks)
    assert derive(terms, carrier, SEED).blocks == tuple(next(positions) for _ in range(8))


@pytest.mark.parametrize("blocks", [1, 2, 3, 40, 200, 2**40 + 1])
def test_words_do_not_run_out_before_all_blocks_are_drawn(blocks: int) -> None:
    count = min(blocks, 200)
    drawn = drawn_blocks(blocks)
    expected = tuple(next(drawn) for _ in range(count))
    assert derivation.positions(SEED, count, blocks) == expected


@pytest.mark.parametrize("key", ["block", "dense"])
def test_bits_are_the_stream_from_the_least_significant_bit_on(key: str) -> None:
    mark = mark_in(layout_of((4096,)), scheme(96, 256, 0.125, key))
    stream = shake("polo/bits/1", 0, 12)
    expected = [bit(stream, at) for at in range(96)]
    assert mark.bits.shape == ((3, 32) if key == "block" else (1, 96))
    assert mark.bits.reshape(-1).astype(int).tolist() == expected


def test_every_block_has_a_small_key_of_its_own() -> None:
    mark = mark_in(layout_of((4096,)), scheme(96))
    for group in range(3):
        stream = shake("polo/key/1", group, 32 * 256 // 8)
        signs = mark.signs(group)
        assert signs.shape == (32, 256)
        for row, column in ((0, 0), (0, 7), (0, 8), (1, 0), (17, 99), (31, 255)):
            assert signs[row, column] == 2 * bit(stream, row * 256 + column) - 1
        assert set(np.unique(signs)) == {-1, 1}


def test_a_dense_key_reads_every_bit_from_all_blocks() -> None:
    mark = mark_in(layout_of((4096,)), scheme(96, key="dense"))
    stream = shake("polo/key/1", 0, 96 * 768 // 8)
    signs = mark.signs(0)
    assert (mark.groups, signs.shape) == (1, (96, 768))
    for row, column in ((0, 0), (0, 767), (1, 0), (95, 767)):
        assert signs[row, column] == 2 * bit(stream, row * 768 + column) - 1


def test_keys_that_do_not_fill_a_byte_are_cut() -> None:
    # One bit of one block of 16 weights: 16 signs a group, and 9 groups of bits do not fill bytes.
    mark = mark_in(layout_of((1024,)), scheme(9, 16, 1 / 16))
    assert mark.bits.shape == (9, 1)
    assert mark.signs(8).shape == (1, 16)


def test_another_seed_gives_another_mark_in_every_part(
    enrol: Callable[..., polo.OfflineEnrolment], task: polo.tasks.Task
) -> None:
    terms = enrol(bits=256).record.terms
    carrier = carrier_of(terms, polo.weights.checkpoint_of(task.build_model()).layout)
    one, other = (derive(terms, carrier, hashlib.sha256(name).digest()) for name in (b"1", b"2"))
    assert one.blocks != other.blocks
    assert (one.bits != other.bits).any()
    assert (one.signs(0) != other.signs(0)).any()


def test_positions_are_uniform_over_the_blocks(
    enrol: Callable[..., polo.OfflineEnrolment], task: polo.tasks.Task
) -> None:
    terms = enrol(bits=128).record.terms
    carrier = carrier_of(terms, polo.weights.checkpoint_of(task.build_model()).layout)
    draws = 2000
    counts = np.zeros(carrier.blocks)
    for at in range(draws):
        blocks = derive(terms, carrier, hashlib.sha256(b"%d" % at).digest()).blocks
        assert len(set(blocks)) == terms.scheme.blocks
        counts[list(blocks)] += 1
    expected = draws * terms.scheme.blocks / carrier.blocks
    # Hypergeometric, so slightly below chi-square with 20 degrees of freedom; 56 is 1e-5.
    assert ((counts - expected) ** 2 / expected).sum() < 56


def test_a_mark_may_fill_the_whole_carrier() -> None:
    mark = mark_in(layout_of((256, 3), (256,), (255,)), scheme(128))
    assert sorted(mark.blocks) == [0, 1, 2, 3]


def test_blocks_never_span_two_tensors() -> None:
    carrier = Carrier(layout_of((700,), (256,), (255,), (513,)), ("t0", "t1", "t2", "t3"), 256)
    found = [(where.tensor, where.element) for where in map(carrier.locate, range(carrier.blocks))]
    assert found == [(0, 0), (0, 256), (1, 0), (3, 0), (3, 256)]


def test_a_carrier_too_small_for_one_mark_is_refused_with_advice(
    enrol: Callable[..., polo.OfflineEnrolment], task: polo.tasks.Task
) -> None:
    # No issuer's `make_terms` signs these; a verifier may still be shown them.
    terms = replace(enrol(bits=256).record.terms, carrier=("5.weight",))
    with pytest.raises(CapacityError, match="takes 8 blocks; the carrier has 1") as caught:
        carrier_of(terms, polo.weights.checkpoint_of(task.build_model()).layout)
    assert caught.value.advice

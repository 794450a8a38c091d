"""Advice: which scheme, size and load suit a model."""

from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.watermark.advice import ROOM, advise
from polo.watermark.capacity import Capacity, capacity
from polo.watermark.schemes import SCHEMES


def fits(**shapes: tuple[int, ...]) -> dict[str, Capacity]:
    names = {name.replace("__", "."): shape for name, shape in shapes.items()}
    tensors = tuple(Tensor(name, "F32", names[name]) for name in sorted(names))
    layout = Layout(CHUNK_BYTES, tensors, ())
    return {
        name: capacity(layout, block=scheme.defaults.block, scheme=name)
        for name, scheme in SCHEMES.items()
    }


def test_a_large_model_gets_a_large_mark_at_a_light_load() -> None:
    found = advise(fits(layer__weight=(4096, 1024)))
    assert found is not None
    assert (found.scheme, found.bits, found.load) == ("ednn", 1024, 31_250)
    assert found.share <= ROOM
    assert len(found.reasons) == 3


def test_a_smaller_one_gets_what_leaves_room() -> None:
    found = advise(fits(layer__weight=(128, 512)))
    assert found is not None
    assert found.scheme == "ednn"
    assert found.bits < 1024
    assert found.share <= ROOM


def test_a_tiny_one_is_told_that_marks_will_overwrite_each_other() -> None:
    found = advise(fits(layer__weight=(64, 64)))
    assert found is not None
    assert found.share > ROOM
    assert any("overwrites" in reason for reason in found.reasons)


def test_small_carriers_get_small_marks_at_the_schemes_own_load() -> None:
    # Room for 512 bits at a load of 0.25, which would wear the marks before it off.
    found = advise(fits(layer__weight=(64, 84)))
    assert found is not None
    assert (found.scheme, found.bits, found.load) == ("ednn", 128, 125_000)
    # Where not even that leaves half of the blocks, more bits share a weight.
    found = advise(fits(layer__weight=(32, 32)))
    assert found is not None
    assert (found.bits, found.load, found.share) == (128, 250_000, 0.5)


def test_adapters_get_what_reads_best_when_merged_and_small_ones_signs() -> None:
    shapes = {f"q{at}__lora_A__weight": (8, 576) for at in range(60)}
    found = advise(fits(**shapes))
    assert found is not None
    assert (found.scheme, found.bits) == ("ednn", 1024)
    assert found.share <= ROOM
    found = advise(fits(q__lora_A__weight=(8, 576)))
    assert found is not None
    assert found.scheme == "signed"


def test_where_nothing_fits_nothing_is_advised() -> None:
    assert advise(fits(layer__bias=(64,))) is None


def test_norm_scales_are_the_last_resort() -> None:
    found = advise(fits(norm__weight=(4800,)))
    assert found is not None
    assert found.scheme == "fedipr"


def test_what_is_advised_fits() -> None:
    for rows in (8, 32, 100, 700, 5000):
        room = fits(layer__weight=(rows, 96), norm__weight=(rows,))
        found = advise(room)
        if found is not None:
            assert room[found.scheme].objection(found.bits, found.load) == ""

"""Number formats: our conversions are those of torch, to the last bit."""

import tracemalloc

import numpy as np
import pytest
import torch

from polo.errors import WeightsError
from polo.weights import dtypes

CARRIERS = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def awkward() -> torch.Tensor:
    """Numbers of every size, ties between halves and between brains, and their neighbours."""
    torch.manual_seed(0)
    base = torch.arange(2**16).to(torch.int32)
    # Every upper half of a float with the lower halves that decide about rounding.
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x2FFF, 0x3000, 0x1001])
    bits = (base[:, None] << 16 | lower.to(torch.int32)).reshape(-1)
    values = bits.view(torch.float32)
    return values[values.isfinite()]


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_narrow_values_are_widened_without_loss(name: str) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(CARRIERS[name])
    every = every[every.isfinite()]
    assert np.array_equal(dtypes.to_float(raw(every), name), every.float().numpy())


@pytest.mark.parametrize("name", CARRIERS)
def test_floats_are_narrowed_as_torch_narrows_them(name: str) -> None:
    values = awkward()
    narrowed = values.to(CARRIERS[name])
    kept = narrowed.isfinite()
    found = dtypes.from_float(values[kept].numpy(), name)
    assert found == raw(narrowed[kept])


@pytest.mark.parametrize("name", CARRIERS)
def test_doubles_are_narrowed_as_torch_narrows_them(name: str) -> None:
    values = awkward()[::7].double()
    values = torch.cat([values, values * (1 + 2**-40), values * (1 - 2**-40), values * 1.1])
    narrowed = values.to(CARRIERS[name])
    kept = narrowed.isfinite()
    found = dtypes.from_float(values[kept].numpy(), name)
    assert found == raw(narrowed[kept])


@pytest.mark.parametrize("name", ["F16", "BF16", "F32"])
def test_what_is_too_large_becomes_infinite_without_a_warning(name: str) -> None:
    values = torch.tensor([1e39, -1e300, 3.4028234e38], dtype=torch.float64)
    assert dtypes.from_float(values.numpy(), name) == raw(values.to(CARRIERS[name]))


@pytest.mark.parametrize("name", CARRIERS)
def test_there_and_back_is_the_same(name: str) -> None:
    values = awkward().to(CARRIERS[name])
    values = values[values.isfinite()]
    assert dtypes.from_float(dtypes.to_float(raw(values), name), name) == raw(values)


@pytest.mark.parametrize("name", ["I32", "BOOL", "C64", "F8_E4M3"])
def test_other_types_are_not_read_as_floats(name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        dtypes.to_float(bytes(16), name)


def test_unknown_types_are_refused_with_advice() -> None:
    with pytest.raises(WeightsError, match="qint8") as caught:
        dtypes.name_of_torch(torch.qint8, place="layer.weight")
    assert (caught.value.place, bool(caught.value.advice)) == ("layer.weight", True)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_names_of_torch_types_lead_both_ways() -> None:
    for name in dtypes._TORCH:
        assert dtypes.name_of_torch(dtypes.torch_dtype(name), place="") == name


def test_what_is_not_finite_is_found_without_much_memory() -> None:
    data = np.zeros(2**24, np.uint16)
    data[-1] = 0x7F80
    tracemalloc.start()
    assert not dtypes.is_finite(data.data.cast("B"), "BF16")
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()

"""Canonical bytes: whatever the type, the strides, the wrapper or the library."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polo.errors import WeightsError
from polo.protocol.layout import DTYPE_BYTES, Tie
from polo.weights import checkpoint_of, commit
from polo.weights.checkpoint import MemoryCheckpoint, canonical_names

TORCH = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16,
    "I16": torch.int16, "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64,
    "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64, "C32": torch.complex32,
    "C64": torch.complex64, "C128": torch.complex128,
}  # fmt: skip
NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4",
    "U64": "u8", "I64": "i8", "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16",
}  # fmt: skip

SHAPE = (4, 3, 6, 5)
# Each turns elements that are rows of raw bytes; what is then contiguous by rows is canonical.
STRIDES: dict[str, Any] = {
    "contiguous": lambda raw: raw,
    "transposed": lambda raw: raw.transpose(3, 1, 0, 2, 4),
    "channels last": lambda raw: np.ascontiguousarray(raw.transpose(0, 2, 3, 1, 4)).transpose(
        0, 3, 1, 2, 4
    ),
    "every other": lambda raw: raw[::2, 1:, ::3],
    "expanded": lambda raw: np.broadcast_to(raw[:1, :, :1], raw.shape),
    "one of many": lambda raw: raw[2:3, :, 4, 1:2],
    "no dimension": lambda raw: raw[1, 2, 3, 4],
    "overlapping": lambda raw: np.ndarray(
        (3, 4, raw.shape[-1]), np.uint8, raw, strides=(raw.shape[-1], raw.shape[-1], 1)
    ),
}


def raw_bytes(name: str) -> np.ndarray[Any, Any]:
    size = DTYPE_BYTES[name]
    # Fixed, and below 0x70 so that no pattern is NaN or infinite in any type.
    raw = np.random.default_rng(5).integers(0, 0x70, (*SHAPE, size)).astype(np.uint8)
    return raw & 1 if name == "BOOL" else raw


def as_torch(raw: np.ndarray[Any, Any], name: str) -> torch.Tensor:
    """The same memory with the same strides, seen by torch as elements of a type."""
    base = raw
    while isinstance(base.base, np.ndarray):
        base = base.base
    offset = raw.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    whole = torch.from_numpy(base.reshape(-1))
    return whole.as_strided(raw.shape, raw.strides, offset).view(TORCH[name]).squeeze(-1)


def all_bytes(checkpoint: MemoryCheckpoint, tensor: int = 0) -> bytes:
    return bytes(checkpoint.read(tensor, 0, checkpoint.layout.tensors[tensor].size))


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_bytes_are_row_major_little_endian_whatever_type_and_strides(
    name: str, strides: str
) -> None:
    raw = STRIDES[strides](raw_bytes(name))
    tensor = as_torch(raw, name)
    checkpoint = MemoryCheckpoint({"w": tensor})
    found = checkpoint.layout.tensors[0]
    assert (found.dtype, found.shape) == (name, raw.shape[:-1])
    assert all_bytes(checkpoint) == raw.tobytes()
    assert commit(checkpoint).root == commit(MemoryCheckpoint({"w": tensor.contiguous()})).root


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("name", NUMPY)
def test_numpy_and_torch_agree_in_both_byte_orders(name: str, strides: str) -> None:
    raw = STRIDES[strides](raw_bytes(name))
    values = np.frombuffer(raw.tobytes(), NUMPY[name]).reshape(raw.shape[:-1])
    ours = commit(MemoryCheckpoint({"w": as_torch(raw, name)})).root
    for array in (
        values,
        values.astype(values.dtype.newbyteorder(">")),
        np.array(values, order="F"),
    ):
        checkpoint = MemoryCheckpoint({"w": array})
        assert all_bytes(checkpoint) == raw.tobytes()
        assert commit(checkpoint).root == ours


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_pieces_join_to_the_whole(name: str) -> None:
    raw = raw_bytes(name).transpose(3, 1, 0, 2, 4)
    for value in (as_torch(raw, name), as_torch(np.ascontiguousarray(raw), name)):
        checkpoint = MemoryCheckpoint({"w": value})
        step = 7 * DTYPE_BYTES[name]
        pieces = [
            bytes(checkpoint.read(0, at, min(at + step, raw.size)))
            for at in range(0, raw.size, step)
        ]
        assert b"".join(pieces) == raw.tobytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (0, 0)])
def test_tensors_without_elements_are_in_the_layout_and_have_no_bytes(
    shape: tuple[int, ...],
) -> None:
    full = torch.ones(3)
    with_empty = MemoryCheckpoint({"a": torch.empty(shape), "b": full})
    assert with_empty.layout.tensors[0].shape == shape
    assert with_empty.layout.leaf_count == 1
    assert commit(with_empty).root != commit(MemoryCheckpoint({"b": full})).root
    # Two empty tensors have no memory to share: they are no tie.
    both = MemoryCheckpoint({"a": torch.empty(shape), "b": torch.empty(shape), "c": full})
    assert not both.layout.ties


@pytest.mark.parametrize("view", ["conj", "neg"])
def test_lazy_conjugation_and_negation_are_resolved(view: str) -> None:
    values = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    lazy = torch.view_as_complex(torch.from_numpy(values)).conj()
    if view == "conj":
        assert lazy.is_conj()
        expected = values * np.float32([1, -1])
    else:
        lazy = lazy.imag
        assert lazy.is_neg()
        expected = np.ascontiguousarray(-values[:, 1])
    assert all_bytes(MemoryCheckpoint({"w": lazy})) == expected.tobytes()
    assert all_bytes(MemoryCheckpoint({"w": lazy[1:4]})) == expected[1:4].tobytes()


def test_a_conjugate_is_not_tied_to_what_it_conjugates() -> None:
    value = torch.tensor([1 + 2j, 3 - 1j])
    checkpoint = MemoryCheckpoint({"a": value, "b": value.conj()})
    assert not checkpoint.layout.ties
    assert all_bytes(checkpoint, 0) != all_bytes(checkpoint, 1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def wrapped(kind: str) -> nn.Module | dict[str, torch.Tensor]:
    inner = model()
    state = inner.state_dict()
    if kind == "compiled":
        with warnings.catch_warnings():
            # What importing the compiler warns about is not this project's affair.
            warnings.simplefilter("ignore")
            return torch.compile(inner)
    if kind == "one layer compiled":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inner[0] = torch.compile(inner[0])
        return inner
    if kind == "data parallel":
        return nn.DataParallel(inner)
    if kind == "twice parallel":
        return nn.DataParallel(nn.DataParallel(inner))
    prefix = {
        "fsdp": "_fsdp_wrapped_module.",
        "fsdp and checkpointing": "_fsdp_wrapped_module._checkpoint_wrapped_module.",
        "ddp over compile": "module._orig_mod.",
        "compile over ddp": "_orig_mod.module.",
    }[kind]
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize(
    "kind",
    [
        "compiled", "one layer compiled", "data parallel", "twice parallel", "fsdp",
        "fsdp and checkpointing", "ddp over compile", "compile over ddp",
    ],
)  # fmt: skip
def test_wrappers_leave_the_root_as_it_is(kind: str) -> None:
    bare, covered = checkpoint_of(model()), checkpoint_of(wrapped(kind))
    assert covered.layout == bare.layout
    assert commit(covered).root == commit(bare).root


def test_a_child_called_module_keeps_its_name_beside_others() -> None:
    assert canonical_names(["module.weight", "head.weight"]) == {
        "module.weight": "module.weight",
        "head.weight": "head.weight",
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [("fc.weight", "_orig_mod.fc.weight"), ("a._fsdp_wrapped_module.b", "a._orig_mod.b")],
)
def test_two_names_for_one_tensor_are_refused_by_name(one: str, other: str) -> None:
    with pytest.raises(WeightsError) as caught:
        MemoryCheckpoint({one: torch.ones(2), other: torch.zeros(2)})
    assert one in str(caught.value)
    assert other in str(caught.value)


def test_the_order_of_the_state_dict_does_not_matter() -> None:
    state = model().state_dict()
    backwards = dict(reversed(state.items()))
    assert list(backwards) != list(state)
    assert commit(MemoryCheckpoint(backwards)).root == commit(MemoryCheckpoint(state)).root


def test_names_are_sorted_by_bytes_and_not_by_code_unit() -> None:
    # U+FF5E sorts after U+1F600 in UTF-16 and before it in UTF-8.
    names = ["\U0001f600", "\uff5e", "b", "a.10", "a.9", "B"]
    layout = MemoryCheckpoint({name: torch.ones(1) for name in names}).layout
    assert [t.name for t in layout.tensors] == ["B", "a.10", "a.9", "b", "\uff5e", "\U0001f600"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.z_head = nn.Linear(3, 5, bias=False)
        self.z_head.weight = self.embed.weight


def test_tied_tensors_appear_once_and_the_tie_is_in_the_layout() -> None:
    layout = checkpoint_of(Tied()).layout
    assert [tensor.name for tensor in layout.tensors] == ["embed.weight"]
    assert layout.ties == (Tie("z_head.weight", "embed.weight"),)
    untied = Tied()
    untied.z_head.weight = nn.Parameter(untied.embed.weight.detach().clone())
    assert checkpoint_of(untied).layout.digest != layout.digest


def test_numpy_arrays_tie_like_tensors() -> None:
    array = np.ones((2, 3), dtype=np.float32)
    assert MemoryCheckpoint({"a": array, "b": array}).layout.ties == (Tie("b", "a"),)


def test_views_of_one_memory_that_read_differently_are_no_tie() -> None:
    square = torch.arange(9.0).reshape(3, 3)
    checkpoint = MemoryCheckpoint({"a": square, "b": square.T, "c": square.view(torch.int32)})
    assert not checkpoint.layout.ties


def odd_tensors() -> dict[str, Any]:
    with warnings.catch_warnings():
        # Some of these are announced as beta or on their way out; they still turn up.
        warnings.simplefilter("ignore")
        return {
            "sparse": torch.eye(3).to_sparse(),
            "sparse rows": torch.eye(3).to_sparse_csr(),
            "meta": torch.ones(3, device="meta"),
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "mkldnn": torch.ones(3).to_mkldnn(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "text": "extra state",
            "bytes": b"extra state",
            "dict": {"extra": torch.ones(2)},
            "none": None,
            "number": 3.0,
            "numpy number": np.float32(3.0),
            "objects": np.array([None, 1], dtype=object),
            "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
            "long doubles": np.ones(2, dtype=np.longdouble),
            "records": np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
        }


ODD = odd_tensors()


@pytest.mark.parametrize("kind", ODD)
def test_what_has_no_canonical_bytes_is_refused_by_name(kind: str) -> None:
    with pytest.raises(WeightsError) as caught:
        MemoryCheckpoint({"good.weight": torch.ones(2), "layer.odd": ODD[kind]})
    assert caught.value.place == "layer.odd"


def test_extra_state_of_a_module_is_refused_with_advice() -> None:
    class Stateful(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(WeightsError, match="no tensor") as caught:
        checkpoint_of(Stateful(2, 2))
    assert "get_extra_state" in caught.value.advice


FLOATS = [name for name in TORCH if name[0] in "FBC" and name != "BOOL"]


def patterns(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Every bit pattern of types up to 16 bits; the interesting ones of the wider types."""
    bits = 8 * DTYPE_BYTES[name]
    if bits == 8:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    if bits == 16:
        return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    info = torch.finfo(dtype)
    specials = [0.0, -0.0, info.max, info.min, info.tiny, info.tiny / 2, info.eps, 1.0]
    specials += [float("inf"), -float("inf"), float("nan")]
    return torch.tensor(specials, dtype=dtype)


@pytest.mark.parametrize("name", [name for name in FLOATS if name[0] != "C"])
def test_exactly_nan_and_infinity_are_refused(name: str) -> None:
    every = patterns(name, TORCH[name])
    finite = every.double().isfinite()
    assert not finite.all()
    # All finite ones together, so that refusing a single good pattern shows.
    commit(MemoryCheckpoint({"w": every[finite]}))
    for bad in every[~finite][:: max(1, int((~finite).sum()) // 64)]:
        with pytest.raises(WeightsError, match="not finite"):
            commit(MemoryCheckpoint({"w": bad}))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_the_error_names_the_tensor_even_for_one_bad_value_at_the_end(
    name: str, bad: float
) -> None:
    if name.startswith("F8"):
        # Few 8-bit types have infinities; each has a NaN.
        every = patterns(name, TORCH[name])
        value = every[every.float().isnan()][:1].repeat(1)
    elif name.startswith("C"):
        parts = torch.tensor([[0.0, bad]], dtype={"C32": torch.float16}.get(name, torch.float64))
        value = torch.view_as_complex(parts).to(TORCH[name])
    else:
        value = torch.tensor([bad], dtype=TORCH[name])
    # Past the first piece, so that every piece is looked at.
    good = torch.zeros(300_000, dtype=torch.uint8)
    good = good.repeat(DTYPE_BYTES[name]).view(TORCH[name])
    state = {"a.good": good, "b.bad": torch.cat([good.view(torch.uint8), value.view(torch.uint8)])}
    state["b.bad"] = state["b.bad"].view(TORCH[name])
    with pytest.raises(WeightsError) as caught:
        commit(MemoryCheckpoint(state))
    assert caught.value.place == "b.bad"
    assert caught.value.advice


def test_nan_bits_in_integers_are_just_integers() -> None:
    ones = torch.full((8,), -1, dtype=torch.int32)
    commit(MemoryCheckpoint({"w": ones, "mask": ones.to(torch.bool)}))


def test_what_is_on_the_host_stays_where_it_is() -> None:
    model = nn.Linear(3, 2)
    live = checkpoint_of({**model.state_dict(), "more": np.ones(3)})
    found = live.on_host()
    assert found.layout == live.layout
    assert all(found.tensor(at) is live.tensor(at) for at in range(3))


def test_a_checkpoint_reads_the_weights_as_they_are_now() -> None:
    layer = nn.Linear(2, 2)
    checkpoint = checkpoint_of(layer)
    before = commit(checkpoint).root
    with torch.no_grad():
        layer.weight.add_(1)
    assert commit(checkpoint).root != before

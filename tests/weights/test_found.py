"""Found models as safetensors: every type and every scale; no hostile file does harm."""

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from polo.errors import LimitError, PoloError, WeightsError
from polo.weights import open_found

EIGHT_BITS = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def saved(path: Path, **state: torch.Tensor) -> Path:
    save_file({name.replace("__", "."): value for name, value in state.items()}, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def test_every_value_of_small_types_is_what_torch_makes_of_it(file: Path) -> None:
    bytes_ = torch.arange(256, dtype=torch.uint8)
    words = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    state = {str(dtype): bytes_.clone().view(dtype) for dtype in EIGHT_BITS}
    state |= {str(dtype): words.clone().view(dtype) for dtype in (torch.float16, torch.bfloat16)}
    save_file(state, file)
    with open_found(file) as found:
        for name, values in state.items():
            ours = found.values(name)
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, values.float().numpy(), err_msg=name)


def test_plain_floats_are_read_as_they_are(file: Path) -> None:
    state = {"a": torch.randn(3, 4, 5), "b": torch.randn(7).double(), "c": torch.tensor(2.5)}
    state["empty"] = torch.empty(0, 3)
    save_file(state, file)
    with open_found(file) as found:
        for name, values in state.items():
            np.testing.assert_array_equal(found.values(name), values.numpy())
            assert found.tensors[name].shape == tuple(values.shape)
        assert found.values("b").dtype == np.float64
        assert found.tensors["a"].kind == "F32"
        assert found.description == "safetensors, 4 tensors, 300 bytes"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.int8, torch.int32])
def test_integers_are_listed_and_not_read(file: Path, dtype: torch.dtype) -> None:
    saved(file, a=torch.ones(3), n=torch.ones(3).to(dtype))
    with open_found(file) as found:
        assert set(found.tensors) == {"a", "n"}
        assert found.tensors["n"].refusal
        with pytest.raises(WeightsError, match="no weights"):
            found.values("n")


SHAPES = {
    "per tensor": ((), 32 * 12),
    "per tensor, in a list": ((1,), 32 * 12),
    "per row": ((12,), 32),
    "per row, as a column": ((12, 1), 32),
    "per part of a row": ((12, 4), 8),
}


@pytest.mark.parametrize("name", ["l__weight_scale", "l__scale"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_times_scale(file: Path, name: str, shape: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(1)
    weights = torch.randint(-128, 128, (12, 32), generator=random, dtype=torch.int8)
    size, run = SHAPES[shape]
    scale = torch.rand(size, generator=random).to(dtype)
    saved(file, l__weight=weights, **{name: scale})
    want = weights.float() * scale.float().reshape(-1).repeat_interleave(run).reshape(12, 32)
    with open_found(file) as found:
        assert list(found.tensors) == ["l.weight"]
        assert found.tensors["l.weight"].kind == "I8"
        np.testing.assert_array_equal(found.values("l.weight"), want.numpy())


def test_scales_of_eight_bit_floats_count_too(file: Path) -> None:
    weights = torch.randn(4, 8).to(torch.float8_e4m3fn)
    scale = torch.rand(4, 1)
    saved(file, l__weight=weights, l__weight_scale=scale)
    with open_found(file) as found:
        want = weights.float() * scale
        np.testing.assert_array_equal(found.values("l.weight"), want.numpy())


def test_int8_of_bitsandbytes(file: Path) -> None:
    original = torch.randn(6, 16)
    rows = original.abs().max(1).values
    weights = torch.round(original * (127 / rows[:, None])).to(torch.int8)
    order = torch.tensor(0, dtype=torch.uint8)
    saved(file, l__weight=weights, l__SCB=rows, l__weight_format=order, l__bias=torch.ones(6))
    with open_found(file) as found:
        assert set(found.tensors) == {"l.weight", "l.bias"}
        want = weights.double() * rows.double()[:, None] / 127
        np.testing.assert_allclose(found.values("l.weight"), want.numpy(), rtol=3e-7)
        np.testing.assert_allclose(found.values("l.weight"), original.numpy(), atol=0.02)


ROWS = torch.ones(4, 8, dtype=torch.int8)
UNFIT: dict[str, dict[str, torch.Tensor]] = {
    "scales of columns": {"l__scale": torch.ones(8)},
    "too many scales": {"l__scale": torch.ones(4, 16)},
    "parts that do not fit": {"l__scale": torch.ones(4, 3)},
    "no scales": {"l__scale": torch.ones(4, 0)},
    "empty scales": {"l__scale": torch.ones(0)},
    "scales that are integers": {"l__scale": torch.ones(4, dtype=torch.int64)},
    "two scales": {"l__scale": torch.ones(4), "l__SCB": torch.ones(4)},
    "zero points": {"l__weight_scale": torch.ones(4), "l__weight_zero_point": ROWS[:, 0].clone()},
    "blocks of two dimensions": {"l__weight_scale_inv": torch.ones(1, 1)},
    "order of a graphics card": {
        "l__SCB": torch.ones(4),
        "l__weight_format": torch.tensor(2, dtype=torch.uint8),
    },
}


@pytest.mark.parametrize("kind", UNFIT)
def test_scales_that_do_not_fit_refuse_the_tensor_only(file: Path, kind: str) -> None:
    saved(file, l__weight=ROWS, other=torch.ones(3), **UNFIT[kind])
    with open_found(file) as found:
        assert found.tensors["l.weight"].refusal
        with pytest.raises(WeightsError):
            found.read("l.weight", 0, 1)
        assert found.values("other").tolist() == [1, 1, 1]


# Packed 4-bit weights, made here by a slow and plain quantiser.

CODES = np.linspace(-1, 1, 16, dtype=np.float32)
WIDE_CODES = np.linspace(-1, 1, 256, dtype=np.float32)


def nearest(values: Any, table: Any) -> Any:
    return np.abs(values[:, None] - table).argmin(1).astype(np.uint8)


def four_bits(shape: tuple[int, ...], run: int, *, nested: int = 0) -> tuple[Any, Any]:
    """Tensors of a file, and the values that they stand for."""
    weights = np.random.default_rng(2).normal(0, 1, shape).astype(np.float32).reshape(-1)
    count = -(-weights.size // run)
    absmax = np.array([np.abs(weights[i * run : (i + 1) * run]).max() for i in range(count)])
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": run, "dtype": "float32"}
    state["shape"] = list(shape)
    files: dict[str, Any] = {"quant_map": CODES}
    scales = absmax.astype(np.float32)
    if nested:
        offset = float(np.float32(scales.mean()))
        rest = scales - np.float32(offset)
        groups = range(0, count, nested)
        outer = np.array([np.abs(rest[i : i + nested]).max() for i in groups], np.float32)
        inner = nearest(rest / outer.repeat(nested)[:count], WIDE_CODES)
        scales = WIDE_CODES[inner] * outer.repeat(nested)[:count] + np.float32(offset)
        state |= {"nested_blocksize": nested, "nested_offset": offset, "nested_dtype": "float32"}
        files |= {"absmax": inner, "nested_absmax": outer, "nested_quant_map": WIDE_CODES}
    else:
        files["absmax"] = scales
    each = scales.repeat(run)[: weights.size]
    codes = nearest(weights / each, CODES)
    pairs = np.append(codes, np.zeros(codes.size % 2, np.uint8)).reshape(-1, 2)
    files[""] = (pairs[:, 0] << 4 | pairs[:, 1]).astype(np.uint8)[:, None]
    files["quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors = {f"l.weight.{k}".rstrip("."): torch.from_numpy(v.copy()) for k, v in files.items()}
    return tensors, (CODES[codes] * each).reshape(shape)


@pytest.mark.parametrize("nested", [0, 4, 256])
@pytest.mark.parametrize("shape", [(8, 64), (3, 5, 7), (129,)])
def test_four_bits_of_bitsandbytes(file: Path, shape: tuple[int, ...], nested: int) -> None:
    tensors, want = four_bits(shape, 32, nested=nested)
    save_file({**tensors, "l.bias": torch.ones(2)}, file)
    with open_found(file) as found:
        assert set(found.tensors) == {"l.weight", "l.bias"}
        assert found.tensors["l.weight"].kind == "NF4"
        assert found.tensors["l.weight"].shape == shape
        np.testing.assert_array_equal(found.values("l.weight"), want)
        whole = want.reshape(-1)
        for start in range(0, want.size, 11):
            for stop in (start + 1, start + 2, min(start + 40, want.size)):
                np.testing.assert_array_equal(
                    found.read("l.weight", start, min(stop, want.size)), whole[start:stop]
                )


def test_four_bits_stored_as_another_type(file: Path) -> None:
    """As bitsandbytes does for FSDP: the packed bytes pose as numbers."""
    tensors, want = four_bits((8, 64), 64)
    tensors["l.weight"] = tensors["l.weight"].reshape(-1).view(torch.bfloat16)[:, None].contiguous()
    save_file(tensors, file)
    with open_found(file) as found:
        np.testing.assert_array_equal(found.values("l.weight"), want)


def test_the_other_four_bits_of_bitsandbytes(file: Path) -> None:
    tensors, want = four_bits((8, 64), 64)
    tensors["l.weight.quant_state.bitsandbytes__fp4"] = tensors.pop(STATE)
    save_file(tensors, file)
    with open_found(file) as found:
        assert found.tensors["l.weight"].kind == "FP4"
        np.testing.assert_array_equal(found.values("l.weight"), want)


STATE = "l.weight.quant_state.bitsandbytes__nf4"


def state_of(text: str) -> dict[str, torch.Tensor]:
    return {STATE: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}


BROKEN: dict[str, dict[str, torch.Tensor]] = {
    "no JSON": state_of("{"),
    "a list": state_of("[]"),
    "deep": state_of("[" * 60_000),
    "long": state_of(" " * 70_000),
    "no shape": state_of('{"blocksize": 32}'),
    "shape is a word": state_of('{"blocksize": 32, "shape": "8"}'),
    "too many dimensions": state_of(json.dumps({"blocksize": 32, "shape": [1] * 40})),
    "negative shape": state_of('{"blocksize": 32, "shape": [-8, -64]}'),
    "float in shape": state_of('{"blocksize": 32, "shape": [8.0, 64]}'),
    "truth in shape": state_of('{"blocksize": 32, "shape": [true, 512]}'),
    "other shape": state_of('{"blocksize": 32, "shape": [8, 65]}'),
    "fewer values than bytes": state_of('{"blocksize": 32, "shape": [8, 63]}'),
    "absurd shape": state_of(json.dumps({"blocksize": 32, "shape": [2**48] * 32})),
    "huge number": state_of('{"blocksize": 32, "shape": [' + "9" * 5000 + "]}"),
    "no run": state_of('{"shape": [8, 64]}'),
    "a run of zero": state_of('{"blocksize": 0, "shape": [8, 64]}'),
    "another run": state_of('{"blocksize": 64, "shape": [8, 64]}'),
    "odd offset": state_of('{"blocksize": 32, "shape": [8, 64], "nested_offset": "1"}'),
    "scales of another type": {"l.weight.absmax": torch.ones(16, dtype=torch.int32)},
    "scales without their table": {"l.weight.absmax": torch.ones(16, dtype=torch.uint8)},
    "short table": {"l.weight.quant_map": torch.ones(15)},
    "table of integers": {"l.weight.quant_map": torch.ones(16, dtype=torch.int8)},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_states_refuse_the_tensor_only(file: Path, kind: str) -> None:
    tensors, _ = four_bits((8, 64), 32)
    save_file({**tensors, "other": torch.ones(3), **BROKEN[kind]}, file)
    with open_found(file) as found:
        assert found.tensors["l.weight"].refusal
        assert found.values("other").tolist() == [1, 1, 1]


@pytest.mark.parametrize("gone", ["absmax", "quant_map", "nested_absmax", "nested_quant_map"])
def test_missing_parts_refuse_the_tensor(file: Path, gone: str) -> None:
    tensors, _ = four_bits((8, 64), 32, nested=4)
    del tensors[f"l.weight.{gone}"]
    save_file(tensors, file)
    with open_found(file) as found:
        assert gone in found.tensors["l.weight"].refusal


# Reading.


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    tensors, _ = four_bits((8, 64), 32, nested=4)
    return {
        "a.weight": torch.randn(40, 33, generator=random),
        "b.weight": torch.randn(7, 13, generator=random).bfloat16(),
        "c.weight": torch.randint(-99, 99, (6, 50), generator=random, dtype=torch.int8),
        "c.weight_scale": torch.rand(6, generator=random),
        "d.weight": torch.randn(17, 3, generator=random).to(torch.float8_e5m2),
        "n": torch.tensor(3),
        **tensors,
    }


def test_any_span_is_the_same_part_of_the_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polo.weights.found_model.PIECE", 100)
    save_file(model(), file)
    random = np.random.default_rng(3)
    with open_found(file) as found:
        readable = [tensor for tensor in found.tensors.values() if not tensor.refusal]
        assert len(readable) == 5
        for tensor in readable:
            whole = found.values(tensor.name).reshape(-1)
            for _ in range(50):
                start, stop = sorted(random.integers(0, tensor.elements + 1, 2).tolist())
                np.testing.assert_array_equal(
                    found.read(tensor.name, start, stop), whole[start:stop]
                )


def test_threads_read_the_same_values(file: Path) -> None:
    save_file(model(), file)
    wrong: list[str] = []
    with open_found(file) as found:
        want = {n: found.values(n) for n, tensor in found.tensors.items() if not tensor.refusal}

        def work() -> None:
            for name, values in list(want.items()) * 5:
                if not np.array_equal(found.values(name), values):
                    wrong.append(name)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("span", [(-1, 1), (2, 1), (0, 7), (7, 8)])
def test_spans_outside_a_tensor_are_refused(file: Path, span: tuple[int, int]) -> None:
    with (
        open_found(saved(file, a=torch.ones(2, 3))) as found,
        pytest.raises(WeightsError, match="6 elements"),
    ):
        found.read("a", *span)


def test_unknown_names_are_refused(file: Path) -> None:
    with (
        open_found(saved(file, a=torch.ones(3))) as found,
        pytest.raises(WeightsError, match="no such tensor"),
    ):
        found.values("b")


def test_nan_and_infinity_are_passed_on(file: Path) -> None:
    odd = torch.tensor([[float("nan"), float("inf"), -1.0]])
    saved(file, a=odd, b__weight=torch.ones(1, 3, dtype=torch.int8), b__scale=odd[0, :1].clone())
    with open_found(file) as found:
        np.testing.assert_array_equal(found.values("a"), odd.numpy())
        assert np.isnan(found.values("b.weight")).all()


# Hostile files.


def read_all(path: Path) -> None:
    """Open and read everything; only our own errors are let through."""
    try:
        with open_found(path) as found:
            for name, tensor in found.tensors.items():
                if not tensor.refusal:
                    found.values(name)
    except PoloError as error:
        error.diagnostics().encode()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "m.safetensors"
    save_file(model(), path)
    return path.read_bytes()


def test_a_file_cut_anywhere_is_refused(good: bytes, file: Path) -> None:
    header = 8 + int.from_bytes(good[:8], "little")
    for size in [*range(header), len(good) - 1]:
        file.write_bytes(good[:size])
        with pytest.raises(PoloError):
            open_found(file)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1),
    near=st.sampled_from([0, 200, 1500]),
)
def test_flipped_bytes_do_no_harm(
    good: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
    near: int,
) -> None:
    bad = bytearray(good)
    for at, mask in flips:
        bad[at % (near or len(bad))] ^= mask
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(bad)
    read_all(path)


@settings(max_examples=200, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 127)), min_size=1, max_size=4))
def test_flipped_bytes_of_a_quantisation_state_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    tensors, _ = four_bits((4, 16), 16, nested=2)
    state = tensors[STATE].clone()
    for at, mask in flips:
        state[at % len(state)] ^= mask
    path = tmp_path_factory.getbasetemp() / "state.safetensors"
    save_file({**tensors, STATE: state}, path)
    read_all(path)


def test_empty_shapes_may_not_be_absurd(file: Path) -> None:
    shape = [0, 2**48, 2**48]
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(LimitError):
        open_found(file)


LIMITED = """
import resource, sys
from pathlib import Path
from polo.errors import PoloError
from polo.weights.found import open_found
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        open_found(path).close()
        print(path.name, "opened")
    except PoloError as error:
        print(path.name, "refused")
"""


def test_hostile_headers_take_little_memory(tmp_path: Path, in_child: Callable[..., Any]) -> None:
    size = 2**20
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    headers = {
        "lists": b'{"a":[' + b"[]," * (size // 3) + b"[]]}",
        "numbers": b'{"a":[' + b"0," * (size // 2) + b"0]}",
        "objects": b'{"a":[' + b"{}," * (size // 3) + b"{}]}",
        "metadata": json.dumps({"__metadata__": {f"{at}": "" for at in range(90_000)}}).encode(),
        "tensors": json.dumps({f"{at}": empty for at in range(15_000)}).encode(),
        "values": b"[" + b"[]," * (8 * size),
    }
    for name, header in headers.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        index = tmp_path / f"index of {name}"
        index.mkdir()
        (index / "model.safetensors.index.json").write_bytes(header)
    lines = in_child(LIMITED, tmp_path, bare=True).stdout.splitlines()
    assert len(lines) == 2 * len(headers)
    assert [line for line in lines if line.endswith("opened")] == ["tensors.safetensors opened"]

"""Records as files, and the description of the platform in them."""

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from polo.errors import FormatError, LimitError, PoloError, StoreError, TermsError
from polo.evidence.replay import platform, record
from polo.evidence.replay.record import Boundary, Record, segments_of, span_of
from polo.protocol.digest import tagged

TEXT = '{"device":"cpu","torch":"2.13.0"}'


def made(segments: int = 3, text: str = TEXT) -> Record:
    rng = random.Random(segments)
    return Record(
        tuple(Boundary(rng.randbytes(32), rng.randbytes(32)) for _ in range(segments + 1)),
        (*((rng.getrandbits(63), rng.getrandbits(63)) for _ in range(segments)), (7, 0)),
        text,
    )


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Record]:
    def load(data: bytes, segments: int = 3) -> Record:
        path = tmp_path / "record"
        path.write_bytes(data)
        return record.load(path, segments, "evidence/replay/000001.safetensors")

    return load


@pytest.mark.parametrize("segments", [0, 1, 3, 500])
def test_a_record_comes_back(segments: int, read: Callable[..., Record]) -> None:
    one = made(segments)
    assert one.segments == segments
    assert read(one.encode(), segments) == one
    assert one.digest == tagged("polo/replay-record/1", one.encode())


def test_it_is_a_safetensors_file_of_three_tensors() -> None:
    one = made(2)
    found = safetensors.numpy.load(one.encode())
    assert {name: (str(a.dtype), a.shape) for name, a in found.items()} == {
        "states": ("uint8", (3, 64)),
        "moves": ("uint64", (3, 2)),
        "platform": ("uint8", (512,)),
    }
    assert found["states"][1].tobytes() == one.boundaries[1].model + one.boundaries[1].rest
    assert [tuple(map(int, row)) for row in found["moves"]] == list(one.moves)
    assert found["platform"].tobytes() == TEXT.encode().ljust(512)


def test_a_boundary_takes_80_bytes_and_the_file_few_more() -> None:
    sizes = [len(made(segments).encode()) for segments in (100, 200, 1000)]
    assert sizes[1] - sizes[0] <= 100 * 80 + 16
    assert all(size / (n + 1) <= 100 for size, n in zip(sizes, (100, 200, 1000), strict=True))


def test_every_other_length_is_refused(read: Callable[..., Record]) -> None:
    data = made().encode()
    for size in range(0, len(data), 7):
        with pytest.raises(FormatError, match="a record of 3 segments has"):
            read(data[:size])
    for segments in (0, 2, 4, 1000):
        with pytest.raises(FormatError, match=r"000001\.safetensors: \d+ bytes; a record of"):
            read(data, segments)
    with pytest.raises(FormatError):
        read(data + b" ")


def test_every_change_of_the_header_is_refused(read: Callable[..., Record]) -> None:
    data = made().encode()
    for at in range(8 + int.from_bytes(data[:8], "little")):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(FormatError, match="the header is not"):
            read(bytes(changed))


def test_moves_beyond_their_bounds_are_refused(read: Callable[..., Record]) -> None:
    data = made().encode()
    moves = len(data) - 512 - 4 * 16
    for at in range(8):
        changed = bytearray(data)
        changed[moves + 8 * at : moves + 8 * at + 8] = struct.pack("<Q", 2**63)
        with pytest.raises(FormatError, match=f"move {at // 2} is above"):
            read(bytes(changed))
    changed = bytearray(data)
    changed[len(data) - 512 - 8] = 1
    with pytest.raises(FormatError, match="a sealing does not move the optimizer"):
        read(bytes(changed))


PLATFORMS = {
    "nothing": b"",
    "a list": b"[]",
    "text": b'"cpu"',
    "a number in it": b'{"threads":1}',
    "something nested": b'{"a":{}}',
    "a space too many": b'{"a": "b"}',
    "a space in front": b' {"a":"b"}',
    "unsorted": b'{"b":"","a":""}',
    "a name twice": b'{"a":"","a":""}',
    "a new line": b'{"a":"b"}\n',
    "a zero byte": b'{"a":"b"}\x00',
    "a float": b'{"a":0.5}',
    "no text": b'{"a":"\xff"}',
    "an escape that is not needed": b'{"a":"\\u0062"}',
    "deep": b"[" * 512,
    "a lone surrogate": b'{"a":"\\ud800"}',
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_platforms_that_are_no_description(name: str, read: Callable[..., Record]) -> None:
    data = made().encode()[:-512] + PLATFORMS[name].ljust(512)
    with pytest.raises(FormatError, match=r"000001\.safetensors"):
        read(data)


@given(st.data())
def test_whatever_is_read_is_written_back_alike(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    changed = bytearray(made().encode())
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=3)):
        changed[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed"
    path.write_bytes(changed)
    try:
        found = record.load(path, 3, "record")
    except PoloError as error:
        with pytest.raises(type(error)):
            record.load_moves(path, 3, "record")
    else:
        assert found.encode() == changed
        assert record.load_moves(path, 3, "record") == found.moves


def test_absurd_numbers_and_odd_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "record"
    for segments in (-1, record.MAX_SEGMENTS + 1, 2**60):
        with pytest.raises(LimitError, match=f"{segments} segments"):
            record.load(path, segments, "record")
    with pytest.raises(StoreError, match="cannot be opened"):
        record.load(path, 3, "record")
    os.mkfifo(path)
    with pytest.raises(StoreError, match="not a plain file"):
        record.load(path, 3, "record")
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FormatError, match=f"{2**40} bytes"):
        record.load(huge, 3, "record")


def test_a_record_lacks_nothing() -> None:
    one = made()
    with pytest.raises(FormatError, match="as many moves as boundaries"):
        Record(one.boundaries, one.moves[:-1], TEXT)
    with pytest.raises(FormatError, match="as many moves"):
        Record((), (), TEXT)
    with pytest.raises(LimitError, match="512"):
        Record(one.boundaries, one.moves, "x" * 513).encode()


@given(st.integers(0, 3000), st.integers(1, 200))
def test_segments_lie_end_to_end(steps: int, every: int) -> None:
    spans = [span_of(at, steps, every) for at in range(segments_of(steps, every))]
    assert [step for first, count in spans for step in range(first, first + count)] == list(
        range(steps)
    )
    assert all(count == every for _, count in spans[:-1])
    for segment in (-1, len(spans)):
        with pytest.raises(TermsError, match="has no segment"):
            span_of(segment, steps, every)


def test_segments_of_no_steps() -> None:
    for steps, every in ((-1, 4), (4, 0)):
        with pytest.raises(TermsError, match="neither can be"):
            segments_of(steps, every)


def test_a_description_fits_and_is_what_torch_says() -> None:
    found = platform.describe("cpu")
    text = platform.text_of(found)
    assert len(text.encode()) <= 512
    assert platform.parse(text, "here") == found
    assert found["torch"] == torch.__version__
    assert found["threads"] == str(torch.get_num_threads())
    assert platform.same(found, platform.describe("cpu")) == []


def test_what_changes_results_changes_the_description() -> None:
    before = platform.describe("cpu")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.use_deterministic_algorithms(True)
    try:
        after = platform.describe("cpu")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(int(before["threads"]))
    assert platform.same(before, after) == [
        "deterministic: off and on",
        f"threads: {before['threads']} and {after['threads']}",
    ]


def test_kernels_of_attention_are_taken_over_by_a_prover_who_answers() -> None:
    cuda: Any = torch.backends.cuda
    here, query = platform.describe("cpu"), torch.randn(2, 4, 64, 32)

    def attended() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, query, query)

    usual = attended()
    cuda.enable_flash_sdp(False)
    try:
        there, theirs = platform.describe("cpu"), attended()
    finally:
        cuda.enable_flash_sdp(True)
    assert platform.same(here, there) == ["attention_flash: on and off"]
    # At a verifier they could take all of the memory.
    with platform.adopted(platform.text_of(there)):
        assert platform.describe("cpu") == here
    with platform.adopted(platform.text_of(there), own=True):
        assert platform.describe("cpu") == there
        assert torch.equal(attended(), theirs)
        # Whose description says nothing of it has what is usual.
        with platform.adopted(platform.text_of(here)):
            assert torch.equal(attended(), usual)
    assert platform.describe("cpu") == here


def test_nobodys_word_turns_off_what_a_step_cannot_do_without() -> None:
    cuda: Any = torch.backends.cuda
    off = dict.fromkeys(("cudnn", "efficient", "flash", "math"), "off")
    words = {f"attention_{name}": word for name, word in off.items()}
    query = torch.randn(1, 1, 8, 8)
    with platform.adopted(platform.text_of({**platform.describe("cpu"), **words}), own=True):
        assert cuda.math_sdp_enabled()
        assert not cuda.flash_sdp_enabled()
        functional.scaled_dot_product_attention(query, query, query)
    with platform.adopted(
        platform.text_of({**platform.describe("cpu"), "attention_reduced": "on"})
    ):
        assert not cuda.fp16_bf16_reduction_math_sdp_allowed()


def test_very_small_numbers_that_are_flushed_are_said() -> None:
    here = platform.describe("cpu")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    try:
        assert platform.same(here, platform.describe("cpu")) == ["denormals: kept and flushed"]
    finally:
        torch.set_flush_denormal(False)
    with platform.adopted(platform.text_of({**here, "denormals": "flushed"})):
        assert platform.describe("cpu") == here
    with platform.adopted(platform.text_of({**here, "denormals": "flushed"}), own=True):
        assert platform.describe("cpu")["denormals"] == "flushed"
    assert platform.describe("cpu") == here


def test_what_a_hash_stands_for_is_left_as_it_is() -> None:
    cuda: Any = torch.backends.cuda
    text = platform.text_of({**platform.describe("cpu"), "unusual": "0" * 48})
    cuda.enable_flash_sdp(False)
    try:
        with platform.adopted(text):
            assert not cuda.flash_sdp_enabled()
    finally:
        cuda.enable_flash_sdp(True)


def test_kernels_that_the_environment_chose_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in platform.KERNELS["cpu"]:
        monkeypatch.delenv(name, raising=False)
    here = platform.describe("cpu")
    assert "kernels" not in here
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert platform.same(here, platform.describe("cpu")) == [
        "kernels: none and ONEDNN_MAX_CPU_ISA=AVX2"
    ]
    monkeypatch.setenv("MKL_CBWR", "AVX2" * 100)
    some = platform.describe("cpu")
    monkeypatch.setenv("MKL_CBWR", "AVX2" * 101)
    other = platform.describe("cpu")
    assert some["kernels"] != other["kernels"]
    assert len(platform.text_of(other)) <= 512


def test_settings_are_adopted_for_a_while() -> None:
    here = platform.describe("cpu")
    wanted = {**here, "threads": "3", "deterministic": "on", "mkldnn": "off", "matmul": "ieee"}
    text = platform.text_of(wanted)
    with platform.adopted(text):
        assert platform.describe("cpu") == wanted
    assert platform.describe("cpu") == here
    with pytest.raises(KeyError), platform.adopted(text):
        raise KeyError
    assert platform.describe("cpu") == here


def test_nobody_is_made_to_calculate_less_exactly() -> None:
    matmul = torch.backends.mkldnn.matmul
    here = platform.describe("cpu")
    assert here["matmul"] in ("none", "ieee")
    with platform.adopted(platform.text_of({**here, "matmul": "bf16", "conv": "tf32"})):
        assert platform.describe("cpu") == here
    matmul.fp32_precision = "bf16"
    try:
        with platform.adopted(platform.text_of({**here, "matmul": "ieee"})):
            assert platform.describe("cpu")["matmul"] == "ieee"
        with platform.adopted(platform.text_of({**here, "matmul": "bf16"})):
            assert platform.describe("cpu")["matmul"] == "bf16"
    finally:
        matmul.fp32_precision = here["matmul"]


@pytest.mark.parametrize("threads", ["0", "65", "100000", "-1", "9" * 40, "٣", "1.0", "many", ""])
def test_absurd_settings_are_left_alone(threads: str) -> None:
    here = platform.describe("cpu")
    text = platform.text_of({**here, "threads": threads, "mkldnn": "maybe", "matmul": "fp4"})
    with platform.adopted(text):
        assert platform.describe("cpu") == here
    assert len(platform.same(platform.parse(text, "there"), here)) == 3


def test_devices_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert platform.device_for('{"device":"cuda"}') == "cpu"
    assert platform.device_for('{"device":"tpu"}') == "cpu"
    assert platform.device_for("{}", "cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert platform.device_for('{"device":"cuda"}') == "cuda"


def test_long_names_of_devices_do_not_break_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_processor", lambda: "加速器" * 100)
    found = platform.describe("cpu")
    assert found["name"] == "?" * 48
    longest: dict[str, Any] = dict.fromkeys(json.loads(platform.text_of(found)), "x" * 48)
    with pytest.raises(LimitError, match="at most 512"):
        platform.text_of({**longest, **{f"more{n}": "x" * 48 for n in range(3)}})

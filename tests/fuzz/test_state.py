"""Training states that were made to break whoever resumes from them, by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz import promises, safetensors_files
from polo.errors import StoreError
from polo.storage import state

LARGE = 4 * 2**20


def packed(tree: Any, *, size: int = 4, **more: Any) -> bytes:
    """A state with one tensor `0` of so many bytes, and any tree, sensible or not."""
    text = tree if isinstance(tree, str) else json.dumps(tree)
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    return safetensors_files.pack({"__metadata__": {"tree": text, **more}, "0": entry}, bytes(size))


TREES = {
    "a float of one byte": packed({"$float": "00"}),
    "a float of nine bytes": packed({"$float": "00" * 9}),
    "a float that is no hex": packed({"$float": "zz"}),
    "a float that is a list": packed({"$float": []}),
    "a tensor that is not there": packed({"$tensor": "1"}),
    "a tensor named by a number": packed({"$tensor": 0}),
    "a tensor named by a list": packed({"$tensor": []}),
    "one large tensor a hundred times": packed([{"$tensor": "0"}] * 100, size=LARGE),
    "a map with a list as key": packed({"$map": [[[], 1]]}),
    "a map of single items": packed({"$map": [[1]]}),
    "a map that is a number": packed({"$map": 1}),
    "a counter of nothing": packed({"$counter": None}),
    "a tuple that is a number": packed({"$tuple": 1}),
    "an unknown kind": packed({"$pickle": "cos\nsystem\n"}),
    "two kinds": packed({"$map": [], "$tuple": []}),
    "no kind": packed({}),
    "no JSON": packed("{"),
    "100,000 brackets": packed("[" * 100_000 + "]" * 100_000),
    "900 brackets around nothing known": packed("[" * 900 + '{"$float":"0"}' + "]" * 900),
    "an integer of ten thousand digits": packed("9" * 10_000),
    "no tree": safetensors_files.pack({"__metadata__": {}}, b""),
    "no metadata": safetensors_files.pack({}, b""),
    "a tree that is a list": safetensors_files.pack({"__metadata__": {"tree": [1] * 5000}}, b""),
    "a long list in the place of a header": safetensors_files.pack(["x" * 100] * 100, b""),
    "nothing": b"",
    "a header of 2^63 bytes": b"\xff" * 7 + b"\x7f" + bytes(64),
}


@pytest.mark.parametrize("name", TREES)
def test_states(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(TREES[name])
    with pytest.raises(StoreError, match="cannot be read") as error, promises.frugal(64):
        state.read_state(path)
    assert error.value.place == str(path)
    assert len(str(error.value)) < 1000


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", INSTEAD)
def test_in_the_place_of_a_state(tmp_path: Path, name: str) -> None:
    INSTEAD[name](tmp_path / "state")
    with pytest.raises(StoreError, match="cannot be read"):
        state.read_state(tmp_path / "state")


def test_the_state_that_these_are_made_from_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(packed([{"$tensor": "0"}, {"$tuple": [{"$float": "00" * 8}]}]))
    assert torch.equal(state.read_state(path)[0], torch.zeros(4, dtype=torch.uint8))


def test_truncation_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "state"
    data = packed([{"$tensor": "0"}])
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(StoreError):
            state.read_state(path)

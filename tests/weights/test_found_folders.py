"""Found models as folders, pickles that are refused, and what users give by mistake."""

import json
import os
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from polo.errors import FormatError, LimitError, PoloError, StoreError, WeightsError
from polo.weights import open_found
from polo.weights.formats import format_of


def saved(path: Path, **state: torch.Tensor) -> Path:
    save_file(state, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def model() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(40, 33, generator=random),
        "b.weight": torch.randn(7, 13, generator=random).bfloat16(),
        "c.weight": torch.randint(-99, 99, (6, 50), generator=random, dtype=torch.int8),
        "c.weight_scale": torch.rand(6, generator=random),
        "d.weight": torch.randn(17, 3, generator=random).to(torch.float8_e5m2),
        "n": torch.tensor(3),
    }


def sharded(folder: Path, state: dict[str, torch.Tensor], parts: int = 3) -> Path:
    """A folder as Hugging Face writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = {}
    for part in range(parts):
        name = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        here = dict(list(state.items())[part::parts])
        save_file(here, folder / name, metadata={"format": "pt"})
        listed |= dict.fromkeys(here, name)
    write_index(folder, listed)
    (folder / "config.json").write_text("{}")
    return folder


def write_index(folder: Path, listed: Any) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 5}, "weight_map": listed}))
    return index


def test_a_sharded_model_is_the_single_file(file: Path, tmp_path: Path) -> None:
    """Scales may lie in another shard than what they scale."""
    save_file(model(), file)
    folder = sharded(tmp_path / "folder", model())
    with open_found(file) as one, open_found(folder) as many:
        assert set(one.tensors) == set(many.tensors)
        for name, tensor in one.tensors.items():
            assert many.tensors[name] == tensor
            if not tensor.refusal:
                np.testing.assert_array_equal(one.values(name), many.values(name))
        assert many.description.startswith("safetensors in 3 shards, 5 tensors, ")


@pytest.mark.parametrize("name", ["model", "adapter_model", "diffusion_pytorch_model", "own"])
def test_a_folder_with_one_model_is_that_model(tmp_path: Path, name: str) -> None:
    saved(tmp_path / f"{name}.safetensors", a=torch.ones(3))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with open_found(tmp_path) as found:
        assert list(found.tensors) == ["a"]


def test_a_model_cache_is_made_of_links(tmp_path: Path) -> None:
    real = sharded(tmp_path / "blobs", model())
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for at, path in enumerate(sorted(real.iterdir())):
        blob = path.rename(real / f"{at:064x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    with open_found(snapshot) as found:
        assert len(found.tensors) == 5
    with pytest.raises(StoreError, match="snapshots"):
        open_found(tmp_path)


NAMES: dict[str, Any] = {
    "parent": "../secret.safetensors",
    "below": "sub/x.safetensors",
    "absolute": "/etc/x.safetensors",
    "backslash": "..\\x.safetensors",
    "dots": "..safetensors",
    "dots inside": "a..safetensors",
    "hidden": ".x.safetensors",
    "no shard": "config.json",
    "no name": "",
    "zero byte": "a\0.safetensors",
    "newline": "a\n.safetensors",
    "newline at the end": "a.safetensors\n",
    "long": "a" * 300 + ".safetensors",
    "lone surrogate": "\ud800.safetensors",
    "number": 3,
    "list": ["a.safetensors"],
    "nothing": None,
}


@pytest.mark.parametrize("kind", NAMES)
def test_shards_have_plain_names(tmp_path: Path, kind: str) -> None:
    saved(tmp_path / "secret.safetensors", a=torch.ones(3))
    (tmp_path / "folder").mkdir()
    write_index(tmp_path / "folder", {"a": NAMES[kind]})
    with pytest.raises(FormatError, match="plain name") as caught:
        open_found(tmp_path / "folder")
    caught.value.diagnostics().encode()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": "a"}',
     '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "[" * 100_000, "\ufeff{}",
     '{"weight_map": {"\\ud800": "x.safetensors"}}', '{"a": NaN}', "{" + "," * 2_000_000],
)  # fmt: skip
def test_broken_indices_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match="index"):
        open_found(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path, model())
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(StoreError, match=r"model-00002-of-00003\.safetensors is missing"):
        open_found(folder)
    (folder / "model-00002-of-00003.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="missing"):
        open_found(folder)


def test_a_tensor_is_in_one_shard_and_in_the_one_that_is_listed(tmp_path: Path) -> None:
    folder = sharded(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)}, parts=2)
    one, two = (f"model-0000{at}-of-00002.safetensors" for at in (1, 2))
    for listed in ({"a": two, "b": one}, {"a": one, "b": two, "c": two}):
        write_index(folder, listed)
        with pytest.raises(FormatError, match="is not in this shard"):
            open_found(folder)
    write_index(folder, {"a": one, "b": two})
    saved(folder / two, a=torch.ones(3), b=torch.ones(4))
    with pytest.raises(FormatError, match="has this tensor too"):
        open_found(folder)


def test_there_are_only_so_many_shards(tmp_path: Path) -> None:
    write_index(tmp_path, {f"{at}": f"{at}.safetensors" for at in range(600)})
    with pytest.raises(LimitError, match="600 shards"):
        open_found(tmp_path)


def test_refusals_leave_no_handle_open(tmp_path: Path) -> None:
    folder = sharded(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)}, parts=2)
    write_index(folder, {"a": "model-00002-of-00002.safetensors"})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(FormatError):
            open_found(folder)
    write_index(folder, {"b": "model-00002-of-00002.safetensors"})
    open_found(folder).close()
    assert len(os.listdir("/proc/self/fd")) == before


# Pickles.


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".pkl", ".PT", "", ".model"])
def test_pickles_are_refused_whatever_their_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    for old in (False, True):
        torch.save(
            {"a": torch.ones(3)}, path, _use_new_zipfile_serialization=not old, pickle_protocol=4
        )
        with pytest.raises(WeightsError, match="pickled") as caught:
            open_found(path)
        assert "weights_only=True" in caught.value.advice


def command_in(error: PoloError) -> list[str]:
    """The command that an error's advice ends in."""
    return [sys.executable, *shlex.split(error.advice[error.advice.index("python -c") :])[1:]]


def test_the_command_that_is_advised_converts_a_pickle(tmp_path: Path) -> None:
    tied = torch.randn(4, 6)
    state = {"a": tied, "b": tied, "turned": torch.randn(3, 5).T, "step": 3}
    torch.save({"state_dict": state}, tmp_path / "my model.pt")
    with pytest.raises(WeightsError) as caught:
        open_found(tmp_path / "my model.pt")
    subprocess.run(command_in(caught.value), cwd=tmp_path, check=True)
    with open_found(tmp_path / "model.safetensors") as found:
        assert set(found.tensors) == {"a", "b", "turned"}
        np.testing.assert_array_equal(found.values("b"), tied.numpy())
        np.testing.assert_array_equal(found.values("turned"), state["turned"].numpy())


def test_the_command_that_is_advised_converts_a_folder(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.ones(4)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    torch.save({"lr": 0.1}, tmp_path / "training_args.bin")
    with pytest.raises(WeightsError) as caught:
        open_found(tmp_path)
    subprocess.run(command_in(caught.value), cwd=tmp_path, check=True)
    with open_found(tmp_path) as found:
        assert set(found.tensors) == {"a", "b"}


def test_a_pickle_that_poses_as_safetensors_is_told(file: Path) -> None:
    torch.save({"a": torch.ones(3)}, file)
    with pytest.raises(WeightsError, match="pickled"):
        open_found(file)


@pytest.mark.parametrize("length", [640, 896, 1152, 1408])
def test_safetensors_that_start_like_a_pickle_are_read(tmp_path: Path, length: int) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", length) + header.ljust(length) + bytes(4))
    assert path.read_bytes()[:1] == b"\x80"
    assert format_of(path) == "safetensors"
    with open_found(path) as found:
        assert found.values("a").tolist() == [0]


def test_renamed_files_are_read_as_what_they_are(tmp_path: Path) -> None:
    saved(tmp_path / "m.bin", a=torch.ones(3))
    with open_found(tmp_path / "m.bin") as found:
        assert list(found.tensors) == ["a"]


# What users give by mistake.


def test_a_missing_path(tmp_path: Path) -> None:
    for path in (tmp_path / "no.safetensors", tmp_path / "no" / "no.gguf", Path("a" * 5000)):
        with pytest.raises(StoreError, match="nothing here") as caught:
            open_found(path)
        assert "GGUF" in caught.value.advice
    with pytest.raises(StoreError, match="no path"):
        open_found(Path("a\0b"))


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").symlink_to(tmp_path / "m.safetensors")
    with pytest.raises(StoreError):
        open_found(tmp_path / "m.safetensors")


def test_a_proof_instead_of_a_model(make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=1)
    with pytest.raises(StoreError, match="is a proof, not a model"):
        open_found(made.path)
    last = sorted((made.path / "checkpoints").iterdir())[-1]
    with open_found(last) as found:
        want = made.model.state_dict()["0.weight"].numpy()
        np.testing.assert_array_equal(found.values("0.weight"), want)


def test_folders_without_a_model(tmp_path: Path) -> None:
    def refusal() -> str:
        with pytest.raises(StoreError) as caught:
            open_found(tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert caught.value.advice
        return caught.value.message

    assert "empty" in refusal()
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt" in refusal()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refusal()
    (tmp_path / "model_index.json").write_text("{}")
    assert "pipeline" in refusal()
    for name in ("one", "two"):
        saved(tmp_path / f"{name}.safetensors", a=torch.ones(3))
    assert "'one.safetensors', 'two.safetensors'" in refusal()


@pytest.mark.parametrize("content", [b"", b"{}", b"hello" * 9, b"\x89HDF\r\n\x1a\n" + bytes(99)])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="no model") as caught:
        open_found(path)
    assert "safetensors" in caught.value.advice

"""Whose model is this: through every disguise that a found model comes in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import polo
from polo import ownership
from polo.errors import PoloError
from polo.ownership import Finding
from polo.storage.folder import ProofFolder

State = dict[str, np.ndarray[Any, Any]]
Disguise = Callable[[State, Path], Path]


def floating(state: State) -> State:
    return {name: value for name, value in state.items() if value.dtype == np.float32}


def as_type(dtype: torch.dtype) -> Disguise:
    def save(state: State, path: Path) -> Path:
        save_torch({n: torch.tensor(v).to(dtype) for n, v in floating(state).items()}, path)
        return path

    return save


def as_int8(state: State, path: Path) -> Path:
    """Rows of int8 with a scale each."""
    stored: State = {}
    for name, value in floating(state).items():
        if value.ndim != 2:
            stored[name] = value
            continue
        scale = np.abs(value).max(1, keepdims=True) / 127
        stored[name] = np.rint(value / scale).astype(np.int8)
        stored[f"{name}_scale"] = scale.astype(np.float32)
    save_file(stored, path)
    return path


def as_folder(state: State, path: Path) -> Path:
    """Shards with an index, as Hugging Face writes them."""
    folder = path.with_suffix("")
    folder.mkdir()
    names = list(state)
    where = {}
    for at in range(3):
        file = f"model-{at + 1:05d}-of-00003.safetensors"
        save_file({name: state[name] for name in names[at::3]}, folder / file)
        where |= dict.fromkeys(names[at::3], file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def as_gguf(kind: gguf.GGMLQuantizationType) -> Disguise:
    def save(state: State, path: Path) -> Path:
        path = path.with_suffix(".gguf")
        writer = gguf.GGUFWriter(path, "llama")
        for name, value in floating(state).items():
            if value.ndim == 2 and value.shape[1] % 32 == 0:
                packed = gguf.quants.quantize(value, kind)
                writer.add_tensor(name, packed, raw_dtype=kind)
            else:
                writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return save


def pruned(share: float) -> Disguise:
    """The smallest weights of every matrix are set to zero."""

    def save(state: State, path: Path) -> Path:
        cut = {
            n: np.where(np.abs(v) < np.quantile(np.abs(v), share), 0, v).astype(v.dtype)
            if v.ndim == 2
            else v
            for n, v in state.items()
        }
        save_file(cut, path)
        return path

    return save


def renamed(state: State, path: Path) -> Path:
    save_file({f"z{at}": value for at, value in enumerate(reversed(state.values()))}, path)
    return path


def prefixed(state: State, path: Path) -> Path:
    save_file({f"model.encoder.{name}": value for name, value in state.items()}, path)
    return path


def swapped(state: State, path: Path) -> Path:
    save_file({**state, "3.weight": state["5.weight"], "5.weight": state["3.weight"]}, path)
    return path


def turned(state: State, path: Path) -> Path:
    save_file({n: np.ascontiguousarray(v.T) for n, v in state.items()}, path)
    return path


def halved(state: State, path: Path) -> Path:
    """Half of the carrier is all that was found."""
    save_file({name: state[name] for name in ("0.weight", "3.weight", "7.weight")}, path)
    return path


def noisy(state: State, path: Path) -> Path:
    rng = np.random.default_rng(0)
    save_file(
        {n: (v + 0.2 * v.std() * rng.normal(size=v.shape)).astype(v.dtype)
         for n, v in floating(state).items()}, path
    )  # fmt: skip
    return path


DISGUISES: dict[str, Disguise] = {
    "as it is": lambda state, path: (save_file(state, path), path)[1],
    "float16": as_type(torch.float16),
    "bfloat16": as_type(torch.bfloat16),
    "float64": as_type(torch.float64),
    "int8": as_int8,
    "folder": as_folder,
    "Q8_0": as_gguf(gguf.GGMLQuantizationType.Q8_0),
    "Q4_0": as_gguf(gguf.GGMLQuantizationType.Q4_0),
    "pruned 30 %": pruned(0.3),
    "pruned 50 %": pruned(0.5),
    "renamed": renamed,
    "prefixed": prefixed,
    "swapped": swapped,
    "turned": turned,
    "half missing": halved,
    "noisy": noisy,
}


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
def test_the_owner_is_named_through_every_disguise(
    owner: Any, look: Any, tmp_path: Path, disguise: Disguise
) -> None:
    result = look(disguise(owner.state, tmp_path / "found.safetensors"))
    assert result.finding is Finding.CLAIM, result
    assert result.claims[0].owner == owner.key.id
    assert result.claims[0].eta > 0.8
    assert owner.key.id[:16] in result.headline()


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
def test_a_stranger_is_named_through_none(
    stranger: torch.nn.Module, look: Any, tmp_path: Path, disguise: Disguise
) -> None:
    state = {name: value.numpy().copy() for name, value in stranger.state_dict().items()}
    result = look(disguise(state, tmp_path / "found.safetensors"))
    assert result.finding is Finding.NO_CLAIM, result
    assert result.claims[0].log2_p > -20


def tuned(owner: Any, seed: int, epochs: int = 1, lr: float = 0.05) -> torch.nn.Module:
    """A copy of the owner's model, trained on by a thief."""
    torch.manual_seed(seed)
    model = owner.task.build_model()
    model.load_state_dict(owner.model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        owner.task.train_epoch(model, optimizer)
    return model


def state_of(model: torch.nn.Module) -> State:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def averaged(first: State, second: State, part: float) -> State:
    return {n: (part * v + (1 - part) * second[n]).astype(v.dtype) for n, v in first.items()}


def test_a_fine_tuned_copy_is_the_owners(owner: Any, look: Any) -> None:
    assert look(state_of(tuned(owner, 1))).finding is Finding.CLAIM
    assert look(state_of(tuned(owner, 1, epochs=6))).finding is Finding.CLAIM


def test_an_average_of_two_fine_tuned_copies_is_the_owners(owner: Any, look: Any) -> None:
    one, two = state_of(tuned(owner, 1)), state_of(tuned(owner, 2))
    assert look(averaged(one, two, 0.5)).finding is Finding.CLAIM


def test_a_moving_average_is_the_owners(owner: Any, look: Any) -> None:
    average = owner.state
    for seed in range(4):
        average = averaged(average, state_of(tuned(owner, seed)), 0.7)
    assert look(average).finding is Finding.CLAIM


def test_a_soup_with_a_stranger_is_still_the_owners(
    owner: Any, stranger: torch.nn.Module, look: Any
) -> None:
    assert look(averaged(owner.state, state_of(stranger), 0.6)).finding is Finding.CLAIM


@pytest.mark.parametrize("retention", [{"retention": "thin"}, {"retention": "all", "deltas": True}])
def test_a_thin_proof_and_one_of_deltas_name_their_owner(
    owned_task: Any, desk: Any, kit: Any, issuer: polo.Identity, tmp_path: Path,
    retention: dict[str, Any],
) -> None:  # fmt: skip
    key = desk.person()
    terms = polo.make_terms(owned_task, bits=256, shards=3, strength=0.02)
    made = kit.train_chain(
        tmp_path / "proof", key, desk.enrol(terms, key), kit.owned_model(), owned_task, epochs=3,
        **retention,
    )  # fmt: skip
    for disguise in (DISGUISES["as it is"], renamed):
        found = disguise(made.state, tmp_path / "found.safetensors")
        result = ownership.identify(found, [made.path], trust=issuer.public_key)
        assert result.finding is Finding.CLAIM
        assert result.claims[0].owner == key.id


def test_a_live_chain_names_its_owner(
    owned_task: Any, desk: Any, kit: Any, issuer: polo.Identity, tmp_path: Path
) -> None:
    key = desk.person()
    terms = polo.make_terms(owned_task, bits=64, shards=3, strength=0.02, log2_p=-40)
    made = kit.train_chain(
        tmp_path / "proof", key, desk.enrol_live(terms, key), kit.owned_model(), owned_task,
        epochs=3,
    )  # fmt: skip
    found = kit.save(made.state, tmp_path / "found.safetensors")
    claim = ownership.identify(found, [made.path], trust=issuer.public_key).claims[0]
    assert claim.finding is Finding.CLAIM
    assert {mark.live for mark in claim.marks} == {True}
    # Offline the same readings would be granted 2^64 tries each, and say nothing.
    assert claim.log2_p < -100


def test_no_carrier_tensor_at_all_decides_nothing(look: Any) -> None:
    result = look({"other": np.zeros((9, 9), np.float32)})
    assert result.finding is Finding.UNDECIDED
    assert "0% of the carrier" in result.headline()


def test_a_model_that_is_all_broken_decides_nothing(owner: Any, look: Any) -> None:
    broken = {name: np.full_like(value, np.nan) for name, value in floating(owner.state).items()}
    result = look(broken)
    assert result.finding is Finding.UNDECIDED
    assert result.claims[0].coverage == 1.0


def test_zeros_are_no_claim(owner: Any, look: Any) -> None:
    zeros = {name: np.zeros_like(value) for name, value in owner.state.items()}
    assert look(zeros).finding is Finding.NO_CLAIM


def test_one_broken_weight_per_block_hides_only_its_block(owner: Any, look: Any) -> None:
    state = owner.state
    state["3.weight"].reshape(-1)[::512] = np.inf
    result = look(state)
    assert result.finding is Finding.CLAIM
    assert result.claims[0].bits < 8 * 256


# Several proofs


def test_several_proofs_are_told_apart(
    owner: Any, look: Any, desk: Any, kit: Any, tmp_path: Path
) -> None:
    layout = kit.layout_of(owner.state)
    others = [desk.idle(tmp_path / f"idle{at}", layout, shards=8) for at in range(2)]
    result = look(owner.state, *others, tmp_path / "missing")
    findings = [claim.finding for claim in result.claims]
    assert findings == [Finding.CLAIM, Finding.NO_CLAIM, Finding.NO_CLAIM, Finding.UNDECIDED]
    assert result.claims[0].proof == str(owner.path)
    assert {claim.tries.chains for claim in result.claims} == {4}
    assert result.finding is Finding.CLAIM
    assert result.claims[-1].problem


def test_the_number_of_chains_is_paid_for(owner: Any, look: Any, desk: Any, kit: Any, tmp_path: Path
) -> None:  # fmt: skip
    layout = kit.layout_of(owner.state)
    other = desk.idle(tmp_path / "idle", layout, shards=8)
    alone = look(owner.state).claims[0].log2_p
    assert look(owner.state, other).claims[0].log2_p == pytest.approx(alone + 1)


def test_another_architecture_is_no_claim_of_anybody(
    owner: Any, look: Any, desk: Any, kit: Any, tmp_path: Path
) -> None:
    layout = kit.layout_of({"w": np.zeros((333, 64), np.float32)})
    other = desk.idle(tmp_path / "other", layout, shards=3)
    result = look(owner.state, other)
    assert [claim.finding for claim in result.claims] == [Finding.CLAIM, Finding.UNDECIDED]


def test_no_proof_is_no_decision(owner: Any, issuer: polo.Identity, kit: Any, tmp_path: Path
) -> None:  # fmt: skip
    model = kit.save(owner.state, tmp_path / "m.safetensors")
    result = ownership.identify(model, [], trust=issuer.public_key)
    assert result.finding is Finding.UNDECIDED


def test_progress_is_told(owner: Any, look: Any) -> None:
    heard = []
    look(owner.state, listener=lambda *what: heard.append(what))
    assert heard == [("looking for marks", 0, 1)]


# What is said


def test_json_is_whole_and_tells_no_nonce(owner: Any, look: Any) -> None:
    result = look(owner.state)
    written = json.dumps(result.to_json(), allow_nan=False)
    found = json.loads(written)
    assert found["finding"] == "claim"
    assert found["claims"][0]["owner"] == owner.key.id
    assert len(found["claims"][0]["marks"]) == 8
    folder = ProofFolder(owner.path)
    for shard in range(1, 9):
        nonce = folder.nonce(shard)
        for secret in (nonce.nonce, nonce.salt, *nonce.path):
            assert secret.hex() not in written
            assert secret.hex() not in repr(result)


def test_a_result_is_no_boolean(owner: Any, look: Any) -> None:
    result = look(owner.state)
    for value in (result, result.claims[0]):
        with pytest.raises(TypeError, match="no boolean"):
            bool(value)


# Hostile models


LYING = b'{"w":{"dtype":"F32","shape":[99],"data_offsets":[0,8]}}'
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(100),
    "short header": (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": (2).to_bytes(8, "little") + b"{{",
    "offsets": len(LYING).to_bytes(8, "little") + LYING + bytes(8),
    "pickle": b"\x80\x04\x95" + bytes(50),
    "zip": b"PK\x03\x04" + bytes(50),
    "GGUF": b"GGUF" + bytes(4),
    "GGUF counts": b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16,
    "deep": (100_000).to_bytes(8, "little") + b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ""])
def test_hostile_models_end_in_an_error_of_ours(
    look: Any, tmp_path: Path, data: bytes, suffix: str
) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(data)
    with pytest.raises(PoloError):
        look(path)


def test_what_is_no_model_ends_in_an_error_of_ours(owner: Any, look: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "none", tmp_path / "folder", tmp_path / "loop", owner.path):
        with pytest.raises(PoloError):
            look(path)


def test_hostile_tensors_do_not_stop_it(owner: Any, look: Any) -> None:
    """Shapes, types and values that no model has, beside the right ones."""
    state = owner.state | {
        "empty": np.zeros((0, 128), np.float32),
        "scalar": np.array(1.0),
        "huge": np.full((128, 128), np.finfo(np.float64).max),
        "nan": np.full((128, 128), np.nan, np.float32),
        "x.3.weight": np.full((128, 128), -np.inf, np.float32),
        "bool": np.ones(7, np.bool_),
    }
    assert look(state).finding is Finding.CLAIM
    lost = {f"z{at}": value for at, value in enumerate(state.values())}
    assert look(lost).finding is Finding.CLAIM


def test_scaling_far_down_hides_nothing(owner: Any, look: Any) -> None:
    """All weights by 2^-60, as a scaling of neurons may do: below what marks are read in."""
    tiny = {name: v * np.float32(2.0**-60) if v.dtype == np.float32 else v
            for name, v in owner.state.items()}  # fmt: skip
    assert look(tiny).finding is Finding.CLAIM


def test_adapters_beside_the_weights_are_not_the_model(
    owner: Any, look: Any, stranger: torch.nn.Module
) -> None:
    """What is left of the weights may be anything; nobody can tell until they are merged."""
    rank = {"base.lora_A.weight": np.ones((4, 16), np.float32)}
    plain = {name: value.numpy() for name, value in stranger.state_dict().items()}
    result = look({**plain, **rank})
    assert result.finding is Finding.UNDECIDED
    assert "Merge" in result.claims[0].advice
    assert look({**owner.state, **rank}).finding is Finding.CLAIM

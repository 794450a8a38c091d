import numpy as np
import pytest
import torch

from polo.weights.found import open_found
from polo_lab.attacks.precision import cast, int4_blocks, int8_rows, write_gguf
from polo_lab.attacks.state import weights_of


@pytest.fixture
def state(task):
    torch.manual_seed(4)
    return task.build_model().state_dict()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_changes_all_floats_and_no_counters(state, dtype):
    done = cast(state, dtype)
    assert done.keys() == state.keys()
    for name, value in state.items():
        wanted = dtype if value.is_floating_point() else value.dtype
        assert done[name].dtype == wanted
        assert torch.allclose(done[name].double(), value.double(), rtol=2**-8)


def test_int8_has_one_scale_for_each_row(state):
    state = dict(state)
    state["0.weight"] = state["0.weight"] * torch.logspace(-3, 3, 64).unsqueeze(1)
    done = int8_rows(state)
    for name, value in weights_of(state).items():
        scale = value.abs().amax(dim=1, keepdim=True) / 127
        steps = done[name] / scale
        assert torch.allclose(steps, steps.round(), atol=1e-3)
        assert bool(((done[name] - value).abs() <= 0.501 * scale).all())
        assert not torch.equal(done[name], value)
    assert torch.equal(done["1.running_mean"], state["1.running_mean"])


@pytest.mark.parametrize("shape", [(4, 32), (3, 5, 3, 3), (7, 1)])
def test_four_bits_leave_fifteen_values_a_block(shape):
    torch.manual_seed(5)
    value = torch.randn(shape)
    done = int4_blocks({"w": value})["w"]
    assert done.shape == value.shape
    for before, after in zip(value.reshape(-1).split(32), done.reshape(-1).split(32), strict=True):
        scale = before.abs().max() / 7
        assert len(after.unique()) <= 15
        assert bool(((after - before).abs() <= 0.501 * scale).all())


def test_zeros_stay_zeros():
    state = {"w": torch.zeros(4, 64)}
    assert torch.equal(int8_rows(state)["w"], state["w"])
    assert torch.equal(int4_blocks(state)["w"], state["w"])


def test_accuracy_is_kept(task, make_proof):
    made = make_proof(epochs=6)
    for attacked in (
        cast(made.model.state_dict(), torch.bfloat16),
        int8_rows(made.model.state_dict()),
        int4_blocks(made.model.state_dict()),
    ):
        model = task.build_model()
        model.load_state_dict({name: value.float() for name, value in attacked.items()})
        assert task.evaluate(model) >= task.evaluate(made.model) - 0.1


@pytest.mark.parametrize(("kind", "error"), [("Q4_0", 0.15), ("Q8_0", 0.01), ("F16", 0.001)])
def test_gguf_reads_back_nearly_the_same(state, tmp_path, kind, error):
    path = tmp_path / "model.gguf"
    write_gguf(state, path, kind)
    with open_found(path) as found:
        assert set(found.tensors) == {n for n, v in state.items() if v.is_floating_point()}
        for name, value in weights_of(state).items():
            read, wanted = found.values(name), value.numpy()
            assert read.shape == wanted.shape
            assert np.linalg.norm(read - wanted) <= error * np.linalg.norm(wanted)
        kinds = {name: tensor.kind for name, tensor in found.tensors.items()}
    assert kinds["3.weight"] == kind
    # 16 weights in a row do not fill a block of 32.
    assert kinds["0.weight"] == "F16"

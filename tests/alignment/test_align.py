"""Alignment itself: what it reports, what it refuses, and that it depends on weights alone."""

from typing import Any

import numpy as np
import pytest
import torch

from polo.alignment import align, trace
from polo.errors import WeightsError
from polo_lab import models
from polo_lab.attacks import symmetry


@pytest.fixture(scope="module")
def small(lab: Any) -> Any:
    model = lab.build("vgg")
    lab.train("vgg", model, lab.optimizer_of("vgg", model), 1)
    return model, trace(model, (lab.inputs_of("vgg"),))


def test_dummies_are_counted(small: Any, lab: Any) -> None:
    model, wiring = small
    reference = lab.arrays(model.state_dict())
    for kind in symmetry.KINDS:
        found = lab.arrays(symmetry.add_dummies(model, wiring, kind, 0.5, 1))
        aligned = align(found, reference, wiring)
        for group in aligned.groups:
            assert group.found == 1.5 * group.size
            assert group.dropped + group.merged == group.found - group.size
            assert (group.merged > 0) is (kind != "zero")
            assert group.cosine > 0.999
            assert group.scaled
        for name, array in reference.items():
            assert aligned.arrays[name].shape == array.shape
            assert aligned.arrays[name].dtype == array.dtype
            assert np.allclose(aligned.arrays[name], array, rtol=1e-3, atol=1e-4)


def test_stacked_dummies(small: Any, lab: Any) -> None:
    """Cliques that are read by dummies cancel only once those are gone."""
    model, wiring = small
    state = symmetry.add_dummies(model, wiring, "clique", 0.3, 1)
    for seed, kind in enumerate(("split", "zero", "clique")):
        state = symmetry.rescale(symmetry.add_dummies(state, wiring, kind, 0.3, seed), wiring, 5)
    aligned = align(lab.arrays(state), lab.arrays(model.state_dict()), wiring)
    assert min(group.cosine for group in aligned.groups) > 0.99
    assert all(group.found > 2 * group.size for group in aligned.groups)


def test_dummies_that_are_not_quite_silent(small: Any, lab: Any) -> None:
    """What cannot be told by its structure is left over when the best are chosen."""
    model, wiring = small
    state = symmetry.add_dummies(model, wiring, "clique", 0.3, 1)
    noisy = {
        n: t + 1e-3 * t.std() * torch.randn_like(t) if t.ndim > 1 else t for n, t in state.items()
    }
    aligned = align(lab.arrays(noisy), lab.arrays(model.state_dict()), wiring)
    assert min(group.cosine for group in aligned.groups) > 0.99


def test_channels_that_are_gone_read_as_zero(small: Any, lab: Any) -> None:
    model, wiring = small
    reference = lab.arrays(model.state_dict())
    found = dict(reference)
    for name in ("features.0.weight", "features.0.bias", *(
        f"features.1.{part}" for part in ("weight", "bias", "running_mean", "running_var")
    )):  # fmt: skip
        found[name] = found[name][1:]
    found["features.3.weight"] = found["features.3.weight"][:, 1:]
    aligned = align(found, reference, wiring)
    assert not aligned.arrays["features.0.weight"][0].any()
    assert np.allclose(aligned.arrays["features.0.weight"][1:], reference["features.0.weight"][1:])


def test_nothing_changes_what_is_in_place(small: Any, lab: Any) -> None:
    model, wiring = small
    reference = lab.arrays(model.state_dict())
    aligned = align(reference, reference, wiring)
    assert aligned.settled
    assert all(np.array_equal(aligned.arrays[name], reference[name]) for name in reference)


def test_it_is_deterministic_and_leaves_its_arguments_alone(small: Any, lab: Any) -> None:
    model, wiring = small
    found = lab.arrays(symmetry.rescale(symmetry.permute(model, wiring, 1), wiring, 2))
    kept = {name: array.copy() for name, array in found.items()}
    reference = lab.arrays(model.state_dict())
    first, second = (align(found, reference, wiring).arrays for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(np.array_equal(found[name], kept[name]) for name in found)


def test_half_precision_and_other_strides(small: Any, lab: Any) -> None:
    model, wiring = small
    reference = lab.arrays(model.state_dict())
    found = {
        name: np.array(array.astype(np.float16) if array.ndim else array, order="F")
        for name, array in lab.arrays(symmetry.permute(model, wiring, 1)).items()
    }
    aligned = align(found, reference, wiring).arrays
    for name, array in reference.items():
        assert aligned[name].dtype == found[name].dtype
        assert np.allclose(aligned[name], array, rtol=2e-3, atol=1e-3)


def test_the_wrong_weights_are_refused(small: Any, lab: Any) -> None:
    model, wiring = small
    reference = lab.arrays(model.state_dict())

    def with_(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
        return {**reference, name: array}

    weight = "features.3.weight"
    missing = {name: array for name, array in reference.items() if name != weight}
    with pytest.raises(WeightsError, match="missing"):
        align(missing, reference, wiring)
    with pytest.raises(WeightsError, match="axes"):
        align(with_(weight, np.zeros(3)), reference, wiring)
    with pytest.raises(WeightsError, match="not finite"):
        align(with_(weight, reference[weight] * np.nan), reference, wiring)
    with pytest.raises(WeightsError, match="no sizes of the groups fit"):
        align(with_(weight, np.zeros((16, 17, 3, 3), np.float32)), reference, wiring)
    with pytest.raises(WeightsError, match="no sizes of the groups fit"):
        align(with_(weight, np.zeros((0, 16, 3, 3), np.float32)), reference, wiring)
    with pytest.raises(WeightsError, match="are no weights"):
        align(with_(weight, np.zeros((16, 16, 3, 3), np.complex64)), reference, wiring)
    wide = lab.arrays(symmetry.add_dummies(model, wiring, "zero", 0.5, 1))
    with pytest.raises(WeightsError, match="not of the architecture"):
        align(reference, wide, wiring)


@pytest.mark.parametrize("fill", [0.0, 1.0, 1e-30, 1e30])
def test_degenerate_weights_do_no_harm(fill: float, small: Any, lab: Any) -> None:
    model, wiring = small
    reference = lab.arrays(model.state_dict())
    found = {
        name: np.full_like(array, fill) if array.ndim else array
        for name, array in reference.items()
    }
    aligned = align(found, reference, wiring)
    assert all(aligned.arrays[name].shape == reference[name].shape for name in reference)


def test_deep_plain_networks(lab: Any) -> None:
    """Channels far from inputs and outputs are found by way of those in between."""
    torch.manual_seed(0)
    model = models.MLP(width=48, depth=12)
    wiring = trace(model, (lab.inputs_of("mlp"),))
    reference = lab.arrays(model.state_dict())
    later = {n: t + 0.3 * t.std() * torch.randn_like(t) for n, t in model.state_dict().items()}
    aligned = align(lab.arrays(symmetry.permute(later, wiring, 1)), reference, wiring)
    for name, tensor in later.items():
        assert np.allclose(aligned.arrays[name], tensor.numpy(), atol=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["clique", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("zero", "split"))],
)
def test_a_full_resnet(kind: str, lab: Any) -> None:
    torch.manual_seed(0)
    model = models.resnet18()
    wiring = trace(model, (torch.randn(1, 3, 32, 32),))
    reference = model.state_dict()
    later = {
        name: t + 0.3 * t.std() * torch.randn_like(t) if t.ndim > 1 else t
        for name, t in reference.items()
    }
    stolen = symmetry.permute(symmetry.add_dummies(later, wiring, kind, 0.25, 1), wiring, 2)
    stolen = symmetry.rescale(stolen, wiring, 3, 1.0)
    aligned = align(lab.arrays(stolen), lab.arrays(reference), wiring)
    for name, tensor in later.items():
        if tensor.ndim > 1:
            error = np.linalg.norm(aligned.arrays[name] - tensor.numpy()) / tensor.norm().item()
            assert error < 0.06, name

"""opacus underneath: its wrappers are looked through, and the mark comes after its noise."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polo
from polo.weights.checkpoint import canonical_names

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed"),
]


def norm_model() -> nn.Module:
    """opacus takes no batch norm: its statistics mix samples."""
    return nn.Sequential(
        nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 4),
    )  # fmt: skip


@pytest.fixture
def quiet_import() -> Any:
    """opacus, whose own imports warn."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import opacus
    return opacus


def private(opacus: Any, task: Any, engine: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    columns = {name: torch.from_numpy(column) for name, column in task.train_columns().items()}
    torch.manual_seed(0)
    model = task.build_model()
    found: tuple[Any, Any, Any] = (engine or opacus.PrivacyEngine()).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
        data_loader=DataLoader(TensorDataset(columns["point"], columns["label"]), batch_size=32),
        noise_multiplier=options.get("noise", 0.5),
        max_grad_norm=options.get("clip", 1.0),
    )
    return found


def train(model: Any, optimizer: Any, data: Any) -> None:
    for points, labels in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()


def test_names_are_those_of_the_original_model() -> None:
    names = ["_module.module.fc.weight", "_module.module.fc.bias"]
    assert set(canonical_names(names).values()) == {"fc.weight", "fc.bias"}
    assert canonical_names(["_module.a", "b"]) == {"_module.a": "_module.a", "b": "b"}


def test_dp_sgd_is_proved(
    tmp_path: Any, quiet_import: Any, task: Any, enrol: Any, alice: Any, issuer: Any
) -> None:
    task = type(task)(norm_model)
    enrolment = enrol(task=task, budget=1.0, strength=0.05, bits=64)
    model, optimizer, data = private(quiet_import, task)
    prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(4):
            train(model, optimizer, data)
            prover.end_epoch()
    proof = prover.finish()
    assert proof.shards == 4
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


DELTA = 1e-4


@pytest.mark.parametrize("way", ["checkpoint", "proof"])
def test_a_stopped_run_goes_on_and_epsilon_with_it(
    way: str,
    tmp_path: Any,
    quiet_import: Any,
    task: Any,
    enrol: Any,
    alice: Any,
    issuer: Any,
) -> None:
    """By opacus' own checkpoint, or with the accountant kept beside the proof."""
    task = type(task)(norm_model)
    enrolment = enrol(task=task, budget=1.0, strength=0.05, bits=64)
    saved, spent = tmp_path / "opacus.pt", []
    for epochs in (2, 4):
        engine = quiet_import.PrivacyEngine()
        model, optimizer, data = private(quiet_import, task, engine)
        also = {"accountant": engine.accountant} if way == "proof" else {}
        if way == "checkpoint" and saved.exists():
            engine.load_checkpoint(path=saved, module=model, optimizer=optimizer)
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
        measure = partial(task.evaluate, model)
        with prover.attach(model, optimizer, evaluate=measure, also=also):
            spent.append(engine.get_epsilon(DELTA) if prover.shards else 0.0)
            for _ in range(prover.epoch, epochs):
                train(model, optimizer, data)
                if way == "checkpoint":
                    # Before sealing: killed between the two, ε is told too high, not too low.
                    engine.save_checkpoint(path=saved, module=model, optimizer=optimizer)
                prover.end_epoch()
        spent.append(engine.get_epsilon(DELTA))
        prover.close()
    # What the first run spent is where the second begins.
    assert 0.0 == spent[0] < spent[1] == spent[2] < spent[3]
    assert engine.accountant.history == [(0.5, 1 / 8, 4 * 8)]
    verdict = polo.verify(tmp_path / "proof", trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
    assert len(verdict.per_shard("mark")) == 4


def test_the_marks_term_is_neither_clipped_nor_counted(
    tmp_path: Any, quiet_import: Any, task: Any, enrol: Any, alice: Any
) -> None:
    task = type(task)(norm_model)
    enrolment = enrol(task=task, bits=64)
    # Clipped to nothing and without noise: what still moves weights is the mark's term alone.
    model, optimizer, data = private(quiet_import, task, noise=0.0, clip=1e-12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
    with prover.attach(model, optimizer):
        train(model, optimizer, data)
    prover.close()
    moved = [
        float((value - before[name]).abs().max()) for name, value in model.state_dict().items()
    ]
    assert max(moved) > 1e-4
    biases = [float((model.state_dict()[f"_module.{at}.bias"] - before[f"_module.{at}.bias"])
                    .abs().max()) for at in (0, 3, 5)]  # fmt: skip
    assert max(biases) < 1e-9

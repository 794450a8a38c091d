"""Stopping and going on: the same proof, bit for bit, as if nothing had happened."""

import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polo
from polo.errors import StoreError
from polo.privacy import obfuscation
from polo.storage import state
from polo.storage.folder import ProofFolder
from polo.weights import checkpoint_of, commit

Enrol = Callable[..., polo.OfflineEnrolment]
EASY = {"budget": 1.0, "strength": 0.05, "bits": 64}
MASTER = bytes(range(32))

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
}


class Dropping(nn.Sequential):
    """Draws from torch's generator in every step."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4),
        )  # fmt: skip


class Convolving(nn.Sequential):
    """Weights in channels-last memory."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.Flatten(), nn.Linear(512, 4),
        )  # fmt: skip
        self.to(memory_format=torch.channels_last)


class Trainer:
    """A training script: everything new, as in a new process, but for what is on disk."""

    def __init__(self, task: Any, enrolment: Any, alice: Any, path: Path, **options: Any) -> None:
        # A fresh process starts anywhere; seeds that matter are set by `seed`.
        torch.manual_seed(int(time.time_ns()) % 2**31)
        self.task = task
        optimizer_of = OPTIMIZERS[options.pop("optimizer", "SGD")]
        self.fill = options.pop("fill", None)
        state = path.with_name(path.name + ".state")
        if not state.exists():
            state.mkdir(mode=0o700)
            (state / "secret").write_bytes(MASTER)
        self.prover = polo.Prover(enrolment, key=alice, store=path, **options)
        if not (path / "manifest.json").exists():
            torch.manual_seed(3)
            np.random.seed(3)
            random.seed(3)
        self.model = task.build_model()
        self.optimizer = optimizer_of(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.97)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5)

    def attach(self) -> Any:
        also = {"scheduler": self.scheduler, "scaler": self.scaler}
        return self.prover.attach(
            self.model, self.optimizer, evaluate=lambda: self.task.evaluate(self.model), also=also
        )

    def epoch(self) -> None:
        # Uses all three generators, the scheduler and the scaler.
        self.model.train()
        for points, labels in self.task.batches(64):
            noisy = points + 0.01 * random.random() + 0.01 * np.random.rand()
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(noisy), labels)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()

    def run(self, epochs: int) -> None:
        with self.attach():
            for _ in range(self.prover.epoch, epochs):
                self.epoch()
                progress = self.prover.end_epoch()
                assert progress is not None
                assert progress.sealed

    def everything(self) -> dict[str, Any]:
        """All that must be the same."""
        return {
            "weights": commit(checkpoint_of(self.model)).root,
            "optimizer": flat(self.optimizer.state_dict()),
            "scheduler": flat(self.scheduler.state_dict()),
            "scaler": flat(self.scaler.state_dict()),
            "torch": torch.get_rng_state().tolist(),
            "numpy": flat(np.random.get_state(legacy=False)),
            "random": random.getstate(),
        }


def flat(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    return [flat(item) for item in value] if isinstance(value, (list, tuple)) else value


def shards_of(path: Path) -> list[Any]:
    return [replace(shard, sealed=0) for shard in ProofFolder(path).manifest().shards]


TASKS = {"dropout": Dropping, "channels last": Convolving}


@pytest.mark.parametrize(
    ("optimizer", "model"),
    [
        *((name, "dropout") for name in OPTIMIZERS),
        ("SGD", "channels last"),
        ("AdamW", "channels last"),
    ],
)
def test_a_resumed_run_makes_the_same_proof_bit_for_bit(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path,
    optimizer: str, model: str,
) -> None:  # fmt: skip
    own = type(task)(TASKS[model])
    enrolment = enrol(task=own, **EASY)
    straight = Trainer(own, enrolment, alice, tmp_path / "straight", optimizer=optimizer)
    straight.run(2)
    after_two = straight.everything()
    straight.run(4)
    expected = straight.everything()
    straight.prover.finish()

    path = tmp_path / "stopped"
    first = Trainer(own, enrolment, alice, path, optimizer=optimizer)
    first.run(1)
    first.prover.close()
    second = Trainer(own, enrolment, alice, path, optimizer=optimizer)
    second.run(2)
    # An epoch that is never sealed: it must leave no trace.
    with second.attach():
        second.epoch()
    second.prover.close()
    third = Trainer(own, enrolment, alice, path, optimizer=optimizer)
    assert third.prover.epoch == 2
    with third.attach():
        assert third.everything() == after_two
    third.run(4)
    assert third.everything() == expected
    proof = third.prover.finish()
    assert shards_of(path) == shards_of(tmp_path / "straight")
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=own)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def test_resuming_before_the_first_shard_goes_back_to_the_start(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    with first.attach():
        expected = first.everything()
        first.epoch()
    first.prover.close()
    again = Trainer(task, enrolment, alice, tmp_path / "proof")
    with again.attach():
        assert again.everything() == expected
        assert (again.prover.epoch, again.prover.shards) == (0, 0)
    again.prover.close()


def test_a_step_count_over_several_shards_survives(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    """With the mark on every third step, which step it is must be remembered."""
    enrolment = enrol(**{**EASY, "every": 3})
    straight = Trainer(task, enrolment, alice, tmp_path / "straight")
    straight.run(3)
    straight.prover.close()
    for epochs in (1, 2, 3):
        stopped = Trainer(task, enrolment, alice, tmp_path / "stopped")
        stopped.run(epochs)
        stopped.prover.close()
    assert len(shards_of(tmp_path / "straight")) == 3
    assert shards_of(tmp_path / "stopped") == shards_of(tmp_path / "straight")


def script(task: Any, enrolment: Path, key: Path, store: Path, epochs: int) -> list[int]:
    """What a user's file does; returns where the generator is at the end."""
    torch.manual_seed(3)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(enrolment, key=key, store=store)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(prover.epoch, epochs):
            task.train_epoch(model, optimizer)
            assert prover.end_epoch().sealed
    prover.close()
    return torch.get_rng_state().tolist()


GO_ON = """
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("test_resume", sys.argv[1])
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
print(json.dumps(here.script(shared.TinyTask(), *map(Path, sys.argv[2:5]), 3)))
"""


def test_a_new_process_goes_on_bit_for_bit(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    enrol(**EASY).save(tmp_path / "enrolment")
    alice.save(tmp_path / "alice.key")
    for name in ("straight", "stopped"):
        (tmp_path / f"{name}.state").mkdir(mode=0o700)
        (tmp_path / f"{name}.state/secret").write_bytes(MASTER)
    files = (tmp_path / "enrolment", tmp_path / "alice.key")
    expected = script(task, *files, tmp_path / "straight", 3)
    script(task, *files, tmp_path / "stopped", 2)
    found = json.loads(in_child(GO_ON, __file__, *files, tmp_path / "stopped").stdout)
    assert found == expected
    assert len(shards_of(tmp_path / "stopped")) == 3
    assert shards_of(tmp_path / "stopped") == shards_of(tmp_path / "straight")


def test_going_on_after_finish(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    first.run(1)
    assert first.prover.finish().manifest.finished
    second = Trainer(task, enrolment, alice, tmp_path / "proof")
    second.run(2)
    assert not ProofFolder(tmp_path / "proof").manifest().finished
    proof = second.prover.finish()
    assert (proof.shards, proof.manifest.finished) == (2, True)
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def test_damaged_weights_are_not_resumed_from(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    first.run(2)
    first.prover.close()
    path = tmp_path / "proof/checkpoints/000002.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    second = Trainer(task, enrolment, alice, tmp_path / "proof")
    before = commit(checkpoint_of(second.model)).root
    with pytest.raises(StoreError, match="shard 2 are damaged"):
        second.attach()
    assert commit(checkpoint_of(second.model)).root == before
    second.prover.close()


def test_a_damaged_training_state_is_refused_in_words(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    first.run(1)
    first.prover.close()
    (tmp_path / "proof.state/000001.safetensors").write_bytes(b"damaged")
    second = Trainer(task, enrolment, alice, tmp_path / "proof")
    with pytest.raises(StoreError, match="training state cannot be read"):
        second.attach()
    second.prover.close()


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_state_of_another_optimizer_is_refused_in_words(
    optimizer: str, task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof", optimizer=optimizer)
    first.run(1)
    first.prover.close()
    other = "AdamW" if optimizer == "SGD" else "SGD"
    second = Trainer(task, enrolment, alice, tmp_path / "proof", optimizer=other)
    with pytest.raises(StoreError, match="the optimizer does not fit") as caught:
        second.attach()
    assert "same class" in caught.value.advice
    second.prover.close()


@pytest.mark.parametrize(
    "spoilt",
    [[1], {"optimizer": [1]}, {"random": {}}, {"random": {"torch": torch.zeros(3)}}, {"steps": ""}],
)
def test_a_training_state_that_says_nonsense(
    spoilt: Any, task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    first.run(1)
    first.prover.close()
    path = tmp_path / "proof.state/000001.safetensors"
    known = state.read_state(path)
    state.write_state(path, {**known, **spoilt} if isinstance(spoilt, dict) else spoilt)
    second = Trainer(task, enrolment, alice, tmp_path / "proof")
    with pytest.raises(StoreError, match="training state is damaged"):
        second.attach()
    second.prover.close()


def test_without_training_state_the_weights_are_resumed_and_it_is_said(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    first.run(1)
    first.prover.close()
    (tmp_path / "proof.state/000001.safetensors").unlink()
    second = Trainer(task, enrolment, alice, tmp_path / "proof")
    with caplog.at_level(logging.WARNING, "polo.prover"), second.attach():
        assert "no training state" in caplog.text
        assert commit(checkpoint_of(second.model)).root == shards_of(tmp_path / "proof")[0].root
        assert not second.optimizer.state
    second.prover.close()


def test_without_its_secret_a_proof_does_not_go_on(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    """The record of shard 1 commits to the secret of shard 2; another one would break that."""
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    first.run(1)
    first.prover.close()
    (tmp_path / "proof.state/secret").unlink()
    for _ in range(2):
        again = Trainer(task, enrolment, alice, tmp_path / "proof")
        with pytest.raises(StoreError, match="secret"):
            again.attach()
        again.prover.close()
    (tmp_path / "proof.state/secret").write_bytes(MASTER)
    restored = Trainer(task, enrolment, alice, tmp_path / "proof")
    restored.run(2)
    committed = shards_of(tmp_path / "proof")[0].noise.next_secret
    assert committed == obfuscation.secret_commitment(obfuscation.secret_of(MASTER, 2))
    restored.prover.close()


def test_only_the_newest_training_state_is_kept(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    trainer = Trainer(task, enrol(**EASY), alice, tmp_path / "proof")
    trainer.run(3)
    states = sorted(p.name for p in (tmp_path / "proof.state").glob("*.safetensors"))
    assert states == ["000003.safetensors"]
    trainer.prover.close()


def test_objects_that_were_not_saved_are_left_as_they_are(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    first = Trainer(task, enrolment, alice, tmp_path / "proof")
    with first.prover.attach(first.model, first.optimizer):
        first.epoch()
        assert first.prover.end_epoch().sealed
    first.prover.close()
    second = Trainer(task, enrolment, alice, tmp_path / "proof")
    fresh = flat(second.scheduler.state_dict())
    with second.attach():
        assert flat(second.scheduler.state_dict()) == fresh
    second.prover.close()


FOREVER = """
import sys, torch, polo
task = shared.TinyTask()
model = task.build_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
prover = polo.Prover(
    sys.argv[1], key=sys.argv[2], store=sys.argv[3], retention=2, deltas=True, check_every=1
)
with prover.attach(model, optimizer):
    print("sealing", flush=True)
    while True:
        task.train_epoch(model, optimizer)
"""


@pytest.mark.slow
def test_killed_at_any_instant_every_sealed_shard_survives(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path,
    in_child: Callable[..., Any],
) -> None:  # fmt: skip
    """Seals in a child as fast as it can, kills it, and looks at what is left."""
    enrolment = enrol(**{**EASY, "shards": 2000})
    enrolment.save(tmp_path / "enrolment")
    alice.save(tmp_path / "alice.key")
    arguments = [tmp_path / "enrolment", tmp_path / "alice.key", tmp_path / "proof"]
    source = in_child.prelude + FOREVER
    shards = 0
    for wait in (0.31, 0.137, 0.523):
        with subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "sealing\n"
            time.sleep(wait)
            child.kill()
        found = json.loads((tmp_path / "proof/manifest.json").read_bytes())
        assert len(found["shards"]) >= shards
        shards = len(found["shards"])
    prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof", retention=2, deltas=True)
    assert prover.shards == shards > 3
    model = task.build_model()
    with prover.attach(model, torch.optim.SGD(model.parameters(), lr=0.05)):
        pass
    proof = prover.finish()
    verdict = polo.verify(
        proof.path, trust=issuer.public_key, task=task, policy=polo.Policy(accuracy="none")
    )
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()

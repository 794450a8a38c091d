"""Checkpoints that are loaded into a second model while the first one is tested."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.protocol import signing
from polo.storage.folder import MANIFEST_FILE, checkpoint_path
from polo.verifier import Outcome, Policy, Status, accuracy
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit
from polo.weights.loading import Loader


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """As if models were tested on a GPU, and three tests were many; the spare models."""
    spare, found = accuracy.Bench.spare, list[object]()

    def noted(bench: accuracy.Bench, tests: int) -> nn.Module | None:
        found.append(spare(bench, tests))
        return found[-1]  # type: ignore[return-value]

    monkeypatch.setattr(accuracy, "_is_apart", lambda _: True)
    monkeypatch.setattr(accuracy, "MANY", 3)
    monkeypatch.setattr(accuracy.Bench, "spare", noted)
    return found


def judged(made: Any, task: Any, **options: Any) -> polo.Verdict:
    return polo.verify(made.path, trust=made.issuer.public_key, task=task, **options)


def figures(verdict: polo.Verdict) -> list[Any]:
    return [(c.name, c.shard, c.status, c.detail, c.figures) for c in verdict.checks]


def test_the_verdict_is_the_same(
    make_proof: Callable[..., Any], apart: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(epochs=5)
    found = made.verify()
    assert found.outcome is Outcome.ACCEPTED
    assert isinstance(apart[0], nn.Module)
    monkeypatch.setattr(accuracy, "MANY", 6)
    assert figures(made.verify()) == figures(found)
    assert apart[1] is None


def test_what_is_tested_is_what_was_hashed_and_the_next_is_loaded_meanwhile(
    make_proof: Callable[..., Any], task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, load, loads = make_proof(epochs=5), Loader.load, threading.Semaphore(0)
    expected = [shard.root for shard in reversed(made.manifest.shards)]
    roots, models = list[bytes](), list[int]()

    def counted(loader: Loader, checkpoint: Any, **options: Any) -> None:
        load(loader, checkpoint, **options)
        loads.release()

    class Slow(type(task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            # Its own, at first that of the next, too; the last has nobody behind it.
            for _ in range({0: 2, 4: 0}.get(len(roots), 1)):
                assert loads.acquire(timeout=20)
            roots.append(commit(checkpoint_of(model)).root)
            models.append(id(model))
            return float(super().evaluate(model))

    monkeypatch.setattr(Loader, "load", counted)
    assert judged(made, Slow()).outcome is Outcome.ACCEPTED
    assert roots == expected
    assert models == [models[0], models[1], models[0], models[1], models[0]]
    assert models[0] != models[1]


@pytest.mark.parametrize("how", ["the same model", "shared memory", "another layout", "an error"])
def test_a_task_without_a_second_model_does_without(
    make_proof: Callable[..., Any], task: Any, apart: list[object], how: str
) -> None:
    made, built = make_proof(), list[Any]()

    def build() -> Any:
        if not built or how == "the same model":
            built.append(built[0] if built else task.build_model())
            return built[-1]
        if how == "an error":
            raise RuntimeError("only one")
        other = task.build_model()
        if how == "shared memory":
            other[0].weight = built[0][0].weight
        return nn.Sequential(other) if how == "another layout" else other

    assert judged(made, type(task)(build)).outcome is Outcome.ACCEPTED
    assert apart == [None]


def test_wrong_weights_are_neither_loaded_nor_tested(
    make_proof: Callable[..., Any], alice: polo.Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, load, loads = make_proof(epochs=4), Loader.load, list[Any]()
    wrong, data = checkpoint_path(2), (made.path / checkpoint_path(1)).read_bytes()
    (made.path / wrong).write_bytes(data)
    files = tuple(
        replace(file, sha256=sha256(data).digest()) if file.path == wrong else file
        for file in made.manifest.files
    )
    signed = signing.sign(replace(made.manifest, files=files), alice)
    (made.path / MANIFEST_FILE).write_bytes(signed.to_bytes())
    monkeypatch.setattr(Loader, "load", lambda *a, **k: (loads.append(a), load(*a, **k)))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert [(c.name, c.shard) for c in verdict.of(Status.FAILED)] == [("root", 2)]
    assert len(loads) == 3


def test_a_delivered_file_is_compared_with_what_was_hashed(
    make_proof: Callable[..., Any],
) -> None:
    made = make_proof(epochs=5)
    right, other = (made.path / checkpoint_path(number) for number in (5, 4))
    assert made.verify(model=right).outcome is Outcome.ACCEPTED
    verdict = made.verify(model=other)
    assert [check.name for check in verdict.of(Status.FAILED)] == ["delivered"]


def test_a_model_that_does_not_take_its_weights(make_proof: Callable[..., Any], task: Any) -> None:
    made = make_proof()

    class Deaf(nn.Sequential):
        def state_dict(self, *arguments: Any, **options: Any) -> Any:
            return {k: v.clone() for k, v in super().state_dict(*arguments, **options).items()}

    verdict = judged(made, type(task)(lambda: Deaf(*task.build_model())))
    assert [c.shard for c in verdict.of(Status.FAILED)] == [3, 2, 1]
    assert {c.detail for c in verdict.of(Status.FAILED)} == {
        "the model does not hold what was loaded into it"
    }


def test_a_test_that_fails_leaves_the_others_alone(
    make_proof: Callable[..., Any], task: Any
) -> None:
    made, tests = make_proof(epochs=4), list[Any]()

    class Moody(type(task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            tests.append(model)
            if len(tests) == 2:
                raise RuntimeError("not today")
            return float(super().evaluate(model))

    verdict = judged(made, Moody())
    assert verdict.outcome is Outcome.UNDECIDED
    assert [(c.name, c.shard) for c in verdict.of(Status.UNDECIDED)] == [("accuracy", 3)]
    assert len(tests) == 4


def test_who_tests_few_or_keeps_all_builds_no_second_model(
    make_proof: Callable[..., Any], apart: list[object]
) -> None:
    made = make_proof(terms={"progress": True, "start": "derived"})
    made.verify()
    assert apart == [], "levels look at every checkpoint"
    make_proof(made.path.with_name("other")).verify(policy=Policy("none"))
    assert apart == [None]


def test_threads_are_gone_afterwards(make_proof: Callable[..., Any], task: Any) -> None:
    made, before = make_proof(epochs=4), threading.active_count()

    class Stopped(type(task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(made, Stopped())
    assert threading.active_count() == before


def test_a_checkpoint_stays_while_the_next_is_loaded(
    make_proof: Callable[..., Any], task: Any
) -> None:
    made = make_proof(epochs=6)

    class Slow(type(task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            time.sleep(0.3)
            return float(super().evaluate(model))

    last, policy = made.path / checkpoint_path(6), Policy(threads=1)
    assert judged(made, Slow(), policy=policy, model=last).outcome is Outcome.ACCEPTED


class Broken:
    """A stream of a device that has failed."""

    device = torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the device has failed")


@pytest.mark.parametrize("when", ["in a test", "in a load"])
def test_a_device_that_fails_is_nobodys_fault(
    make_proof: Callable[..., Any], task: Any, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tests, benches = make_proof(epochs=4), list[Any](), list[Any]()
    stream, usual = torch.cuda.stream, accuracy.Bench._load

    def streamed(found: Any) -> Any:
        if isinstance(found, Broken):
            raise RuntimeError("the device has failed")
        return stream(found)

    def load(bench: accuracy.Bench, *arguments: Any, **options: Any) -> Any:
        benches.append(bench)
        if when == "in a load" and len(tests) == 1:
            bench._stream = Broken()  # type: ignore[assignment]
        return usual(bench, *arguments, **options)

    class Fatal(type(task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            tests.append(model)
            if when == "in a test" and len(tests) == 2:
                benches[-1]._stream = Broken()
                raise RuntimeError("device-side assert")
            return float(super().evaluate(model))

    monkeypatch.setattr(torch.cuda, "stream", streamed)
    monkeypatch.setattr(accuracy.Bench, "_load", load)
    verdict = judged(made, Fatal())
    assert verdict.outcome is (Outcome.UNDECIDED if when == "in a test" else Outcome.ACCEPTED)


def test_what_could_not_be_loaded_beside_a_test_is_loaded_after_it(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, load, here = make_proof(epochs=4), Loader.load, threading.current_thread()
    failed = list[Any]()

    def crowded(loader: Loader, checkpoint: Any, **options: Any) -> None:
        if threading.current_thread() is not here:
            failed.append(loader.model)
            raise RuntimeError("out of memory")
        load(loader, checkpoint, **options)

    monkeypatch.setattr(Loader, "load", crowded)
    assert made.verify().outcome is Outcome.ACCEPTED
    assert len(failed) == 4


def test_a_model_that_cannot_be_loaded_into_is_not_tested(
    make_proof: Callable[..., Any], task: Any
) -> None:
    made = make_proof()

    class Once(nn.Sequential):
        asked = 0

        def state_dict(self, *arguments: Any, **options: Any) -> Any:
            self.asked += 1
            if self.asked > 1:
                raise RuntimeError("only once")
            return super().state_dict(*arguments, **options)

    verdict = judged(made, type(task)(lambda: Once(*task.build_model())))
    assert verdict.outcome is Outcome.UNDECIDED
    assert {c.name for c in verdict.of(Status.UNDECIDED)} == {"accuracy"}

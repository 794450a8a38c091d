"""Loops as people write them: each trains for real, seals shards, resumes, and verifies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import polo
from polo.storage.folder import ProofFolder

Enrol = Callable[..., polo.OfflineEnrolment]
Loop = Callable[["Run"], int]
# What is tested is the loop, so that marks get all the help they need.
EASY = {"budget": 1.0, "strength": 0.05, "verify": 0.7}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.2, max_iter=3, history_size=3),
}


class Run:
    """One start of a training script."""

    def __init__(
        self, task: Any, optimizer: str, wrap: Callable[[nn.Module], nn.Module] | None
    ) -> None:
        self.task = task
        self.plain = task.build_model()
        self.model = wrap(self.plain) if wrap else self.plain
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10)


def autocast(dtype: torch.dtype, *, scaled: bool, skip: int | None = None) -> Loop:
    """Mixed precision; at the batch `skip` the gradients overflow."""

    def loop(run: Run) -> int:
        steps = 0
        for at, (points, labels) in enumerate(run.task.batches()):
            run.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = cross_entropy(run.model(points), labels)
            assert loss.dtype is torch.float32
            if not scaled:
                loss.backward()
                run.optimizer.step()
                steps += 1
                continue
            run.scaler.scale(loss * (1e38 if at == skip else 1.0)).backward()
            run.scaler.step(run.optimizer)
            run.scaler.update()
            steps += at != skip
        return steps

    return loop


def accumulating(run: Run) -> int:
    """Two batches a step, scaled, unscaled by hand and clipped."""
    steps = 0
    for at, (points, labels) in enumerate(run.task.batches()):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(run.model(points), labels) / 2
        run.scaler.scale(loss).backward()
        if at % 2:
            run.scaler.unscale_(run.optimizer)
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
            run.scaler.step(run.optimizer)
            run.scaler.update()
            run.optimizer.zero_grad()
            steps += 1
    return steps


def closing(run: Run) -> int:
    """A closure, evaluated several times in a step."""
    for points, labels in run.task.batches(64):

        def closure(points: Any = points, labels: Any = labels) -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = cross_entropy(run.model(points), labels)
            loss.backward()
            return loss

        run.optimizer.step(closure)
    return 4


def skipping(run: Run) -> int:
    """The user leaves every third batch out, as one does with a loss that looks odd."""
    steps = 0
    for at, (points, labels) in enumerate(run.task.batches()):
        run.optimizer.zero_grad()
        cross_entropy(run.model(points), labels).backward()
        if at % 3:
            run.optimizer.step()
            steps += 1
    return steps


def plain(run: Run) -> int:
    run.task.train_epoch(run.model, run.optimizer)
    return 8


def compiling_steps(backend: str) -> Loop:
    """`optimizer.step` itself is compiled, once for each run."""

    def loop(run: Run) -> int:
        step = torch.compile(run.optimizer.step, backend=backend)
        for points, labels in run.task.batches():
            run.optimizer.zero_grad()
            cross_entropy(run.model(points), labels).backward()
            step()
        return 8

    return loop


def compiled(backend: str) -> Callable[[nn.Module], nn.Module]:
    return lambda model: torch.compile(model, backend=backend)


HALF, BRAIN = torch.float16, torch.bfloat16
LOOPS: dict[str, tuple[str, Loop, Callable[[nn.Module], nn.Module] | None]] = {
    "bfloat16": ("AdamW", autocast(BRAIN, scaled=False), None),
    "float16": ("SGD", autocast(HALF, scaled=True), None),
    "float16, a step overflows": ("AdamW", autocast(HALF, scaled=True, skip=2), None),
    "float16 fused": ("AdamW fused", autocast(HALF, scaled=True), None),
    "float16 fused, a step overflows": ("SGD fused", autocast(HALF, scaled=True, skip=5), None),
    "accumulated, unscaled, clipped": ("AdamW", accumulating, None),
    "accumulated, unscaled, clipped, fused": ("AdamW fused", accumulating, None),
    "closures": ("LBFGS", closing, None),
    "steps left out": ("SGD", skipping, None),
    "compiled": ("AdamW", plain, compiled("aot_eager")),
    "compiled steps": ("SGD", compiling_steps("aot_eager"), None),
    "compiled, float16": ("AdamW fused", autocast(HALF, scaled=True), compiled("eager")),
}

SLOW = {"compiled", "compiled steps"}


def proved(
    kind: str, task: Any, enrolment: polo.OfflineEnrolment, key: polo.Identity, path: Path
) -> tuple[polo.Proof, list[int], Run]:
    """Two epochs, a new start of the same script, and two more."""
    optimizer, loop, wrap = LOOPS[kind]
    steps = []
    for start in range(2):
        torch.manual_seed(start)
        run = Run(task, optimizer, wrap)
        prover = polo.Prover(enrolment, key=key, store=path)
        evaluate = lambda run=run: task.evaluate(run.plain)  # noqa: E731
        with prover.attach(run.model, run.optimizer, also={"scaler": run.scaler}):
            assert prover.shards == 2 * start
            for _ in range(2):
                steps.append(loop(run))
                progress = prover.end_epoch(evaluate)
                assert progress is not None
                assert progress.sealed
        if start:
            return prover.finish(), steps, run
        prover.close()
    raise AssertionError


def check(
    kind: str, task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, path: Path
) -> None:
    proof, steps, run = proved(kind, task, enrol(**EASY), alice, path)
    assert [shard.steps for shard in proof.manifest.shards] == steps
    assert (proof.shards, proof.outside) == (4, 0)
    # Real training: as good as a loop without a prover gets in four epochs.
    assert task.evaluate(run.plain) > 0.6
    assert polo.released(proof, run.model).proven
    names = {tensor.name for tensor in ProofFolder(proof.path).layout().tensors}
    assert names == set(run.plain.state_dict())
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in LOOPS],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of torch's own, at its first import.
def test_a_loop_is_proved(
    kind: str, task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    check(kind, task, enrol, alice, issuer, tmp_path / "proof")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of torch's own, at its first import.
def test_a_model_compiled_to_machine_code_is_proved(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(LOOPS, "inductor", ("AdamW", plain, compiled("inductor")))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    check("inductor", task, enrol, alice, issuer, tmp_path / "proof")


def test_a_proof_of_a_compiled_model_goes_on_without_compiling(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**EASY)
    for start, wrap in enumerate((compiled("eager"), None, compiled("eager"))):
        run = Run(task, "SGD", wrap)
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
        evaluate = lambda run=run: task.evaluate(run.plain)  # noqa: E731
        with prover.attach(run.model, run.optimizer, evaluate=evaluate):
            assert prover.shards == start
            plain(run)
            assert prover.end_epoch().sealed
        prover.close()
    verdict = polo.verify(tmp_path / "proof", trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def test_the_mark_reaches_the_weights_through_a_scaler_as_without_one(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    """λ is not to depend on the loss scale: the same run with and without reads the same."""
    readings = {}
    for kind in ("plain", "scaled", "fused"):
        torch.manual_seed(0)
        run = Run(task, "AdamW fused" if kind == "fused" else "AdamW", None)
        terms = enrol(bits=128, strength=0.002, budget=0.0)
        prover = polo.Prover(terms, key=alice, store=tmp_path / kind)
        with prover.attach(run.model, run.optimizer):
            for points, labels in task.batches():
                run.optimizer.zero_grad()
                loss = cross_entropy(run.model(points), labels)
                if kind == "plain":
                    loss.backward()
                    run.optimizer.step()
                else:
                    run.scaler.scale(loss).backward()
                    run.scaler.step(run.optimizer)
                    run.scaler.update()
            progress = prover.end_epoch()
        assert progress is not None
        readings[kind] = progress.reading.matches, run.plain[3].weight.detach().clone()
        prover.close()
    # Marks of other nonces, so the count may differ a little; too little or too much scale shows.
    assert all(abs(matches - readings["plain"][0]) < 24 for matches, _ in readings.values())
    assert readings["plain"][0] > 80

"""The same bytes and the same marks on a GPU. Collected only where there is one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polo
from polo.privacy import noising, obfuscation
from polo.verifier import Outcome
from polo.weights import checkpoint_of, commit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_root_is_the_same_on_both_devices(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.Linear(257, 129)
    ).to(dtype)
    here = commit(checkpoint_of(model)).root
    assert commit(checkpoint_of(model.cuda())).root == here
    assert commit(checkpoint_of(model.to(memory_format=torch.channels_last))).root == here
    assert commit(checkpoint_of(model).on_host()).root == here


def test_ties_are_kept_on_the_way_to_the_host() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9)).cuda()
    model[1].weight = model[0].weight
    live = checkpoint_of(model)
    assert live.on_host().layout == live.layout
    assert live.layout.ties
    assert commit(live.on_host()).root == commit(live).root


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_noise_is_the_same_on_both_devices(dtype: torch.dtype, form: torch.memory_format) -> None:
    values = torch.randn(300, 64, 15, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    drawn = obfuscation.noise(bytes(32), 3, values.numel(), 250_000)
    assert values.numel() > noising._STRIPS["cuda"]
    there = values.cuda().to(memory_format=form)
    noising.obfuscate(values, drawn, 40_000)
    noising.obfuscate(there, drawn, 40_000)
    assert torch.equal(there.cpu(), values)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_proof_of_a_run_on_the_gpu(
    fused: bool,
    scaled: bool,
    tmp_path: Path,
    task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
    enrol: Callable[..., polo.OfflineEnrolment],
) -> None:
    torch.manual_seed(0)
    model = task.build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled, init_scale=2.0**24)
    prover = polo.Prover(enrol(), key=alice, store=tmp_path / "proof")

    def evaluate() -> float:
        accuracy: float = task.evaluate(model.cpu())
        model.cuda()
        return accuracy

    with prover.attach(model, optimizer, evaluate=evaluate, also={"scaler": scaler}):
        for _ in range(5):
            for points, labels in task.batches():
                with torch.autocast("cuda", dtype=torch.float16):
                    out = model(points.cuda())
                    loss = torch.nn.functional.cross_entropy(out, labels.cuda())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            prover.end_epoch()
    proof = prover.finish()
    assert proof.shards >= 3
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()

"""Steps of every scheme are run again to the bit, after a break and with marks now and then too."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from polo.verifier import Outcome
from polo.watermark.schemes import SCHEMES


def wide() -> nn.Module:
    """A model whose norm scales hold a mark, beside matrices that hold one."""
    return nn.Sequential(nn.Linear(16, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 4))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_replayed(
    scheme: str, every: int, training: Callable[..., Any], honest: Any, tmp_path: Path
) -> None:
    task = type(honest.task)(wide)
    terms = {"scheme": scheme, "strength": None, "every": every, "budget": 0.9}
    if scheme == "riga":
        # Eight steps are few for its extractor; at a low load they and the finishing step suffice.
        terms |= {"load": 1 / 32, "strength": 0.02, "embed": 0.95}
    for _ in range(2):
        # A shard has eight steps, so the second begins between two that press the mark.
        run = training(tmp_path / "proof", task=task, terms=terms)
        run.epochs(1)
        run.prover.close()
    assert run.prover.shards == 2
    made = replace(honest, path=tmp_path / "proof", task=task, source=run.source)
    verdict = made.replayed(tmp_path / "answer")
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    (draw,) = [check for check in verdict.checks if check.name == "draw"]
    assert draw.figures["exact"] == draw.figures["run"] == 6
    assert len(verdict.per_shard("sealing")) == 2

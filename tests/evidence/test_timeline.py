"""Records of a chain, held against each other."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from polo.checks import Status
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.state import NO_STATE
from polo.evidence.replay.timeline import Timeline


def timeline(*shards: Sequence[int]) -> Timeline:
    """A chain whose boundaries have these models; the optimizer keeps nothing."""
    records = {
        number: Record(
            tuple(Boundary(bytes([model]) * 32, NO_STATE) for model in models),
            ((1, 0),) * len(models),
            "{}",
        )
        for number, models in enumerate(shards, start=1)
    }
    steps = [SimpleNamespace(steps=len(models) - 1) for models in shards]
    manifest: Any = SimpleNamespace(shards=steps)
    return Timeline(manifest, Recipe(samples=64, every=1), records)


@pytest.mark.parametrize(
    ("shards", "failed"),
    [
        ([[1, 2, 3], [4, 5, 6]], []),
        ([[1, 2, 3], [3, 4, 5], [5, 6]], []),
        ([[1, 2, 2]], [1]),
        ([[1, 2, 3], [4, 2]], [2]),
        ([[1, 2, 3], [2, 4]], [2]),
        ([[1, 2, 3], [3, 3]], [2]),
        ([[1, 2, 3], [4, 5], [3, 6]], [3]),
        ([[1, 2, 3], [4, 3]], [2]),
    ],
)
def test_no_state_comes_twice(shards: list[list[int]], failed: list[int]) -> None:
    """Only a sealing may leave the weights as they are, where there is no noise."""
    checks = list(timeline(*shards).checks())
    assert [check.shard for check in checks if check.status is Status.FAILED] == failed
    assert {check.name for check in checks} == {"record"}

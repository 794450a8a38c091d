"""Exact across processes: trained in some, killed in others, answered and verified elsewhere."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polo.evidence.replay import platform

pytestmark = pytest.mark.slow


@pytest.fixture
def work(tmp_path: Path) -> Callable[..., list[Any]]:
    """Gives orders to a fresh process; its answers."""
    here = Path(__file__)
    command = [sys.executable, "-W", "error", str(here.with_name("replay_worker.py"))]
    command += [str(tmp_path), str(here.parents[1])]
    chosen = itertools.chain(*platform.KERNELS.values())
    usual = {name: os.environ[name] for name in os.environ.keys() - set(chosen)}

    def make(*orders: dict[str, Any], **variables: str) -> list[Any]:
        given = "".join(json.dumps(order) + "\n" for order in orders)
        done = subprocess.run(
            command,
            input=given,
            env={**usual, **variables},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return make


def is_exact(answer: dict[str, Any], verdict: dict[str, Any]) -> bool:
    assert verdict["said"].startswith("ACCEPTED"), verdict["said"]
    figures = verdict["figures"]
    return bool(figures["exact"] == figures["run"] == answer["answered"])


def test_trained_resumed_answered_and_verified_in_four_processes(
    work: Callable[..., list[Any]],
) -> None:
    assert work({"train": 2}) == [{"shards": 2}]
    assert work({"train": 3}) == [{"shards": 3}]
    (answer,), (verdict,) = work({"answer": True}), work({"verify": True})
    assert answer == {"answered": 9}
    assert is_exact(answer, verdict)


def test_killed_at_many_touches_of_the_disk(work: Callable[..., list[Any]]) -> None:
    """Each child gets a little further than the one before, through begin and many sealings."""
    deaths = [{"train": 9, "at": at} for at in range(4, 90, 9)]
    *killed, last, answer, verdict = work(*deaths, {"train": 9}, {"answer": True}, {"verify": True})
    assert sum(each["killed"] for each in killed) >= 6
    assert last == {"shards": 9}
    assert is_exact(answer, verdict)


def test_whose_environment_chose_other_kernels_is_not_called_a_liar(
    work: Callable[..., list[Any]],
) -> None:
    """Bits may come out otherwise by them, on the very same machine."""
    kernels = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    work({"train": 2}, {"answer": True}, **kernels)
    (other,), (same,) = work({"verify": True}), work({"verify": True}, **kernels)
    assert same["said"].startswith("ACCEPTED"), same["said"]
    if not other["said"].startswith("ACCEPTED"):
        assert other["said"].startswith("COULD NOT DECIDE"), other["said"]
        assert "(kernels: MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 and none)" in other["said"]

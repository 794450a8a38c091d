"""The benchmark of the registry runs, on both databases."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.full
def test_a_quick_run(tmp_path: Path, postgres: object) -> None:
    del postgres  # Skips where there is none.
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "registry", "--quick", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads(out.read_text())["benchmarks"]["registry"]["figures"]
    names = {figure["name"] for figure in figures}
    for kind in ("sqlite", "postgresql"):
        assert f"{kind}: durable commitments" in names
        assert f"{kind}: commitments with openings" in names
    assert all(figure["value"]["median"] > 0 for figure in figures)

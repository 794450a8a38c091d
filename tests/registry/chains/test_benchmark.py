"""The benchmark of the registry runs, on both databases."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import registry_goal, registry_growth, scan_growth

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


def test_the_page_says_what_very_many_chains_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_growth, "PAGE", tmp_path / "registry-scale.md")
    monkeypatch.setattr(scan_growth, "DRAWING", tmp_path / "scan.svg")
    monkeypatch.setattr(registry_growth, "FOLDER", tmp_path)
    recorded = json.loads((ROOT / "benchmarks" / "results" / "latest.json").read_text())
    scan_growth.write(recorded)
    written = (tmp_path / "registry-scale.md").read_text()
    kept = (ROOT / "docs" / "registry-scale.md").read_text()
    for words in (
        "| the log itself |",
        "| rows of the database |",
        "| bytes of the database |",
        "| taking the commitments, SQLite |",
        "| taking the commitments, PostgreSQL |",
        "| a full audit (`doctor --all`, `restore`) |",
        "| a backup, without files |",
        "| seeds told to the child |",
        "s of a look |",
        "| `refresh` before each scan |",
        "| `/metrics`, which counts them |",
        "| `/operator` |",
        "| riga |",
        "times of the library call",
        "What must change",
    ):
        assert words in written, words
        assert words in kept, f"docs/registry-scale.md: {words}; python -m benchmarks.report"


def test_days_follow_from_the_rate_and_bytes_from_the_entry() -> None:
    names = ("bytes of an entry", "bytes of the database", "a full audit", "a backup,",
             "bytes of a backup", "seeds of new marks", "looking for chains")  # fmt: skip
    page = {"fewer": 0, "ms_of_fewer": 1.0, "ms": 2.0, "enrolments": 1000}
    pages = {"the figures of /metrics": page, "the operator's page": page}
    costs = registry_goal.Costs(dict.fromkeys(names, 1.0), pages, "today", None)
    rows = {row[0]: row[1] for row in registry_goal.rows(costs, {"sqlite": 1.0}, 86_400, 0.5)}
    assert rows["entries of the log"] == f"{86_400 * 51:,}"
    assert rows["taking the commitments, SQLite"] == "51 days"
    assert rows["a full audit (`doctor --all`, `restore`)"] == "51 days"
    assert rows["chains within the 1800 s of a look"] == "3,600"

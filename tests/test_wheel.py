"""The wheel installs into a clean environment, and the quickstart runs from it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def call(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_quickstart_from_the_wheel(tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "polo/py.typed" in names
    assert not [
        name for name in names if not name.startswith(("polo/", "polo_lab/", "polo_proof-"))
    ]
    call(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    call(
        python, "-m", "pip", "install", "-q", "--no-compile", "-c", constraints, wheel, cwd=tmp_path
    )
    assert "quickstart" in call(tmp_path / "clean/bin/polo", "--help", cwd=tmp_path)
    missing = subprocess.run(
        [tmp_path / "clean/bin/polo", "quickstart"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert missing.returncode == 2
    assert "polo-proof[quickstart]" in missing.stderr
    extra = f"{wheel}[quickstart]"
    call(
        python, "-m", "pip", "install", "-q", "--no-compile", "-c", constraints, extra, cwd=tmp_path
    )
    seen = call(tmp_path / "clean/bin/polo", "quickstart", "--dir", "out", cwd=tmp_path)
    assert "ACCEPTED at level chain" in seen

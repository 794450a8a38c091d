"""Records and draws what the documents show: `make docs`.

Runs the quickstart, keeps what it printed and measured in `docs/recorded/`, takes the picture of
its report, runs the example of released weights, draws the drawings, and writes recorded blocks
into README.md, docs/threat-model.md and docs/integrations.md. No figure in those blocks is typed
by hand; a test compares them with the recordings. `--embed` only writes the blocks again, from the
recordings that are there.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMANDS = (
    "quickstart",
    "keygen",
    "trust",
    "trust add",
    "trust list",
    "trust remove",
    "data",
    "enrol",
    "validate",
    "verify",
    "show",
    "challenge",
    "answer",
    "identify",
    "compare",
    "disclose",
    "export",
    "import",
    "transfer",
    "transfer request",
    "transfer sign",
    "transfer complete",
    "transfer show",
    "log",
    "log audit",
    "log witness",
    "log collect",
    "submit",
    "status",
    "identity",
    "identity show",
    "identity rotate",
    "identity revoke",
    "registry",
    "registry serve",
    "registry migrate",
    "registry token",
    "registry keys",
    "registry keys rotate",
    "registry worker",
    "registry backup",
    "registry restore",
    "registry doctor",
)
COMMANDS_HEAD = """# Commands

Made by `make docs` from the commands' own help. Exit codes: 0 accepted, claimed, or done; 1
rejected (`verify`), no claim (`identify`), unrelated (`compare`), does not fit (`validate`) or
lies (`log audit`); 2 could not decide, could not be done, or not understood.

| setting | what it does |
|---|---|
| `POLO_TRUST` | folder of the issuers you trust, instead of `~/.config/polo/trust` |
| `POLO_PASSPHRASE` | passphrase of a private key, instead of being asked |
| `POLO_DEBUG` | show where an unexpected error happened |
| `POLO_REGISTRY`, `_` and a name | that setting of a registry: docs/operate.md |
| `POLO_DATA` | folder that holds the laboratory's data sets, see [laboratory.md](laboratory.md) |
"""

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "recorded"
BENCHMARKS = ROOT / "benchmarks" / "results" / "latest.json"


def main() -> None:
    """Record everything, or only embed what is recorded."""
    if "--embed" not in sys.argv[1:]:
        record()
        record_released()
        for script in ("docs/images/make.py",):
            subprocess.run([sys.executable, str(ROOT / script)], check=True)
        if BENCHMARKS.exists():
            subprocess.run([sys.executable, "-m", "benchmarks.report"], check=True, cwd=ROOT)
        subprocess.run([sys.executable, "-m", "polo_lab", "docs"], check=True, cwd=ROOT)
    (ROOT / "docs" / "commands.md").write_text(commands(), encoding="utf-8")
    (ROOT / "docs" / "errors.md").write_text(errors(), encoding="utf-8")
    for path, name, block in blocks():
        path.write_text(embedded(path.read_text(encoding="utf-8"), name, block), encoding="utf-8")


def record() -> None:
    """Run the quickstart twice: as a newcomer sees it, and for its figures."""
    RECORDED.mkdir(exist_ok=True)
    polo = Path(sys.executable).with_name("polo")
    with tempfile.TemporaryDirectory() as temporary:
        command = [str(polo), "quickstart", "--dir", "quickstart"]
        seen = _run(command, temporary)
        (RECORDED / "quickstart.txt").write_text(seen, encoding="utf-8")
        folder = Path(temporary) / "quickstart"
        if shutil.which("chromium"):
            script = ROOT / "docs" / "images" / "screenshot.py"
            subprocess.run([sys.executable, str(script), str(folder)], check=True)
        figures = json.loads(_run([*command, "--force", "--json"], temporary))
    figures["machine"] = {"python": platform.python_version(), "system": platform.system()}
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (RECORDED / "quickstart.json").write_text(text + "\n", encoding="utf-8")


def record_released() -> None:
    """Run the example of EMA, SWA and the best epoch."""
    with tempfile.TemporaryDirectory() as temporary:
        seen = _run([sys.executable, str(ROOT / "examples" / "ema.py"), "released"], temporary)
    (RECORDED / "released.txt").write_text(seen, encoding="utf-8")


_HELP = """
import sys
from polo.cli import run
for name in sys.argv[1:]:
    assert run([*name.split(), "--help"]) == 0
    print(end="\\f", flush=True)
"""
"""All helps in one process, each with a form feed behind it."""


def commands() -> str:
    """Every command's help, as `docs/commands.md` shows it."""
    names = ("", *COMMANDS)
    shown = _run([sys.executable, "-c", _HELP, *names], str(ROOT)).split("\f")
    parts = [COMMANDS_HEAD]
    for name, text in zip(names, shown[:-1], strict=True):
        parts.append(f"## polo {name}".rstrip() + f"\n\n```\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def errors() -> str:
    """Every code of a registry's problems, as `docs/errors.md` shows it."""
    import polo.registry.app  # noqa: F401  (the domains add their codes)
    from polo.registry import problems

    return problems.document()


def blocks() -> list[tuple[Path, str, str]]:
    """File, name and content of every recorded block."""
    seen = (RECORDED / "quickstart.txt").read_text(encoding="utf-8").rstrip()
    released = (RECORDED / "released.txt").read_text(encoding="utf-8").rstrip()
    return [
        (ROOT / "README.md", "quickstart", f"```\n{seen}\n```"),
        (ROOT / "docs" / "threat-model.md", "forgery", _forgery()),
        (ROOT / "docs" / "integrations.md", "released", f"```\n{released}\n```"),
    ]


def embedded(text: str, name: str, block: str) -> str:
    """A document with the content of one recorded block replaced."""
    pattern = rf"(<!-- recorded: {name} -->\n).*?(<!-- end -->)"
    found, count = re.subn(
        pattern, lambda match: f"{match[1]}{block}\n{match[2]}", text, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"there is not exactly one block {name!r}")
    return found


def _forgery() -> str:
    figures = json.loads((RECORDED / "quickstart.json").read_text(encoding="utf-8"))
    forged = figures["scenes"][-1]
    honest = 1000 * figures["seconds"]["training with PoLO"] / figures["shards"]
    rows = [
        "| model and mark | command | honest training, a shard | forged, a shard | verdict |",
        "|---|---|---|---|---|",
        f"| digits, {figures['bits']} bits | `polo quickstart` | {honest:.0f} ms | "
        f"{forged['milliseconds_per_shard']:.0f} ms | {_judged(forged)} |",
    ]
    return "\n".join(rows + _measured_forgery())


def _judged(scene: dict[str, Any]) -> str:
    refused = scene.get("refused_at", [])
    above = " and ".join(level for level in refused if level != "chain")
    return f"{'rejected' if 'chain' in refused else 'accepted'} at level chain" + (
        f", rejected at {above}" if above else ""
    )


def _measured_forgery() -> list[str]:
    """The same on weights of ResNet-18's size, if `make bench` has measured it."""
    figures: dict[str, Any] = {}
    # What was measured on another machine since comes last.
    for path in (BENCHMARKS, BENCHMARKS.with_name("newer.json")):
        if path.exists():
            recorded = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
            found = recorded.get("cost", {}).get("figures", ())
            figures |= {figure["name"]: figure for figure in found}
    against = figures.get("forged shard against an epoch")
    if against is None:
        return []
    forged, honest = (against["medians"][side] for side in ("forged shard", "honest epoch"))
    return [
        f"| ResNet-18, 2048 bits, on a CPU | `make bench` | {honest:.0f} s "
        f"(an epoch of 50,000 images) | {1000 * forged:.0f} ms | not run |"
    ]


def _run(command: list[str], folder: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
        # By its name, as where it is installed; no path of the recording machine is recorded.
        env={**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    return done.stdout


if __name__ == "__main__":
    main()

"""docs/operate.md and docs/security.md: what they tell to type can be typed, and does it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx2
import pytest

from polo.cli import app
from polo.registry.operations import figures
from polo.registry.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
OPERATE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TYPED = re.findall(r"^    (polo .+)$", OPERATE, re.MULTILINE)
NAMED = sorted(set(re.findall(r"`(polo [a-z][^`]*)`", OPERATE + SECURITY)))


@pytest.mark.parametrize("command", sorted({*TYPED, *NAMED}))
def test_every_command_is_one(command):
    words = shlex.split(command)[1:]
    known = app
    while words and words[0] in known:
        known = known[words.pop(0)]
    assert known is not app
    options = {name for item in known.assemble_argument_collection() for name in item.names}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.fixture
def machine(tmp_path):
    """Runs what the document says, with the folders it names below a temporary one."""
    (tmp_path / "backups").mkdir()
    (tmp_path / "tasks.toml").write_text("[digits]\n")  # Whose data are everywhere.
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "XDG_DATA_HOME": str(tmp_path / "share"),
        "POLO_REGISTRY_PORT": "0",
        "POLO_REGISTRY_ORIGIN": "polo.example/log",
        "POLO_REGISTRY_TASKS": str(tmp_path / "tasks.toml"),
    }

    def run(command, *, check=True):
        for name in ("/backups", "/srv"):
            command = command.replace(name, f"{tmp_path}{name}")
        done = subprocess.run(
            ["bash", "-ec", command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}"
        return done

    run.environment, run.folder = environment, tmp_path
    return run


def section(title):
    return OPERATE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands(title):
    return re.findall(r"^    (polo .+)$", section(title), re.MULTILINE)


@pytest.mark.slow
def test_a_registry_is_backed_up_while_it_serves_and_rehearsed(machine):
    """The commands of the document in their order, around a server that is really running."""
    (start,) = commands("In a minute")
    log = (machine.folder / "serve.log").open("wb")
    server = subprocess.Popen(
        shlex.split(start), env=machine.environment, stdout=subprocess.PIPE, stderr=log, text=True
    )
    try:
        first = [server.stdout.readline() for _ in range(3)]
        url = re.search(r"at (http://\S+)", first[0])[1]
        token = re.search(r"polo_\S+", first[2])[0]
        _wait(url)
        answer = httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
        for figure in re.findall(r"`(polo_[a-z_]+)", section("Figures to watch")):
            assert f"\n# HELP {figure.removesuffix('_total')}" in f"\n{answer.text}", figure
        for command in commands("Looking it over"):
            assert "what to do" not in machine(command).stdout
        for command in commands("Backup and restore"):
            machine(command)
        there = machine.folder / "unpacked"
        there.mkdir()
        checked = section("Backup and restore").split("`tar -xf FILE && ")[1].split("`")[0]
        machine(f"cd {there} && tar -xf /backups/polo-1.tar && {checked}")
        machine(re.search(r"`(polo registry keys rotate)`", OPERATE)[1])
        machine(re.search(r"`(polo registry token NAME[^`]*)`", OPERATE)[1])
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        server.stdout.close()
        log.close()
    machine("polo registry migrate")


def _wait(url):
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx2.get(f"{url}/readyz").raise_for_status()
        except httpx2.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_files_of_settings_are_settings(tmp_path):
    blocks = re.findall(r"^```toml\n(.*?)^```$", OPERATE, re.MULTILINE | re.DOTALL)
    indented = re.search(r"(    # /etc/polo/registry\.toml\n(?:    .+\n)+)", OPERATE)
    blocks += [re.sub("^    ", "", indented[1], flags=re.MULTILINE)] if indented else []
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        assert tomllib.loads(block)
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        assert Settings.load(file, {}).origin == "polo.example/log"


def test_the_unit_is_one_that_systemd_can_read():
    unit = re.search(r"((?:    .*\n|\n)*?    \[Install\]\n(?:    .+\n)+)", OPERATE)
    text = re.sub(
        "^    ", "", OPERATE[OPERATE.index("    [Unit]") : unit.end()], flags=re.MULTILINE
    )
    for line in text.strip().splitlines():
        assert re.fullmatch(r"\[\w+\]|\w+=.+|", line), line
    assert "ExecStart=/opt/polo/bin/polo registry serve" in text


def test_what_the_documents_point_to_exists():
    for path in re.findall(r"`(tests/[a-z_/]+\.py)`", OPERATE + SECURITY):
        assert (ROOT / path).exists(), path
    for anchor in re.findall(r"\]\((?:operate\.md)?#([a-z_-]+)\)", OPERATE + SECURITY):
        titles = re.findall(r"^#+ (.+)$", OPERATE, re.MULTILINE)
        assert anchor in {title.strip("`").lower().replace(" ", "-") for title in titles}, anchor


def test_the_figures_are_counted(registry):
    told = figures.text(registry).decode()
    assert "\npolo_log_entries 0.0\n" in told
    assert "\npolo_jobs_late_seconds 0.0\n" in told

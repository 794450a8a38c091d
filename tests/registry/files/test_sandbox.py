"""The process that touches what others sent: what it is given, and what it cannot do."""

import os
from dataclasses import replace

import pytest

from polo.registry.verifications import sandbox

PROBE = """
import os, sys, resource
from pathlib import Path
from polo.registry.verifications import child

def looks(request):
    before = os.umask(0o077)
    status = Path("/proc/self/status").read_text()
    return {
        "environment": dict(os.environ),
        "umask": before,
        "told": sys.stdin.read(),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "no_new_privs": "NoNewPrivs:\\t1" in status,
        "open": sorted(os.listdir("/proc/self/fd")),
    }

def writes(request):
    with open("large", "wb") as file:
        for _ in range(64):
            file.write(bytes(2**20))
    return {}

sys.exit(child.serve({"looks": looks, "writes": writes}))
"""


@pytest.fixture
def probe(registry, tmp_path, monkeypatch):
    """Runs a program of ours as the registry runs its own."""
    (tmp_path / "probing").mkdir()
    (tmp_path / "probing" / "probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "probing"))

    def run(do, **options):
        with sandbox.room(registry) as folder:
            return sandbox.run(registry, folder, {"do": do}, module="probe", **options)

    return run


@pytest.fixture
def database_url(tmp_path):
    """One kind of database is enough: none takes part."""
    return f"sqlite:///{tmp_path / 'data' / 'registry.sqlite'}"


@pytest.fixture
def settings(settings):
    return replace(settings, verify_environment=("POLO_TASKS_WORD",))


def test_it_gets_no_secret_of_the_environment(probe, monkeypatch):
    for name in (
        "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "POLO_REGISTRY_DATABASE", "HF_TOKEN", "MY_PASSWORD",
    ):  # fmt: skip
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("POLO_DATA", "/data")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("POLO_TASKS_WORD", "asked for")
    found = probe("looks")
    environment = found["environment"]
    assert "secret" not in environment.values()
    assert (environment["POLO_DATA"], environment["OMP_NUM_THREADS"]) == ("/data", "1")
    assert environment["POLO_TASKS_WORD"] == "asked for"
    assert environment["PATH"] == os.environ["PATH"]


def test_what_it_makes_is_its_owners_alone_and_it_gains_no_rights(probe):
    found = probe("looks")
    assert found["umask"] == 0o077
    assert found["core"] == 0
    assert found["no_new_privs"]
    assert len(found["open"]) <= 5  # Its three, the listing, and the one of the shared libraries.


def test_secrets_come_by_standard_input(probe, registry):
    assert probe("looks", secret=b"seeds")["told"] == "seeds"
    assert probe("looks")["told"] == ""
    assert list((registry.settings.data / "work").iterdir()) == []


def test_it_cannot_fill_the_disk_with_one_file(probe, monkeypatch):
    monkeypatch.setattr(sandbox, "_WRITTEN", 2**24)
    with pytest.raises(sandbox.ChildError, match="File too large"):
        probe("writes")
    assert probe("writes", weights=2**24) == {}

"""The machine and how busy it was: a figure without them means little."""

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

_PACKAGES = ("polo-proof", "torch", "numpy", "safetensors", "zstandard", "cryptography")


def describe() -> dict[str, object]:
    """Processor, cores, memory and versions."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def load() -> float:
    """Average number of processes that ran or waited during the last minute."""
    return round(os.getloadavg()[0], 2)


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu() -> str:
    """Name, family and model: cloud machines often give a bare name."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields = (line.partition(":") for line in info.read_text().splitlines() if ":" in line)
    # Every core says the same; the first one is enough.
    first: dict[str, str] = {}
    for key, _, value in fields:
        first.setdefault(key.strip(), value.strip())
    family, model = first.get("cpu family", "?"), first.get("model", "?")
    return f"{first.get('model name', platform.machine())} (family {family}, model {model})"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"

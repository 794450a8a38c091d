"""The machine and how busy it was: a figure without them means little."""

import importlib.metadata
import os
import platform
import time
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


class Watch:
    """How busy the machine is, and how much of that is somebody else."""

    def __init__(self) -> None:
        self._before = os.getloadavg()[0]
        self._began = _busy(), _own(), time.monotonic()

    def seen(self) -> dict[str, float | None]:
        """Load averages at both ends, and the part of all cores that others used in between."""
        busy, own, now = _busy(), _own(), time.monotonic()
        others = None
        if busy is not None and self._began[0] is not None:
            spent = (busy - self._began[0]) - (own - self._began[1])
            others = round(max(0.0, spent) / (now - self._began[2]) / (os.cpu_count() or 1), 3)
        after = os.getloadavg()[0]
        return {"before": round(self._before, 2), "after": round(after, 2), "others": others}


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _busy() -> float | None:
    """Seconds that all cores together have worked since the machine started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _waiting, *rest = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Seconds of them that went to this process and to the children it has waited for."""
    return sum(os.times()[:4])


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

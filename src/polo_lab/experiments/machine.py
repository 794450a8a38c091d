"""The machine: a time without it means little."""

import functools
import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path

from polo._version import __version__

_OWN = "polo-proof"
_PACKAGES = (_OWN, "torch", "numpy", "scikit-learn", "cryptography")

_PLACES = ("/", "./", "../", "~")


@functools.cache
def describe() -> dict[str, object]:
    """Processor, cores, GPU and versions."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def has_gpu() -> bool:
    """Whether there is a GPU that can be trained on."""
    import torch

    return torch.cuda.is_available()


def command() -> str:
    """The running command as a reader would type it, without paths of this machine."""
    words = (Path(word).name if word.startswith(_PLACES) else word for word in sys.argv[1:])
    return f"polo-lab {shlex.join(words)}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if has_gpu() else ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # The checkout itself may run without being installed.
        return __version__ if name == _OWN else "not installed"

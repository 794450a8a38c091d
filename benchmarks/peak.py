"""`python -m benchmarks.peak KIND FILE MIB`: the memory that one root takes, in this process."""

import resource
import sys
from pathlib import Path

from benchmarks.root import weights
from polo.weights import Checkpoint, FileCheckpoint, commit

_RESET = "5"


def main(kind: str, path: Path, mebibytes: int) -> float:
    """Extra MiB at the peak of `commit`, above what the process held before."""
    checkpoint: Checkpoint = weights(mebibytes)
    if kind == "file":
        checkpoint = FileCheckpoint.canonical(path, checkpoint.layout)
    try:
        Path("/proc/self/clear_refs").write_text(_RESET)
        before = _peak()
    except OSError:
        before = _ever()
        commit(checkpoint)
        return _ever() - before
    commit(checkpoint)
    return _peak() - before


def _peak() -> float:
    """High water mark since the last reset, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmHWM")


def _ever() -> float:
    """High water mark of the whole process, in MiB; only an upper bound can be told from it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))

"""The root of a checkpoint against plain two-thread SHA-256 of the same bytes, and its memory."""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.figures import Benchmark, Figure, Target, amount_of, ratio_of
from benchmarks.measure import interleave
from polo.weights import FileCheckpoint, MemoryCheckpoint, checkpoint_of, commit
from polo.weights.files import write_checkpoint

THREADS = 2
_LARGE = 4 * 2**20
_SMALL = 64
_RATE = Target("at least", 0.45)
_MEMORY = Target("at most", 64.0)


def weights(mebibytes: int) -> MemoryCheckpoint:
    """A checkpoint in memory: mostly large tensors, and some small ones as norms have them."""
    state: dict[str, torch.Tensor] = {}
    # One random block, shifted for each tensor: hashing does not care, and it is quick to make.
    drawn = torch.randn(_LARGE + 1024, generator=torch.Generator().manual_seed(1))
    for at in range(mebibytes * 2**20 // (4 * _LARGE)):
        state[f"layer{at:03d}.weight"] = drawn[at : at + _LARGE].clone()
        state[f"layer{at:03d}.bias"] = drawn[at : at + _SMALL].clone()
    return checkpoint_of(state)


def run(quick: bool) -> Iterator[Figure]:
    """Rates from file and from memory, then peak memory in processes of their own."""
    mebibytes, rounds = (64, 3) if quick else (1024, 15)
    memory = weights(mebibytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        with path.open("wb") as out:
            write_checkpoint(memory, out.write)
        with FileCheckpoint.canonical(path, memory.layout) as file:
            if commit(file).root != commit(memory).root:
                raise RuntimeError("the same weights have two roots")
            samples = interleave(
                {
                    "raw": lambda: raw(memory),
                    "file": lambda: commit(file, threads=THREADS),
                    "raw again": lambda: raw(memory),
                    "memory": lambda: commit(memory, threads=THREADS),
                },
                rounds,
            )
        size = memory.layout.size
        for side, baseline in (("file", "raw"), ("memory", "raw again")):
            sides = {side: samples[side], baseline: samples[baseline]}
            rates = {f"{name}_gb_s": _rate(size, values) for name, values in sides.items()}
            yield ratio_of(
                f"rate of the root from {side}",
                sides,
                baseline,
                side,
                target=_RATE,
                against="plain SHA-256",
                note=f"{mebibytes} MiB, {THREADS} threads; files lie in the page cache",
                details=rates,
            )
        for kind in ("file", "memory"):
            peaks = [peak(kind, path, mebibytes) for _ in range(1 if quick else 5)]
            yield amount_of(f"extra peak memory from {kind}", "MiB", peaks, target=_MEMORY)


def raw(checkpoint: MemoryCheckpoint) -> None:
    """Hash every tensor in one call each, on two threads: as fast as hashlib goes."""
    views = [
        memoryview(checkpoint.tensor(at).numpy()).cast("B")
        for at in range(len(checkpoint.layout.tensors))
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda view: hashlib.sha256(view).digest(), views):
            pass


def peak(kind: str, path: Path, mebibytes: int) -> float:
    """MiB that hashing adds to a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peak", kind, str(path), str(mebibytes)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(found.stdout)


def _rate(size: int, seconds: list[float]) -> float:
    return round(size / sorted(seconds)[len(seconds) // 2] / 1e9, 3)


BENCHMARK = Benchmark("root", "the root of a checkpoint against plain SHA-256", run)

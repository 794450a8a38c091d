"""Checking one mark: from a whole checkpoint on disk, and from its opening."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.figures import Benchmark, Figure, Target, amount_of, time_of
from benchmarks.measure import interleave
from benchmarks.resnet import ResNetDigits
from polo import make_terms
from polo.protocol.carrier import Carrier
from polo.protocol.detection import Reading
from polo.protocol.records import Terms
from polo.storage import openings
from polo.watermark import OpenedCheckpoint, carrier_of, derive, read, values_of
from polo.weights import FileCheckpoint, checkpoint_of, commit
from polo.weights.files import write_checkpoint

BITS = 2048
_SEED = bytes(range(32))
_WHOLE = Target("at most", 1.0)
_OPENED = Target("at most", 0.1)
_SIZE = Target("at most", 0.03)


class Stored:
    """A checkpoint of ResNet-18 and the opening of one mark, as files."""

    def __init__(self, folder: Path) -> None:
        task = ResNetDigits()
        torch.manual_seed(1)
        checkpoint = checkpoint_of(task.build_model())
        self.terms: Terms = make_terms(task, bits=BITS)
        self.carrier: Carrier = carrier_of(self.terms, checkpoint.layout)
        self.whole, self.opening = folder / "whole.safetensors", folder / "opening.safetensors"
        with self.whole.open("wb") as out:
            write_checkpoint(checkpoint, out.write)
        commitment = commit(checkpoint)
        self.root = commitment.root
        where = self.carrier.leaves(derive(self.terms, self.carrier, _SEED).blocks)
        self.opening.write_bytes(openings.encode(commitment.open(checkpoint, where)))

    def check_whole(self) -> Reading:
        """The mark out of the checkpoint, whose root is computed too."""
        with FileCheckpoint.canonical(self.whole, self.carrier.layout) as file:
            _same(commit(file).root, self.root)
            mark = derive(self.terms, self.carrier, _SEED)
            return read(mark, values_of(mark, self.carrier, file))

    def check_opening(self) -> Reading:
        """The mark out of the opening, whose root is computed too."""
        mark = derive(self.terms, self.carrier, _SEED)
        layout, where = self.carrier.layout, self.carrier.leaves(mark.blocks)
        opening = openings.load(self.opening, layout, where, place="opening")
        _same(opening.root(layout, where, place="opening"), self.root)
        return read(mark, values_of(mark, self.carrier, OpenedCheckpoint(layout, opening.chunks)))

    def hash_file(self) -> None:
        """Plain SHA-256 of the whole file, the least that anybody does to it."""
        with self.whole.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def run(quick: bool) -> Iterator[Figure]:
    """Both ways, with the files in the page cache and without."""
    rounds = 3 if quick else 31
    with tempfile.TemporaryDirectory() as folder:
        stored = Stored(Path(folder))
        if stored.check_whole() != stored.check_opening():
            raise RuntimeError("checkpoint and opening read differently")
        sides = {
            "plain SHA-256 of the file": stored.hash_file,
            "whole": stored.check_whole,
            "opening": stored.check_opening,
        }
        plain = next(iter(sides))

        def evict() -> None:
            _evict(stored.whole)
            _evict(stored.opening)

        for cache, before in (("warm", {}), ("cold", dict.fromkeys(sides, evict))):
            note = f"{cache} page cache, warm interpreter; {BITS} bits"
            samples = interleave(sides, rounds, before=before)
            for side, target in (("whole", _WHOLE), ("opening", _OPENED)):
                yield time_of(
                    f"mark from {side}, {cache}", samples, side, plain, target=target, note=note
                )
        whole, opening = (path.stat().st_size for path in (stored.whole, stored.opening))
        yield amount_of(
            "size of the opening",
            "of the checkpoint",
            [opening / whole],
            target=_SIZE,
            details={"opening_bytes": opening, "checkpoint_bytes": whole},
        )


def _same(found: bytes, wanted: bytes) -> None:
    if found != wanted:
        raise RuntimeError("another root")


def _evict(path: Path) -> None:
    """Drop a file from the page cache; it must be on disk for that."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


BENCHMARK = Benchmark("mark", "checking one mark of a ResNet-18", run)

"""Lossless deltas on real chains: how small, before and after obfuscation, and how fast."""

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.chain import Chain, Link
from benchmarks.figures import Benchmark, Figure, amount_of, missing, ratio_of
from benchmarks.measure import Samples, interleave
from benchmarks.resnet import ResNetDigits, train_step
from polo import make_terms
from polo.storage import delta
from polo.tasks.digits import Digits
from polo.weights import Checkpoint
from polo.weights.files import write_checkpoint

_LEVEL = 3


def run(quick: bool) -> Iterator[Figure]:
    """The digits network over eight shards, then ResNet-18 over three short ones."""
    try:
        import zstandard
    except ImportError:
        yield missing("size of a delta", "of the checkpoint", "zstandard is not installed")
        return
    chain, links = digits_chain(2 if quick else 8)
    yield from _sizes("digits", chain, links)
    chain, links = resnet_chain(*(1, 1) if quick else (3, 10))
    yield from _sizes("ResNet-18", chain, links)
    older, newer = [chain.start, *(link.after for link in links)][-2:]
    raw = _whole(newer)
    packed = io.BytesIO()
    delta.write_delta(older, newer, packed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "delta.safetensors"
        path.write_bytes(packed.getvalue())
        samples = interleave(
            {
                "zstandard of the checkpoint": lambda: zstandard.ZstdCompressor(
                    level=_LEVEL
                ).compress(raw),
                "write": lambda: delta.write_delta(older, newer, io.BytesIO()),
                "read": lambda: delta.apply_delta(path, newer, _forget, place="delta"),
            },
            2 if quick else 21,
        )
    yield from _speeds(samples, len(raw))


def digits_chain(shards: int) -> tuple[Chain, list[Link]]:
    """The digits task under default terms, one epoch of SGD a shard."""
    task = Digits()
    torch.manual_seed(1)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    chain = Chain(make_terms(task, bits=256), model, optimizer)
    return chain, [chain.advance(lambda: task.train_epoch(model, optimizer)) for _ in range(shards)]


def resnet_chain(shards: int, steps: int) -> tuple[Chain, list[Link]]:
    """ResNet-18 on real images under default terms, some steps of SGD a shard."""
    task = ResNetDigits()
    torch.manual_seed(1)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    chain = Chain(make_terms(task, bits=2048), model, optimizer)
    images, labels = task.train_data

    def train() -> None:
        for batch in torch.randperm(len(labels))[: 32 * steps].split(32):
            train_step(model, optimizer, images[batch], labels[batch])

    return chain, [chain.advance(train) for _ in range(shards)]


def _sizes(name: str, chain: Chain, links: list[Link]) -> Iterator[Figure]:
    sealed = [chain.start, *(link.after for link in links)]
    size = len(_whole(chain.start))
    sides: tuple[tuple[str, Callable[[Link], Checkpoint]], ...] = (
        ("before noise", lambda link: link.before),
        ("after noise", lambda link: link.after),
    )
    for side, newer_of in sides:
        parts = [
            _size(older, newer_of(link)) / size for older, link in zip(sealed, links, strict=False)
        ]
        yield amount_of(
            f"size of a delta, {name}, {side}",
            "of the checkpoint",
            parts,
            note="one sample a shard, oldest first; the noise is that of the default terms",
            details={"checkpoint_bytes": size},
        )


def _speeds(samples: Samples, size: int) -> Iterator[Figure]:
    plain = next(iter(samples))
    for side in ("write", "read"):
        sides = {side: samples[side], plain: samples[plain]}
        middle = sorted(samples[side])[len(samples[side]) // 2]
        yield ratio_of(
            f"rate of a delta, {side}",
            sides,
            plain,
            side,
            against="zstandard of the checkpoint",
            note=f"ResNet-18, {size / 1e6:.0f} MB",
            details={"mb_s": round(size / middle / 1e6, 1)},
        )


def _size(older: Checkpoint, newer: Checkpoint) -> int:
    packed = io.BytesIO()
    delta.write_delta(older, newer, packed)
    return len(packed.getvalue())


def _whole(checkpoint: Checkpoint) -> bytes:
    file = io.BytesIO()
    write_checkpoint(checkpoint, file.write)
    return file.getvalue()


def _forget(data: bytes) -> None:
    del data


BENCHMARK = Benchmark("deltas", "lossless deltas between sealed checkpoints", run)

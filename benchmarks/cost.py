"""What PoLO costs a trainer, and what a forged shard costs a forger."""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.figures import Benchmark, Figure, amount_of, ratio_of, time_of
from benchmarks.measure import Samples, interleave, one_thread
from benchmarks.resnet import ResNetDigits, train_step
from polo import Identity, Prover, enrol, make_terms
from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.protocol import derivation
from polo.protocol.records import FinishTerms
from polo.tasks.digits import Digits
from polo.watermark import carrier_of
from polo.weights import checkpoint_of, commit

EPOCHS = 8
BATCH = 32
BITS = 2048
CIFAR_STEPS = -(-50_000 // BATCH)
_EPOCH = f"an epoch of 50,000 images counted as {CIFAR_STEPS} measured steps of batch {BATCH}"
_PARTS = ("derive", "finish", "apply", "commit")


def run(quick: bool) -> Iterator[Figure]:
    """Honest training first, small and large, then forging."""
    yield from honest(*(1, 2) if quick else (21, EPOCHS))
    yield from sealing(1 if quick else 15)
    yield from forging(1 if quick else 31)


def honest(rounds: int, epochs: int) -> Iterator[Figure]:
    """Whole runs on the digits task, with and without a prover, in turn."""
    task, key = Digits(), Identity.generate()
    terms = make_terms(task, bits=256)
    enrolment = enrol(terms, identity=key.public_key, issuer=Identity.generate())
    parts: Samples = {"embedding": [], "sealing": [], "beginning and closing": []}
    runs = itertools.count()

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = task.build_model()
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def plain() -> None:
        model, optimizer = fresh()
        for _ in range(epochs):
            task.train_epoch(model, optimizer)
            task.evaluate(model)

    def proved() -> None:
        model, optimizer = fresh()
        evaluating = 0.0

        def evaluate() -> float:
            nonlocal evaluating
            began = time.perf_counter()
            accuracy = task.evaluate(model)
            evaluating += time.perf_counter() - began
            return accuracy

        began = time.perf_counter()
        prover = Prover(enrolment, key=key, store=Path(folder) / str(next(runs)))
        attachment = prover.attach(model, optimizer)
        attached = time.perf_counter()
        with attachment:
            for _ in range(epochs):
                task.train_epoch(model, optimizer)
                prover.end_epoch(evaluate=evaluate)
        trained = time.perf_counter()
        prover.finish()
        parts["embedding"].append(prover.timings.embedding)
        # Both runs evaluate; only what sealing adds to that is PoLO's.
        parts["sealing"].append(prover.timings.sealing - evaluating)
        parts["beginning and closing"].append(attached - began + time.perf_counter() - trained)

    with tempfile.TemporaryDirectory() as folder, one_thread():
        samples = interleave({"plain run": plain, "run with PoLO": proved}, rounds)
    note = f"digits, {epochs} epochs, a shard an epoch, 256 bits, proof on disk, one thread"
    yield ratio_of("run with PoLO", samples, "run with PoLO", "plain run", note=note)
    for part in parts:
        # The untimed first round left a sample here too.
        sides = {part: parts[part][1:], "plain run": samples["plain run"]}
        yield ratio_of(f"of it {part}", sides, part, "plain run", note=note)


def sealing(rounds: int) -> Iterator[Figure]:
    """Sealing a shard of ResNet-18, files and all, against one honest training step."""
    model, optimizer, step = _resnet()
    # So few steps leave many bits to the finishing step; it may go as far as it must.
    terms = make_terms(ResNetDigits(), bits=BITS, budget=1.0)
    key = Identity.generate()
    enrolment = enrol(terms, identity=key.public_key, issuer=Identity.generate())
    with tempfile.TemporaryDirectory() as folder:
        prover = Prover(enrolment, key=key, store=Path(folder) / "proof", retention="thin")
        with prover.attach(model, optimizer):
            samples = interleave({"honest step": step, "sealing": prover.end_epoch}, rounds)
        shards = prover.finish().shards
    if shards != rounds + 1:
        raise RuntimeError(f"{shards} shards were sealed in {rounds + 1} rounds")
    note = f"ResNet-18, {BITS} bits: finish, noise, root, files and optimizer state on disk"
    yield time_of("sealing a large shard", samples, "sealing", "honest step", note=note)
    sides = {"sealing": samples["sealing"], "honest epoch": _epochs(samples)}
    yield ratio_of("sealing against an epoch", sides, "sealing", "honest epoch", note=_EPOCH)


def forging(rounds: int) -> Iterator[Figure]:
    """One shard by the finishing step alone on ResNet-18, against one honest training step."""
    model, _, step = _resnet()
    spent: Samples = {part: [] for part in _PARTS}
    samples = interleave({"honest step": step, "forged shard": _forger(model, spent)}, rounds)
    yield time_of(
        "forged shard",
        samples,
        "forged shard",
        "honest step",
        note=f"ResNet-18, {BITS} bits, no training at all: a chain alone proves no effort",
        details={part: sorted(values)[len(values) // 2] for part, values in spent.items()},
    )
    sides = {"forged shard": samples["forged shard"], "honest epoch": _epochs(samples)}
    yield ratio_of(
        "forged shard against an epoch", sides, "forged shard", "honest epoch", note=_EPOCH
    )
    for part in _PARTS:
        milliseconds = [1000 * value for value in spent[part][1:]]
        yield amount_of(f"forged shard: {part}", "ms", milliseconds)


def _resnet() -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """ResNet-18, its optimizer, and one honest step on real images."""
    task = ResNetDigits()
    torch.manual_seed(1)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = (data[:BATCH] for data in task.train_data)
    return model, optimizer, lambda: train_step(model, optimizer, images, labels)


def _epochs(samples: Samples) -> list[float]:
    return [CIFAR_STEPS * seconds for seconds in samples["honest step"]]


def _forger(model: torch.nn.Module, spent: Samples) -> Callable[[], None]:
    """Forges one shard after the other, under an enrolment of the forger's own."""
    terms = make_terms(ResNetDigits(), bits=BITS)
    # The terms bind the seed; nothing binds the budget that a forger really spends.
    lavish = dataclasses.replace(terms, finish=FinishTerms(1_000_000, terms.finish.margin))
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    parameters = parameters_of(model)
    root, shard = commit(checkpoint_of(model)).root, 0

    def forge() -> None:
        nonlocal root, shard
        shard += 1
        times = [time.perf_counter()]
        seed = derivation.seed(
            root=root, shard=shard, nonce=bytes(32), identity=bytes(32), terms=terms.digest
        )
        embedder = Embedder(lavish, carrier, seed, parameters)
        times.append(time.perf_counter())
        finished = embedder.finish()
        times.append(time.perf_counter())
        embedder.apply(finished)
        times.append(time.perf_counter())
        root = commit(checkpoint_of(model)).root
        times.append(time.perf_counter())
        if not finished.reading.reaches(terms.thresholds.embed):
            raise RuntimeError("the forged mark does not read")
        for part, began, ended in zip(_PARTS, times, times[1:], strict=False):
            spent[part].append(ended - began)

    return forge


BENCHMARK = Benchmark("cost", "what PoLO costs a trainer, and what forging costs", run)

"""Replay: what it costs a verifier and a prover, against the training that it is about.

A run is trained with a prover attached, a challenge is drawn that catches a tenth of faked segments
with 99 % probability, the prover answers, and the proof is verified with and without the answer in
turn. The difference is what replay costs. A short run is trained again in every turn, too, since
machines are now slower and now faster. ResNet-18 on CIFAR-10 where there are a GPU and `POLO_DATA`;
digits on a processor else.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import polo
from benchmarks.figures import Benchmark, Figure, Target, amount_of
from benchmarks.measure import Samples, one_thread, turns
from benchmarks.recording import EVERY
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.asking import SHORTCUT
from polo.evidence.replay.recipe import draws_for
from polo_lab.effort.case import Case
from polo_lab.effort.judging import Watch
from polo_lab.effort.plan import Plan
from polo_lab.effort.training import LabTask, Trained, respond, train
from polo_lab.tasks import Cifar, DigitsConv

CAUGHT = 0.99
_DRAWS = draws_for(SHORTCUT, CAUGHT)
_ROUNDS = 5
_MORE_ROUNDS = 7
"""Rounds where that many take no longer than training; an interval of few rounds is wide."""

_SHORT = 60.0
"""Seconds of a training that is done again in every round."""


@dataclass(frozen=True)
class Size:
    """How long a run is.

    Attributes:
        title: What it is called.
        plan: How it is trained.
        most: Largest part of training that replay may take.
    """

    title: str
    plan: Plan
    most: float


def run(quick: bool) -> Iterator[Figure]:
    """Every size that this machine is for."""
    for task, size in _sizes(quick):
        with tempfile.TemporaryDirectory(prefix="polo-bench-") as folder, one_thread():
            yield from _measured(task, size, Path(folder), quick=quick)


def _sizes(quick: bool) -> Iterator[tuple[LabTask, Size]]:
    if torch.cuda.is_available() and not quick:
        cifar, title = Cifar(), "ResNet-18, CIFAR-10"
        yield cifar, Size(title, _plan(cifar, 0.05, 20_000, shards=26, every=EVERY), 0.05)
        yield cifar, Size(title, _plan(cifar, 0.05, 10_000, shards=10, every=EVERY), 0.10)
        return
    digits, title = DigitsConv(), "convolutional network, digits"
    if quick:
        yield digits, Size(title, _plan(digits, 0.02, 60, shards=3, every=4), 0.10)
        return
    yield digits, Size(title, _plan(digits, 0.02, 2_200, shards=10, every=2), 0.10)
    yield digits, Size(title, _plan(digits, 0.02, 20_000, shards=10, every=8), 0.05)


def _plan(task: LabTask, rate: float, steps: int, *, shards: int, every: int) -> Plan:
    """A plan of at least so many steps."""
    batch = 128 if isinstance(task, Cifar) else 64
    samples = len(next(iter(task.train_columns().values())))
    passes = -(-steps // (shards * -(-samples // batch)))
    return Plan("momentum", "cosine", rate, shards, passes, batch, every, _DRAWS, 2, 3)


def _measured(task: LabTask, size: Size, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """The figures of one size; those of the verifier again after each round."""
    case = Case(task, size.plan, 1, folder, ("chain", "replay"))
    trained = case.victim
    drawn = challenges.draw(trained.proof, ends=False)
    began = time.perf_counter()
    respond(task, trained)(drawn, folder / "answer")
    answering = time.perf_counter() - began
    policy = polo.Policy("none")

    watches: list[Watch] = []
    verdicts: list[polo.Verdict] = []
    trainings: list[float] = []

    def verify(answered: bool) -> polo.Verdict:
        watch = Watch()
        verdict = polo.verify(
            trained.proof,
            trust=case.issuer.public_key,
            task=task,
            policy=policy,
            challenge=drawn if answered else None,
            answer=folder / "answer" if answered else None,
            listener=watch,
        )
        watch.stop()
        watches.append(watch)
        return verdict

    def train_again() -> None:
        again = folder / "again"
        trainings.append(train(task, size.plan, case.enrol("again"), again).seconds)
        shutil.rmtree(again)

    sides: dict[str, Callable[[], object]] = {
        "chain": lambda: verify(False),
        "replay": lambda: verdicts.append(verify(True)),
    }
    if trained.seconds <= _SHORT:
        sides["training"] = train_again
    for number, timed in enumerate(turns(sides), 1):
        verdict = verdicts[-1]
        if verdict.outcome is not polo.Outcome.ACCEPTED:
            raise RuntimeError(f"an honest run was not accepted: {verdict.headline()}")
        # Training by its own count, which leaves out what is measured after it.
        samples = {**timed, "training": trainings[-number:] or [trained.seconds] * number}
        # Of each round the second, with the answer.
        seen = watches[1::2][-number:]
        yield from _figures(size, trained, samples, seen, answering, verdict)
        if quick or number >= _rounds(samples, trained.seconds):
            break
    yield _size_of(size, folder, trained)
    shutil.rmtree(folder / "answer")


def _rounds(samples: Samples, training: float) -> int:
    """How many rounds are taken, by the time that the last one took."""
    spent = sum(samples[side][-1] for side in ("replay", "chain"))
    return _MORE_ROUNDS if _MORE_ROUNDS * spent <= training else _ROUNDS


def _figures(
    size: Size,
    trained: Trained,
    samples: dict[str, list[float]],
    watches: list[Watch],
    answering: float,
    verdict: polo.Verdict,
) -> Iterator[Figure]:
    draw = next(check for check in verdict.checks if check.name == "draw")
    title = f"{size.title}, {trained.steps} steps"
    sides = (samples[side] for side in ("replay", "chain", "training"))
    share = [(one - other) / training for one, other, training in zip(*sides, strict=True)]
    note = f"{draw.figures['run']} of {draw.figures['segments']} segments of {size.plan.every} "
    note += f"steps, {draw.figures['steps']} steps in all, {draw.figures['exact']} to the bit; a "
    note += f"tenth faked escapes with probability {float(draw.figures['escape_tenth']):.4f}"
    yield amount_of(
        f"replay by the verifier, part of training ({title})",
        "×",
        share,
        target=Target("at most", size.most),
        against="training with PoLO",
        note=note,
        details={
            "seconds of training": statistics.median(samples["training"]),
            "seconds of verifying with replay": statistics.median(samples["replay"]),
            "without": statistics.median(samples["chain"]),
            **{
                f"of them {doing}": statistics.median(watch.seconds[doing] for watch in watches)
                for doing in watches[0].seconds
            },
        },
    )
    yield amount_of(
        f"answer by the prover, part of training ({title})",
        "×",
        [answering / trained.seconds],
        against="training with PoLO",
        note="states are computed again from the sealed checkpoints",
    )


def _size_of(size: Size, folder: Path, trained: Trained) -> Figure:
    files = [path.stat().st_size for path in (folder / "answer").iterdir()]
    name = f"size of an answer ({size.title}, {trained.steps} steps)"
    return amount_of(name, "MB", [sum(files) / 1e6], note=f"{len(files)} files")


BENCHMARK = Benchmark("replay", "replay: what verifier and prover compute again", run)

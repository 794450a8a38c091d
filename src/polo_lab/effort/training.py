"""The honest run: training under a plan's recipe with a prover attached."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

import polo
from polo.evidence.replay.answer import answer
from polo.evidence.replay.data import DataSource
from polo.protocol.challenge import Challenge
from polo.receipts import OfflineEnrolment
from polo.tasks import Task
from polo.tasks.training import HeldOut, Trainable
from polo_lab.effort.plan import Plan

_PATIENCE = 2
"""A mark that does not settle makes shards longer; so many times the planned passes are waited."""


class LabTask(Task, Trainable, HeldOut, Protocol):
    """A task that can be trained, replayed and judged on held-out data."""

    def train_columns(self) -> dict[str, np.ndarray]:
        """The training data, column by column."""


@dataclass(frozen=True)
class Enrolled:
    """Somebody who may prove training under the case's terms.

    Attributes:
        key: Their key.
        enrolment: Their enrolment with its nonces.
        source: Their data, salted.
    """

    key: polo.Identity
    enrolment: OfflineEnrolment
    source: DataSource


@dataclass(frozen=True)
class Trained:
    """A finished honest run.

    Attributes:
        who: Who trained.
        proof: The proof folder; the prover's private files lie beside it.
        state: The finished model's tensors, as `state_dict` gives them, in main memory.
        accuracy: The task's metric of the finished model.
        seconds: What training took, sealing and recording included.
        steps: Optimizer steps.
        waiting: Seconds of training in which it waited for the recorder.
        proving: Seconds of training that the prover took in all, by its own count: those, pressing
            and sealing.
    """

    who: Enrolled
    proof: Path
    state: dict[str, torch.Tensor]
    accuracy: float
    seconds: float
    steps: int
    waiting: float
    proving: float


def train(task: LabTask, plan: Plan, who: Enrolled, folder: Path) -> Trained:
    """Train honestly and finish the proof.

    Args:
        task: The task.
        plan: Its plan, which the enrolment's terms spell out.
        who: The prover.
        folder: The proof folder to write.
    """
    source = who.source
    began = time.perf_counter()
    model = task.build_model()
    polo.draw_start(model, who.enrolment)
    optimizer = plan.recipe(source.samples).optimizer(model)
    prover = polo.Prover(who.enrolment, key=who.key, store=folder, data=source)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        while prover.shards < plan.shards and prover.epoch < _PATIENCE * plan.shards * plan.passes:
            for batch in prover.sampler:
                task.train_step(model, optimizer, source.batch(batch))
            prover.end_epoch()
    proof = prover.finish()
    seconds, spent = time.perf_counter() - began, prover.timings
    return Trained(
        who=who,
        proof=proof.path,
        # A copy of the whole module: one of each tensor would untie those that are one.
        state=dict(copy.deepcopy(model).cpu().state_dict()),
        accuracy=task.evaluate(model),
        seconds=seconds,
        steps=sum(shard.steps for shard in proof.manifest.shards) + proof.outside,
        waiting=spent.recording,
        proving=spent.embedding + spent.recording + spent.sealing,
    )


def respond(task: LabTask, trained: Trained) -> Callable[[Challenge, Path], None]:
    """Answers challenges to an honest run, as `polo answer` does."""

    def answering(challenge: Challenge, out: Path) -> None:
        who = trained.who
        answer(trained.proof, challenge, task=task, data=who.source, key=who.key, out=out)

    return answering

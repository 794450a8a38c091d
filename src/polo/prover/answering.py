"""Answering a registry that draws steps of the newest shard before it gives the receipt.

The challenge comes on the thread that talks to the registry. The steps are run on the thread that
trains, which waits for the receipt anyway: so both see the same threads, flags and devices.
"""

import contextlib
import logging
import queue
import shutil
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from polo import tasks
from polo.errors import ChainError, PoloError, TaskError
from polo.evidence.replay import answer as answers
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.data import DataSource
from polo.protocol import signing
from polo.protocol.challenge import Challenge
from polo.protocol.records import Terms
from polo.storage.answers import pack
from polo.storage.folder import state_path_of
from polo.tasks import Task
from polo.tasks.training import Trainable

logger = logging.getLogger("polo.prover")

FOLDER, PACKED, DRAWN = "replay", "replay.tar", "replay.json"
"""Where an answer is computed, the file that is sent, and what was drawn, beside the proof."""


@dataclass(frozen=True)
class _Asked:
    challenge: Challenge
    leaf: bytes
    answered: "Future[Path]"


class Answering:
    """Computes answers to what is drawn from the newest shard of a proof.

    Args:
        proof: The proof folder.
        task: The task, whose training step is run again.
        data: The data, with their secret.
        key: The prover's key.
        device: Where to compute; by default where it was trained.
    """

    def __init__(
        self,
        proof: Path,
        task: Task,
        data: DataSource,
        key: signing.Signer,
        device: str | None = None,
    ) -> None:
        self._proof = proof
        self._task = task
        self._data = data
        self._key = key
        self._device = device
        self._state = state_path_of(proof)
        self._asked: queue.SimpleQueue[_Asked] = queue.SimpleQueue()

    def ask(self, challenge: Challenge, leaf: bytes) -> "Future[Path]":
        """Ask for an answer, on any thread; `work` computes it. See `polo.receipts.Respond`."""
        answered: Future[Path] = Future()
        self._asked.put(_Asked(challenge, leaf, answered))
        return answered

    def work(self) -> None:
        """Compute what was asked for, on this thread; at once if nothing was."""
        with contextlib.suppress(queue.Empty):
            while True:
                asked = self._asked.get_nowait()
                try:
                    asked.answered.set_result(self._answer(asked))
                except BaseException as error:
                    asked.answered.set_exception(error)
                    if not isinstance(error, Exception):
                        raise

    def clear(self) -> None:
        """Remove what was drawn and computed; the receipt has come."""
        self._discard()
        (self._state / DRAWN).unlink(missing_ok=True)

    def _discard(self) -> None:
        shutil.rmtree(self._state / FOLDER, ignore_errors=True)
        (self._state / PACKED).unlink(missing_ok=True)

    def _check_first(self, challenge: Challenge) -> None:
        """Refuse a second draw from one shard: draw by draw a registry would see all of it."""
        path = self._state / DRAWN
        known = challenges.load(path) if path.exists() else challenge
        if known.proof == challenge.proof and known != challenge:
            raise ChainError(
                "the registry has drawn from this shard before, and draws again",
                place=f"leaf {known.proof.hex()[:16]}…",
                advice="Ask its operator why. The sealed shards are safe.",
            )

    def _answer(self, asked: _Asked) -> Path:
        self._discard()
        self._check_first(asked.challenge)
        challenge, folder, packed = asked.challenge, self._state / FOLDER, self._state / PACKED
        logger.info(
            "the registry has drawn %d segments of shard %d: running them again",
            len(challenge.segments),
            challenge.shards[-1] if challenge.shards else 0,
        )
        with torch.enable_grad():
            made = answers.answer(
                self._proof,
                challenge,
                task=self._task,
                data=self._data,
                key=self._key,
                out=folder,
                device=self._device,
                leaf=asked.leaf,
            )
        # Before anybody sees the answer.
        challenges.save(challenge, self._state / DRAWN)
        pack(made, challenge, packed)
        shutil.rmtree(folder, ignore_errors=True)
        return packed


def task_for(terms: Terms, task: Task | None) -> Task:
    """The task that runs steps again while training; by default the registered one."""
    advice = "Give it: Prover(..., task=TASK)."
    if task is None:
        try:
            task = tasks.load(terms.task.name)
        except PoloError as error:
            raise TaskError(
                "the registry may ask for steps while the chain grows, and the task that runs them "
                f"is not here: {error}",
                advice=advice,
            ) from error
    if (task.name, task.version) != (terms.task.name, terms.task.version):
        raise TaskError(
            f"the terms are about {terms.task.name} version {terms.task.version}; the task here is "
            f"{task.name} version {task.version}",
            advice=advice,
        )
    if not isinstance(task, Trainable):
        raise TaskError(f"the task {task.name!r} has no columns or no train_step to run again")
    return task

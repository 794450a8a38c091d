"""A real chain of marks without a proof on disk, for benchmarks that look between its steps."""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.errors import ChainError
from polo.protocol import derivation
from polo.protocol.records import Nonce, Terms
from polo.prover.sealing import Effort, Setting, seal
from polo.watermark import Mark, carrier_of
from polo.weights import MemoryCheckpoint, checkpoint_of, commit

_PATIENCE = 10
_IDENTITY = bytes(32)


@dataclass(frozen=True)
class Link:
    """One shard.

    Attributes:
        before: Its weights after the finishing step, just before obfuscation.
        after: The sealed weights.
        mark: Its mark.
    """

    before: MemoryCheckpoint
    after: MemoryCheckpoint
    mark: Mark


class Chain:
    """Presses marks into a model and seals shards, as a prover does.

    Args:
        terms: The terms; their least σ is used.
        model: The model.
        optimizer: What trains it.
        secret: What nonces and noise are drawn from: the same one repeats a chain.
    """

    def __init__(
        self,
        terms: Terms,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        secret: bytes = b"",
    ) -> None:
        self._terms = terms
        self._model = model
        self._optimizer = optimizer
        self._secret = secret
        self.carrier = carrier_of(terms, checkpoint_of(model).layout)
        self.start = copy_of(model)
        self.marks: list[Mark] = []
        self._root = commit(self.start).root

    def advance(self, train: Callable[[], None]) -> Link:
        """Train one shard, as many times as its mark takes, and seal it."""
        number = len(self.marks) + 1
        nonce = Nonce(
            number, hashlib.sha256(self._secret + bytes([number])).digest(), bytes(32), ()
        )
        seed = derivation.seed(
            root=self._root,
            shard=number,
            nonce=nonce.nonce,
            identity=_IDENTITY,
            terms=self._terms.digest,
        )
        parameters = parameters_of(self._model)
        embedder = Embedder(self._terms, self.carrier, seed, parameters)
        self._press(embedder, train)
        before = copy_of(self._model)
        sealed = seal(
            self._model,
            parameters,
            embedder,
            None,
            setting=Setting(
                terms=self._terms,
                carrier=self.carrier,
                nonce=nonce,
                previous=self._root,
                master=hashlib.sha256(self._secret).digest(),
                sigma=self._terms.noise.least,
            ),
            effort=Effort(1, 1),
            evaluate=None,
        )
        self._root = sealed.record.root
        self.marks.append(embedder.mark)
        return Link(before, copy_of(self._model), embedder.mark)

    def _press(self, embedder: Embedder, train: Callable[[], None]) -> None:
        goal = self._terms.thresholds.embed
        hook = StepHook(self._optimizer, embedder.add_gradient, lambda: None)
        try:
            for _ in range(_PATIENCE):
                train()
                if embedder.read().reaches(goal):
                    return
                finished = embedder.finish()
                if finished.reading.reaches(goal):
                    embedder.apply(finished)
                    return
        finally:
            hook.detach()
        raise ChainError("the mark did not settle")


def copy_of(model: torch.nn.Module) -> MemoryCheckpoint:
    """The weights as they are now, apart from the live model."""
    # A deep copy keeps tied tensors tied.
    return checkpoint_of(copy.deepcopy(dict(model.state_dict())))

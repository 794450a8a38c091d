"""Which samples each step takes, and what seeds its randomness: all from the shard's seed.

The seed binds the checkpoint before the shard, the nonce, the identity and the terms. So a prover
chooses neither the order of the samples nor the dropout and augmentation of a step.

Specification: docs/protocol.md, section 16.2.
"""

import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import ChainError
from polo.evidence.replay.ahead import Ahead
from polo.protocol.derivation import stream
from polo.protocol.digest import tagged, u64

_MASK = 2**63 - 1
_WORD = 8


class Order:
    """The order of the samples in one shard.

    Args:
        seed: The shard's seed.
        samples: Number of samples.
        batch: Samples per step.
    """

    def __init__(self, seed: bytes, samples: int, batch: int) -> None:
        self.samples = samples
        self.size = batch
        self._seed = tagged("polo/order/1", seed)
        self._pass: tuple[int, NDArray[np.int64]] | None = None
        self._ahead = Ahead(self._derived)

    def __eq__(self, other: object) -> bool:
        """Whether two orders are the same."""
        return isinstance(other, Order) and self._key == other._key

    def __hash__(self) -> int:
        """Equal orders have equal hashes."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[bytes, int, int]:
        return self._seed, self.samples, self.size

    @property
    def steps_per_pass(self) -> int:
        """Steps in which every sample comes once."""
        return -(-self.samples // self.size)

    def batch(self, step: int) -> NDArray[np.int64]:
        """The samples of a step, counted from 0 within the shard."""
        number, place = divmod(step, self.steps_per_pass)
        return self._order(number)[place * self.size : (place + 1) * self.size]

    def distinct(self, steps: range) -> NDArray[np.int64]:
        """The samples that some steps take, each once, in increasing order."""
        return np.unique(np.concatenate([self.batch(step) for step in steps]))

    def seed(self, step: int) -> int:
        """What all generators are seeded with before a step."""
        return self._ahead(step)

    def seeds(self, step: int) -> list[int]:
        """A seed for every sample of a step, for augmentation in a loader's workers."""
        return sample_seeds(self.seed(step), len(self.batch(step)))

    def drawn(self, step: int) -> "list[Drawn]":
        """The samples of a step, each with its seed."""
        return list(map(Drawn, self.batch(step).tolist(), self.seeds(step)))

    def _derived(self, step: int) -> int:
        return int(_words(self._seed, "polo/step/1", step, 1)[0]) & _MASK

    def _order(self, number: int) -> NDArray[np.int64]:
        """One pass over all samples; the last one asked for is kept."""
        if self._pass is None or self._pass[0] != number:
            words = _words(self._seed, "polo/order/1", number, self.samples)
            # Stable, so that equal words stay in the order of their samples.
            self._pass = number, np.argsort(words, kind="stable")
        return self._pass[1]


def _words(seed: bytes, label: str, index: int, count: int) -> NDArray[np.uint64]:
    return np.frombuffer(stream(seed, label, index, _WORD * count), dtype="<u8")


def sample_seeds(step_seed: int, count: int) -> list[int]:
    """A seed for every place in a batch, from the seed of the step.

    A training step finds its own seed as `torch.initial_seed()`, so that it can augment a batch
    of bare samples just as a loader's workers do.
    """
    own = tagged("polo/sample/1", u64(step_seed))
    return [word & _MASK for word in _words(own, "polo/sample/1", 0, count).tolist()]


@functools.cache
def _has_cuda() -> bool:
    """Asked before every step, and torch asks the driver each time."""
    import torch

    return torch.cuda.is_available()


def seed_generators(number: int) -> None:
    """Seed the generators of torch (CPU and CUDA), numpy and random, as before every step."""
    import torch

    # Not `torch.manual_seed`: where there is no GPU it notes a stack trace, which takes longer
    # than many a step.
    torch.default_generator.manual_seed(number)
    if _has_cuda():
        _seed_cuda(number)
    np.random.seed(number & 0xFFFF_FFFF)
    random.seed(number)


def _seed_cuda(number: int) -> None:
    """What `torch.cuda.manual_seed_all` does, without its detours once devices are in use."""
    import torch

    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(number)
    else:
        torch.cuda.manual_seed_all(number)


class Drawn(int):
    """The number of a sample, with a seed for whatever is drawn at random for it in this step.

    A data set in a loader's worker finds it as its index: `random.Random(index.seed)`.
    """

    seed: int

    def __new__(cls, index: int, seed: int) -> "Drawn":
        """A sample's number with its seed."""
        self = int.__new__(cls, index)
        self.seed = seed
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the seed on the way to another process."""
        return Drawn, (int(self), self.seed)


class Sampler:
    """A `batch_sampler` for `torch.utils.data.DataLoader`: one epoch is one pass of samples.

    Every iteration begins at the step where the prover is. With workers the loader runs ahead of
    training; a shard may then be sealed between two epochs only, since the order changes with it.

    Args:
        current: Tells the order of the current shard and its next step.
    """

    def __init__(self, current: Callable[[], tuple[Order, int]]) -> None:
        self._current = current
        self._thread = threading.get_ident()
        self._passed: tuple[Order, int, int] | None = None

    def passed_over(self) -> int:
        """Batches of the last whole epoch without a step, though later ones had theirs.

        Batches that are left at its end do no harm; who skips one before that trains on another
        batch in each step from there on than the order says.
        """
        order, at = self._current()
        if self._passed is None or self._passed[0] != order:
            return 0
        _, end, behind = self._passed
        return end - at if at > behind else 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._current()[0].steps_per_pass

    def __iter__(self) -> Iterator[list[Drawn]]:
        """The batches of an epoch."""
        return _Seeding(self._batches(), self._seed)

    def _seed(self) -> None:
        """Seed for the step where the prover is, whatever was drawn since the last one.

        A loader takes a number from torch's generator when it starts, and so does one that a model
        is tested with between two steps. Who fetches batches in another thread than trains does so
        in the middle of a step.
        """
        order, step = self._current()
        if threading.get_ident() == self._thread:
            seed_generators(order.seed(step))

    def follow(self) -> None:
        """The thread that calls this is the one that trains."""
        self._thread = threading.get_ident()

    def _batches(self) -> Iterator[list[Drawn]]:
        order, step = self._current()
        self._passed = None
        ahead, behind = False, None
        for _ in range(order.steps_per_pass):
            yield order.drawn(step)
            step += 1
            now, at = self._current()
            ahead = ahead or (now == order and at < step)
            if ahead and behind is None:
                behind = at
            if now != order:
                if ahead:
                    raise ChainError(
                        "a shard was sealed while the loader had batches of its order in hand",
                        place="sampler",
                        advice="Seal between epochs, or load without workers.",
                    )
                order, step, ahead, behind = now, at, False, None
        if behind is not None:
            self._passed = order, step, behind


class _Seeding(Iterator[list[Drawn]]):
    """Batches, before each of which generators are seeded.

    A loader with workers asks for a batch to be loaded whenever it hands one out, and still does
    when there are no more; so they are seeded right before each is handed out there, too.
    """

    def __init__(self, batches: Iterator[list[Drawn]], seed: Callable[[], None]) -> None:
        self._batches = batches
        self._seed = seed

    def __next__(self) -> list[Drawn]:
        self._seed()
        return next(self._batches)

"""Order and seeds: every sample once a pass, all orders as likely; a real loader with workers."""

import itertools
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from polo.errors import ChainError
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Drawn, Order, Sampler, sample_seeds, seed_generators

SEED = bytes(range(32))


def seeds(count: int) -> Iterator[bytes]:
    return (number.to_bytes(32, "little") for number in range(count))


# The order


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (7, 7), (10, 3), (12, 4), (1000, 64)])
def test_a_pass_takes_every_sample_once(samples: int, batch: int) -> None:
    order = Order(SEED, samples, batch)
    for number in range(3):
        first = number * order.steps_per_pass
        batches = [order.batch(step) for step in range(first, first + order.steps_per_pass)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(samples))
        assert {len(found) for found in batches[:-1]} <= {batch}
        assert 0 < len(batches[-1]) <= batch


def test_passes_shards_and_data_have_orders_of_their_own() -> None:
    first = [Order(seed, 50, 50).batch(step).tolist() for seed in seeds(3) for step in range(3)]
    assert len({tuple(found) for found in first}) == 9
    assert Order(SEED, 50, 50).batch(0).tolist() != Order(SEED, 51, 51).batch(0).tolist()[:50]


def test_steps_can_be_asked_in_any_sequence() -> None:
    order, drawing = Order(SEED, 40, 7), random.Random(0)
    wanted = {step: Order(SEED, 40, 7).batch(step).tolist() for step in range(40)}
    for step in drawing.choices(range(40), k=200):
        assert order.batch(step).tolist() == wanted[step]


def test_all_orders_are_equally_likely() -> None:
    counts = dict.fromkeys(itertools.permutations(range(5)), 0)
    for seed in seeds(12_000):
        counts[tuple(Order(seed, 5, 5).batch(0).tolist())] += 1
    chi_squared = sum((found - 100) ** 2 / 100 for found in counts.values())
    # 119 degrees of freedom: above 190 once in 30,000 times, below 65 as rarely.
    assert 65 < chi_squared < 190


def test_every_sample_is_as_likely_at_every_place() -> None:
    places = np.zeros((20, 20))
    for seed in seeds(4000):
        places[np.arange(20), Order(seed, 20, 20).batch(0)] += 1
    assert np.abs(places - 200).max() < 5 * np.sqrt(200 * 0.95)


def test_equal_words_keep_the_order_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(0).integers(0, 9, 500)
    data = words.astype("<u8").tobytes()
    monkeypatch.setattr("polo.evidence.replay.order.stream", lambda *_: data)
    wanted = sorted(range(500), key=lambda at: (words[at], at))
    assert Order(SEED, 500, 500).batch(0).tolist() == wanted


def test_the_samples_of_a_segment() -> None:
    order = Order(SEED, 40, 7)
    for steps in (range(1), range(2, 5), range(4, 9), range(0, 12)):
        wanted = sorted({index for step in steps for index in order.batch(step).tolist()})
        assert order.distinct(steps).tolist() == wanted


def test_orders_are_equal_when_everything_is() -> None:
    assert Order(SEED, 40, 7) == Order(SEED, 40, 7)
    assert hash(Order(SEED, 40, 7)) == hash(Order(SEED, 40, 7))
    others = [Order(bytes(32), 40, 7), Order(SEED, 41, 7), Order(SEED, 40, 8), None]
    assert Order(SEED, 40, 7) not in others


# Seeds


def test_seeds_fit_every_generator_and_differ() -> None:
    order = Order(SEED, 64, 8)
    found = [order.seed(step) for step in range(100)]
    found += [seed for step in range(100) for seed in order.seeds(step)]
    assert len(set(found)) == 900
    assert all(0 <= seed < 2**63 for seed in found)
    assert sum(seed >> 62 for seed in found) in range(390, 510)


def numbers() -> tuple[float, ...]:
    return float(torch.rand(1)), float(np.random.random()), random.random()


def test_all_generators_are_seeded() -> None:
    seed_generators(2**62 + 12345)
    found = numbers()
    assert numbers() != found
    seed_generators(2**62 + 12345)
    assert numbers() == found
    torch.manual_seed(2**62 + 12345)
    assert float(torch.rand(1)) == found[0]
    seed_generators(12346)
    assert all(one != other for one, other in zip(numbers(), found, strict=True))


def test_a_drawn_number_is_a_number_and_keeps_its_seed() -> None:
    drawn = Drawn(3, 99)
    assert (drawn, drawn + 1, ["a", "b", "c", "d"][drawn], torch.arange(5)[drawn]) == (3, 4, "d", 3)
    again = pickle.loads(pickle.dumps([drawn, Drawn(4, 2**63 - 1)]))
    assert [(type(item), item, item.seed) for item in again] == [
        (Drawn, 3, 99),
        (Drawn, 4, 2**63 - 1),
    ]


def test_the_samples_of_a_step_come_with_their_seeds() -> None:
    order = Order(SEED, 20, 6)
    for step in range(8):
        drawn = order.drawn(step)
        assert drawn == order.batch(step).tolist()
        assert [item.seed for item in drawn] == order.seeds(step)


# A loader


class Jittered(Dataset[tuple[int, float]]):
    """Numbers, each moved at random by what its seed says; no generator of the process is used."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> tuple[int, float]:
        assert isinstance(index, Drawn)
        return int(index), index + random.Random(index.seed).random()


class Place:
    """Where a prover is: what the sampler asks, and a step that moves it on."""

    def __init__(self, samples: int = 22, batch: int = 4) -> None:
        self.sizes = samples, batch
        self.order, self.step = Order(SEED, *self.sizes), 0
        self.sampler = Sampler(lambda: (self.order, self.step))

    def seal(self, seed: bytes) -> None:
        self.order, self.step = Order(seed, *self.sizes), 0

    def expected(self, step: int) -> tuple[list[int], list[float]]:
        drawn = self.order.drawn(step)
        return list(drawn), [item + random.Random(item.seed).random() for item in drawn]


def loader(place: Place, workers: int, **options: Any) -> DataLoader[Any]:
    if workers:
        options = {"num_workers": workers, "multiprocessing_context": "fork", **options}
    return DataLoader(Jittered(place.sizes[0]), batch_sampler=place.sampler, **options)


WORKERS = [
    (0, {}),
    (2, {}),
    (2, {"persistent_workers": True}),
    (2, {"prefetch_factor": 5, "persistent_workers": True}),
]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("workers", "options"), WORKERS)
def test_a_loader_gives_the_declared_batches(workers: int, options: dict[str, Any]) -> None:
    place = Place()
    batches = loader(place, workers, **options)
    assert len(batches) == 6
    for epoch in range(4):
        for numbers_, moved in batches:
            wanted = place.expected(place.step)
            assert (numbers_.tolist(), moved.tolist()) == wanted
            place.step += 1
        if epoch == 1:
            assert place.step == 12
            place.seal(bytes([epoch] * 32))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_crash_it_goes_on_where_the_prover_is(workers: int) -> None:
    place = Place()
    for _ in itertools.islice(loader(place, workers), 4):
        place.step += 1
    # A new process begins at the last sealed shard, or at some step of a shard.
    for step in (0, 4, 6, 9):
        place.step = step
        for found, _ in loader(place, workers):
            assert found.tolist() == place.expected(place.step)[0]
            place.step += 1
        assert place.step == step + 6


def test_without_workers_a_shard_may_end_anywhere() -> None:
    place, found = Place(), []
    for numbers_, _ in loader(place, 0):
        assert numbers_.tolist() == place.expected(place.step)[0]
        place.step += 1
        found.append(place.step)
        if len(found) == 3:
            place.seal(bytes(32))
    assert found == [1, 2, 3, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_with_workers_a_shard_must_not_end_within_an_epoch() -> None:
    place = Place(samples=80)
    batches = iter(loader(place, 2))
    for _ in range(3):
        next(batches)
        place.step += 1
    place.seal(bytes(32))
    with pytest.raises(ChainError, match="batches of its order in hand") as error:
        list(batches)
    assert "between epochs" in error.value.advice


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_starting_a_loader_disturbs_no_generator(workers: int) -> None:
    """A loader takes a number from torch's generator when it starts; an evaluation takes many."""
    place = Place()
    for _ in range(2):
        torch.rand(100)
        first = next(iter(loader(place, workers)))
        found = numbers()
        seed_generators(place.order.seed(place.step))
        assert numbers() == found
        assert first[0].tolist() == place.expected(place.step)[0]
        place.step += 5


class Cloud(Dataset[dict[str, Any]]):
    """Samples of a source."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: torch.as_tensor(values[index]) for name, values in self.columns.items()}


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 4))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_a_loader_is_training_from_the_source(task: Any, workers: int) -> None:
    columns = task.train_columns()
    source, place = DataSource(columns, bytes(32)), Place(256, 24)
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options["multiprocessing_context"] = "fork"
    batches = DataLoader(Cloud(columns), batch_sampler=place.sampler, **options)
    model = dropping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for batch in batches:
            task.train_step(model, optimizer, batch)
            place.step += 1
            seed_generators(place.order.seed(place.step))
    other = dropping()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    for step in range(place.step):
        seed_generators(place.order.seed(step))
        task.train_step(other, optimizer, source.batch(place.order.batch(step)))
    assert place.step == 22
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, another)


def shifted(point: torch.Tensor, seed: int) -> torch.Tensor:
    """An augmentation of one sample."""
    return point.roll(random.Random(seed).randrange(3)) * random.Random(seed).uniform(0.9, 1.1)


class Augmented(Cloud):
    """Samples that are augmented where they are loaded."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert isinstance(index, Drawn)
        found = super().__getitem__(index)
        return {**found, "point": shifted(found["point"], index.seed)}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_workers_augment_a_training_step_augments_alike(task: Any) -> None:
    columns = task.train_columns()
    source, place = DataSource(columns, bytes(32)), Place(256, 24)
    batches = DataLoader(
        Augmented(columns), batch_sampler=place.sampler, num_workers=2,
        multiprocessing_context="fork",
    )  # fmt: skip
    for batch in batches:
        seed_generators(place.order.seed(place.step))
        bare = source.batch(place.order.batch(place.step))["point"]
        seeds = sample_seeds(torch.initial_seed(), len(bare))
        points = [shifted(point, seed) for point, seed in zip(bare, seeds, strict=True)]
        assert torch.equal(batch["point"], torch.stack(points))
        assert not torch.equal(batch["point"], bare)
        place.step += 1

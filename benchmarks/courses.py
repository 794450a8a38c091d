"""Chains of checkpoints in memory: trained ones, and made-up ones by all ways that are cheap."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.chain import Chain
from polo import make_terms
from polo.embedding.placement import parameters_of
from polo.evidence.progress.check import measure
from polo.evidence.progress.survey import Findings
from polo.protocol.records import Terms
from polo.weights import MemoryCheckpoint
from polo_lab.effort.plan import Plan
from polo_lab.effort.training import LabTask

BITS = 128
ROUGH = 0.04
"""Noise that a forger adds, relative to a tensor's root mean square."""

FEW = 2
"""Real gradient steps in a made-up shard."""

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Course:
    """A chain of checkpoints.

    Attributes:
        task: What it is for.
        chain: Marks, carrier.
        terms: The terms.
        checkpoints: W_0, W_1, …
        accuracy: Of the last one.
        steps: Optimizer steps that it took.
        honest_steps: Optimizer steps that honest training takes.
    """

    task: LabTask
    chain: Chain
    terms: Terms
    checkpoints: list[MemoryCheckpoint]
    accuracy: float
    steps: int
    honest_steps: int

    def findings(self) -> Findings:
        """What level progress measures of it."""
        marks = [mark.blocks for mark in self.chain.marks]
        return measure(self.terms, self.chain.carrier, marks, self.checkpoints, self.task)


class Trainer:
    """A model and what trains it by a plan.

    Args:
        task: The task.
        plan: How it is trained.
        seed: Seed of the start and of the order of samples.
    """

    def __init__(self, task: LabTask, plan: Plan, seed: int) -> None:
        torch.manual_seed(seed)
        self.task = task
        self.plan = plan
        self.model = task.build_model()
        self.columns = {name: torch.from_numpy(v) for name, v in task.train_columns().items()}
        self.samples = len(next(iter(self.columns.values())))
        self.recipe = plan.recipe(self.samples)
        self.optimizer = self.recipe.optimizer(self.model)
        self.steps = 0

    def shard(self) -> None:
        """Train as long as a shard takes."""
        for _ in range(self.plan.passes):
            for chosen in torch.randperm(self.samples).split(self.recipe.batch):
                self.step(chosen)

    def step(self, chosen: torch.Tensor) -> None:
        """One step on chosen samples."""
        self.recipe.set_rate(self.optimizer, self.steps)
        batch = {name: values[chosen] for name, values in self.columns.items()}
        self.task.train_step(self.model, self.optimizer, batch)
        self.steps += 1

    def few(self, count: int = FEW) -> None:
        """A few steps on samples drawn anew."""
        for _ in range(count):
            self.step(torch.randperm(self.samples)[: self.recipe.batch])

    def seal(self, advance: Callable[[int], None]) -> Course:
        """Seal the plan's shards; `advance` does the work of each before its mark is finished."""
        # The finishing step of a forger has no budget; nor is there one here for the honest.
        terms = make_terms(self.task, bits=BITS, budget=1.0)
        start = torch.initial_seed()
        chain = Chain(terms, self.model, self.optimizer, str(start).encode())
        checkpoints = [chain.start]
        for number in range(1, self.plan.shards + 1):
            link = chain.advance(functools.partial(advance, number))
            checkpoints.append(link.after)
        accuracy, honest_steps = self.task.evaluate(self.model), self.plan.steps(self.samples)
        return Course(self.task, chain, terms, checkpoints, accuracy, self.steps, honest_steps)


def honest(task: LabTask, plan: Plan, seed: int) -> Course:
    """A run that was trained."""
    trainer = Trainer(task, plan, seed)
    return trainer.seal(lambda _: trainer.shard())


def stolen(task: LabTask, plan: Plan, seed: int) -> dict[str, torch.Tensor]:
    """A finished model, trained without marks by somebody else."""
    trainer = Trainer(task, plan, 10_000 + seed)
    for _ in range(plan.shards):
        trainer.shard()
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


class Forger:
    """Makes up a chain that ends in a stolen model.

    Args:
        task: The task.
        plan: What the chain claims to be.
        seed: Seed of the start.
        loot: The stolen model.
    """

    def __init__(self, task: LabTask, plan: Plan, seed: int, loot: Weights) -> None:
        self._trainer = Trainer(task, plan, seed)
        self._loot = loot
        self._model = self._trainer.model
        self._weights = {
            name: value for name, value in parameters_of(self._model).items() if name in loot
        }
        self._start = {name: value.detach().clone() for name, value in self._weights.items()}
        self._shards = plan.shards

    def inflated(self, *, rough: float = 0.0, afresh: bool = False, few: int = 0) -> Course:
        """The stolen model from the start, and nothing but marks, noise and a few steps."""
        self._model.load_state_dict(dict(self._loot))

        def advance(_: int) -> None:
            if afresh:
                self._put(lambda name, value: self._loot[name])
            self._scatter(rough)
            self._trainer.few(few)

        return self._trainer.seal(advance)

    def walked(
        self,
        *,
        pace: Callable[[float], float] = lambda share: share,
        bend: float = 0.0,
        rough: float = 0.0,
        afresh: bool = False,
        few: int = 0,
        trained: int = 0,
    ) -> Course:
        """A path from the start to the stolen model.

        Args:
            pace: How far the path has come after a share of the shards.
            bend: How far a curve leads off the line, relative to its length.
            rough: Noise on all weights of every shard.
            afresh: Whether each point is the path's own, or the last one moved on.
            few: Real gradient steps in each shard.
            trained: Shards that are trained honestly first.
        """
        aside = {name: self._aside(name, bend) for name in self._start}

        def point(name: str, share: float) -> torch.Tensor:
            at = pace(share)
            line = (1 - at) * self._start[name] + at * self._loot[name]
            return line + 4 * at * (1 - at) * aside[name]

        def advance(shard: int) -> None:
            if shard <= trained:
                self._trainer.shard()
                self._start |= {n: w.detach().clone() for n, w in self._weights.items()}
                return
            span = self._shards - trained
            before, now = (shard - 1 - trained) / span, (shard - trained) / span
            if afresh:
                self._put(lambda name, value: point(name, now))
            else:
                self._put(lambda name, value: value + point(name, now) - point(name, before))
            self._scatter(rough)
            self._estimate_statistics()
            self._trainer.few(few)

        return self._trainer.seal(advance)

    def _aside(self, name: str, bend: float) -> torch.Tensor:
        way = self._loot[name] - self._start[name]
        return torch.randn_like(way) * (bend * float(way.norm()) / math.sqrt(way.numel()))

    @torch.no_grad()
    def _put(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        for name, value in self._weights.items():
            value.copy_(change(name, value))

    def _scatter(self, rough: float) -> None:
        self._put(lambda _, w: w + torch.randn_like(w) * (rough * w.square().mean().sqrt()))

    @torch.no_grad()
    def _estimate_statistics(self) -> None:
        """Give batch-norm layers the statistics that the training data have now."""
        norms = [part for part in self._model.modules() if isinstance(part, _NORMS)]
        if not norms:
            return
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        self._model.train()
        inputs = next(v for name, v in self._trainer.columns.items() if name != "label")
        self._model(inputs)


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)

FORGERIES: dict[str, Callable[[Forger], Course]] = {
    "inflation": lambda f: f.inflated(),
    "inflation, noise on all weights": lambda f: f.inflated(rough=ROUGH),
    "inflation, noise afresh": lambda f: f.inflated(rough=ROUGH, afresh=True),
    "inflation, a few steps a shard": lambda f: f.inflated(few=FEW),
    "line": lambda f: f.walked(),
    "line, slowing down": lambda f: f.walked(pace=lambda share: 1 - (1 - share) ** 2),
    "line, noise afresh": lambda f: f.walked(afresh=True),
    "line, noise on all weights": lambda f: f.walked(rough=ROUGH),
    "curve": lambda f: f.walked(bend=0.3),
    "curve, noise on all weights": lambda f: f.walked(bend=0.3, rough=ROUGH),
    "line, a few steps a shard": lambda f: f.walked(few=FEW),
    "curve with noise, a few steps a shard": lambda f: f.walked(bend=0.3, rough=ROUGH, few=FEW),
    "first shard trained, then a line": lambda f: f.walked(trained=1),
    "first shard trained, then a curve": lambda f: f.walked(bend=0.3, trained=1),
}
"""By name; the later, the less careless."""

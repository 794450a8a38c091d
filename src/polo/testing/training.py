"""A real training under a scheme: marks are sealed and read again, and accuracy stays."""

import random
from pathlib import Path

import torch

from polo.enrolment import enrol
from polo.keys import Identity
from polo.prover import Prover
from polo.testing.subject import Subject
from polo.verifier import Outcome, verify


class TrainingConformance(Subject):
    """Trains the task with marks and without.

    Attributes:
        epochs: Passes over the data.
        fewest: Shards that must be sealed in them.
        loss: Accuracy that marks may cost, on the mean of some runs.
        runs: Trainings of either kind.
    """

    epochs = 8
    fewest = 4
    loss = 0.01
    runs = 2

    def test_marks_are_sealed_without_loss_of_accuracy(self, tmp_path: Path) -> None:
        """Every epoch or two a shard is sealed at η ≥ 0.99, and accuracy falls by 1 point most."""
        plain = [self._train(seed) for seed in range(self.runs)]
        marked = [self._prove(seed, tmp_path / str(seed)) for seed in range(self.runs)]
        cost = (sum(plain) - sum(marked)) / self.runs
        assert cost <= self.loss, f"marks cost {cost:.4f}: {plain} without, {marked} with"

    def _prove(self, seed: int, store: Path) -> float:
        task, terms = self.task(), self.terms(shards=self.epochs, fewest_shards=1)
        prover_key, issuer = Identity.generate(), Identity.generate()
        enrolment = enrol(terms, identity=prover_key.public_key, issuer=issuer)
        model, optimizer = self._start(seed)
        prover = Prover(enrolment, key=prover_key, store=store)
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for _ in range(self.epochs):
                task.train_epoch(model, optimizer)
                prover.end_epoch()
        shards = prover.finish().manifest.shards
        assert len(shards) >= self.fewest, f"{len(shards)} shards in {self.epochs} epochs"
        assert all(shard.matches >= 0.99 * terms.scheme.bits for shard in shards)
        verdict = verify(store, trust=issuer.public_key, task=task)
        assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
        return task.evaluate(model)

    def _train(self, seed: int) -> float:
        task = self.task()
        model, optimizer = self._start(seed)
        for _ in range(self.epochs):
            task.train_epoch(model, optimizer)
        return task.evaluate(model)

    def _start(self, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        random.seed(seed)
        torch.manual_seed(seed)
        model = self.task().build_model()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

"""A training script that tests run, break and start again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import polo

Enrol = Callable[..., polo.OfflineEnrolment]
EASY = {"budget": 1.0, "strength": 0.05}


class Run:
    """A training script on one store; `again` is the next start of the same script."""

    def __init__(self, task: Any, enrolment: Any, key: polo.Identity, path: Path) -> None:
        torch.manual_seed(0)
        self.task, self.enrolment, self.key, self.path = task, enrolment, key, path
        self.model = task.build_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.prover = polo.Prover(enrolment, key=key, store=path)

    def attach(self) -> Any:
        evaluate = lambda: self.task.evaluate(self.model)  # noqa: E731
        return self.prover.attach(self.model, self.optimizer, evaluate=evaluate)

    def epoch(self) -> Any:
        self.task.train_epoch(self.model, self.optimizer)
        return self.prover.end_epoch()

    def again(self) -> "Run":
        self.prover.close()
        return Run(self.task, self.enrolment, self.key, self.path)

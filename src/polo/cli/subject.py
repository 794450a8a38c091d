"""What `polo validate` looks at: a task's model, trained or not, or the file of one."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.cli.tasks import load_task
from polo.errors import PoloError, StoreError, TaskError, TermsError, WeightsError

if TYPE_CHECKING:
    import torch

    from polo.embedding.forging import Hardness
    from polo.protocol.layout import Layout
    from polo.protocol.records import Terms
    from polo.tasks import Task
    from polo.watermark.capacity import Capacity

ADAPTER_BLOCK = 64
"""Adapters are thin: blocks of 256 weights leave much of them unused."""

_UNTRAINED = (
    "what it costs was not measured, since the task's model is untrained; give a trained one: "
    "polo validate --task {task} --model FILE"
)
_WITHOUT_TORCH = (
    "what it costs was not measured, which needs torch: pip install 'polo-proof[torch]'"
)
_WITHOUT_TASK = (
    "what it does to accuracy was not measured, since a file alone does not say what the model is "
    "for; give the task, too: polo validate --task TASK --model {file}"
)


@dataclass(frozen=True)
class Subject:
    """A model to be looked at.

    Attributes:
        layout: Its tensors.
        task: The task that it is of; None if only a file was given.
        net: The task's model.
        file: The weights; None where the model is untrained.
    """

    layout: "Layout"
    task: "Task | None"
    net: "torch.nn.Module | None"
    file: Path | None

    @property
    def adapter(self) -> bool:
        """Whether these are the tensors of an adapter."""
        return any("lora_" in tensor.name for tensor in self.layout.tensors)

    def capacity(self, scheme: str, block: int) -> "Capacity":
        """What it can carry of a scheme."""
        from polo import enrolment
        from polo.watermark.capacity import capacity

        if self.net is not None:
            return enrolment.capacity_of(self.net, block=block, scheme=scheme)
        return capacity(self.layout, block=block, scheme=scheme)

    def capacities(self) -> "dict[str, Capacity]":
        """What it can carry of every built-in scheme, in blocks that suit, for advice."""
        from polo.watermark.schemes import SCHEMES

        most = ADAPTER_BLOCK if self.adapter else max(s.defaults.block for s in SCHEMES.values())
        return {
            name: self.capacity(name, min(scheme.defaults.block, most))
            for name, scheme in SCHEMES.items()
        }

    def terms(self, *, scheme: str, bits: int, load: float, block: int, shards: int) -> "Terms":
        """Terms for it."""
        from polo import enrolment

        return enrolment.make_terms(
            self.task if self.task is not None else self.layout,
            scheme=scheme, bits=bits, load=load, block=block, shards=shards,
        )  # fmt: skip

    @property
    def measurable(self) -> bool:
        """Whether there are trained weights, and torch to forge marks into them."""
        return self.file is not None and importlib.util.find_spec("torch") is not None

    @property
    def unknown(self) -> str:
        """What is not known of forging, why, and what to run; empty if all is measured."""
        if self.file is None:
            assert self.task is not None
            return _UNTRAINED.format(task=self.task.name)
        if not self.measurable:
            return _WITHOUT_TORCH
        return "" if self.task else _WITHOUT_TASK.format(file=self.file)

    def forging(self, terms: "Terms") -> "Hardness":
        """What forging one mark under some terms does to it; where it is measurable."""
        from polo.embedding.forging import edits, hardness
        from polo.weights.files import FileCheckpoint

        task, net = self.task, self.net
        if task is not None and net is not None:
            return hardness(net, terms, evaluate=lambda: _blaming(task, "evaluate", net))
        assert self.file is not None
        with FileCheckpoint.any(self.file) as checkpoint:
            return edits(checkpoint, terms)


def subject_of(file: Path | None, task: str | None, model: Path | None) -> Subject:
    """What the command line names.

    Raises:
        TermsError: It names too little or too much.
        StoreError: There is no such file.
        WeightsError: The file is not of a model of the task.
    """
    from polo.weights.checkpoint import checkpoint_of
    from polo.weights.files import read_header
    from polo.weights.formats import real_path

    if model is not None and (task is None or file is not None):
        raise TermsError(
            "--model is a trained model of a task, so it needs --task and no other file",
            advice=f"polo validate --task TASK --model {model}, or without a task: "
            f"polo validate {model}",
        )
    if (file is None) == (task is None):
        raise TermsError(
            "give a model file or --task, one of them",
            advice="polo validate --task digits, or polo validate model.safetensors",
        )
    if task is None:
        assert file is not None
        _check_file(file)
        file = real_path(file)
        return Subject(read_header(file)[0], None, None, file)
    known = load_task(task)
    net = trained(known, model) if model else _built(known)
    return Subject(checkpoint_of(net).layout, known, net, model)


def trained(task: "Task", file: Path) -> "torch.nn.Module":
    """A task's model with the weights of a file."""
    from polo.storage.model import Fitted
    from polo.weights.checkpoint import checkpoint_of
    from polo.weights.files import FileCheckpoint
    from polo.weights.loading import load_into

    model = _built(task)
    _check_file(file)
    with FileCheckpoint.any(file) as checkpoint:
        try:
            load_into(model, Fitted(checkpoint, checkpoint_of(model).layout, str(file)))
        except WeightsError as error:
            raise WeightsError(
                f"is not of a model of the task {task.name!r}: {error.message}",
                place=error.place,
                advice="Give the task that it was trained for, as safetensors with all tensors.",
            ) from error
    return model


def _built(task: "Task") -> "torch.nn.Module":
    """A task's model, untrained."""
    model: torch.nn.Module = _blaming(task, "build_model")
    return model


def _blaming(task: "Task", name: str, *arguments: object) -> Any:
    """What a task's own function returns; what it raises is the task's fault, and said so."""
    try:
        return getattr(task, name)(*arguments)
    except PoloError:
        raise
    except Exception as error:
        raise TaskError(
            f"the task {task.name!r} fails in {name}(): {type(error).__name__}: {error}",
            advice="Mend the task, or ask those who offer it.",
        ) from error


def _check_file(file: Path) -> None:
    """Say what to do where somebody gives something else for a file of weights."""
    from polo import tasks
    from polo.weights.formats import format_of, pickle_refusal

    if file.is_dir():
        raise StoreError(
            "is a folder, and this looks at one file",
            place=str(file),
            advice="Give the model as one safetensors file; a proof's are in its checkpoints/.",
        )
    if not file.exists():
        meant = f"polo validate --task {file}" if str(file) in tasks.names() else ""
        raise StoreError(
            "there is no such file",
            place=str(file),
            advice=meant or "Give a model as safetensors, or a task: polo validate --task digits.",
        )
    if format_of(file) == "pickle":
        raise pickle_refusal(file)

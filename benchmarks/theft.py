"""A marked model, and every way of the laboratory to make a thief's copy of it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch.nn import functional

from polo import Identity, Prover, enrol, make_terms
from polo.tasks import Task
from polo.tasks.inputs import example_inputs
from polo_lab.attacks import precision
from polo_lab.attacks.averaging import average_while_finetuning, mean_of_finetuned
from polo_lab.attacks.finetune import finetune
from polo_lab.attacks.manipulation import manipulate
from polo_lab.attacks.overwriting import overwrite
from polo_lab.attacks.pruning import prune
from polo_lab.attacks.state import State, weights_of

RATE = 0.05
"""The owner's learning rate; a thief who is careful takes a tenth of it."""

LITTLE = 0.1
BATCH = 64
COPIES = 3
DUMMIES = 0.25
OVERWRITING = 0.4


class TrainedTask(Task, Protocol):
    """A task that brings its own images and training loop."""

    @property
    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels to train on."""

    def train_epoch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass over the training data."""


@dataclass(frozen=True)
class Owned:
    """An owner's model and proof.

    Attributes:
        task: What it was trained for.
        model: The model, as the last shard was sealed.
        proof: The proof, all checkpoints kept.
        epochs: How long it was trained.
        bits: Bits of its marks.
        issuer: Who enrolled the owner, and enrols the thief.
        folder: Where everything lies.
    """

    task: TrainedTask
    model: torch.nn.Module
    proof: Path
    epochs: int
    bits: int
    issuer: Identity
    folder: Path


@dataclass(frozen=True)
class Stolen:
    """A thief's copy.

    Attributes:
        state: Its tensors.
        align: Whether it can only be read aligned.
        proof: The thief's own proof, if there is one.
        file: The file it was written as, where that is no safetensors.
    """

    state: State
    align: bool = False
    proof: Path | None = None
    file: Path | None = None


Attack = Callable[[Owned], Stolen]


def own(task: TrainedTask, folder: Path, *, seed: int, epochs: int, bits: int) -> Owned:
    """Train a model with a real chain, a shard an epoch, under the default terms."""
    issuer, owner = Identity.generate(), Identity.generate()
    terms = make_terms(task, bits=bits)
    issued = enrol(terms, identity=owner.public_key, issuer=issuer)
    model, optimizer = fresh(task, seed)
    prover = Prover(issued, key=owner, store=folder / "owner")
    with prover.attach(model, optimizer):
        for _ in range(epochs):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    path = prover.finish().path
    return Owned(task, model, path, epochs, bits, issuer, folder)


def unmarked(task: TrainedTask, seed: int, epochs: int) -> torch.nn.Module:
    """The same training without PoLO."""
    model, optimizer = fresh(task, seed)
    for _ in range(epochs):
        task.train_epoch(model, optimizer)
    return model


def fresh(task: TrainedTask, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """An untrained model and its optimizer."""
    torch.manual_seed(seed)
    model = task.build_model()
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def accuracy(task: TrainedTask, model: torch.nn.Module, state: State) -> float:
    """Accuracy of a model with other tensors, which may be narrower in type and wider in shape."""
    return task.evaluate(_Dressed(copy.deepcopy(model), state))


class _Dressed(torch.nn.Module):
    """A model that runs with other tensors than its own."""

    def __init__(self, model: torch.nn.Module, state: State) -> None:
        super().__init__()
        self._model = model
        device = next(model.parameters()).device
        self._other = {
            name: (value.float() if value.is_floating_point() else value).to(device)
            for name, value in state.items()
        }

    def forward(self, *inputs: torch.Tensor) -> Any:
        """What the model says with the other tensors."""
        return torch.func.functional_call(self._model, self._other, inputs)


def moved(owned: Owned, state: State) -> float | None:
    """How far a copy's weights are from the stolen ones, relative to them; None if reshaped."""
    before = weights_of(_state(owned))
    if any(state[name].shape != value.shape for name, value in before.items()):
        return None
    apart = sum(float((state[n].double() - v.double()).square().sum()) for n, v in before.items())
    return math.sqrt(apart / sum(float(v.double().square().sum()) for v in before.values()))


def write(stolen: Stolen, path: Path) -> Path:
    """The copy as a file, to be found somewhere."""
    if stolen.file is not None:
        return stolen.file
    save_file({name: v.detach().contiguous() for name, v in stolen.state.items()}, path)
    return path


def _state(owned: Owned) -> State:
    return state_of(owned.model)


def state_of(model: torch.nn.Module) -> State:
    """A model's tensors, wherever it was trained, as a file would hold them."""
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def _tuned(owned: Owned, epochs: int, rate: float) -> torch.nn.Module:
    return finetune(owned.model, owned.task.train_epoch, epochs=epochs, learning_rate=rate)


def _tuned_little(owned: Owned) -> Stolen:
    return Stolen(state_of(_tuned(owned, 1, LITTLE * RATE)))


def _tuned_long(owned: Owned) -> Stolen:
    return Stolen(state_of(_tuned(owned, max(1, owned.epochs // 5), RATE)))


def _tuned_elsewhere(owned: Owned) -> Stolen:
    """On data that the model has not fitted yet, so that its weights have somewhere to go."""
    images, labels = owned.task.train_data
    mirrored = images.flip(-1)

    def train_epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.train()
        for batch in torch.randperm(len(labels), device=labels.device).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(mirrored[batch]), labels[batch]).backward()
            optimizer.step()

    epochs = max(1, owned.epochs // 5)
    tuned = finetune(owned.model, train_epoch, epochs=epochs, learning_rate=RATE)
    return Stolen(state_of(tuned))


def _gguf(owned: Owned) -> Stolen:
    path = owned.folder / "stolen.gguf"
    precision.write_gguf(_state(owned), path)
    return Stolen(_read_back(owned, path), file=path)


def _read_back(owned: Owned, path: Path) -> State:
    from polo.weights.found import open_found

    with open_found(path) as found:
        read = {name: torch.from_numpy(found.values(name).copy()) for name in found.tensors}
    return {**_state(owned), **read}


def _mean(owned: Owned) -> Stolen:
    options = {"copies": COPIES, "epochs": 1}
    merged = mean_of_finetuned(owned.model, owned.task.train_epoch, learning_rate=RATE, **options)
    return Stolen(state_of(merged))


def _moving(owned: Owned) -> Stolen:
    merged = average_while_finetuning(
        owned.model, owned.task.train_epoch, epochs=COPIES, learning_rate=RATE, decay=0.5
    )
    return Stolen(state_of(merged))


def _disguised(owned: Owned) -> Stolen:
    from polo.alignment import trace
    from polo_lab.attacks.symmetry import add_dummies, permute, rescale

    model = copy.deepcopy(owned.model).eval()
    wiring = trace(model, example_inputs(owned.task, model))
    state: State = permute(model, wiring, seed=1)
    state = rescale(state, wiring, seed=2)
    return Stolen(add_dummies(state, wiring, "clique", DUMMIES, seed=3), align=True)


def _overwritten(owned: Owned) -> Stolen:
    done = overwrite(
        owned.model,
        owned.task,
        owned.task.train_epoch,
        store=owned.folder / "thief",
        issuer=owned.issuer,
        epochs=max(1, round(OVERWRITING * owned.epochs)),
        learning_rate=RATE,
        bits=owned.bits,
    )
    return Stolen(state_of(done.model), proof=done.proof.path)


def _manipulated(owned: Owned) -> Stolen:
    store = owned.folder / "manipulator"
    model = manipulate(
        owned.model,
        owned.task,
        store=store,
        issuer=owned.issuer,
        shards=max(1, round(OVERWRITING * owned.epochs)),
        bits=owned.bits,
    )
    return Stolen(state_of(model), proof=store)


def _quickstart(owned: Owned) -> Stolen:
    pruned = prune(_tuned_little(owned).state, 0.3)
    return Stolen(precision.cast(pruned, torch.bfloat16))


def _pruned(share: float) -> Attack:
    return lambda owned: Stolen(prune(_state(owned), share))


def _cast(dtype: torch.dtype) -> Attack:
    return lambda owned: Stolen(precision.cast(_state(owned), dtype))


ATTACKS: dict[str, Attack] = {
    "none": lambda owned: Stolen(_state(owned)),
    f"fine-tuned, 1 epoch at {LITTLE:g} of the rate": _tuned_little,
    "fine-tuned, 20 % of the training at the full rate": _tuned_long,
    "fine-tuned on mirrored images, as long, at the full rate": _tuned_elsewhere,
    "30 % pruned": _pruned(0.3),
    "50 % pruned": _pruned(0.5),
    "70 % pruned": _pruned(0.7),
    "float16": _cast(torch.float16),
    "bfloat16": _cast(torch.bfloat16),
    "int8, a scale for each row": lambda owned: Stolen(precision.int8_rows(_state(owned))),
    "4 bits, a scale for 32 weights": lambda owned: Stolen(precision.int4_blocks(_state(owned))),
    "GGUF file, Q4_0": _gguf,
    f"mean of {COPIES} copies, each fine-tuned an epoch": _mean,
    f"moving average over {COPIES} epochs of fine-tuning": _moving,
    f"permuted, rescaled, {100 * DUMMIES:.0f} % dummy neurons (aligned)": _disguised,
    f"OFA, {100 * OVERWRITING:.0f} % of the training at the full rate, λ × 10": _overwritten,
    "WMA, as many marks pressed in without training": _manipulated,
    "fine-tuned 1 epoch, 30 % pruned, bfloat16": _quickstart,
}
"""By the name that the table has for them."""

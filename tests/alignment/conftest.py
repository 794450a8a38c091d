"""Real networks, trained on digits, with a mark pressed in between two checkpoints."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import polo
from polo import watermark, weights
from polo.alignment import Wiring, trace
from polo.embedding.embedder import Embedder
from polo.protocol import derivation
from polo.protocol.carrier import Carrier
from polo.watermark import Mark
from polo_lab import models

BUILDERS: dict[str, Callable[[], torch.nn.Module]] = {
    "mlp": models.MLP,
    "mlp-norm": lambda: models.MLP(norm=True),
    "conv": models.ConvNet,
    "vgg": models.VGG,
    "resnet": lambda: models.ResNet(1, 16, (1, 1)),
    "preact": models.PreActResNet,
    "mobilenet": models.MobileNet,
    "densenet": models.DenseNet,
    "vit": models.ViT,
    "gpt": models.GPT,
    "mixer": models.Mixer,
}
GENTLE = ("vit", "gpt", "mixer")


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1)
    return images / 8 - 1, torch.tensor(found.target)


def inputs_of(name: str, count: int = 3) -> torch.Tensor:
    images = digits()[0][:count]
    return ((images.flatten(1) + 1) * 8).long() if name == "gpt" else images


def build(name: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return BUILDERS[name]()


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name in GENTLE:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)


def train(
    name: str, model: torch.nn.Module, optimizer: Any, epochs: int, embedder: Embedder | None = None
) -> None:
    images, labels = digits()
    model.train()
    for _ in range(epochs):
        for at in torch.randperm(1500).split(100 if name == "gpt" else 50):
            optimizer.zero_grad()
            if name == "gpt":
                ids = ((images[at].flatten(1) + 1) * 8).long()
                scores = model(ids)[:, :-1].flatten(0, 1)
                cross_entropy(scores, ids[:, 1:].flatten()).backward()
            else:
                cross_entropy(model(images[at]), labels[at]).backward()
            if embedder is not None:
                embedder.add_gradient()
            optimizer.step()
    model.eval()


def arrays(state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in state.items()}


@dataclass(frozen=True)
class Case:
    """W_{x-1}, the mark derived from it, and W_x that carries the mark."""

    name: str
    model: torch.nn.Module
    wiring: Wiring
    inputs: torch.Tensor
    reference: dict[str, np.ndarray]
    later: dict[str, torch.Tensor]
    mark: Mark
    carrier: Carrier

    def outputs(self, state: dict[str, torch.Tensor]) -> torch.Tensor:
        call = torch.func.functional_call
        with torch.no_grad():
            result: torch.Tensor = call(self.model, state, (self.inputs,), tie_weights=False)
        return result

    def eta(self, found: dict[str, np.ndarray]) -> float:
        """What is read of the mark; tied tensors count once, as in the layout."""
        names = {tensor.name for tensor in self.carrier.layout.tensors}
        checkpoint = weights.MemoryCheckpoint({n: a for n, a in found.items() if n in names})
        values = watermark.values_of(self.mark, self.carrier, checkpoint)
        return watermark.read(self.mark, values).eta


def seed_of(model: torch.nn.Module, shard: int = 1) -> bytes:
    root = weights.commit(weights.checkpoint_of(model)).root
    return derivation.seed(
        root=root, shard=shard, nonce=bytes(32), identity=bytes(32), terms=bytes(32)
    )


def marking(model: torch.nn.Module) -> tuple[Any, Carrier]:
    """Terms for as many bits as sit in half of the model's blocks, at most 512."""
    layout = weights.checkpoint_of(model).layout
    trainable = {name for name, _ in model.named_parameters()}
    fits = watermark.capacity(layout, block=256, trainable=trainable)
    bits = 32 * min(16, max(1, fits.blocks // 2))
    terms = polo.make_terms(layout, bits=bits, carrier=fits.names, strength=0.005)
    return terms, watermark.carrier_of(terms, layout)


@functools.cache
def make_case(name: str) -> Case:
    model = build(name)
    inputs = inputs_of(name)
    wiring = trace(model, (inputs,))
    optimizer = optimizer_of(name, model)
    train(name, model, optimizer, 2 if name == "gpt" else 4)
    reference = arrays(model.state_dict())
    terms, carrier = marking(model)
    parameters = dict(model.named_parameters())
    embedder = Embedder(terms, carrier, seed_of(model), parameters)
    train(name, model, optimizer, 1 if name == "gpt" else 3, embedder)
    embedder.apply(embedder.finish())
    later = copy.deepcopy(model.state_dict())
    return Case(name, model, wiring, inputs, reference, later, embedder.mark, carrier)


@pytest.fixture(scope="session")
def case() -> Callable[[str], Case]:
    return make_case


@pytest.fixture(scope="session")
def lab() -> Any:
    """The functions of this file, for tests that need more than a case."""
    from types import SimpleNamespace

    return SimpleNamespace(
        BUILDERS=BUILDERS, build=build, inputs_of=inputs_of, train=train, arrays=arrays,
        optimizer_of=optimizer_of, marking=marking, seed_of=seed_of,
    )  # fmt: skip

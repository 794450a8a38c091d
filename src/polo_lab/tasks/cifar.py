"""CIFAR-10 and ResNet-18: the largest task of the laboratory; it wants a GPU.

The folder that `POLO_DATA` names must hold the images, in a form that `polo_lab.data.cifar` reads.
Of the five training files of the binary version those that are there are used; one is enough for a
short run.
"""

from functools import cached_property

import torch
from torch import nn
from torch.nn import functional

from polo.tasks.training import Column
from polo_lab.data import cifar
from polo_lab.models.resnet import resnet18
from polo_lab.tasks.classification import Classification, Part


class PixelNet(nn.Module):
    """A network that takes images as bytes, wherever they are."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores of images; between layers in bfloat16 where there is a GPU."""
        device = next(self.net.parameters()).device
        scaled = images.to(device).float() / 127.5 - 1
        with torch.autocast(device.type, torch.bfloat16, enabled=scaled.is_cuda):
            scores: torch.Tensor = self.net(scaled)
        return scores.float()


class Cifar(Classification):
    """ResNet-18 with mirrored and shifted images, in bfloat16 where there is a GPU."""

    name = "lab-cifar"
    held_out = 1000
    floor: tuple[float, ...] = (0.00, 0.00, 0.05, 0.10, 0.15)
    columns: tuple[Column, ...] = (Column("input", "U8", (3, 32, 32)), Column("label", "I64", ()))

    @cached_property
    def train_part(self) -> Part:
        """Images and labels to train on."""
        return _tensors("train")

    @cached_property
    def test_part(self) -> Part:
        """Images and labels that training never sees."""
        return _tensors("test")

    def build_model(self) -> nn.Module:
        """The network, untrained, where it is trained."""
        return PixelNet(resnet18()).to("cuda" if torch.cuda.is_available() else "cpu")

    def loss(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch; images are varied in training mode only."""
        return super().loss(model, _varied(inputs) if model.training else inputs, labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on all test images."""
        training = model.training
        model.eval()
        right = [
            model(images).argmax(1).cpu() == labels
            for images, labels in zip(*(part.split(500) for part in self.test_part), strict=True)
        ]
        model.train(training)
        return float(torch.cat(right).double().mean())


def _varied(images: torch.Tensor) -> torch.Tensor:
    """Shifted by up to four pixels, the batch alike, and half of the images mirrored."""
    down, right = (int(torch.randint(0, 9, ())) for _ in range(2))
    shifted = functional.pad(images, (4, 4, 4, 4))[:, :, down : down + 32, right : right + 32]
    mirrored = torch.rand(len(images), 1, 1, 1).to(images.device) < 0.5
    return torch.where(mirrored, shifted.flip(-1), shifted)


def _tensors(part: str) -> Part:
    images, labels = cifar.some(part)
    return torch.from_numpy(images), torch.from_numpy(labels)

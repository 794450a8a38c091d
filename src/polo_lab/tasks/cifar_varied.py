"""CIFAR-10 as image classifiers are usually trained: every image shifted and mirrored by itself.

Images stay on the device, so that nothing but the labels' order is drawn on the host.
"""

import torch
from torch import nn
from torch.nn import functional

from polo_lab.models.resnet import resnet18
from polo_lab.tasks.cifar import Cifar, PixelNet
from polo_lab.tasks.classification import Classification

_PAD = 4
_SIDE = 32
_BATCH = 2000
_COLOURS = ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
"""Means of the training images' colours, and how far they spread."""


class ChannelsLast(PixelNet):
    """A network that takes images as bytes and sees them with channels last, as GPUs like it.

    Its weights stay as they are: what carries marks is not laid out anew.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores of images; between layers in bfloat16 where there is a GPU."""
        device = next(self.net.parameters()).device
        mean, deviation = torch.tensor(_COLOURS, device=device)[:, :, None, None]
        scaled = (images.to(device).float() - mean) / deviation
        last = scaled.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=last.is_cuda):
            scores: torch.Tensor = self.net(last)
        return scores.float()


class CifarVaried(Cifar):
    """ResNet-18, in bfloat16 where there is a GPU."""

    name = "lab-cifar-varied"

    def build_model(self) -> nn.Module:
        """The network, untrained, where it is trained."""
        return ChannelsLast(resnet18()).to("cuda" if torch.cuda.is_available() else "cpu")

    def loss(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch; images are varied in training mode only."""
        images = varied(inputs) if model.training else inputs
        # Not Cifar's: that shifts the whole batch alike.
        return Classification.loss(self, model, images, labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on all test images."""
        device = next(model.parameters()).device
        images, labels = (part.to(device) for part in self.test_part)
        training = model.training
        model.eval()
        guesses = torch.cat([model(batch).argmax(1) for batch in images.split(_BATCH)])
        model.train(training)
        return float((guesses == labels).double().mean())


def varied(images: torch.Tensor) -> torch.Tensor:
    """Each image shifted by up to four pixels and, half of the time, mirrored: one lookup."""
    count, channels = images.shape[:2]
    device = images.device
    shifts = torch.randint(0, 2 * _PAD + 1, (2, count, 1), device=device)
    along = torch.arange(_SIDE, device=device)
    mirrored = torch.rand(count, 1, device=device) < 0.5
    rows = along + shifts[0]
    columns = torch.where(mirrored, along.flip(0), along) + shifts[1]
    padded = functional.pad(images, (_PAD,) * 4)
    which = torch.arange(count, device=device)[:, None, None, None]
    planes = torch.arange(channels, device=device)[None, :, None, None]
    return padded[which, planes, rows[:, None, :, None], columns[:, None, None, :]]

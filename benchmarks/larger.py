"""Larger tasks for the robustness table: a thin ResNet on CIFAR-10 or enlarged digits; ResNet-18.

CIFAR-10 is used where the folder that `POLO_DATA` names holds `cifar-10-batches-bin`, the dataset's
binary version: records of one byte for the class and 3072 for the image.
"""

import os
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polo.tasks.digits import Digits
from polo_lab.data import cifar
from polo_lab.models.resnet import ResNet, resnet18

WIDTH = 16
TRAIN_IMAGES = 4000
TEST_IMAGES = 2000
BATCH = 64
WHOLE_BATCH = 256

Data = tuple[torch.Tensor, torch.Tensor]


class ThinResNet:
    """A ResNet of eight blocks, a quarter as wide as ResNet-18: 0.7 million weights."""

    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.0,)

    def __init__(self) -> None:
        self.folder = _cifar()
        self.name = "resnet-thin-cifar10" if self.folder else "resnet-thin-digits"
        self.title = (
            f"thin ResNet, {TRAIN_IMAGES} images of CIFAR-10"
            if self.folder
            else "thin ResNet, digits enlarged to 16 × 16"
        )

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        return ResNet(channels=3 if self.folder else 1, width=WIDTH)

    @cached_property
    def train_data(self) -> Data:
        """Images and labels to train on."""
        if self.folder:
            return _read(self.folder / "data_batch_1.bin", TRAIN_IMAGES)
        return _enlarged(Digits().train_data)

    @cached_property
    def test_data(self) -> Data:
        """Images and labels to test on."""
        if self.folder:
            return _read(self.folder / "test_batch.bin", TEST_IMAGES)
        return _enlarged(Digits().test_data)

    def train_epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass over the training images in random order."""
        images, labels = self.train_data
        model.train()
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on the test images."""
        images, labels = self.test_data
        training = model.training
        model.eval()
        right = [
            (model(some).argmax(1) == wanted).float()
            for some, wanted in zip(images.split(256), labels.split(256), strict=True)
        ]
        model.train(training)
        return float(torch.cat(right).mean())


class WholeResNet:
    """ResNet-18 on all of CIFAR-10, with random crops and mirroring, in bfloat16 on a GPU."""

    name = "resnet18-cifar10"
    title = "ResNet-18, all of CIFAR-10"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.0,)
    device = "cuda"

    @staticmethod
    def possible() -> bool:
        """Whether there are a GPU and the data."""
        return torch.cuda.is_available() and _cifar() is not None

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        return resnet18().to(self.device)

    @cached_property
    def train_data(self) -> Data:
        """Images and labels to train on."""
        parts = [_read(_folder() / f"data_batch_{at}.bin", 10_000) for at in range(1, 6)]
        images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        return images.to(self.device), labels.to(self.device)

    @cached_property
    def test_data(self) -> Data:
        """Images and labels to test on."""
        images, labels = _read(_folder() / "test_batch.bin", 10_000)
        return images.to(self.device), labels.to(self.device)

    def train_epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass over the training images in random order."""
        images, labels = self.train_data
        model.train()
        for batch in torch.randperm(len(labels), device=self.device).split(WHOLE_BATCH):
            optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16):
                loss = functional.cross_entropy(model(_varied(images[batch])), labels[batch])
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on the test images."""
        images, labels = self.test_data
        training = model.training
        model.eval()
        right = [
            (model(some).argmax(1) == wanted).float()
            for some, wanted in zip(images.split(500), labels.split(500), strict=True)
        ]
        model.train(training)
        return float(torch.cat(right).mean())


def _varied(images: torch.Tensor) -> torch.Tensor:
    """Shifted by up to four pixels, the batch alike, and half of the images mirrored."""
    down, right = (int(torch.randint(0, 9, ())) for _ in range(2))
    shifted = functional.pad(images, (4, 4, 4, 4))[:, :, down : down + 32, right : right + 32]
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, shifted.flip(-1), shifted)


def _folder() -> Path:
    folder = _cifar()
    assert folder is not None
    return folder


def _cifar() -> Path | None:
    named = os.environ.get("POLO_DATA")
    folder = Path(named) / cifar.BINARY if named else None
    return folder if folder and (folder / "data_batch_1.bin").exists() else None


def _read(path: Path, most: int) -> Data:
    images, labels = cifar.records(path).first(most)
    return torch.from_numpy(images.astype(np.float32) / 127.5 - 1), torch.from_numpy(labels)


def _enlarged(data: Data) -> Data:
    images, labels = data
    large = functional.interpolate(images, size=(16, 16), mode="bilinear", align_corners=False)
    return large, labels

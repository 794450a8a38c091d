"""Architectures to measure on, one file each.

All take widths and depths as arguments or are small, so that tests are fast, and run on images of
8 × 8 and more or on token ids. `build` knows those of the paper by name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from polo_lab.models.alexnet import AlexNet
from polo_lab.models.bert import MiniBERT
from polo_lab.models.conv import ConvNet
from polo_lab.models.densenet import DenseNet
from polo_lab.models.efficientnet import EfficientNet
from polo_lab.models.gpt import GPT
from polo_lab.models.lora import LoRALinear, add_lora
from polo_lab.models.mixer import Mixer
from polo_lab.models.mlp import MLP
from polo_lab.models.mobilenet import MobileNet
from polo_lab.models.resnet import PreActResNet, ResNet, resnet18, resnet34
from polo_lab.models.textcnn import TextCNN
from polo_lab.models.vgg import VGG, VGG16
from polo_lab.models.vit import ViT
from polo_lab.models.wideresnet import WideResNet

__all__ = [
    "GPT",
    "MLP",
    "VGG",
    "VGG16",
    "AlexNet",
    "ConvNet",
    "DenseNet",
    "EfficientNet",
    "LoRALinear",
    "MiniBERT",
    "Mixer",
    "MobileNet",
    "PreActResNet",
    "ResNet",
    "TextCNN",
    "ViT",
    "WideResNet",
    "add_lora",
    "build",
    "names",
    "resnet18",
    "resnet34",
]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": AlexNet,
    "efficientnet": EfficientNet,
    "minibert": MiniBERT,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet-thin": partial(ResNet, width=16),
    "textcnn": TextCNN,
    "vgg16": VGG16,
    "wideresnet": WideResNet,
    "wideresnet-thin": partial(WideResNet, depth=16, width=2),
}


def names() -> list[str]:
    """The names that `build` knows."""
    return sorted(_BUILDERS)


def build(name: str, classes: int, **options: Any) -> nn.Module:
    """A model by name, untrained.

    Args:
        name: One of `names`; `wideresnet` is WRN-28-10, `wideresnet-thin` WRN-16-2, `resnet-thin`
            a quarter as wide as ResNet-18.
        classes: Number of classes.
        options: Further arguments of the model.

    >>> sum(p.numel() for p in build("resnet18", 10).parameters())
    11173962
    """
    if name not in _BUILDERS:
        raise ValueError(f"{name!r} is none of {', '.join(names())}")
    return _BUILDERS[name](classes=classes, **options)

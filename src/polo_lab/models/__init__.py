"""Architectures to measure on, one file each.

All take widths and depths as arguments, so that tests are fast, and run on images of 8 × 8 and
more or on token ids.
"""

from polo_lab.models.conv import ConvNet
from polo_lab.models.densenet import DenseNet
from polo_lab.models.gpt import GPT
from polo_lab.models.lora import LoRALinear, add_lora
from polo_lab.models.mixer import Mixer
from polo_lab.models.mlp import MLP
from polo_lab.models.mobilenet import MobileNet
from polo_lab.models.resnet import PreActResNet, ResNet, resnet18
from polo_lab.models.vgg import VGG
from polo_lab.models.vit import ViT

__all__ = [
    "GPT",
    "MLP",
    "VGG",
    "ConvNet",
    "DenseNet",
    "LoRALinear",
    "Mixer",
    "MobileNet",
    "PreActResNet",
    "ResNet",
    "ViT",
    "add_lora",
    "resnet18",
]

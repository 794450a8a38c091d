"""The paper's architectures: as many weights as the literature says, and they learn."""

import pytest
import torch
from torch import nn

import polo
from polo.evidence import start
from polo_lab import models
from polo_lab.models import AlexNet, MiniBERT, TextCNN, WideResNet

BATCH_NORM = 2


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_resnets_have_torchvisions_weights_but_for_the_stem() -> None:
    """torchvision: resnet18 has 11,689,512 parameters, resnet34 has 21,797,672 (7 × 7 stem).

    He et al. 2015 give 11.7 and 21.8 million in the same sizes.
    """
    larger_stem = 64 * 3 * (7 * 7 - 3 * 3)
    assert count(models.build("resnet18", 1000)) + larger_stem == 11_689_512
    assert count(models.build("resnet34", 1000)) + larger_stem == 21_797_672


@pytest.mark.parametrize(
    ("depth", "width", "millions"), [(40, 1, 0.6), (40, 2, 2.2), (16, 8, 11.0), (28, 10, 36.5)]
)
def test_wide_resnets_have_the_weights_of_their_paper(
    depth: int, width: int, millions: float
) -> None:
    """Zagoruyko and Komodakis 2016, the table of depths and widths on CIFAR."""
    assert round(count(WideResNet(10, depth, width)) / 1e6, 1) == millions


def test_the_default_wide_resnet_is_28_10() -> None:
    assert count(models.build("wideresnet", 10)) == count(WideResNet(10, 28, 10))
    with pytest.raises(ValueError, match="6n"):
        WideResNet(10, 27)


def test_vgg16_has_the_convolutions_of_the_original() -> None:
    """Keras: VGG16 without its linear layers has 14,714,688 parameters; of 138.4 million in all.

    With batch-norm over its 4,224 channels and a linear layer to ten classes, as usual on CIFAR.
    """
    assert count(models.build("vgg16", 10)) == 14_714_688 + BATCH_NORM * 4224 + 513 * 10


def test_alexnet_has_the_convolutions_of_the_original() -> None:
    """torchvision: the five convolutions of alexnet have 2,469,696 parameters (11 × 11 stem)."""
    channels = 64 + 192 + 384 + 256 + 256
    smaller_stem = 64 * 3 * (11 * 11 - 5 * 5)
    features = AlexNet(10).features
    assert count(features) == 2_469_696 - smaller_stem + BATCH_NORM * channels


def test_efficientnet_b0_has_torchvisions_weights() -> None:
    """torchvision: efficientnet_b0 has 5,288,548 parameters; Tan and Le 2019 say 5.3 million."""
    assert count(models.build("efficientnet", 1000)) == 5_288_548


def test_textcnn_has_the_filters_of_its_paper() -> None:
    """Kim 2014: 100 filters each over 3, 4 and 5 words of 300 numbers; biases included 360,300."""
    assert count(TextCNN(4).convolutions) == 100 * 300 * (3 + 4 + 5) + 300 == 360_300


def test_minibert_is_bert_mini() -> None:
    """Turc et al. 2019: BERT-mini, 4 layers of width 256, 11.2 million parameters.

    The published checkpoint (vocabulary of 30,522, 512 places, with pooler) has 11,170,560.
    """
    model = MiniBERT(4)
    assert count(model) - count(model.head) == 11_170_560


@pytest.mark.parametrize("name", [n for n in models.names() if n not in ("textcnn", "minibert")])
@pytest.mark.parametrize("side", [32, 64])
def test_images_get_a_score_for_each_class(name: str, side: int) -> None:
    if name == "wideresnet":
        name = "wideresnet-thin"
    options = {"size": side} if name == "alexnet" else {}
    model = models.build(name, 7, **options).eval()
    with torch.no_grad():
        scores = model(torch.randn(2, 3, side, side))
    assert scores.shape == (2, 7)
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize("name", ["textcnn", "minibert"])
def test_padding_does_not_change_what_a_text_is(name: str) -> None:
    options = {"vocabulary": 50} | ({"length": 32} if name == "minibert" else {})
    model = models.build(name, 4, **options).eval()
    ids = torch.randint(1, 50, (3, 12))
    longer = nn.functional.pad(ids, (0, 8))
    with torch.no_grad():
        short, padded = model(nn.functional.pad(ids, (0, 5))), model(longer)
    assert short.shape == (3, 4)
    assert torch.allclose(short, padded, atol=1e-5)


# Those that are left out are of the same layers as smaller ones.
@pytest.mark.parametrize("name", sorted({*models.names()} - {"wideresnet", "vgg16", "resnet34"}))
def test_a_derived_start_can_be_drawn(name: str) -> None:
    small = {"textcnn": {"vocabulary": 60, "width": 64}, "minibert": {"vocabulary": 60}}
    model = models.build(name, 4, **small.get(name, {}))
    assert polo.capacity_of(model).objection(128, 125_000) == ""
    start.draw(model, bytes(32))
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    if name == "textcnn":
        assert not bool(model.words.weight[0].any())


def test_unknown_models_are_named() -> None:
    with pytest.raises(ValueError, match="none of alexnet"):
        models.build("lenet", 10)

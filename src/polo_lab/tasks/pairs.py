"""The paper's pairs of data set and model, those that stand in for what is not at hand, and more.

Terms name them `lab-DATA-MODEL`. CIFAR-100 is offered and read, and TinyImageNet-100/32 has tasks
of its own, so that nothing measured on one is called by the other's name.
"""

from dataclasses import replace
from functools import partial

from torch import nn

from polo_lab import data, models
from polo_lab.data import agnews, text
from polo_lab.models.gpt import GPT
from polo_lab.tasks.pair import Pair
from polo_lab.training import Augmentation, Course

_COMPILED = "reduce-overhead"
"""On a GPU a compiled step is replayed as a whole: of a small network's step, launching its parts
takes the most time."""

SMALL_IMAGES = Course(
    epochs=100,
    rate=0.2,
    rise=0.15,
    smoothing=0.1,
    augmentation=Augmentation(pad=4),
    compile=_COMPILED,
)
"""One cycle with Nesterov's momentum, for images of 32 × 32."""

LARGER_IMAGES = replace(SMALL_IMAGES, augmentation=Augmentation(pad=8))
"""The same for images of 64 × 64."""

GREY_IMAGES = Course(epochs=20, rate=0.1, rise=0.15, augmentation=Augmentation(pad=2, mirror=False))
"""A short one for digits and the like, which mean something else in a mirror."""

TEXTS = Course(
    epochs=20,
    rate=1e-3,
    rise=0.1,
    optimizer="adamw",
    decay=0.01,
    smoothing=0.1,
    compile=_COMPILED,
)

_TEN = (0.05, 0.10, 0.15, 0.20, 0.25)
_HUNDRED = (0.005, 0.01, 0.02, 0.03, 0.05)
_FOUR = (0.20, 0.25, 0.40, 0.50)


def pair(source: str, model: str, course: Course, floor: tuple[float, ...], **options: int) -> Pair:
    """The task of a data set and a model, both by name.

    Args:
        source: Name of the data set.
        model: Name of the model.
        course: How it is usually trained.
        floor: The least accuracy of each shard.
        options: Further arguments of the model.
    """
    known = data.source(source)
    if known.images:
        options["channels"] = known.shape[0]
    build = partial(models.build, model, known.classes, **options)
    return Pair(f"lab-{source}-{model}", known, build, course, floor)


def _guesser() -> nn.Module:
    return GPT(text.VOCABULARY, text.LENGTH, width=256, heads=4, depth=4)


cifar10_alexnet = pair("cifar10", "alexnet", replace(SMALL_IMAGES, rate=0.05), _TEN)
cifar10_resnet18 = pair("cifar10", "resnet18", SMALL_IMAGES, _TEN)
cifar10_efficientnet = pair("cifar10", "efficientnet", replace(SMALL_IMAGES, rate=0.1), _TEN)
cifar100_resnet18 = pair("cifar100", "resnet18", SMALL_IMAGES, _HUNDRED)
cifar100_wideresnet = pair("cifar100", "wideresnet", replace(SMALL_IMAGES, rate=0.1), _HUNDRED)
tinyimagenet_vgg16 = pair("tinyimagenet", "vgg16", replace(LARGER_IMAGES, rate=0.05), _HUNDRED)
tinyimagenet_resnet34 = pair("tinyimagenet", "resnet34", LARGER_IMAGES, _HUNDRED)
tinyimagenet100_resnet18 = pair("tinyimagenet100", "resnet18", SMALL_IMAGES, _HUNDRED)
tinyimagenet100_wideresnet = pair(
    "tinyimagenet100", "wideresnet", replace(SMALL_IMAGES, rate=0.1), _HUNDRED
)
agnews_textcnn = pair("agnews", "textcnn", TEXTS, _FOUR, vocabulary=agnews.VOCABULARY)
agnews_minibert = pair(
    "agnews",
    "minibert",
    replace(TEXTS, rate=5e-4),
    _FOUR,
    vocabulary=agnews.VOCABULARY,
    length=agnews.LENGTH,
)
wikitext2_gpt = Pair(
    "lab-wikitext2-gpt",
    data.source("wikitext2"),
    _guesser,
    replace(TEXTS, smoothing=0.0, batch=64),
    (0.01, 0.05, 0.10),
)
mnist_resnet_thin = pair("mnist", "resnet-thin", GREY_IMAGES, _TEN)
fashion_mnist_resnet_thin = pair("fashion-mnist", "resnet-thin", GREY_IMAGES, _TEN)
digits_resnet_thin = pair(
    "digits",
    "resnet-thin",
    replace(GREY_IMAGES, batch=64, augmentation=Augmentation(pad=1, mirror=False)),
    _TEN,
)

PAIRS = {task.name: task for task in list(globals().values()) if isinstance(task, Pair)}
"""All of them, by the names that terms use."""

"""LoRA on language models with random weights, as large as published ones.

The text is real (what scikit-learn's data sets are described with), letter by letter; the weights
are not, so accuracy means little here. What such a task is for is time.
"""

from functools import cached_property

from polo.integrations.peft import Adapter
from polo.tasks.training import Column
from polo_lab.models.shapes import shaped_model
from polo_lab.tasks.classification import Part
from polo_lab.tasks.lora import HELD_OUT, LanguageModel, adapted
from polo_lab.tasks.text import Letters


class ShapedLM(LanguageModel):
    """Guess the next letter with an adapter on a model of some shape.

    Args:
        shape: One of `polo_lab.models.shapes.SHAPES`.
    """

    floor: tuple[float, ...] = (0.0,)
    columns: tuple[Column, ...] = Letters.columns

    def __init__(self, shape: str) -> None:
        self.name = f"lab-shaped-{shape}"
        self.shape = shape

    @cached_property
    def train_part(self) -> Part:
        """Windows of letters and what follows them, to train on."""
        return Letters().train_part

    @cached_property
    def test_part(self) -> Part:
        """The same of text that training never sees."""
        inputs, labels = Letters().test_part
        return inputs[:HELD_OUT], labels[:HELD_OUT]

    def build_model(self) -> Adapter:
        """The model with a fresh adapter."""
        return adapted(shaped_model(self.shape))

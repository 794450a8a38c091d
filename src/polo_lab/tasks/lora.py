"""A pretrained language model and LoRA: the adapter is trained, the model stays as it is.

SmolLM2-135M-Instruct (`polo_lab.models.smollm`) on WikiText-2 or on chitchat. Adapters of rank 8
sit on the query and value matrices of the last eight layers, so that a step on a processor takes
seconds: nothing below them needs a gradient. Where there is a GPU, it is used.
"""

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polo.errors import MissingError
from polo.integrations.peft import Adapter, adapter
from polo.tasks.training import Column
from polo_lab.data import text
from polo_lab.models import smollm
from polo_lab.tasks.classification import Classification, Part

WINDOW = 48
RANK = 8
LAYERS = 8
HELD_OUT = 16
"""Windows that accuracy is taken on; the held-out loss on a batch of them."""

_BATCH = 8
_TRAIN_LETTERS = 400_000
_TEST_LETTERS = 40_000


class LanguageModel(Classification):
    """Guess the next token at every place with an adapter; a task gives both parts and a model."""

    name: str
    floor: tuple[float, ...]
    held_out = _BATCH

    @abstractmethod
    def build_model(self) -> Adapter:
        """The model with a fresh adapter, where it is trained."""

    def loss(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""
        scores = model(input_ids=inputs).logits
        return functional.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """How many tokens of the test text are guessed."""
        device = next(model.parameters()).device
        training = model.training
        model.eval()
        parts = zip(*(part.split(_BATCH) for part in self.test_part), strict=True)
        right = [
            model(input_ids=inputs.to(device)).logits.argmax(-1).cpu() == labels
            for inputs, labels in parts
        ]
        model.train(training)
        return float(torch.cat(right).double().mean())


class SmolLM(LanguageModel):
    """Guess the next token at each of 48 places; a task gives `train_text` and `test_text`."""

    floor: tuple[float, ...] = (0.15,)
    columns: tuple[Column, ...] = (
        Column("input", "I64", (WINDOW,)),
        Column("label", "I64", (WINDOW,)),
    )

    @abstractmethod
    def train_text(self) -> str:
        """What to train on."""

    @abstractmethod
    def test_text(self) -> str:
        """What to test on."""

    @cached_property
    def train_part(self) -> Part:
        """Windows of tokens and what follows them, to train on."""
        return _windows(self.train_text())

    @cached_property
    def test_part(self) -> Part:
        """The same of text that training never sees."""
        inputs, labels = _windows(self.test_text())
        return inputs[:HELD_OUT], labels[:HELD_OUT]

    def build_model(self) -> Adapter:
        """The pretrained model with a fresh adapter, where it is trained."""
        return adapted(smollm.base_model())


class SmolLMWikiText(SmolLM):
    """WikiText-2, raw."""

    name = "lab-smollm-wikitext"

    def train_text(self) -> str:
        """The beginning of the training part."""
        return text.wikitext("train")[:_TRAIN_LETTERS]

    def test_text(self) -> str:
        """The beginning of the test part."""
        return text.wikitext("test")[:_TEST_LETTERS]


class SmolLMChat(SmolLM):
    """Conversations of students, in the model's own form of a chat."""

    name = "lab-smollm-chat"

    def train_text(self) -> str:
        """All but every tenth conversation, from the first on."""
        return _chats(turns for at, turns in enumerate(text.chitchat()) if at % 10)[:_TRAIN_LETTERS]

    def test_text(self) -> str:
        """Every tenth conversation."""
        return _chats(turns for at, turns in enumerate(text.chitchat()) if not at % 10)[
            :_TEST_LETTERS
        ]


def adapted(base: Any) -> Adapter:
    """A model with a fresh adapter on its last layers, where it is trained.

    Raises:
        MissingError: The package peft is not here.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingError("adapters need peft", advice="pip install 'polo-proof[peft]'") from error
    depth = base.config.num_hidden_layers
    settings = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=["q_proj", "v_proj"],
        layers_to_transform=list(range(depth - LAYERS, depth)),
        layers_pattern="layers",
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return adapter(peft.get_peft_model(base.to(device), settings))


def _chats(conversations: Iterable[list[str]]) -> str:
    roles = ("user", "assistant")
    return "".join(
        f"<|im_start|>{roles[at % 2]}\n{said}<|im_end|>\n"
        for turns in conversations
        for at, said in enumerate(turns)
    )


def _windows(words: str) -> Part:
    """Windows of tokens, each once, and the tokens that follow."""
    ids = np.array(smollm.tokenizer().encode(words).ids)
    rows = len(ids) // (WINDOW + 1)
    cut = np.unique(ids[: rows * (WINDOW + 1)].reshape(rows, WINDOW + 1), axis=0)
    # `unique` sorts; a fixed order that has nothing to do with the words.
    mixed = torch.from_numpy(cut[np.random.default_rng(0).permutation(len(cut))])
    return mixed[:, :-1].contiguous(), mixed[:, 1:].contiguous()

"""Language models as large as published ones, with random weights.

Nobody can have the published weights here, but what marks cost depends on shapes and not on what
the numbers say. All are Llamas; their width, depth, heads and vocabulary are those of the model
that they are named after. A Llama's feed-forward layer has three matrices where GPT-Neo's has two,
so that they are narrower here, for as many weights in all.
"""

import functools
from typing import Any, cast

import torch
from torch import nn

from polo.errors import MissingError

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 9,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    },
    "1.3b": {
        "vocab_size": 50_257, "hidden_size": 2048, "intermediate_size": 5504,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
}  # fmt: skip

TITLES = {
    "tiny": "random weights in a tiny Llama",
    "1.3b": "random weights in a Llama of GPT-Neo-1.3B's width, depth, vocabulary and size",
    "8b": "random weights in the shape of Llama-3.1-8B",
}


def shaped_model(name: str) -> nn.Module:
    """A frozen model of a shape; all of a process share one copy of its weights."""
    model, settings = skeleton(name)
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    # The table of angles is no part of the state, so it must be made where the weights are.
    with torch.device(_device()):
        model.model.rotary_emb = LlamaRotaryEmbedding(settings)
    model.load_state_dict(_weights(name), assign=True)
    model.tie_weights()
    frozen: nn.Module = model.requires_grad_(False).eval()
    return frozen


def skeleton(name: str) -> tuple[Any, Any]:
    """A model of a shape without any weights, and its settings.

    Raises:
        MissingError: The package transformers is not here.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingError(
            "language models need transformers",
            advice="pip install 'polo-proof[transformers]'",
        ) from error
    usual = {"max_position_embeddings": 512, "tie_word_embeddings": False}
    settings = LlamaConfig(**{**usual, **SHAPES[name]})
    with torch.device("meta"):
        return cast("Any", LlamaForCausalLM)(settings), settings


@functools.lru_cache(maxsize=1)
def _weights(name: str) -> dict[str, torch.Tensor]:
    """Random numbers as Llama draws its first ones, in bfloat16 where there is a GPU."""
    model, settings = skeleton(name)
    device = _device()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(3)

    def drawn(like: torch.Tensor) -> torch.Tensor:
        if like.dim() == 1:
            return torch.ones(like.shape, dtype=dtype, device=device)
        empty = torch.empty(like.shape, dtype=dtype, device=device)
        return empty.normal_(0, 0.02, generator=generator)

    found = {key: drawn(value) for key, value in model.state_dict().items()}
    if settings.tie_word_embeddings:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"

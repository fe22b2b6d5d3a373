"""Decoders: GPT-2, Llama, Mistral, Qwen2, a mixture of experts, Mamba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch import nn

from models.subjects import BOS, EOS, PAD, VOCABULARY, Subject, attention_mask, left_padded, tokens

_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
_LLAMA: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attention_dropout": 0.1,
}
_NEW: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 6}
GENERATION: dict[str, dict[str, Any]] = {
    "greedy": {**_NEW, "do_sample": False},
    "greedy, static cache": {**_NEW, "do_sample": False, "cache_implementation": "static"},
    "greedy, no cache": {**_NEW, "do_sample": False, "use_cache": False},
    "sampling": {**_NEW, "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "beams": {**_NEW, "do_sample": False, "num_beams": 3},
    "beams, sampling": {**_NEW, "do_sample": True, "num_beams": 2, "length_penalty": 0.5},
}


def language_batch() -> dict[str, Any]:
    """Tokens, and themselves as labels."""
    ids = tokens(3, 9)
    return {"input_ids": ids, "attention_mask": attention_mask(3, 9), "labels": ids}


def _maker(architecture: Any, config: Any, **values: Any) -> Callable[[str], nn.Module]:
    return lambda attention: architecture(config(**values, attn_implementation=attention))


def _decoder(name: str, architecture: Any, config: Any, values: dict[str, Any], **about: Any) -> Subject:
    about = {"generates": GENERATION, "prompt": lambda: left_padded(2, 6)} | about
    return Subject(name, _maker(architecture, config, **values), language_batch, **about)


SUBJECTS = (
    _decoder(
        "GPT-2",
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        {**_TOKENS, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
    ),
    _decoder("Llama", transformers.LlamaForCausalLM, transformers.LlamaConfig, _LLAMA),
    _decoder("Mistral", transformers.MistralForCausalLM, transformers.MistralConfig, {**_LLAMA, "sliding_window": 5}),
    _decoder("Qwen2", transformers.Qwen2ForCausalLM, transformers.Qwen2Config, _LLAMA),
    _decoder(
        "Mixtral",
        transformers.MixtralForCausalLM,
        transformers.MixtralConfig,
        {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
        # The loss of the routers takes the mask of a whole batch; transformers asks for it while generating too.
        generates={k: {**v, "output_router_logits": False} for k, v in GENERATION.items()},
    ),
    _decoder(
        "Mamba",
        transformers.MambaForCausalLM,
        transformers.MambaConfig,
        {**_TOKENS, "hidden_size": 24, "state_size": 8, "num_hidden_layers": 2},
        attention=("eager",),
    ),
)

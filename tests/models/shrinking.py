"""Configurations of transformers, made small; and batches, one of which a model may take."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig

from models.subjects import BOS, EOS, PAD, VOCABULARY, noise, tokens

_SIZES = {
    1: "n_group topk_group first_k_dense_replace",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_key_value_heads mamba_expand "
    "num_codebooks num_experts_per_tok",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts "
    "num_local_experts n_routed_experts mamba_n_heads",
    8: "d_kv d_head head_dim patch_size qk_nope_head_dim qk_rope_head_dim v_head_dim state_size mamba_d_state",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank num_mel_bins mamba_d_head",
    32: "hidden_size d_model n_embd dim embedding_size emb_dim rnn_hidden_size lru_width projection_dim image_size",
    48: "intermediate_size hidden_dim d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_inner ffn_hidden_size",
    64: "max_position_embeddings n_positions max_source_positions max_target_positions",
}
SMALL: dict[str, Any] = {name: size for size, names in _SIZES.items() for name in names.split()}
SMALL |= {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}


def shrunk(kind: type[PretrainedConfig], depth: int = 2) -> PretrainedConfig:
    """A configuration with small sizes wherever the class has one of these names; those within it likewise."""
    default = kind()
    values = {k: v for k, v in SMALL.items() if hasattr(default, k)}
    try:
        config = kind(**values)
    except Exception:  # noqa: BLE001 - a configuration that checks what it is given: it takes what it can
        config = default
        for name, value in values.items():
            with contextlib.suppress(Exception):
                setattr(config, name, value)
    for name, part in list(vars(config).items()):
        if isinstance(part, PretrainedConfig) and depth:
            with contextlib.suppress(Exception):
                setattr(config, name, shrunk(type(part), depth - 1))
    return config


def architectures() -> list[str]:
    """The names of all architectures that transformers knows."""
    return sorted(CONFIG_MAPPING.keys())


def config_of(architecture: str) -> PretrainedConfig:
    """Its configuration, small."""
    return shrunk(CONFIG_MAPPING[architecture])


def batches() -> list[dict[str, torch.Tensor]]:
    """What models take: text, pictures, sound, and pairs of them."""
    ids, answer = tokens(2, 16), tokens(2, 7)
    picture, spectrum = noise(2, 3, 32, 32), noise(2, 16, 128)
    return [
        {"input_ids": ids},
        {"pixel_values": picture},
        {"input_ids": ids, "decoder_input_ids": answer},
        {"input_ids": ids, "pixel_values": picture},
        {"input_values": noise(2, 4000)},
        {"input_features": spectrum},
        {"input_features": spectrum, "decoder_input_ids": answer},
        {"input_features": noise(2, 64, 16)},
        {"pixel_values": noise(2, 3, 64, 64)},
        {"pixel_values": noise(2, 3, 224, 224)},
        {"inputs": ids},
        {"pixel_values": noise(2, 4, 3, 32, 32)},
    ]

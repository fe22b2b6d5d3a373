"""Encoder-decoders: T5, BART, Whisper."""

from __future__ import annotations

from typing import Any

import transformers

from models.decoders import GENERATION
from models.subjects import BOS, EOS, PAD, VOCABULARY, Subject, attention_mask, left_padded, noise, tokens

_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
}
_ATTENTION: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.1,
}
_FRAMES, _MEL_BINS = 40, 8


def _translation_batch() -> dict[str, Any]:
    labels = tokens(3, 7, seed=5)
    labels[-1, -2:] = -100  # padding
    return {"input_ids": tokens(3, 9), "attention_mask": attention_mask(3, 9), "labels": labels}


def _t5(attention: str) -> Any:
    config = transformers.T5Config(
        **_TOKENS,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        attn_implementation=attention,
    )
    return transformers.T5ForConditionalGeneration(config)


def _bart(attention: str) -> Any:
    config = transformers.BartConfig(
        **_TOKENS, **_ATTENTION, max_position_embeddings=32, forced_eos_token_id=EOS, attn_implementation=attention
    )
    return transformers.BartForConditionalGeneration(config)


def _whisper(attention: str) -> Any:
    config = transformers.WhisperConfig(
        **_TOKENS,
        **_ATTENTION,
        num_mel_bins=_MEL_BINS,
        max_source_positions=_FRAMES // 2,
        max_target_positions=32,
        attn_implementation=attention,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _speech() -> dict[str, Any]:
    return {"input_features": noise(2, _MEL_BINS, _FRAMES)}


_BY_SPEECH = {k: v for k, v in GENERATION.items() if k != "greedy, no cache"}

SUBJECTS = (
    Subject("T5", _t5, _translation_batch, generates=GENERATION, prompt=lambda: left_padded(2, 6)),
    Subject(
        "BART",
        _bart,
        _translation_batch,
        generates=GENERATION,
        prompt=lambda: left_padded(2, 6),
        draws_on_default_device=True,
    ),
    Subject(
        "Whisper",
        _whisper,
        lambda: {**_speech(), "labels": tokens(2, 7)},
        generates=_BY_SPEECH,
        prompt=_speech,
        draws_on_default_device=True,
    ),
)

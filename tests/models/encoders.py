"""Encoders of text: BERT, DistilBERT, ModernBERT."""

from __future__ import annotations

from typing import Any

import transformers

from models.subjects import BOS, EOS, PAD, VOCABULARY, Subject, attention_mask, tokens

_TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}


def _masked_batch() -> dict[str, Any]:
    ids = tokens(3, 9)
    labels = ids.clone()
    labels[:, ::2] = -100  # no loss there
    return {"input_ids": ids, "attention_mask": attention_mask(3, 9), "labels": labels}


def _classified_batch() -> dict[str, Any]:
    return {**_masked_batch(), "labels": tokens(3) % 2}


def _encoder(name: str, architecture: Any, config: Any, batch: Any = _masked_batch, **values: Any) -> Subject:
    return Subject(name, lambda a: architecture(config(**_TOKENS, **values, attn_implementation=a)), batch)


SUBJECTS = (
    _encoder(
        "BERT",
        transformers.BertForMaskedLM,
        transformers.BertConfig,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
    ),
    _encoder(
        "DistilBERT",
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertConfig,
        _classified_batch,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=32,
    ),
    _encoder(
        "ModernBERT",
        transformers.ModernBertForMaskedLM,
        transformers.ModernBertConfig,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        local_attention=4,
        attention_dropout=0.1,
        embedding_dropout=0.1,
        mlp_dropout=0.1,
        cls_token_id=BOS,
        sep_token_id=EOS,
    ),
)

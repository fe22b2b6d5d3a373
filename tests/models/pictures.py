"""Pictures: ViT, CLIP, DETR, Segformer, ConvNeXt."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from models.subjects import BOS, EOS, PAD, VOCABULARY, Subject, attention_mask, noise, tokens

_SIDE = 16
_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def _labelled(**labels: Any) -> dict[str, Any]:
    return {"pixel_values": noise(2, 3, _SIDE, _SIDE), **labels}


def _vit(attention: str) -> Any:
    config = transformers.ViTConfig(
        **_TRANSFORMER,
        image_size=_SIDE,
        patch_size=4,
        num_labels=3,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        attn_implementation=attention,
    )
    return transformers.ViTForImageClassification(config)


def _clip(attention: str) -> Any:
    text = {
        "vocab_size": VOCABULARY,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "max_position_embeddings": 16,
    }
    config = transformers.CLIPConfig(
        text_config={**_TRANSFORMER, **text, "attention_dropout": 0.1},
        vision_config={**_TRANSFORMER, "image_size": _SIDE, "patch_size": 4, "attention_dropout": 0.1},
        projection_dim=24,
        attn_implementation=attention,
    )
    return transformers.CLIPModel(config)


def _clip_batch() -> dict[str, Any]:
    ids = tokens(2, 7)
    ids[0, -1], ids[1, 4:] = EOS, EOS
    return _labelled(input_ids=ids, attention_mask=attention_mask(2, 7), return_loss=True)


def _detr(attention: str) -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=5,
        num_labels=4,
        auxiliary_loss=True,
        attn_implementation=attention,
    )
    return transformers.DetrForObjectDetection(config)


def _detr_batch() -> dict[str, Any]:
    objects = [
        {"class_labels": torch.tensor([1, 3]), "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.3], [0.6, 0.5, 0.4, 0.2]])},
        {"class_labels": torch.tensor([2]), "boxes": torch.tensor([[0.5, 0.6, 0.3, 0.3]])},
    ]
    return {"pixel_values": noise(2, 3, 64, 64), "pixel_mask": torch.ones(2, 64, 64).long(), "labels": objects}


def _segformer(attention: str) -> Any:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=3,
        attention_probs_dropout_prob=0.1,
        hidden_dropout_prob=0.1,
        attn_implementation=attention,
    )
    return transformers.SegformerForSemanticSegmentation(config)


def _convnext(attention: str) -> Any:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, num_labels=3, drop_path_rate=0.2, image_size=_SIDE
    )
    return transformers.ConvNextForImageClassification(config)


SUBJECTS = (
    Subject("ViT", _vit, lambda: _labelled(labels=torch.tensor([0, 2]))),
    Subject("CLIP", _clip, _clip_batch),
    Subject(
        "DETR",
        _detr,
        _detr_batch,
        attention=("eager",),
        draws_on_default_device=True,
        low_precision='"cdist" not implemented for',
    ),
    Subject(
        "Segformer",
        _segformer,
        lambda: {"pixel_values": noise(2, 3, 32, 32), "labels": tokens(2, 32, 32) % 3},
        attention=("eager",),
    ),
    Subject(
        "ConvNeXt",
        _convnext,
        lambda: _labelled(labels=torch.tensor([0, 2])),
        attention=("eager",),
        checkpoints=False,
    ),
)

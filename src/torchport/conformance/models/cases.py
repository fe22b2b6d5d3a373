"""Cases of small models: forward through the three doors, and training steps."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from torchport.aot.compile_spec import CompileSpec
from torchport.aot.to_backend import to_backend
from torchport.config import settings
from torchport.conformance.case import Door, Laws, NotApplicable, Violation, require
from torchport.conformance.comparison import check_values
from torchport.conformance.models.networks import NETWORKS, batch, network
from torchport.conformance.subject import Subject
from torchport.lazy.sync import sync

LAWS = Laws("models")
LOWERED = Laws("models", Door.DELEGATE)
NAMES = {name: name for name in NETWORKS}
D = settings.device_name
STEPS = 4
LOSS_TOLERANCE = 1e-4
"""Source: ``tol`` of ``same`` in torch/_dynamo/utils.py, within which PyTorch compares a compiled training step."""


def expected(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A network, its input, and its results for that on the CPU, in single and in double precision."""
    model, (x, _) = network(name).eval(), batch(name)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double() if x.is_floating_point() else x)
        return model, x, model(x), exact


@LAWS.add_each(NAMES)
def forward_on_the_device(subject: Subject, name: str) -> None:
    """A model on the lazy device gives what it gives on the CPU."""
    model, x, wanted, exact = expected(name)
    with torch.no_grad():
        check_values(wanted, model.to(D)(x.to(D)).cpu(), exact, what="the scores")


@LOWERED.add_each(NAMES)
def forward_lowered(subject: Subject, name: str) -> None:
    """A model that was lowered ahead of time gives what it gives on the CPU."""
    model, x, wanted, exact = expected(name)
    lowered = to_backend(subject.name, model, {"forward": CompileSpec(args=(x,))})
    if " in 0 parts " in lowered.explain():
        raise NotApplicable("the backend refuses all of the model")
    check_values(wanted, lowered(x), exact, what="the scores")


@LOWERED.add_each(NAMES)
def forward_compiled(subject: Subject, name: str) -> None:
    """A model that torch.compile compiles with the backend gives what it gives on the CPU."""
    if "torchport" not in torch._dynamo.list_backends(exclude_tags=()):
        raise NotApplicable("torch.compile has no backend 'torchport' here")
    model, x, wanted, exact = expected(name)
    torch._dynamo.reset()
    try:
        compiled = torch.compile(model, backend="torchport", options={"backend": subject.name})
        with torch.no_grad():
            check_values(wanted, compiled(x), exact, what="the scores")
    finally:
        torch._dynamo.reset()


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a network is trained with."""
    if name == "transformer":
        return torch.optim.AdamW(model.parameters(), lr=1e-2)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def losses(name: str, device: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The loss of each step, and the model's state afterwards, on the CPU."""
    model = network(name).to(device)
    optimizer = optimizer_of(name, model)
    found = []
    for step in range(STEPS):
        x, y = (t.to(device) for t in batch(name, step % 2))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        found.append(loss.detach())
    if device != "cpu":
        sync()
    return [float(loss) for loss in found], {k: v.cpu() for k, v in model.state_dict().items()}


@LAWS.add_each(NAMES, "training")
def training_on_the_device(subject: Subject, name: str) -> None:
    """Training steps on the lazy device have the losses, and lead to the weights, that they have on the CPU."""
    wanted, state = losses(name, "cpu")
    found, found_state = losses(name, D)
    for step, (w, f) in enumerate(zip(wanted, found, strict=True)):
        require(abs(w - f) <= LOSS_TOLERANCE, f"the loss of step {step} is {f:.7f}, on the CPU {w:.7f}")
    for key, value in state.items():
        try:
            torch.testing.assert_close(found_state[key], value, rtol=LOSS_TOLERANCE, atol=LOSS_TOLERANCE)
        except AssertionError as error:
            raise Violation(f"{key} after {STEPS} steps: {' '.join(str(error).split())}") from None


@LAWS.add_each({"mlp": "mlp"}, "training")
def a_gradient_is_the_cpus(subject: Subject, name: str) -> None:
    """The gradients of one backward pass are those on the CPU."""
    gradients = []
    for device in ("cpu", D):
        model = network(name).to(device)
        x, y = (t.to(device) for t in batch(name))
        functional.cross_entropy(model(x), y).backward()
        gradients.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    on_cpu, on_device = gradients
    check_values(on_cpu, on_device, what="a gradient")

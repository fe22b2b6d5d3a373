"""The sweeps of modules, optimizers and schedulers: what they are of, in which modes, and what cannot pass in them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sweeps.expected import Expectation, Verdict, judge
from sweeps.module_modes import MODULE_MODES
from sweeps.module_program import run_module
from sweeps.more_modules import MORE_MODULES
from sweeps.optimizer_program import IMPLEMENTATIONS, has_implementation, run_optimizer
from sweeps.records import OpResult
from sweeps.scheduler_program import OPTIMIZERS, SCHEDULERS, run_scheduler
from sweeps.sweep import Sweep

with warnings.catch_warnings():
    # Deprecated imports and the like inside PyTorch's test tools are no concern of ours.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

_HOST_SPARSE = "a kernel for sparse tensors that reads their memory; a graph holds dense values, so it runs on the host"
_MOVED_STATE = (
    "load_state_dict moves a state that was made on the CPU, other than `step`, to the parameter's device, on every "
    "accelerator (torch/optim/optimizer.py, _process_value_according_to_param_policy), and the step then reads it: "
    "after the loading it is another program, which is compiled once"
)
_WIDENED_STATE = (
    "load_state_dict gives a state of float32, other than `step`, the parameter's dtype (torch/optim/optimizer.py, "
    "_process_value_according_to_param_policy): after the loading it is another program, which is compiled once"
)
_SIXTH_STEP = (
    "from the sixth step on it goes by another formula, which Python chooses (torch/optim/radam.py: rho_t > 5)"
)
_MASK_READ = (
    "an index that is a tensor of one bool is read by PyTorch itself (torch/csrc/autograd/python_variable_indexing.cpp)"
    ", so that the signs of a scalar parameter's gradient choose the program"
)
_LINE_SEARCH = "how many evaluations a step has, and when it ends, is read from the loss"


def _in(*modes: str) -> frozenset[str]:
    return frozenset(modes)


_REALS = _in("float32", "float64")
OPTIMIZER_RELOADS = (
    *(Expectation(name, _MOVED_STATE, modes=_in("default", "forloop", "foreach")) for name in ("ASGD", "NAdam")),
    *(
        Expectation(name, _WIDENED_STATE, modes=_in("capturable", "capturable-foreach"), dtypes=_in("float64"))
        for name in ("ASGD", "NAdam")
    ),
)
OPTIMIZER_FAILURES = (
    Expectation("RAdam", _SIXTH_STEP, modes=_in("forloop", "differentiable")),
    Expectation("Rprop", _MASK_READ, modes=_in("default", "forloop", "foreach"), dtypes=_REALS),
    Expectation("LBFGS", _LINE_SEARCH),
)
OPTIMIZER_FALLBACKS = tuple(
    Expectation(name, _HOST_SPARSE, modes=_in("sparse")) for name in ("Adagrad", "SGD", "SparseAdam")
)


@dataclass(frozen=True, slots=True)
class Suite:
    """Something that is swept.

    Attributes:
        name: what its subjects are called, in the plural; also the page's name.
        subjects: the subjects, each with a ``name``.
        modes: mode → what it means, for the page.
        dtypes: in which dtypes.
        run: what a child does with one, as :func:`sweeps.child.run_op`.
        takes_part: whether a subject has a mode.
        supports: whether a subject has a dtype.
        failures: what cannot pass.
        fallbacks: what runs eagerly.
        reloads: what is compiled anew after a state was loaded.
    """

    name: str
    subjects: list[Any]
    modes: dict[str, str]
    dtypes: tuple[str, ...]
    run: Callable[..., None]
    takes_part: Callable[[Any, str], bool] = lambda subject, mode: True
    supports: Callable[[Any, torch.dtype], bool] = lambda subject, dtype: True
    failures: tuple[Expectation, ...] = ()
    fallbacks: tuple[Expectation, ...] = ()
    reloads: tuple[Expectation, ...] = ()

    def judge(self, results: list[OpResult]) -> Verdict:
        """The results, set against what is expected of this suite."""
        return judge(results, self.failures, self.fallbacks, (), self.reloads)


@dataclass(frozen=True, slots=True)
class SuiteSweep(Sweep):
    """One mode and dtype of a suite."""

    suite: Suite | None = None

    def dtype_for(self, op: Any) -> torch.dtype | None:
        """The dtype, where the subject has the mode and the dtype."""
        assert self.suite is not None
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype if self.suite.takes_part(op, self.mode) and self.suite.supports(op, dtype) else None


MODULES = Suite(
    "modules",
    sorted([*module_db, *MORE_MODULES], key=lambda info: info.name),
    {name: mode.text for name, mode in MODULE_MODES.items()},
    ("float32", "float64"),
    run_module,
    lambda info, mode: bool(MODULE_MODES[mode].inputs(info, torch.float32)),
    supports=lambda info, dtype: dtype in info.dtypes,
)
OPTIMIZERS_SUITE = Suite(
    "optimizers",
    sorted(optim_db, key=lambda info: info.name),
    {
        "default": "no flag given",
        "forloop": "`foreach=False`",
        "foreach": "`foreach=True`",
        "fused": "`fused=True`",
        "differentiable": "`differentiable=True`, and the derivative of the ten steps",
        "capturable": "`capturable=True, foreach=False`",
        "capturable-foreach": "`capturable=True, foreach=True`",
        "sparse": "sparse gradients",
    },
    ("float32", "float64", "complex64"),
    run_optimizer,
    has_implementation,
    lambda info, dtype: not dtype.is_complex or info.supports_complex,
    OPTIMIZER_FAILURES,
    OPTIMIZER_FALLBACKS,
    OPTIMIZER_RELOADS,
)
SCHEDULERS_SUITE = Suite(
    "schedulers",
    SCHEDULERS,
    {
        "SGD": "SGD with momentum",
        "Adam": "Adam, `foreach=False`",
        "Adam-foreach": "Adam, `foreach=True`",
        "Adam-tensor": "Adam, its learning rate in a tensor",
    },
    ("float32",),
    run_scheduler,
)
SUITES = {suite.name: suite for suite in (MODULES, OPTIMIZERS_SUITE, SCHEDULERS_SUITE)}

assert set(OPTIMIZERS_SUITE.modes) == set(IMPLEMENTATIONS)
assert set(SCHEDULERS_SUITE.modes) == set(OPTIMIZERS)

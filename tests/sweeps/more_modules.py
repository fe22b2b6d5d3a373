"""The modules of ``torch.nn`` that PyTorch's own test database leaves out, in its form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Call = tuple[tuple[Any, ...], dict[str, Any]]
Make = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Arguments:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Input:
    constructor_input: _Arguments
    forward_input: _Arguments


@dataclass(frozen=True, slots=True)
class MoreModule:
    """As much of a ``ModuleInfo`` as the sweep looks at.

    Attributes:
        name: the module's.
        inputs: a function of what makes a tensor of given sizes; arguments of the constructor and of the call.
        train_and_eval_differ: whether they do.
    """

    name: str
    inputs: Callable[[Make], list[tuple[Call, Call]]]
    train_and_eval_differ: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)

    @property
    def module_cls(self) -> type[nn.Module]:
        """The class."""
        found: type[nn.Module] = getattr(nn, self.name.removeprefix("nn."))
        return found

    def module_inputs_func(
        self, info: MoreModule, device: str, dtype: torch.dtype, requires_grad: bool, training: bool
    ) -> list[_Input]:
        """The inputs, as in the database."""

        def make(*sizes: int, seed: int = 1) -> torch.Tensor:
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(sizes, generator=generator, dtype=dtype).to(device).requires_grad_(requires_grad)

        return [_Input(_Arguments(*made), _Arguments(*called)) for made, called in self.inputs(make)]


def _a(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def _digits(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(2))


def _unpooled(dims: int) -> Callable[[Make], list[tuple[Call, Call]]]:
    def inputs(make: Make) -> list[tuple[Call, Call]]:
        sizes = (1, 2, *[4] * dims)
        pooled, indices = getattr(torch.nn.functional, f"max_pool{dims}d")(
            make(*sizes).detach(), 2, return_indices=True
        )
        return [(_a(2), _a(pooled.requires_grad_(), indices)), (_a(2), _a(pooled, indices, output_size=sizes))]

    return inputs


def _same(*cases: tuple[Call, tuple[int, ...]]) -> Callable[[Make], list[tuple[Call, Call]]]:
    """Inputs of modules that are called with one tensor."""
    return lambda make: [(made, _a(make(*sizes))) for made, sizes in cases]


def _dropped(*sizes: int) -> Callable[[Make], list[tuple[Call, Call]]]:
    return _same((_a(0.4), sizes), (_a(0.0), sizes), (_a(1.0), sizes), (_a(0.4, inplace=False), sizes[1:]))


_TRIPLET = [_a(), _a(margin=0.5, p=1.0, swap=True), _a(reduction="none")]
MORE_MODULES = [
    MoreModule("nn.AdaptiveLogSoftmaxWithLoss", lambda m: [(_a(5, 12, [3, 7]), _a(m(6, 5), _digits(12, 6)))]),
    MoreModule("nn.AlphaDropout", _dropped(3, 4, 5), True),
    MoreModule("nn.ChannelShuffle", _same((_a(2), (2, 4, 3, 3)))),
    MoreModule(
        "nn.CosineSimilarity", lambda m: [(_a(), _a(m(3, 4), m(3, 4, seed=2))), (_a(0), _a(m(3), m(3, seed=2)))]
    ),
    MoreModule("nn.CrossMapLRN2d", _same((_a(3), (2, 4, 3, 3)))),
    MoreModule("nn.Dropout", _dropped(3, 4, 5), True),
    MoreModule("nn.Dropout1d", _dropped(2, 3, 4), True),
    MoreModule("nn.Dropout2d", _dropped(2, 3, 4, 4), True),
    MoreModule("nn.Dropout3d", _dropped(2, 3, 2, 2, 2), True),
    MoreModule(
        "nn.EmbeddingBag",
        lambda m: (
            [(_a(7, 3, mode=k), _a(_digits(7, 6), torch.tensor([0, 2, 2]))) for k in ("sum", "mean", "max")]
            + [(_a(7, 3, padding_idx=1), _a(_digits(7, 4, 3)))]
            + [(_a(7, 3, mode="sum"), _a(_digits(7, 4, 3), per_sample_weights=m(4, 3)))]
        ),
    ),
    MoreModule("nn.FeatureAlphaDropout", _dropped(2, 3, 4, 4), True),
    MoreModule("nn.Flatten", _same((_a(), (2, 3, 4)), (_a(0, 1), (2, 3, 4)))),
    MoreModule("nn.Fold", _same((_a((4, 4), 2, stride=2), (2, 12, 4)), (_a((4, 4), 3, padding=1), (2, 18, 16)))),
    MoreModule("nn.Hardsigmoid", _same((_a(), (3, 4)))),
    MoreModule("nn.Identity", _same((_a(), (3, 4)))),
    MoreModule("nn.LazyBatchNorm1d", _same((_a(), (4, 3)), (_a(momentum=None), (4, 3, 5))), True),
    MoreModule("nn.LazyBatchNorm2d", _same((_a(), (4, 3, 2, 2))), True),
    MoreModule("nn.LazyBatchNorm3d", _same((_a(), (4, 3, 2, 2, 2))), True),
    MoreModule("nn.LazyInstanceNorm1d", _same((_a(affine=True, track_running_stats=True), (4, 3, 5))), True),
    MoreModule("nn.LazyInstanceNorm2d", _same((_a(affine=True, track_running_stats=True), (4, 3, 2, 2))), True),
    MoreModule("nn.LazyInstanceNorm3d", _same((_a(affine=True, track_running_stats=True), (4, 3, 2, 2, 2))), True),
    MoreModule("nn.LazyLinear", _same((_a(3), (4, 5)), (_a(3, bias=False), (2, 4, 5)))),
    MoreModule("nn.MaxUnpool1d", _unpooled(1)),
    MoreModule("nn.MaxUnpool2d", _unpooled(2)),
    MoreModule("nn.MaxUnpool3d", _unpooled(3)),
    MoreModule("nn.PairwiseDistance", lambda m: [(_a(p=p), _a(m(3, 4), m(3, 4, seed=2))) for p in (1.0, 2.0, 3.0)]),
    MoreModule("nn.PixelShuffle", _same((_a(2), (2, 8, 3, 3)))),
    MoreModule("nn.PixelUnshuffle", _same((_a(2), (2, 2, 6, 6)))),
    MoreModule("nn.RReLU", _same((_a(), (3, 4)), (_a(0.2, 0.2), (3, 4))), True),
    MoreModule("nn.Sequential", _same((_a(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (5, 4)))),
    MoreModule(
        "nn.TransformerDecoder",
        lambda m: [(_a(nn.TransformerDecoderLayer(8, 2, 16, 0.1), 2), _a(m(3, 2, 8), m(4, 2, 8, seed=2)))],
        True,
    ),
    MoreModule(
        "nn.TripletMarginLoss", lambda m: [(k, _a(m(4, 3), m(4, 3, seed=2), m(4, 3, seed=3))) for k in _TRIPLET]
    ),
    MoreModule(
        "nn.TripletMarginWithDistanceLoss",
        lambda m: [
            (_a(distance_function=f, swap=True), _a(m(4, 3), m(4, 3, seed=2), m(4, 3, seed=3)))
            for f in (None, nn.PairwiseDistance())
        ],
    ),
    MoreModule("nn.Unflatten", _same((_a(1, (2, 3)), (2, 6)))),
    MoreModule("nn.Unfold", _same((_a(2), (2, 3, 4, 4)), (_a(3, dilation=2, padding=2, stride=2), (2, 3, 6, 6)))),
    MoreModule(
        "nn.Upsample",
        lambda m: (
            [(_a(scale_factor=2, mode=k), _a(m(1, 2, 3, 3))) for k in ("nearest", "bilinear", "bicubic")]
            + [(_a(size=(5, 4), mode="bilinear", align_corners=True), _a(m(1, 2, 3, 3)))]
            + [
                (_a(scale_factor=2, mode="linear"), _a(m(1, 2, 3))),
                (_a(size=5, mode="trilinear"), _a(m(1, 2, 3, 3, 3))),
            ]
        ),
    ),
    MoreModule("nn.UpsamplingBilinear2d", _same((_a(scale_factor=2), (1, 2, 3, 3)))),
    MoreModule("nn.UpsamplingNearest2d", _same((_a(scale_factor=2), (1, 2, 3, 3)))),
]

LEFT_OUT = {
    "Container": "an alias of Module that is deprecated",
    "LinearCrossEntropyOptions": "no module",
    "Module": "does nothing",
    "ModuleDict": "has no forward",
    "ModuleList": "has no forward",
    "NLLLoss2d": "an alias of NLLLoss that is deprecated",
    "ParameterDict": "has no forward",
    "ParameterList": "has no forward",
    "RNNBase": "the base of RNN, LSTM and GRU",
    "RNNCellBase": "the base of their cells",
    "SyncBatchNorm": "PyTorch wants CUDA, HPU, XPU or its own list of devices, and a process group",
}

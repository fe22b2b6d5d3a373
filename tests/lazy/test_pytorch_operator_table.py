"""PyTorch's own table of operators against ours: a new version that adds a kernel for the CPU is told here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchgen

from torchport.lazy.registration import _KERNEL_ON_CPU
from torchport.lazy.sparse import COMPRESSED, COO, Family

ASKS_BY_DEVICE_NAME = {
    COO.key: {"_sparse_mask_projection"},
    COMPRESSED.key: {
        "_to_sparse_bsc",
        "_to_sparse_bsr",
        "_to_sparse_csc",
        "_to_sparse_csr",
        "add.Tensor",
        "add_.Tensor",
        "addmm",
        "mm",
        "mm.out",
        "mul.Tensor",
        "mul.out",
        "mul_.Tensor",
        "sparse_mask",
    },
}
"""One function for all devices in the table, which reads memory all the same: by a stub or a library of the CPU's."""


def dispatch_table() -> Iterator[tuple[str, dict[str, str]]]:
    """Each operator's name, and its kernels by dispatch key."""
    text = (Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    for block in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        kernels = {}
        rows = re.search(r"^  dispatch:\n((?:    .*\n)+)", block, flags=re.MULTILINE)
        for row in rows[1].splitlines() if rows else ():
            keys, _, kernel = row.partition(":")
            if not keys.strip().startswith("#"):
                kernels.update({k.strip(): kernel.split("#")[0].strip() for k in keys.split(",")})
        yield block[: block.index("(")], kernels


def test_operators_taken_apart_on_other_devices_than_the_cpu() -> None:
    found = {n for n, k in dispatch_table() if {"CPU", "CompositeImplicitAutograd"} <= k.keys()}
    assert set(_KERNEL_ON_CPU) == found


@pytest.mark.parametrize(("family", "cuda_key"), [(COO, "SparseCUDA"), (COMPRESSED, "SparseCsrCUDA")])
def test_sparse_kernels_that_are_not_for_every_device_run_on_the_host(family: Family, cuda_key: str) -> None:
    found = {
        name
        for name, kernels in dispatch_table()
        if family.cpu_key in kernels and kernels[family.cpu_key] != kernels.get(cuda_key)
    }
    ours = {"add.out"} if family is COO else set()
    assert found - ours == set(family.reads_memory) - ASKS_BY_DEVICE_NAME[family.key]


def test_the_table_is_that_of_the_running_torch() -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::mish_backward", "CPU")
    assert len(dict(dispatch_table())) > 2000

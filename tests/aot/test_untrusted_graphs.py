"""What a graph of a file may call: operators that compute, and nothing that does more (case 31)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from aot.subjects import spec_of
from runtime.files import members_of, write_members
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.config import override
from torchport.errors import TorchportError

HOSTILE = {
    'aten.from_file.default("FILE", True, 4, dtype=f32, layout=torch.strided)': "it opens files",
    "aten._reshape_alias.default(%0, (4096,), (1,))": "it does not check what it is given",
    "aten._sparse_coo_tensor_unsafe.default(%0, %0, (4,))": "it does not check what it is given",
    "aten.mul_.Tensor(%0, %0)": "it writes to its operands",
    'aten.save.default(%0, "FILE")': "it opens files",
    "higher_order.hints_wrapper(%0)": "it runs other code",
    "strange.harm.default(%0)": "set torchport.config.settings.trusted_namespaces to 'strange'",
}


@pytest.fixture(autouse=True, scope="module")
def libraries() -> Iterator[None]:
    """Operators that are not PyTorch's own."""
    made = []
    for name in ("strange::harm", "own::double"):
        namespace, _, operator = name.partition("::")
        made.append(torch.library.Library(namespace, "FRAGMENT"))
        made[-1].define(f"{operator}(Tensor x) -> Tensor")
        made[-1].impl(operator, lambda x: x * 2, "CompositeExplicitAutograd")
    yield
    for library in made:
        library._destroy()


@pytest.mark.parametrize("member", ["graphs/forward.p0.txt", "payloads/forward.p0", "graphs/forward.txt"])
@pytest.mark.parametrize("call", HOSTILE)
def test_a_graph_of_a_file_may_only_compute(call: str, member: str, tmp_path: Path) -> None:
    path, created = tmp_path / "m.tport", tmp_path / "created"
    module = nn.Sequential(nn.ReLU()).eval()
    to_backend("interpreter", module, spec_of(torch.ones(4)), fallback="interpreter").save(path)
    members = members_of(path)
    text = f"%1: f32[4] = {call.replace('FILE', str(created))}\n"
    members[member] = f"graph(%0: f32[4]) {{\n  {text}  return %1\n}}\n".encode()
    write_members(path, members, right_checksums=True)
    with pytest.raises(TorchportError, match=re.escape(HOSTILE[call])):
        load(path)
    assert not created.exists()
    with override(trusted_namespaces="other, strange"):
        if call.startswith("strange") and member != "graphs/forward.txt":  # that has to call its parts too
            assert load(path).methods == ("forward",)


def test_operators_of_a_library_are_lowered_and_saved_and_loaded_by_who_trusts_them(tmp_path: Path) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.own.double(x) + 1

    lowered = to_backend("interpreter", Doubles().eval(), spec_of(torch.ones(4)))
    assert lowered(torch.ones(4)).tolist() == [3.0] * 4
    lowered.save(tmp_path / "m.tport")
    with pytest.raises(TorchportError, match=r"may not call own\.double\.default"):
        load(tmp_path / "m.tport")
    with override(trusted_namespaces="own"):
        assert load(tmp_path / "m.tport")(torch.ones(4)).tolist() == [3.0] * 4

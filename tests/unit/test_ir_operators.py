import pytest
import torch

from torchport.ir.call import SCALAR
from torchport.ir.operators import find_operator, operator_name, operator_names
from torchport_runtime.text.literals import nearest_hint


def test_every_operator_that_exists_is_found_by_its_name():
    names = [name for name in operator_names() if name.startswith(("aten.", "prims.", "port.")) and name.count(".") < 3]
    missing = [name for name in names if find_operator(name) is None or operator_name(find_operator(name)) != name]
    # TorchScript's own, and those without a Python binding, cannot be called from Python at all.
    missing = [
        name for name in missing if torch._C._jit_get_schemas_for_operator(name.replace(".", "::", 1).split(".")[0])
    ]
    assert len(names) > 2000
    assert [] == missing


def test_special_and_higher_order_operators_are_found():
    assert SCALAR is find_operator("port.scalar")
    assert torch.ops.higher_order.cond is find_operator("higher_order.cond")
    assert "higher_order.cond" == operator_name(torch.ops.higher_order.cond)


def test_an_operator_of_another_library_is_found_once_it_exists():
    assert find_operator("torchport_test_operators.double.default") is None
    library = torch.library.Library("torchport_test_operators", "DEF")
    library.define("double(Tensor x) -> Tensor")
    op = torch.ops.torchport_test_operators.double.default
    assert op is find_operator("torchport_test_operators.double.default") is find_operator(operator_name(op))


@pytest.mark.parametrize(
    "name",
    ["", ".", "aten", "aten.mm", "aten.mm.nothing", "aten.mm.default.__call__", "load_library", "__class__.__init__"],
)
def test_what_is_no_operator_is_not_found(name):
    assert find_operator(name) is None


def test_the_nearest_name_is_proposed_only_if_it_is_near():
    assert "; did you mean 'aten.mm.default'?" == nearest_hint("aten.mm.defualt", operator_names())
    assert "" == nearest_hint("zzz", ["aten.mm.default"])

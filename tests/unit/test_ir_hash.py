import os
import re
import subprocess
import sys

import pytest
import torch

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.shape import Shape
from torchport.ir.text import parse_graph

# Every kind of constant, number, shape and operator that may enter a digest.
EVERYTHING = """graph(%0: f32[?3, 4]{1, 3}, %1: qint8[4], $0: float = 0.5, $1: int = 2, $2: complex = complex(1.0, 2)) {
  %2: f32[] = port.scalar($0)
  %3: f32[3, 4], _, %5: b8[0] = aten.full.default([%0, %1], $1, [$2, None, True, nan, -inf, -0.0, complex(0.0, -1.0)])
  %6: c64[2] = aten.full.default("text", f64, torch.strided, torch.channels_last, device("cuda:1"), dtype=bf16)
  %7: f32[3, 4], %8: c64[2] = port.tensor_list([%3, %6])
  %9: f32[3] = aten.rand.default([3])
  %10: f32[3] = prims.convert_element_type.default(%9, f32)
  return %7, %8, %10
}
"""

PROGRAM = """
import sys
junk = [object() for _ in range(int(sys.argv[1]))]
from torchport.ir.text import parse_graph
graph = parse_graph(sys.stdin.read())
print(graph.hash, *(n.call.digest for n in graph.nodes))
"""


def digests(graph):
    return f"{graph.hash} {' '.join(str(n.call.digest) for n in graph.nodes)}\n"


@pytest.mark.subprocess
@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_hashes_are_equal_in_every_process(seed):
    paths = [p for p in sys.path if p]
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(seed) % 9999)],
        input=EVERYTHING,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert digests(parse_graph(EVERYTHING)) == ran.stdout


def test_what_enters_a_digest_holds_no_address():
    for node in parse_graph(EVERYTHING).nodes:
        call = node.call
        assert not re.search(r"0x[0-9a-f]+|\bat \d", f"{call.args!r}{call.kwargs!r}{call.inputs!r}{call.outputs!r}")


def test_symbolic_integers_print_without_an_address():
    program = torch.export.export(
        torch.nn.ReLU(), (torch.ones(3),), dynamic_shapes={"input": {0: torch.export.Dim("n")}}
    )
    size = next(n for n in program.graph.nodes if n.op == "placeholder").meta["val"].shape[0]
    assert isinstance(size, torch.SymInt)
    assert re.fullmatch(r"\w+", repr(size))


F3 = Shape(torch.float32, (3,))


class Data:
    shape = F3


PRODUCT = (operand(0), number(0, float))


def graph(args=PRODUCT, numbers=(0.5,), outputs=(F3,), result=0, leaves=1):
    parameters = [IrBuilder().make_device_data(Data) for _ in range(leaves)]
    call = Call(torch.ops.aten.mul.Tensor, args, (), (F3,), outputs)
    node = Node(call, (parameters[0].value(),), numbers)
    return Graph([*parameters, node], [node.value(result)])


def test_values_of_numbers_and_locations_and_data_are_no_part_of_the_hash():
    assert graph().hash == graph(numbers=(0.25,)).hash


@pytest.mark.parametrize(
    "other",
    [
        graph(args=(operand(0), number(0, int))),
        graph(args=(operand(0), 0.5)),
        graph(args=(operand(0), 1)),
        graph(args=(operand(0), True)),
        graph(args=(operand(0), 1.0)),
        graph(args=(operand(0), "1")),
        graph(args=(operand(0), 0.0)),
        graph(args=(operand(0), -0.0)),
        graph(args=(operand(0), (1,))),
        graph(outputs=(F3, F3)),
        graph(outputs=(F3, F3), result=1),
        graph(outputs=(Shape(torch.float32, (3,), None, (True,)),)),
        graph(outputs=(Shape(torch.float32, (3,), (2,)),)),
        graph(leaves=2),
    ],
    ids=lambda g: str(g).splitlines()[1].strip(),
)
def test_whatever_changes_the_meaning_changes_the_hash(other):
    others = {graph().hash, other.hash}
    assert 2 == len(others)


def test_interchanged_operands_and_results_change_the_hash():
    text = """graph(%0: f32[3], %1: f32[3]) {
      %2: f32[3] = aten.sub.Tensor(%0, %1)
      return %2, %0
    }"""
    hashes = {
        parse_graph(t).hash for t in (text, text.replace("(%0, %1)", "(%1, %0)"), text.replace("%2, %0", "%0, %2"))
    }
    assert 3 == len(hashes)


def test_equal_calls_made_apart_have_equal_digests():
    first, second = (parse_graph(EVERYTHING) for _ in range(2))
    assert digests(first) == digests(second)
    assert first.nodes[3].call is not second.nodes[3].call

"""A graph of 200,000 dependent nodes: nothing recurses over nodes."""

import sys

import pytest
import torch

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.location import TextLocation
from torchport.ir.node import Node
from torchport.ir.shape import Shape
from torchport.ir.text import parse_graph, print_graph

DEPTH = 200_000


class Data:
    shape = Shape(torch.float32, (2,))


@pytest.fixture(scope="module")
def chain():
    assert sys.getrecursionlimit() < DEPTH
    shape = Data.shape
    add = Call(torch.ops.aten.add.Tensor, (operand(0), number(0, float)), (), (shape,), (shape,))
    where = TextLocation("model.py:1")
    nodes = [IrBuilder().make_device_data(Data)]
    for _ in range(DEPTH):
        nodes.append(Node(add, (nodes[-1].value(),), (1.0,), where))
    return Graph(nodes, [nodes[-1].value()])


@pytest.mark.slow
def test_a_deep_chain_prints_parses_hashes_and_is_freed(chain):
    text = print_graph(chain)
    again = parse_graph(text)
    assert DEPTH + 1 == len(again)
    assert chain.hash == again.hash
    assert text == print_graph(again)
    # Freeing goes down the chain as well; a stack overflow here would kill the process.
    last = again.results[0]
    del again
    del last


def test_a_deep_chain_is_found_from_its_result(chain):
    found = Graph.of_results(chain.results)
    assert chain.nodes == found.nodes
    assert chain.nodes == chain.without_dead_nodes().nodes
    assert 1 == len(Graph(chain.nodes, [chain.nodes[0].value()]).without_dead_nodes())


def test_many_parameters_in_the_midst_of_the_nodes():
    shape = Data.shape
    add = Call(torch.ops.aten.add.Tensor, (operand(0), operand(1)), (), (shape, shape), (shape,))
    nodes = [IrBuilder().make_device_data(Data)]
    for _ in range(20_000):
        leaf = IrBuilder().make_device_data(Data)
        nodes += [leaf, Node(add, (nodes[-1].value(), leaf.value()))]
    graph = Graph(nodes, [nodes[-1].value()])
    text = print_graph(graph)
    assert graph.hash == parse_graph(text).hash
    assert text == print_graph(parse_graph(text))

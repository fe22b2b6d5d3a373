"""Whether the pieces of a saved module fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from torchport_runtime.errors import DamagedFileError
from torchport_runtime.expressions import parse_expression
from torchport_runtime.facts import GraphFacts, TensorFacts, difference, fits, text_of
from torchport_runtime.manifest import Method, Slot
from torchport_runtime.saved_module import SavedModule
from torchport_runtime.weights import RawTensor


def check_module(saved: SavedModule, facts: Mapping[str, GraphFacts]) -> None:
    """Accepts a module whose methods, graphs, weights and partitions fit.

    Args:
        saved: the module.
        facts: of each graph, by member.

    Raises:
        DamagedFileError: something that is named is not there, or is not what it is said to be.
    """
    manifest = saved.manifest
    for name, weight in manifest.weights.items():
        source = weight.shares or name
        if source not in saved.weights or (weight.shares and manifest.weights[source].shares):
            _fail(saved, f"the weight {name!r} is not there")
    spare = set(saved.weights) - set(manifest.weights)
    if spare:
        _fail(saved, f"the weights {', '.join(sorted(spare))} are in no list")
    if not manifest.methods:
        _fail(saved, "there is no method")
    for name, method in manifest.methods.items():
        if not name.isidentifier():
            _fail(saved, f"{name!r} is no name of a method")
        _MethodCheck(saved, name, method, facts).run()


def _fail(saved: SavedModule, why: str) -> NoReturn:
    raise DamagedFileError(f"{saved.path} does not fit together: {why}")


class _MethodCheck:
    def __init__(self, saved: SavedModule, name: str, method: Method, facts: Mapping[str, GraphFacts]) -> None:
        self.saved = saved
        self.name = name
        self.method = method
        self.facts = facts
        self.positions = {symbol: i for i, symbol in enumerate(method.symbols)}

    def fail(self, why: str) -> NoReturn:
        _fail(self.saved, f"{self.name}: {why}")

    def run(self) -> None:
        m = self.method
        if m.in_tree.leaf_count != len(m.inputs) or m.out_tree.leaf_count != len(m.outputs):
            self.fail("the forms of its arguments or results have other leaves than its lists")
        children = m.in_tree.children
        if m.in_tree.kind != "tuple" or [c.kind for c in children] != ["tuple", "dict"]:
            self.fail("its arguments are not positional ones and a dict")
        if len({p.name for p in m.parameters}) != len(m.parameters):
            self.fail("two parameters have one name")
        self.check_symbols()
        for slot in (*m.inputs, *m.outputs):
            self.check_slot(slot)
        self.check_graph()
        self.check_partitions()

    def check_symbols(self) -> None:
        for name, symbol in self.method.symbols.items():
            slot = self.method.inputs[symbol.leaf] if symbol.leaf < len(self.method.inputs) else None
            is_there = slot is not None and (
                slot.kind == "int" if symbol.dim is None else slot.kind == "tensor" and symbol.dim < len(slot.sizes)
            )
            if not name.isidentifier() or not is_there:
                self.fail(f"the symbol {name!r} is the size of no input")

    def check_slot(self, slot: Slot) -> None:
        for text in (*slot.sizes, *([slot.value] if slot.kind in ("int", "size") else [])):
            if isinstance(text, str):
                parse_expression(text, self.positions)

    def check_graph(self) -> None:
        m = self.method
        facts = self.facts[m.graph]
        if len(facts.parameters) != len(m.arguments) or len(facts.results) != len(m.results):
            self.fail("its graph takes or gives another number of tensors than its lists say")
        numbers = facts.numbers or ()
        if len(numbers) != len(m.numbers):
            self.fail("its graph takes another number of numbers than its list says")
        for (kind, which), taken in zip(m.arguments, facts.parameters, strict=True):
            given = self.weight(which) if kind == "weight" else self.input(which)
            if not fits(given, taken):
                self.fail(f"{kind} {which!r} is {text_of(given)}, and the graph takes {text_of(taken)}")
        for number, type_ in zip(m.numbers, numbers, strict=True):
            if isinstance(number, str):
                parse_expression(number, self.positions)
            own: type = int if isinstance(number, str) else complex if isinstance(number, dict) else type(number)
            if own is not type_:
                self.fail(f"the number {number!r} is no {type_.__name__}")
        tensors = [i for i, slot in enumerate(m.outputs) if slot.kind == "tensor"]
        if sorted([int(which) for kind, which in m.results if kind == "user"]) != tensors:
            self.fail("its results are not the tensors among its outputs")
        for (kind, which), made in zip(m.results, facts.results, strict=True):
            if kind == "user":
                continue
            if kind == "state" and not (which in self.saved.manifest.weights and self.is_state(which)):
                self.fail(f"it changes {which!r}, which is no state")
            changed = self.weight(which) if kind == "state" else self.input(which)
            if not fits(changed, made):
                self.fail(f"it changes {kind} {which!r}, which is {text_of(changed)}, to {text_of(made)}")

    def is_state(self, name: int | str) -> bool:
        weight = self.saved.manifest.weights[str(name)]
        return weight.is_state and not weight.shares

    def weight(self, name: int | str) -> TensorFacts:
        weight = self.saved.manifest.weights.get(str(name))
        if weight is None:
            self.fail(f"it takes the weight {name!r}, which is not there")
        tensor: RawTensor = self.saved.weights[weight.shares or str(name)]
        return tensor.dtype.lower().replace("bool", "b8"), tuple(tensor.sizes)

    def input(self, leaf: int | str) -> TensorFacts:
        slot = self.method.inputs[leaf] if isinstance(leaf, int) and leaf < len(self.method.inputs) else None
        if slot is None or slot.kind != "tensor":
            self.fail(f"it takes input {leaf} as a tensor, which is none")
        return slot.dtype, slot.sizes

    def check_partitions(self) -> None:
        m = self.method
        called = [name for name, *_ in self.facts[m.graph].calls]
        if sorted(called) != sorted(m.partitions):
            self.fail(f"its graph calls the parts {sorted(called)}, and there are {sorted(m.partitions)}")
        for name, declared in self.facts[m.graph].calls:
            graph = m.partitions[name].graph
            if not graph:
                continue
            facts = self.facts[graph]
            why = difference(declared, facts)
            if why:
                self.fail(f"the graph of the part {name!r} is another than is called: {why}")
            if facts.calls:
                self.fail(f"the part {name!r} has parts itself")

"""The delegate: graphs are processed, saved, compiled and executed, and the caller's tensors are the caller's."""

from __future__ import annotations

import gc
import tempfile
import weakref
from typing import Any

import torch
from torch import nn

from torchport.aot.compile_spec import CompileSpec
from torchport.aot.to_backend import to_backend
from torchport.conformance.case import Door, Laws, NotApplicable, Violation, require
from torchport.conformance.comparison import check_form, check_values
from torchport.conformance.fresh import as_path, in_fresh_process
from torchport.conformance.graphs import Number, Sketch, aten
from torchport.conformance.subject import Subject
from torchport.ir.graph import Graph

LAWS = Laws("lowering", Door.DELEGATE)


def affine() -> Graph:
    """Of x and w: relu(x w) and the sum of x with itself."""
    sketch = Sketch()
    x, w = sketch.parameter(torch.float32, 3, 4), sketch.parameter(torch.float32, 4, 2)
    product = sketch.call(aten.relu.default, sketch.call(aten.mm.default, x, w))
    return sketch.graph(product, sketch.call(aten.add.Tensor, x, x))


def operands() -> list[torch.Tensor]:
    """What :func:`affine` takes."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(*sizes, generator=generator) - 0.3 for sizes in ((3, 4), (4, 2))]


def expected(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """What :func:`affine` gives."""
    return [torch.relu(x @ w), x + x]


@LAWS.add()
def graphs_become_bytes(subject: Subject) -> None:
    """preprocess() gives bytes for each graph, by its name."""
    processed = subject.processed({"one": affine(), "other": affine()})
    require(set(processed) == {"one", "other"}, f"graphs 'one' and 'other' were processed to {sorted(processed)}")
    for name, payload in processed.items():
        require(isinstance(payload, bytes), f"the payload of {name!r} is {type(payload).__name__}")
        require(payload, f"the payload of {name!r} is empty")


@LAWS.add()
def results_are_the_cpus(subject: Subject) -> None:
    """execute() gives what eager PyTorch gives, one tensor per result, in order."""
    handle = subject.lowered({"forward": affine()})["forward"]
    inputs = operands()
    check_values(expected(*inputs), list(subject.delegate.execute(handle, inputs)))


@LAWS.add()
def it_can_be_called_again(subject: Subject) -> None:
    """A handle is executed as often as one likes, with other inputs each time."""
    handle = subject.lowered({"forward": affine()})["forward"]
    x, w = operands()
    for factor in (1.0, -2.0, 0.5):
        found = list(subject.delegate.execute(handle, [x * factor, w]))
        check_values(expected(x * factor, w), found, what=f"the result for {factor} times the input")


@LAWS.add()
def inputs_of_any_layout_are_taken(subject: Subject) -> None:
    """Inputs with other strides than those of the capture, and parts of larger tensors, give the right results."""
    handle = subject.lowered({"forward": affine()})["forward"]
    x, w = operands()
    turned = x.t().contiguous().t()
    part = torch.cat([w, w], 1)[:, 1:3]
    check_values(expected(turned, part), list(subject.delegate.execute(handle, [turned, part])))


@LAWS.add()
def inputs_stay_as_they_were(subject: Subject) -> None:
    """The inputs are the caller's: they are not changed."""
    handle = subject.lowered({"forward": affine()})["forward"]
    inputs = operands()
    kept = [t.clone() for t in inputs]
    subject.delegate.execute(handle, inputs)
    check_values(kept, inputs, what="an input after the call")


@LAWS.add()
def inputs_are_not_kept(subject: Subject) -> None:
    """No reference to an input stays behind when a call has ended, and another one was made."""
    handle = subject.lowered({"forward": affine()})["forward"]
    inputs = operands()
    alive = [weakref.ref(t) for t in inputs]
    subject.delegate.execute(handle, inputs)
    del inputs
    subject.delegate.execute(handle, operands())  # a backend may keep what it ran last
    gc.collect()
    left = sum(r() is not None for r in alive)
    require(not left, f"{left} inputs of an earlier call are alive")


@LAWS.add()
def results_are_the_callers(subject: Subject) -> None:
    """Results share no memory with inputs, with each other, or with those of another call."""
    sketch = Sketch()
    x = sketch.parameter(torch.float32, 3, 4)
    total = sketch.call(aten.add.Tensor, x, x)
    row = sketch.call(aten.select.int, x, 0, 1)
    handle = subject.lowered({"forward": sketch.graph(total, x, total, row)})["forward"]
    given = operands()[0]
    kept = given.clone()
    first = list(subject.delegate.execute(handle, [given]))
    second = list(subject.delegate.execute(handle, [given]))
    check_values([kept + kept, kept, kept + kept, kept[1]], first)
    for result in first:
        result.zero_()
    check_values(kept, given, what="an input, after the results were written to")
    check_values(
        [kept + kept, kept, kept + kept, kept[1]], second, what="a result of another call, after the first was written"
    )
    second[0].fill_(1)
    check_values(kept + kept, second[2], what="a result that was asked for twice, after one of the two was written")


@LAWS.add()
def results_keep_their_values(subject: Subject) -> None:
    """The results of a call keep their values when the graph is called again."""
    handle = subject.lowered({"forward": affine()})["forward"]
    x, w = operands()
    first = list(subject.delegate.execute(handle, [x, w]))
    subject.delegate.execute(handle, [-x, w])
    check_values(expected(x, w), first, what="a result after another call")


@LAWS.add()
def several_methods_are_apart(subject: Subject) -> None:
    """Several graphs that are processed at once are compiled and called each by its name."""
    sketch = Sketch()
    x = sketch.parameter(torch.float32, 3, 4)
    graphs = {"affine": affine(), "negative": sketch.graph(sketch.call(aten.neg.default, x))}
    handles = subject.lowered(graphs)
    require(set(handles) == set(graphs), f"compile() gave handles for {sorted(handles)}")
    inputs = operands()
    check_values([-inputs[0]], list(subject.delegate.execute(handles["negative"], inputs[:1])), what="of 'negative'")
    check_values(expected(*inputs), list(subject.delegate.execute(handles["affine"], inputs)), what="of 'affine'")


@LAWS.add()
def numbers_follow_the_tensors(subject: Subject) -> None:
    """A graph's numbers are inputs after the tensors, and may differ from call to call."""
    sketch = Sketch()
    x = sketch.parameter(torch.float32, 3, 4)
    graph = sketch.graph(sketch.call(aten.mul.Tensor, x, Number(0.5)))
    handle = subject.lowered({"forward": graph})["forward"]
    tensor = operands()[0]
    for factor in (0.5, 4.0):
        found = list(subject.delegate.execute(handle, [tensor, factor]))
        check_values([tensor * factor], found, what=f"the product with {factor}")


@LAWS.add()
def dtypes_are_kept(subject: Subject) -> None:
    """Integers, truth values and double precision come as they are promised."""
    sketch = Sketch()
    i, d = sketch.parameter(torch.int64, 3), sketch.parameter(torch.float64, 3)
    graph = sketch.graph(
        sketch.call(aten.add.Tensor, i, i), sketch.call(aten.gt.Tensor, i, i), sketch.call(aten.neg.default, d)
    )
    handle = subject.lowered({"forward": graph})["forward"]
    integers, doubles = torch.tensor([1, 2**40, -3]), torch.tensor([0.1, 1e100, -2.0], dtype=torch.float64)
    found = list(subject.delegate.execute(handle, [integers, doubles]))
    wanted = [integers + integers, integers > integers, -doubles]
    check_form(wanted, found)
    check_values(wanted, found)


@LAWS.add()
def one_payload_is_compiled_twice(subject: Subject) -> None:
    """What was saved can be compiled as often as one likes."""
    processed = subject.processed({"forward": affine()})
    inputs = operands()
    for _ in range(2):
        handle = subject.delegate.compile(dict(processed), {"forward": None})["forward"]
        check_values(expected(*inputs), list(subject.delegate.execute(handle, inputs)))


@LAWS.add()
def a_mapped_payload_is_taken(subject: Subject) -> None:
    """compile() takes a memoryview, as it is given where a file is mapped."""
    processed = subject.processed({"forward": affine()})
    mapped = {name: memoryview(payload) for name, payload in processed.items()}
    handle = subject.delegate.compile(mapped, {"forward": None})["forward"]
    inputs = operands()
    check_values(expected(*inputs), list(subject.delegate.execute(handle, inputs)))


@LAWS.add()
def a_spoilt_payload_is_refused(subject: Subject) -> None:
    """A payload that was cut short is an error of compile() or execute(), not another result."""
    payload = subject.processed({"forward": affine()})["forward"]
    inputs = operands()
    try:
        handle = subject.delegate.compile({"forward": payload[: len(payload) // 2]}, {"forward": None})["forward"]
        found = list(subject.delegate.execute(handle, inputs))
    except Exception as error:  # noqa: BLE001 - it is what is wanted, of any kind
        require(str(error), "the error for a spoilt payload has no text")
        return
    raise Violation(f"half of a payload was loaded and gave {found!r}")


@LAWS.add()
def random_numbers_follow_the_seed(subject: Subject) -> None:
    """A lowered graph that draws repeats its numbers with torch.manual_seed, and draws anew without."""
    sketch = Sketch()
    graph = sketch.graph(sketch.call(aten.rand.default, (64,)))
    handle = subject.lowered({"forward": graph})["forward"]
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for seeded in (True, False, True):
            if seeded:
                torch.manual_seed(7)
            drawn += subject.delegate.execute(handle, [])
    require(torch.equal(drawn[0], drawn[2]), "the same torch.manual_seed gave other numbers")
    require(not torch.equal(drawn[0], drawn[1]), "two calls in a row drew the same numbers")


class _Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.linear = nn.Linear(4, 3)
        for parameter in self.linear.parameters():
            parameter.data = torch.rand(parameter.shape, generator=generator) - 0.5
        self.offset = nn.Buffer(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + self.offset

    def scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x) * 2.5
        return y.softmax(-1), y.argmax(-1)


@LAWS.add()
def a_file_runs_in_a_new_process(subject: Subject) -> None:
    """A module with two methods that was saved is loaded by a new process, and gives the same results."""
    module = _Methods().eval()
    x = torch.linspace(-1, 2, 20).reshape(5, 4)
    specs = {"forward": CompileSpec(args=(x,)), "scores": CompileSpec(args=(x,))}
    lowered: Any = to_backend(subject.name, module, specs)
    if lowered.explain().count(" in 0 parts ") == len(specs):
        raise NotApplicable("the backend refuses all of the module")
    with torch.no_grad():
        wanted = {"forward": module(x), "scores": module.scores(x)}
    check_values(wanted, {"forward": lowered(x), "scores": lowered.scores(x)}, what="before saving, a result")
    with tempfile.TemporaryDirectory() as folder:
        file, inputs, outputs = (as_path(folder, name) for name in ("module.tport", "inputs.pt", "outputs.pt"))
        lowered.save(file)
        torch.save({"forward": (x,), "scores": (x,)}, inputs)
        in_fresh_process(subject, "load", file=file, inputs=inputs, outputs=outputs)
        check_values(wanted, torch.load(outputs, weights_only=True), what="in a new process, a result")

"""Compiling and executing: as many, in order, of the right shapes, and nothing else changes."""

from __future__ import annotations

import gc
import weakref

import torch

from torchport.conformance.case import Laws, require
from torchport.conformance.comparison import check_form, check_values
from torchport.conformance.graphs import Number, Sketch, aten, doubled, scaled, sums_and_products
from torchport.conformance.subject import Subject, checked

LAWS = Laws("execution")


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of which no element is as another."""
    a = torch.arange(12.0).reshape(3, 4) / 8 + 1
    return a, a.flip(0) * 3 + 0.5


@LAWS.add()
def there_is_a_result_for_each(subject: Subject) -> None:
    """execute_computation() returns one datum per result of the computation."""
    graph = sums_and_products([subject.upload(t) for t in operands()], subject.backend.get_ir_builder())
    computation = subject.compile(graph)
    results = subject.execute(computation, [n.data for n in graph.parameters])
    require(len(results) == 3, f"execute_computation() returned {len(results)} data for 3 results")


@LAWS.add()
def results_have_their_values(subject: Subject) -> None:
    """When execute_computation() returns, its results have values, not promises of values."""
    graph = doubled(subject.upload(torch.ones(3, 4)), subject.backend.get_ir_builder())
    results = subject.execute(subject.compile(graph), [n.data for n in graph.parameters])
    for data in results:
        require(data.error is not None or data.has_value, f"{data!r} has no value after execute_computation() returned")


@LAWS.add()
def results_are_in_order(subject: Subject) -> None:
    """Results come in the order in which the computation asks for them."""
    a, b = operands()
    graph = sums_and_products([subject.upload(a), subject.upload(b)], subject.backend.get_ir_builder())
    computation = subject.compile(graph)
    results = subject.execute(computation, [n.data for n in graph.parameters])
    wanted = [a + b, a * b, -b]
    for i, data in enumerate(results[:3]):
        if data.has_value:
            close = [j for j, w in enumerate(wanted) if torch.allclose(subject.download(data), w)]
            require(close in ([], [i]), f"result {i} has the value that result {close} should have")


@LAWS.add()
def results_have_the_promised_shapes(subject: Subject) -> None:
    """Each result has the dtype and the sizes that the computation says."""
    sketch = Sketch(subject.backend.get_ir_builder())
    x = sketch.leaf(subject.upload(torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 6.0]])))
    values, indices = sketch.call(aten.max.dim, x, 1)
    graph = sketch.graph(indices, sketch.call(aten.gt.Tensor, x, x), values)
    computation = subject.compile(graph)
    results = subject.execute(computation, [n.data for n in graph.parameters])
    for i, (data, shape) in enumerate(zip(results, computation.result_shape, strict=False)):
        if data.has_value:
            found = subject.download(data)
            promised = torch.empty(shape.sizes, dtype=shape.dtype)
            require(data.shape.dtype is shape.dtype, f"result {i}: the graph says {shape!r}, the data {data.shape!r}")
            require(data.shape.sizes == shape.sizes, f"result {i}: the graph says {shape!r}, the data {data.shape!r}")
            check_form(promised, found)


@LAWS.add()
def results_are_the_cpus(subject: Subject) -> None:
    """A matrix product, a bias and an activation give what eager PyTorch gives."""
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.rand(*sizes, generator=generator) for sizes in ((5, 4), (4, 3), (3,)))
    sketch = Sketch(subject.backend.get_ir_builder())
    leaves = [sketch.leaf(subject.upload(t)) for t in (x, w, b)]
    product = sketch.call(aten.add.Tensor, sketch.call(aten.mm.default, *leaves[:2]), leaves[2])
    (found,) = subject.run(sketch.graph(sketch.call(aten.relu.default, product)))
    check_values(torch.relu(x @ w + b), found)


@LAWS.add()
def a_result_may_be_asked_for_twice(subject: Subject) -> None:
    """A value that is asked for twice, and a parameter that is asked for, come as any other result."""
    a, b = operands()
    sketch = Sketch(subject.backend.get_ir_builder())
    x, y = sketch.leaf(subject.upload(a)), sketch.leaf(subject.upload(b))
    total = sketch.call(aten.add.Tensor, x, y)
    check_values([a + b, a, a + b, b], subject.run(sketch.graph(total, x, total, y)))


@LAWS.add()
def a_computation_may_have_no_parameter(subject: Subject) -> None:
    """A graph that takes nothing gives its constant."""
    sketch = Sketch(subject.backend.get_ir_builder())
    (found,) = subject.run(sketch.graph(sketch.call(aten.full.default, (2, 3), 1.5, dtype=torch.float32)))
    check_values(torch.full((2, 3), 1.5), found)


@LAWS.add()
def a_view_of_a_parameter_is_its_value(subject: Subject) -> None:
    """Operators that only look at memory in another way give the right elements, of any layout."""
    tensor = torch.arange(12.0).reshape(4, 3).t()
    sketch = Sketch(subject.backend.get_ir_builder())
    x = sketch.leaf(subject.upload(tensor))
    row = sketch.call(aten.select.int, x, 0, 1)
    turned = sketch.call(aten.permute.default, x, (1, 0))
    check_values([tensor[1], tensor.t()], subject.run(sketch.graph(row, turned)))


@LAWS.add()
def arguments_stay_as_they_were(subject: Subject) -> None:
    """An argument that is not donated has its value from before when the computation has ended."""
    a, b = operands()
    data = [subject.upload(a), subject.upload(b)]
    graph = sums_and_products(data, subject.backend.get_ir_builder())
    subject.execute(subject.compile(graph), data)
    check_values([a, b], [subject.download(d) for d in data], what="an argument after the execution")


@LAWS.add()
def host_tensors_stay_as_they_were(subject: Subject) -> None:
    """No computation writes to a host tensor that its arguments were made from."""
    a, b = operands()
    kept = a.clone(), b.clone()
    data = [subject.upload(a), subject.upload(b)]
    graph = sums_and_products(data, subject.backend.get_ir_builder())
    subject.execute(subject.compile(graph), data)
    check_values(kept, (a, b), what="a host tensor after the execution")


@LAWS.add()
def results_stay_as_they_were(subject: Subject) -> None:
    """The results of one execution keep their values when the computation is executed again."""
    a, b = operands()
    first, second = subject.upload(a), subject.upload(b)
    graph = doubled(first, subject.backend.get_ir_builder())
    computation = subject.compile(graph)
    earlier = checked(subject.execute(computation, [first]), computation)
    later = checked(subject.execute(computation, [second]), computation)
    check_values(a + a, subject.download(earlier[0]), what="the first execution's result after the second one")
    check_values(b + b, subject.download(later[0]), what="the second execution's result")


@LAWS.add()
def numbers_are_inputs(subject: Subject) -> None:
    """The number of the execution counts, not that of the trace, and the computation is not compiled for it."""
    a, _ = operands()
    data = subject.upload(a)
    computation = subject.compile(scaled(data, 0.5, subject.backend.get_ir_builder()))
    for factor in (0.5, 2.0, -3.25):
        (result,) = checked(subject.execute(computation, [data], [factor]), computation)
        check_values(a * factor, subject.download(result), what=f"the product with {factor}")


@LAWS.add()
def numbers_are_exact(subject: Subject) -> None:
    """A Python float reaches a computation of double precision with all its digits, an int with all of its."""
    sketch = Sketch(subject.backend.get_ir_builder())
    d, i = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    x, y = sketch.leaf(subject.upload(d)), sketch.leaf(subject.upload(i))
    product = sketch.call(aten.mul.Tensor, x, Number(0.1))
    total = sketch.call(aten.add.Tensor, y, Number(2**53 + 1))
    found = subject.run(sketch.graph(product, total))
    for wanted, value in zip((d * 0.1, i + (2**53 + 1)), found, strict=True):
        require(torch.equal(wanted, value), f"{wanted.tolist()[0]!r} wanted, {value.tolist()[0]!r} found")


@LAWS.add()
def compile_keeps_the_order(subject: Subject) -> None:
    """compile() returns as many computations as it was given, in the same order; none for none."""
    backend = subject.backend
    a, b = operands()
    data = [subject.upload(a), subject.upload(b)]
    graphs = [doubled(data[0], backend.get_ir_builder()), sums_and_products(data, backend.get_ir_builder())]
    lowered = []
    for graph in graphs:
        subject.compile(graph)  # not applicable where the backend refuses a node
        context = backend.create_lowering_context("conformance", subject.device, graph.nodes)
        for value in graph.results:
            context.add_result(value)
        lowered.append(context.build())
    require(backend.compile([]) == [], "compile([]) is not []")
    compiled = backend.compile(lowered)
    require(len(compiled) == 2, f"compile() was given 2 computations and returned {len(compiled)}")
    counts = [len(c.graph.results) for c in compiled]
    require(counts == [1, 3], f"computations with 1 and 3 results came back with {counts}")


@LAWS.add()
def both_forms_of_lowering_agree(subject: Subject) -> None:
    """Nodes that are lowered one by one give the computation that they give at once."""
    graph = doubled(subject.upload(torch.ones(2, 3)), subject.backend.get_ir_builder())
    whole = subject.backend.create_lowering_context("conformance", subject.device, graph.nodes)
    fed = subject.backend.create_lowering_context("conformance", subject.device)
    for node in graph.nodes:
        fed.lower(node)
    found = []
    for context in (whole, fed):
        context.add_result(graph.results[0])
        found.append(context.build())
    hashes = {c.graph.hash for c in found}
    require(len(hashes) == 1, "the two forms of create_lowering_context() lead to different graphs")


@LAWS.add()
def the_builders_nodes_run(subject: Subject) -> None:
    """The special nodes (scalar, cast, expand, tensor list) give what they say."""
    builder = subject.backend.get_ir_builder()
    sketch = Sketch(builder)
    leaf = sketch.leaf(subject.upload(torch.ones(1, 3)))
    scalar, cast = builder.make_scalar(2, torch.float32), builder.make_cast(leaf, torch.int32)
    expand = builder.make_expand(leaf, (2, 3))
    both = builder.make_tensor_list([scalar.value(), cast.value()])
    sketch.nodes += [scalar, cast, expand, both]
    found = subject.run(sketch.graph(both.value(0), both.value(1), expand.value()))
    check_values([torch.tensor(2.0), torch.ones(1, 3, dtype=torch.int32), torch.ones(2, 3)], found)


@LAWS.add("dynamic_outputs")
def sizes_that_depend_on_values_are_right(subject: Subject) -> None:
    """An operator whose output sizes depend on values gives data that says them."""
    tensor = torch.tensor([0.0, 2.0, 0.0, 3.0])
    sketch = Sketch(subject.backend.get_ir_builder())
    found = sketch.call(aten.nonzero.default, sketch.leaf(subject.upload(tensor)))
    check_values(tensor.nonzero(), subject.run(sketch.graph(found))[0])


@LAWS.add("input_output_aliasing")
def a_donated_buffer_takes_the_result(subject: Subject) -> None:
    """A result that was set up to take a donated parameter's buffer is right, and so is everything else."""
    a, b = operands()
    x, y = subject.upload(a), subject.upload(b)
    sketch = Sketch(subject.backend.get_ir_builder())
    total = sketch.call(aten.add.Tensor, sketch.leaf(x), sketch.leaf(y))
    computation = subject.compile(sketch.graph(total), aliases={0: 0})
    (result,) = checked(subject.execute(computation, [x, y], donated=[0]), computation)
    check_values([a + b, b], [subject.download(result), subject.download(y)], what="after a donation, one")


@LAWS.add("input_output_aliasing")
def what_is_not_donated_is_not_taken(subject: Subject) -> None:
    """A parameter that was set up to lend its buffer keeps its value in an execution that does not donate it."""
    a, b = operands()
    x, y = subject.upload(a), subject.upload(b)
    sketch = Sketch(subject.backend.get_ir_builder())
    total = sketch.call(aten.add.Tensor, sketch.leaf(x), sketch.leaf(y))
    computation = subject.compile(sketch.graph(total), aliases={0: 0})
    (result,) = checked(subject.execute(computation, [x, y]), computation)
    check_values([a + b, a], [subject.download(result), subject.download(x)], what="without a donation, one")


@LAWS.add("input_output_aliasing")
def a_donation_leaves_other_data_alone(subject: Subject) -> None:
    """A result of an earlier computation that looks at the memory of donated data keeps its value."""
    a, b = operands()
    x, y = subject.upload(a), subject.upload(b)
    sketch = Sketch(subject.backend.get_ir_builder())
    leaf = sketch.leaf(x)
    flat = sketch.call(aten.view.default, leaf, (12,))
    viewing = subject.compile(sketch.graph(sketch.call(aten.select.int, leaf, 0, 1), flat))
    results = checked(subject.execute(viewing, [x]), viewing)
    row, whole = (subject.backend.create_data_placeholder(subject.device, data.shape) for data in results)
    for placeholder, data in zip((row, whole), results, strict=True):
        placeholder.assign(data)
    del results
    sketch = Sketch(subject.backend.get_ir_builder())
    total = sketch.call(aten.add.Tensor, sketch.leaf(x), sketch.leaf(y))
    adding = subject.compile(sketch.graph(total), aliases={0: 0})
    checked(subject.execute(adding, [x, y], donated=[0]), adding)
    found = [subject.download(row), subject.download(whole)]
    check_values([a[1], a.flatten()], found, what="an earlier result after a donation")


@LAWS.add()
def dropped_results_are_freed(subject: Subject) -> None:
    """Arguments and results of an execution go when nobody refers to them any more."""
    data = subject.upload(torch.ones(16, 16))
    graph = doubled(data, subject.backend.get_ir_builder())
    computation = subject.compile(graph)
    del graph
    arguments = [subject.upload(torch.full((16, 16), 2.0))]
    results = subject.execute(computation, arguments)
    alive = [weakref.ref(d) for d in (*arguments, *results)]
    handles = []
    for d in (*arguments, *results):
        try:
            handles.append(weakref.ref(d.handle))
        except TypeError:  # a handle of this type cannot be referred to weakly
            continue
    del arguments, results, d
    subject.execute(computation, [data])  # a backend may keep what it ran last
    gc.collect()
    left = sum(r() is not None for r in (*alive, *handles))
    require(not left, f"{left} of an execution's arguments, results and handles are alive after they were dropped")


@LAWS.add()
def sizes_of_zero_run(subject: Subject) -> None:
    """Tensors without elements are computed with as any others."""
    data = subject.upload(torch.ones(0, 3))
    check_values(torch.ones(0, 3), subject.run(doubled(data, subject.backend.get_ir_builder()))[0])

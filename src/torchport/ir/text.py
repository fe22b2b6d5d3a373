"""The exact text form of graphs: what it looks like, and the functions that write and read it.

::

    graph(%0: f32[3, 4], %1: f32[4, 5]{1, 4}, $0: float = 0.5) {
      %2: f32[3, 5] = aten.mm.default(%0, %1)  # model.py:12
      %3: f32[3, 5] = aten.mul.Tensor(%2, $0)
      %4: f32[3], %5: i64[3] = aten.max.dim(%3, 1)
      return %4, %5
    }

Invariant: ``parse_graph(print_graph(g))`` has the hash, the text, the locations and the numbers of ``g``
(tests/unit/test_ir_roundtrip.py). What the text does not carry is the data behind a parameter.

The grammar; ``INT``, ``FLOAT`` as Python's ``repr`` writes them, ``STRING`` as JSON does, a ``COMMENT`` from ``#`` to
the end of its line::

    graph     = "graph" "(" [ input { "," input } [ "," ] ] ")" "{" NEWLINE
                { node NEWLINE } "return" [ value { "," value } ] NEWLINE "}"
    input     = value ":" shape | number ":" ( "bool" | "int" | "float" | "complex" ) "=" literal
    node      = [ output { "," output } "=" ] operator "(" [ argument { "," argument } ] ")" [ COMMENT ]
    output    = value ":" shape | "_"
    shape     = DTYPE "[" [ size { "," size } ] "]" [ "{" INT { "," INT } "}" ]
    size      = [ "?" | NAME "=" ] INT
    operator  = NAME "." NAME "." NAME | "higher_order" "." NAME | "port" "." NAME
    argument  = [ NAME "=" ] item
    item      = value [ "@" INT ] [ "as" shape ] | number | "[" [ item { "," item } ] "]" | literal
    literal   = "None" | "True" | "False" | INT | FLOAT | "inf" | "-inf" | "nan" | "complex" "(" FLOAT "," FLOAT ")"
              | STRING | DTYPE | "torch" "." NAME | "device" "(" STRING ")"
    value     = "%" INT
    number    = "$" INT

What the parts mean:

- **Inputs.** ``%k`` of the header are the device-data nodes, in the order of ``graph.parameters``; ``$k`` are the
  Python numbers, in the order of ``graph.numbers``, each with its static type and its value of now. A call takes the
  next numbers in turn, and none is taken by two calls. A header with locations has one input on each line.
- **Numbering.** Every node takes as many ``%`` numbers as it has outputs, and at least one, in the order of the nodes.
  That tells where a parameter stands among the nodes: before the first line of a larger number (or that reads it).
- **Outputs.** ``_`` stands where the operator returns no tensor (it takes a ``%`` number all the same); an operator
  without any result has neither outputs nor ``=``.
- **Shapes.** Strides stand in braces when they are not row-major; ``?3`` is a size that depends on values and is 3
  here; ``s0=3`` is one with a symbol: equal to every other ``s0``, and 3 when the graph was made.
- **Operators** are looked up below ``torch.ops``, so an operator of another library exists once that is imported.
  ``port.scalar`` and ``port.tensor_list`` are special; ``port.device_data`` never shows, being the header's inputs.
- **Operands.** Each tensor argument is an operand of its own, numbered from left to right. A call that is made
  otherwise says which: ``aten.mul.Tensor(%0@0, %0@0)`` reads one operand twice.
  ``%3 as f32[5, 72]`` is a call that takes its operand to be of another shape than the value has (a view's write-back
  counts on row-major operands).
- **Lists** are tuples in a call. **Layouts and memory formats** keep their name: ``torch.strided``.
- **Comments** at the end of a node or a header's input are its location; one that is no plain line of printable text
  is a JSON string. Lines with nothing else are skipped.
- ``<…>`` stands for a constant that has no text form. It can be read by people, and is refused by the parser.
"""

from __future__ import annotations

from torchport.ir.parser import parse_graph
from torchport.ir.printer import print_graph

__all__ = ["parse_graph", "print_graph"]

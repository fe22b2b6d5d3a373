"""Graphs to and from ``torch.fx``, for what speaks that: torch's own passes, exporters and compilers.

``fx`` nodes are some ten times as expensive as ours, so this is for compiling, not for tracing. What goes over:

- device data become placeholders ``p0``, ``p1``, …, then the numbers ``n0``, ``n1``, …; results are one tuple;
- ``port.scalar`` becomes ``aten.scalar_tensor``, and ``port.tensor_list`` vanishes: its outputs are its operands;
- ``aten.view`` and its kin become ``aten.reshape``, which comes back as ``aten.view``: in a graph they go by value, so
  they are always possible, while an fx tensor may have other strides than the graph says. For the same reason what
  ``aten.as_strided`` and its kin read is copied into the layout that the call says;
- several outputs are read with ``operator.getitem``, twice where an operator returns a list inside a tuple;
- ``meta["val"]`` holds meta tensors, ``meta["location"]`` the location's text, ``meta["stack_trace"]`` the same as a
  traceback writes it (torch's printers show it), ``meta["symbolic"]`` which sizes of each output are symbolic.

Invariant: ``from_fx(to_fx(graph))`` has the hash, the numbers and the locations of the graph, if its parameters come
first, its calls name their operands' own layouts, and it has neither tensor lists nor ``as_strided``
(tests/unit/test_ir_roundtrip.py).
"""

from __future__ import annotations

from torchport.ir.fx_export import to_fx
from torchport.ir.fx_import import from_fx

__all__ = ["from_fx", "to_fx"]

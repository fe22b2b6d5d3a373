"""Why a module was cut as it was, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchport.aot.execution import Fallback
from torchport.aot.method import Method
from torchport.ir.call import PARTITION
from torchport.ir.node import Node
from torchport.ir.shape import Shape


def explain_module(backend: str, methods: Mapping[str, Method], fallbacks: Iterable[Fallback]) -> str:
    """Parts, refusals and boundaries of each method, then the fallbacks that happened."""
    lines = []
    for method in methods.values():
        lines += _explain_method(backend, method)
    happened = [f"  {f}" for f in fallbacks]
    if happened:
        lines += ["fallbacks:", *happened]
    return "\n".join(lines)


def _explain_method(backend: str, method: Method) -> list[str]:
    loose = [n for n in method.graph.nodes if not n.is_device_data and n.op is not PARTITION]
    delegated = sum(part.node_count for part in method.parts.values())
    total = delegated + len(loose)
    where = ", ".join(sorted({part.backend for part in method.parts.values()})) or backend
    lines = [f"{method.name}: {delegated} of {total} nodes in {len(method.parts)} parts run on {where}"]
    for node in method.graph.nodes:
        if node.op is PARTITION:
            name = node.call.args[0]
            part = method.parts[name]
            lines.append(
                f"  {name} on {part.backend}: {part.node_count} nodes, payload {_bytes(len(part.payload))}; "
                f"in {_crossing(node.call.inputs)}, out {_crossing(node.outputs)}"
            )
    if loose:
        lines.append(f"  interpreter: {len(loose)} nodes")
        lines += [f"    {refusal}" for refusal in method.refusals] or [f"    {_name(n)}" for n in loose]
    return lines


def _name(node: Node) -> str:
    return node.call.name + (f" at {node.location}" if node.location is not None else "")


def _crossing(shapes: Iterable[Shape | None]) -> str:
    found = [s for s in shapes if s is not None]
    return f"{len(found)} tensors, {_bytes(sum(s.nbytes for s in found))}"


def _bytes(count: int) -> str:
    if count < 1 << 10:
        return f"{count} B"
    return f"{count / 2**10:.1f} KiB" if count < 1 << 20 else f"{count / 2**20:.1f} MiB"

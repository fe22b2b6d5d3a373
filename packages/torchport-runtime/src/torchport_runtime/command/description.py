"""What is in a saved module: for people, for scripts, and for its picture."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torchport_runtime.command.leaves import input_names, result_names, text_of
from torchport_runtime.manifest import FORMAT_VERSION, Method
from torchport_runtime.plain import LEAF, PARTITION, Node, Shape, parse_graph
from torchport_runtime.saved_module import SavedModule

_ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c32": 4, "c64": 8, "c128": 16, "b8": 1} | {
    f"{kind}{bits}": bits // 8 for kind in "iu" for bits in (8, 16, 32, 64)
}


def describe(saved: SavedModule) -> dict[str, Any]:
    """Everything about a file but its bytes, of JSON's types."""
    manifest = saved.manifest
    weights = {
        name: {
            "shares": w.shares,
            "state": w.is_state,
            **({} if w.shares else {"dtype": saved.weights[name].dtype, "sizes": list(saved.weights[name].sizes)}),
        }
        for name, w in manifest.weights.items()
    }
    return {
        "path": str(saved.path),
        "bytes": saved.path.stat().st_size,
        "format_version": FORMAT_VERSION,
        "backend": manifest.backend,
        "versions": dict(manifest.versions),
        "target": manifest.target,
        "fallback": manifest.fallback,
        "methods": {name: _method(saved, m) for name, m in manifest.methods.items()},
        "weights": weights,
        "attributes": dict(manifest.attributes),
        "members": {n: {"bytes": m.size, "blake2b": m.checksum} for n, m in manifest.members.items()},
    }


def _method(saved: SavedModule, method: Method) -> dict[str, Any]:
    graph = parse_graph(saved.graphs[method.graph])
    loose = Counter(n.call.op for n in graph.nodes if n.call.op not in (LEAF, PARTITION))
    calls = {str(n.call.args[0]): n for n in graph.nodes if n.call.op == PARTITION}
    return {
        "inputs": {n: text_of(s) for n, s in zip(input_names(method), method.inputs, strict=True)},
        "results": result_names(method),
        "symbols": {n: {"min": s.low, "max": s.high} for n, s in method.symbols.items()},
        "state": [str(which) for kind, which in method.results if kind == "state"],
        "mode": "training" if method.training else "evaluation",
        "options": method.options,
        "partitions": {
            name: {
                "backend": p.backend,
                "nodes": p.node_count,
                "payload_bytes": saved.manifest.members[p.payload].size,
                "has_graph": bool(p.graph),
                "in": crossing(calls[name].call.inputs),
                "out": crossing(calls[name].call.outputs),
            }
            for name, p in method.partitions.items()
        },
        "interpreter": dict(loose.most_common()),
        "refusals": list(map(str, method.refusals)),
    }


def crossing(shapes: tuple[Shape | None, ...]) -> dict[str, int]:
    """How many tensors, and how many bytes, symbols with the sizes of the capture."""
    there = [s for s in shapes if s is not None]
    return {"tensors": len(there), "bytes": sum(bytes_of(s) for s in there)}


def bytes_of(shape: Shape) -> int:
    """The bytes of a tensor, symbols with the sizes of the capture."""
    count = _ITEM_BYTES[shape.dtype]
    for n in shape.sizes:
        count *= n
    return count


def shape_text(shape: Shape) -> str:
    """A shape as the graph's text has it, with the names of symbols."""
    sizes = [
        s if isinstance(s, str) else f"?{n}" if s else str(n)
        for n, s in zip(shape.sizes, shape.symbols or (False,) * len(shape.sizes), strict=True)
    ]
    return f"{shape.dtype}[{', '.join(sizes)}]"


def node_text(node: Node) -> str:
    """A node's operator, without its namespace and ``default``."""
    return node.call.op.removeprefix("aten.").removesuffix(".default")


def size_text(count: int) -> str:
    """Bytes, rounded."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    raise AssertionError(unit)


def render(about: dict[str, Any]) -> str:
    """A description for people."""
    made = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    own = [w for w in about["weights"].values() if not w["shares"]]
    lines = [
        f"{about['path']}: {size_text(about['bytes'])}, format {about['format_version']}, by {made}",
        f"backend {about['backend']}, target {about['target']}, fallback {about['fallback']}",
    ]
    for name, m in about["methods"].items():
        taken = ", ".join(f"{n}: {t}" for n, t in m["inputs"].items())
        lines += ["", f"{name}({taken}) -> {', '.join(m['results'])}"]
        for symbol, limits in m["symbols"].items():
            upper = "" if limits["max"] is None else f" to {limits['max']}"
            lines.append(f"  {symbol} from {limits['min']}{upper}")
        if m["state"]:
            lines.append(f"  changes {', '.join(m['state'])}")
        lines.append(f"  captured in {m['mode']} mode" + (f", options {m['options']}" if m["options"] else ""))
        for part, p in m["partitions"].items():
            lines.append(
                f"  {part} on {p['backend']}: {p['nodes']} nodes, payload {size_text(p['payload_bytes'])}; "
                f"in {_crossing(p['in'])}, out {_crossing(p['out'])}"
                + ("; its graph is kept for the interpreter" if p["has_graph"] else "")
            )
        if m["interpreter"]:
            listed = ", ".join(f"{op} ×{n}" if n > 1 else op for op, n in m["interpreter"].items())
            lines.append(f"  interpreter: {sum(m['interpreter'].values())} nodes: {listed}")
            lines += [f"    {refusal}" for refusal in m["refusals"]]
    weights = about["members"].get("weights.safetensors", {"bytes": 0})["bytes"]
    lines += ["", f"{len(own)} weights, {size_text(weights)}" + _tied(about)]
    if about["attributes"]:
        lines.append(f"attributes {', '.join(about['attributes'])}")
    width = max(map(len, about["members"]), default=0)
    lines += [f"  {n:<{width}}  {m['bytes']:>12}  {m['blake2b']}" for n, m in about["members"].items()]
    return "\n".join(lines)


def _crossing(c: dict[str, int]) -> str:
    return f"{c['tensors']} tensor{'s' if c['tensors'] != 1 else ''}, {size_text(c['bytes'])}"


def _tied(about: dict[str, Any]) -> str:
    tied = [f"{n} is {w['shares']}" for n, w in about["weights"].items() if w["shares"]]
    return f"; tied: {', '.join(tied)}" if tied else ""

"""A saved module as one self-contained page: its methods as drawings, partitions as boxes, sizes at every step.

All texts of a file are escaped: the file may come from a stranger.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from torchport_runtime.command.description import describe, node_text, render, shape_text, size_text
from torchport_runtime.command.layout import Box, place
from torchport_runtime.command.leaves import input_names, result_names
from torchport_runtime.errors import IRSyntaxError
from torchport_runtime.manifest import Method
from torchport_runtime.plain import LEAF, PARTITION, Graph, Node, parse_graph
from torchport_runtime.saved_module import SavedModule

MOST_BOXES = 4000
_HEIGHT = 40

_NOTHING_FROM_OUTSIDE = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
_STYLE = """
:root { color-scheme: light dark; --line: #8894a5; --ink: #1c2530; --paper: #ffffff; --input: #dbe9fb;
  --operator: #f1f3f6; --part: #d9f2dd; --result: #fde8cf; }
@media (prefers-color-scheme: dark) { :root { --line: #6b7789; --ink: #e6ebf1; --paper: #14181d; --input: #1d3557;
  --operator: #262d36; --part: #1f4a2a; --result: #5a3d16; } }
body { margin: 2rem; font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
pre { overflow-x: auto; font-size: 12px; }
.drawing { overflow: auto; border: 1px solid var(--line); border-radius: 6px; max-height: 80vh; }
svg text { font: 11.5px ui-monospace, monospace; fill: var(--ink); text-anchor: middle; }
svg rect { stroke: var(--line); rx: 5px; } svg path { stroke: var(--line); fill: none; }
.input rect { fill: var(--input); } .operator rect { fill: var(--operator); }
.part rect { fill: var(--part); stroke-width: 2; } .result rect { fill: var(--result); }
.shape { opacity: .75; font-size: 10.5px; }
details { margin: .6rem 0; } summary { cursor: pointer; }
"""


def page(saved: SavedModule) -> str:
    """The page's text."""
    about = describe(saved)
    body = [
        f"<h1>{escape(saved.path.name)}</h1>",
        f"<p>{escape(size_text(about['bytes']))}, lowered to <b>{escape(about['backend'])}</b>, target "
        f"{escape(about['target'])}, fallback {escape(about['fallback'])}</p>",
    ]
    for name, method in saved.manifest.methods.items():
        body += _method(saved, name, method)
    body += ["<h2>Everything</h2>", f"<pre>{escape(render(about))}</pre>"]
    head = f'<meta charset="utf-8">{_NOTHING_FROM_OUTSIDE}<title>{escape(saved.path.name)}</title>'
    lines = ["<!doctype html>", f'<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>', *body]
    return "\n".join([*lines, "</body></html>", ""])


def _method(saved: SavedModule, name: str, method: Method) -> list[str]:
    graph = parse_graph(saved.graphs[method.graph])
    inputs = input_names(method)
    labels = [(inputs[int(which)] if kind == "user" else "", f"{kind} {which}") for kind, which in method.arguments]
    results = iter(result_names(method))
    tensors = [n for n, slot in zip(results, method.outputs, strict=True) if slot.kind == "tensor"]
    ends = iter(tensors)
    named = [next(ends) if kind == "user" else f"{kind} {which}" for kind, which in method.results]
    lines = [f"<h2>{escape(name)}</h2>", _drawing(_boxes(graph, labels, named, method))]
    for part, partition in method.partitions.items():
        inner = _graph_of(saved, partition.graph, partition.payload)
        call = next(n for n in graph.nodes if n.call.op == PARTITION and n.call.args[0] == part)
        title = f"{part} on {partition.backend}: {partition.node_count} nodes"
        if inner is None:
            lines.append(f"<p>{escape(title)}; what is in it is the backend's own.</p>")
            continue
        where = {id(n): label for n, label in zip(graph.parameters, labels, strict=False)}
        own = [where.get(id(v.node), (f"input {i}", "from outside")) for i, v in enumerate(call.operands)]
        drawn = _drawing(_boxes(inner, own, [f"result {i}" for i in range(len(inner.results))], None))
        lines.append(f"<details open><summary>{escape(title)}</summary>{drawn}</details>")
    return lines


def _graph_of(saved: SavedModule, member: str, payload: str) -> Graph | None:
    """The graph of a part: the one that was kept for the interpreter, or a payload that is a graph's text."""
    try:
        return parse_graph(saved.graphs[member] if member else bytes(saved.payloads[payload]).decode())
    except (IRSyntaxError, UnicodeDecodeError):
        return None


def _boxes(graph: Graph, labels: Sequence[tuple[str, str]], results: Sequence[str], method: Method | None) -> list[Box]:
    """The boxes of a graph; weights have none, the hints of their users name them."""
    boxes: list[Box] = []
    at: dict[int, int] = {}
    weights: dict[int, str] = {}
    parameters = iter(labels)
    for node in graph.nodes:
        if node.call.op == LEAF:
            shown, source = next(parameters, ("", ""))
            shape = node.call.outputs[0]
            text = shape_text(shape) if shape is not None else ""
            if shown:
                at[id(node)] = len(boxes)
                boxes.append(Box((shown, text), "input", f"{source}: {text}"))
            else:
                weights[id(node)] = f"{source}: {text}"
            continue
        at[id(node)] = len(boxes)
        sources = tuple(dict.fromkeys(at[id(v.node)] for v in node.operands if id(v.node) in at))
        boxes.append(Box(_lines(node, method), _kind(node), _hint(node, weights), sources))
    for name, value in zip(results, graph.results, strict=True):
        if id(value.node) in at:
            boxes.append(Box((name, shape_text(value.shape)), "result", f"result {name}", (at[id(value.node)],)))
    return boxes


def _kind(node: Node) -> str:
    return "part" if node.call.op == PARTITION else "operator"


def _lines(node: Node, method: Method | None) -> tuple[str, ...]:
    shapes = [shape_text(s) for s in node.call.outputs if s is not None]
    below = shapes[0] if len(shapes) == 1 else f"{len(shapes)} results"
    if node.call.op != PARTITION or method is None:
        return node_text(node), below
    part = method.partitions[str(node.call.args[0])]
    return f"{node.call.args[0]} on {part.backend}, {part.node_count} nodes", below


def _hint(node: Node, weights: dict[int, str]) -> str:
    shapes = ", ".join(shape_text(s) for s in node.call.inputs)
    out = ", ".join(shape_text(s) for s in node.call.outputs if s is not None)
    lines = [f"{node.call.op}({shapes}) -> {out}"]
    lines += [weights[id(v.node)] for v in node.operands if id(v.node) in weights]
    if node.location:
        lines.append(str(node.location))
    return "\n".join(lines)


def _drawing(boxes: list[Box]) -> str:
    if len(boxes) > MOST_BOXES:
        return f"<p>{len(boxes)} nodes are too many to draw.</p>"
    width, height = place(boxes)
    parts: list[Any] = [f'<div class="drawing"><svg width="{width:.0f}" height="{height:.0f}" role="img">']
    for box in boxes:
        for j in box.sources:
            source = boxes[j]
            y0, y1 = source.y + _HEIGHT / 2, box.y - _HEIGHT / 2
            bend = max(12.0, (y1 - y0) / 2)
            parts.append(
                f'<path d="M{source.x:.1f} {y0:.1f}C{source.x:.1f} {y0 + bend:.1f} {box.x:.1f} {y1 - bend:.1f} '
                f'{box.x:.1f} {y1:.1f}"/>'
            )
    for box in boxes:
        x, y = box.x - box.width / 2, box.y - _HEIGHT / 2
        parts.append(
            f'<g class="{box.kind}"><title>{escape(box.hint)}</title>'
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{_HEIGHT}"/>'
            f'<text x="{box.x:.1f}" y="{box.y - 3:.1f}">{escape(box.lines[0])}</text>'
            f'<text class="shape" x="{box.x:.1f}" y="{box.y + 12:.1f}">{escape(box.lines[1])}</text></g>'
        )
    parts.append("</svg></div>")
    return "".join(parts)

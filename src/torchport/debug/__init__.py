"""Looking inside: the graph behind tensors, what the backend made of it, and why things happened.

``explain()`` is the one to start with.
"""

from torchport.debug.explanation import explain
from torchport.debug.text import backend_text, graph_hash, ir_text

__all__ = ["backend_text", "explain", "graph_hash", "ir_text"]

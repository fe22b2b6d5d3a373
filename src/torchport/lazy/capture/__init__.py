"""Captured steps: traced until two traces agree, then replayed without tracing.

``record`` watches one run of the step; ``explain`` says where its numbers come from; ``guards`` says when it may be
replayed; ``program`` replays it; ``captured_step`` decides which of these a call is.
"""

from torchport.lazy.capture.captured_step import CapturedStep, capture

__all__ = ["CapturedStep", "capture"]

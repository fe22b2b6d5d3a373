"""The second door: a module is captured and lowered ahead of time, saved, and run where PyTorch may be missing."""

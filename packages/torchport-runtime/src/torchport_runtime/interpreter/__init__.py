"""Graphs in numpy: what runs between a backend's parts, and in its place where it is missing."""

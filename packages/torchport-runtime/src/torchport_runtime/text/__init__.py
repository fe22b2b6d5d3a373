"""The text form of graphs, without PyTorch: one grammar, whoever makes what of it."""

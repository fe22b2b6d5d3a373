"""Runs modules that torchport has lowered and saved, on machines without PyTorch."""

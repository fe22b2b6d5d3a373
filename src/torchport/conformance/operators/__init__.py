"""Operators: calls that PyTorch's own test database makes, replayed on the device."""

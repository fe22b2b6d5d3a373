"""``torchport-runtime run`` and ``torchport-runtime inspect``; torchport's own commands of these names build on it."""

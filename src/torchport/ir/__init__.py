"""The intermediate representation: one graph of functional ATen operators, whichever door it came through."""

"""The built-in backends, one folder each. They are found by entry point, as a stranger's is; nothing imports them."""

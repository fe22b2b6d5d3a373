"""Door 1, the lazy device: operations are traced, and launched at a barrier or when a value is read."""

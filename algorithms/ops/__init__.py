"""The operations in the paper's lines, each forward pass beside its hand-derived backward pass."""

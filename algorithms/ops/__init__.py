"""The operations that the paper's lines use, each forward beside its backward pass derived by hand."""

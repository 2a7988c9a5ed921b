"""What turns plain functions into public ones: the signature checked, compiled, the backward pass registered."""

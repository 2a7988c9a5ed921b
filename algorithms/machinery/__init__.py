"""What turns plain functions into public ones: their signature checked, the function compiled, its backward pass set."""

"""The training loop: steps, optimizers, progress, and what went wrong."""

"""The training loop: steps, optimizers, progress and diagnosis."""

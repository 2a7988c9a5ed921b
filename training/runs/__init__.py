"""A run on the disk: its directory, checkpoints and metrics."""

"""What a run leaves on the disk: its directory, checkpoints and metrics."""

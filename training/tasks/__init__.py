"""The four tasks: what is minimized, and the model of each."""

"""The four tasks: what is minimised, and the model of each."""

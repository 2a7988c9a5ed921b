"""What a model is made of: its parameters, sizes, variants, and how the parameters start."""

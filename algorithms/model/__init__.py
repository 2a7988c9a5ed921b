"""Models: their lines, variants, sizes, and the shapes and initial values of their parameters."""

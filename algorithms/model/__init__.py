"""Models: lines, variants, sizes, shapes of parameters, and their initialization."""

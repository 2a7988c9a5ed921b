"""How good a trained model is on held-out data."""

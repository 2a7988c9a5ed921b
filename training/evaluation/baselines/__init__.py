"""Simpler methods to compare a trained model with."""

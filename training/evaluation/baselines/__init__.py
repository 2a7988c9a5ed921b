"""Simpler methods, to hold a trained model against."""

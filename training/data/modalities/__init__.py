"""Gato's modalities: what text, images, discrete values and episodes of control are as one sequence of columns."""

"""Gato's modalities: text, images, discrete values and episodes of control, as sequences of columns."""

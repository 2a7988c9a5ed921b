"""Gato's modalities: text, images and discrete values, as sequences of columns."""

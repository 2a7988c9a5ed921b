"""Read and write other libraries' checkpoints: see `pretrained`."""

from training.interchange.errors import InterchangeError
from training.interchange.pretrained import convert, load_model, load_pretrained, load_quantized, save_pretrained

__all__ = ["InterchangeError", "convert", "load_model", "load_pretrained", "load_quantized", "save_pretrained"]

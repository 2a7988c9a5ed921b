"""Algorithms 14 and 15 for use: see `generating`."""

from training.generation.continuation import Continuation, Generator
from training.generation.generating import Translator, generate, translate
from training.generation.sampling import Sampling

__all__ = ["Continuation", "Generator", "Sampling", "Translator", "generate", "translate"]

"""The fifteen algorithms by number."""

from .pseudocode import Algorithm
from .pseudocode_components import COMPONENTS
from .pseudocode_training import TRAINING_AND_INFERENCE
from .pseudocode_transformers import TRANSFORMERS

__all__ = ["PSEUDOCODE"]

PSEUDOCODE: dict[int, Algorithm] = {a.number: a for a in (*COMPONENTS, *TRANSFORMERS, *TRAINING_AND_INFERENCE)}
"""Number of an algorithm → what the paper prints."""

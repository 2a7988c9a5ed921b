"""The wrong edits of the code, in one table: what each test must catch, and what the cross-check must locate."""

from .mutation import Mutation
from .of_attention import OF_ATTENTION
from .of_components import OF_COMPONENTS
from .of_family import OF_FAMILY
from .of_inference import OF_INFERENCE
from .of_inside import OF_INSIDE
from .of_models import OF_MODELS
from .of_practice import OF_PRACTICE

__all__ = ["MUTATIONS"]

MUTATIONS: dict[str, Mutation] = (
    OF_COMPONENTS | OF_ATTENTION | OF_MODELS | OF_INFERENCE | OF_FAMILY | OF_PRACTICE | OF_INSIDE
)
"""What was changed → the edit; at least one for every algorithm."""

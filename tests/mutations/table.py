"""The wrong edits of `algorithms/`, in one table: what each test must catch, and what the cross-check must locate."""

from .mutation import Mutation
from .of_components import OF_COMPONENTS
from .of_family import OF_FAMILY
from .of_models import OF_MODELS

__all__ = ["MUTATIONS"]

MUTATIONS: dict[str, Mutation] = OF_COMPONENTS | OF_MODELS | OF_FAMILY
"""What was changed → the edit, in the order of the paper; at least one for every algorithm."""

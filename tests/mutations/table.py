"""The wrong edits of the code, in one table: what each test must catch, and what the cross-check must locate."""

from .mutation import Mutation
from .of_attention import ATTENTION_MUTATIONS
from .of_components import COMPONENT_MUTATIONS
from .of_conversations import CONVERSATION_MUTATIONS
from .of_family import FAMILY_MUTATIONS
from .of_inference import INFERENCE_MUTATIONS
from .of_inside import INSIDE_MUTATIONS
from .of_models import MODEL_MUTATIONS
from .of_practice import PRACTICE_MUTATIONS

__all__ = ["MUTATIONS"]

MUTATIONS: dict[str, Mutation] = (
    COMPONENT_MUTATIONS
    | ATTENTION_MUTATIONS
    | MODEL_MUTATIONS
    | INFERENCE_MUTATIONS
    | FAMILY_MUTATIONS
    | PRACTICE_MUTATIONS
    | CONVERSATION_MUTATIONS
    | INSIDE_MUTATIONS
)
"""What was changed → the edit; at least one for every algorithm."""

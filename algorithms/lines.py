"""The lines of Algorithms 8 to 10 that published models change: the parts of a `Variant`."""

from algorithms.machinery.contract import array
from algorithms.model.attention import Attention, Read
from algorithms.model.distances import ALiBi, Distances, TransformerXL
from algorithms.model.embedding import Embedding
from algorithms.model.line import Line
from algorithms.model.mlp import MLP
from algorithms.model.norm import LayerNorm, RMSNorm
from algorithms.model.positions import Linear, Llama3, Rotary, Yarn
from algorithms.model.unembedding import Unembedding

__all__ = [
    "MLP",
    "ALiBi",
    "Attention",
    "Distances",
    "Embedding",
    "LayerNorm",
    "Line",
    "Linear",
    "Llama3",
    "RMSNorm",
    "Read",
    "Rotary",
    "TransformerXL",
    "Unembedding",
    "Yarn",
    "array",
]

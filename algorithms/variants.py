"""What published models change in the paper's algorithms, by name. Everything else is the pseudocode."""

import dataclasses
from typing import Literal

__all__ = ["BERT", "GPT2", "PAPER", "VASWANI", "Variant"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """The differences between a published model and the pseudocode. Hashable, so that it can be a static argument.

    Attributes:
        name: what the variant is called in messages and in run directories.
        norm: ``"layer_norm"`` (Algorithm 6) or ``"rms_norm"`` (the same with m = β = 0).
        epsilon: added to the variance under the square root of Algorithm 6; 0 in the paper.
        activation: nonlinearity of the MLPs and of line 10 of Algorithm 9; None is the paper's (ReLU in Algorithm 8,
            GELU by the error function in 9 and 10), ``"gelu_tanh"`` is GPT-2's approximation.
        positions: ``"learned"`` reads W_p; ``"sinusoidal"`` uses sin and cos of t/10000^{2i/d_e} where W_p is None.
        scale_embedding: multiply the token embedding by √d_e before the position is added.
        normalize_embedding: whether the initialiser of Algorithm 9 makes a norm for the embeddings, as in BERT.
        unembedding_bias: whether the initialiser of Algorithm 9 makes an output bias b_u, as in BERT.
        tied: whether initialisers leave W_u out by default, so that W_u = W_eᵀ.
        dropout: probability to drop an attention weight and an activation of the MLP, where a key is given.
    """

    name: str
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    epsilon: float = 0.0
    activation: Literal["relu", "gelu", "gelu_tanh"] | None = None
    positions: Literal["learned", "sinusoidal"] = "learned"
    scale_embedding: bool = False
    normalize_embedding: bool = False
    unembedding_bias: bool = False
    tied: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        choices = {
            "norm": ("layer_norm", "rms_norm"),
            "activation": ("relu", "gelu", "gelu_tanh", None),
            "positions": ("learned", "sinusoidal"),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"Variant.{field}: expected one of {allowed}, got {getattr(self, field)!r}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"Variant.dropout: expected a probability in [0, 1), got {self.dropout}")
        if not self.epsilon >= 0.0:
            raise ValueError(f"Variant.epsilon: expected a number >= 0, got {self.epsilon}")


PAPER = Variant(name="PAPER")
"""Phuong and Hutter 2022: the pseudocode and nothing else."""

VASWANI = Variant(
    name="VASWANI", epsilon=1e-6, activation="relu", positions="sinusoidal", scale_embedding=True, tied=True
)
"""Vaswani et al. 2017: sinusoidal positions, embeddings scaled by √d_e, tied unembedding (ε of sources/003, §12.1)."""

BERT = Variant(
    name="BERT", epsilon=1e-12, activation="gelu", normalize_embedding=True, unembedding_bias=True, tied=True
)
"""Devlin et al. 2018: Algorithm 9 with normalised embeddings and an output bias. Segment embeddings are part of W_p."""

GPT2 = Variant(name="GPT2", epsilon=1e-5, activation="gelu_tanh", tied=True)
"""Radford et al. 2019: Algorithm 10 with GELU by its tanh approximation (sources/002) and tied unembedding."""

"""What published models change in the paper's algorithms, by name. Everything else is the pseudocode."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax

from algorithms.machinery.contract import Relation
from algorithms.parameters import LayerNormParams

Norm = Literal["layer_norm", "rms_norm"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Positions = Literal["learned", "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq"]


_OPTIONAL = {
    "embedding_norm": "normalize_embedding",
    "b_u": "unembedding_bias",
    "W_f": "head",
    "W_pool": "pooler",
    "encoder_norm": "final_norm",
    "decoder_norm": "final_norm",
}
"""Parameters that a model may have or lack, and the fields of its variant that say so."""


def _check_goes_with(arguments: Mapping[str, Any]) -> None:
    """Check that a variant can be that of the parameters, and that there is a key for its dropout.

    Raises:
        ValueError: if one of that is not so.
    """
    variant, theta = arguments["variant"], arguments["theta"]
    if variant.dropout and arguments.get("key") is None:
        raise ValueError(
            f"key: variant {variant.name} drops activations with probability {variant.dropout}, which needs a key; "
            "give key=jax.random.key(seed), or variant=variant.without_dropout()"
        )
    _check_positions(variant, theta, arguments)
    norms = jax.tree.leaves(theta, is_leaf=lambda node: isinstance(node, LayerNormParams))
    has_beta = {norm.beta is not None for norm in norms if isinstance(norm, LayerNormParams)}
    if has_beta != {variant.norm == "layer_norm"}:
        raise ValueError(
            f"theta: variant {variant.name} has the norm {variant.norm}, "
            + ("of which these parameters lack β" if variant.norm == "layer_norm" else "but these parameters have a β")
            + "; use the variant that they were made for"
        )
    for field, flag in _OPTIONAL.items():
        if getattr(theta, field, None) is not None and not getattr(variant, flag):
            raise ValueError(
                f"theta.{field}: expected None, since variant {variant.name} has {flag}=False, got parameters; "
                "use the variant that they were made for, such as BERT"
            )
    if theta.W_u is None and getattr(theta, "W_f", None) is not None and theta.W_f.shape[0] != theta.W_e.shape[0]:
        d_f, d_e = theta.W_f.shape[0], theta.W_e.shape[0]
        raise ValueError(f"theta.W_u: a tied unembedding needs d_f = d_e = {d_e}, got d_f = {d_f}; give W_u")


def _check_positions(variant: "Variant", theta: Any, arguments: Mapping[str, Any]) -> None:
    if theta.W_p is None and variant.positions == "learned":
        raise ValueError(
            f"theta.W_p: expected an array [d_e, l_max], since variant {variant.name} has learned positions, got None; "
            "use a variant with sinusoidal positions, or W_p = sinusoidal_positional_embedding(d_e, l_max)"
        )
    if theta.W_p is not None and variant.positions != "learned":
        raise ValueError(
            f"theta.W_p: expected None, since variant {variant.name} has sinusoidal positions, got an array; "
            "use a variant with learned positions, which reads it"
        )
    if theta.W_p is not None and variant.first_position:
        longest = theta.W_p.shape[1] - variant.first_position
        for name in arguments.keys() & {"z", "x"}:
            l = arguments[name].shape[-1]
            if isinstance(l, int) and l > longest:
                raise ValueError(f"{name}: expected at most l_max = {longest} tokens, got {l}; cut it into chunks")


def _check_drops_nothing(arguments: Mapping[str, Any]) -> None:
    variant = arguments["variant"]
    if variant.dropout:
        raise ValueError(
            f"variant: {variant.name} drops activations with probability {variant.dropout}, for which the paper's "
            "training and inference have no key; give variant=variant.without_dropout()"
        )


NO_DROPOUT = Relation(_check_drops_nothing)
"""For functions that train or generate as the paper does: the variant has no dropout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """The differences between a published model and the pseudocode. Hashable, so that it can be a static argument.

    Attributes:
        name: what the variant is called in messages and in run directories.
        norm: ``"layer_norm"`` (Algorithm 6) or ``"rms_norm"`` (the same with m = β = 0).
        epsilon: added to the variance under the square root of Algorithm 6; 0 in the paper.
        activation: nonlinearity of the MLPs and of line 10 of Algorithm 9; None is the paper's (ReLU in Algorithm 8,
            GELU by the error function in 9 and 10), ``"gelu_tanh"`` is GPT-2's approximation.
        norm_first: whether a layer of Algorithm 8 normalizes what its attentions and its MLP read, as in Algorithm 10,
            and not what they have been added to.
        final_norm: whether the initializer of Algorithm 8 makes norms for the last layers' outputs.
        positions: ``"learned"`` reads W_p; where W_p is None, ``"sinusoidal"`` uses sin and cos of t/10000^{2i/d_e} by
            turns, ``"sinusoidal_halves"`` all sines before all cosines, ``"sinusoidal_fairseq"`` likewise with
            10000^{2i/(d_e − 2)}.
        first_position: the number of the first token's position; W_p has as many columns more.
        context_positions: whether the initializer of Algorithm 8 makes a W_p for the context by itself, as in BART.
        scale_embedding: multiply the token embedding by √d_e before the position is added.
        normalize_embedding: whether the initializers of Algorithms 8 and 9 make norms for the embeddings, as in BERT.
        unembedding_bias: whether initializers make an output bias b_u, as in BERT.
        head: whether the initializer of Algorithm 9 makes what lines 10 and 11 read; a bare encoder ends before.
        pooler: whether it makes W_pool and b_pool, with which BERT's classifiers read the first token's encoding.
        tied: whether initializers leave W_u out by default, so that W_u = W_eᵀ.
        dropout: probability to drop an attention weight and an activation of the MLP, which needs a key.
    """

    __expected__ = "a Variant such as PAPER"
    __relation__ = Relation(_check_goes_with)

    name: str
    norm: Norm = "layer_norm"
    epsilon: float = 0.0
    activation: Activation | None = None
    norm_first: bool = False
    final_norm: bool = False
    positions: Positions = "learned"
    first_position: int = 0
    context_positions: bool = False
    scale_embedding: bool = False
    normalize_embedding: bool = False
    unembedding_bias: bool = False
    head: bool = True
    pooler: bool = False
    tied: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        choices = {
            "norm": get_args(Norm),
            "activation": (*get_args(Activation), None),
            "positions": get_args(Positions),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"Variant.{field}: expected one of {allowed}, got {getattr(self, field)!r}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"Variant.dropout: expected a probability in [0, 1), got {self.dropout}")
        if not self.epsilon >= 0.0:
            raise ValueError(f"Variant.epsilon: expected a number >= 0, got {self.epsilon}")

    def without_dropout(self) -> "Variant":
        """The same, dropping nothing: what a trained model is used with."""
        return dataclasses.replace(self, dropout=0.0)


PAPER = Variant(name="PAPER")
"""Phuong and Hutter 2022: the pseudocode and nothing else."""

VASWANI = Variant(
    name="VASWANI", epsilon=1e-6, activation="relu", positions="sinusoidal", scale_embedding=True, tied=True
)
"""Vaswani et al. 2017: sinusoidal positions, embeddings scaled by √d_e, tied unembedding (ε of Vaswani's code)."""

BERT = Variant(
    name="BERT", epsilon=1e-12, activation="gelu", normalize_embedding=True, unembedding_bias=True, tied=True
)
"""Devlin et al. 2018: Algorithm 9 with normalized embeddings and an output bias; token types, if any, by `N_types`."""

GPT2 = Variant(name="GPT2", epsilon=1e-5, activation="gelu_tanh", tied=True)
"""Radford et al. 2019: Algorithm 10 with GELU by its tanh approximation and tied unembedding."""

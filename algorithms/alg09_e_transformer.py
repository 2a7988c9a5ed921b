"""Algorithm 9, the encoder-only transformer, as in BERT: predicts the masked tokens of a sequence."""

from collections.abc import Mapping
from typing import Annotated, Any

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import Lines, lines_of, pad_embeddings, padded, positions_in, zero_padding
from algorithms.machinery.compiled import compiled
from algorithms.machinery.contract import Relation
from algorithms.machinery.naming import numbered
from algorithms.machinery.registry import algorithm
from algorithms.masks import BIDIRECTIONAL, SelfMask
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from algorithms.notation import Implementation, Length, OptionalKey, Remat, Unroll
from algorithms.ops.linear import linear
from algorithms.parameters import ETransformerParams


def _check_has_head(arguments: Mapping[str, Any]) -> None:
    if arguments["theta"].W_f is None:
        raise ValueError("theta.W_f: expected parameters of lines 10 and 11, got a bare encoder's; call e_encoding")


def _check_has_types(arguments: Mapping[str, Any]) -> None:
    if arguments["types"] is not None and arguments["theta"].W_t is None:
        raise ValueError("types: expected None, since theta.W_t is None: these parameters have no token types")


Types = Annotated[Integer[Array, "*#batch l"] | None, Relation(_check_has_types)]
WithHead = Annotated[ETransformerParams, Relation(_check_has_head)]


@algorithm(9, "ETransformer")
@numbered
def e_transformer(
    x: Integer[Array, "*batch l"],
    theta: WithHead,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    types: Types = None,
    mask: SelfMask = BIDIRECTIONAL,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 9: P ← ETransformer(x | θ). The encoder-only transformer, BERT's.

    Column t of P is the distribution of the token at position t, which may be masked in x.

    ``mask`` replaces the mask of line 5. In addition, tokens from ``length`` on are masked.

    Departures: W_u is [N_V, d_f] (the paper prints [N_V, d_e], but multiplies it by d_f rows). Otherwise none with
    ``variant=PAPER``. A token ID outside [0, N_V) makes all columns NaN.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import ETransformerConfig, init_e_transformer
        >>> theta = init_e_transformer(jax.random.key(0), ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> e_transformer(jnp.array([3, 2, 1]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    f = encoder_lines(variant, implementation, key=key)
    X = hidden_state(x, types, theta, mask, length, f)  # lines 1-11
    P = f.unembedding(X, theta)  # return
    return P


def encoder_lines(variant: Variant, implementation: Implementation, **options: Any) -> Lines:
    """The lines of a variant, with the defaults of Algorithm 9."""
    return lines_of(variant, implementation, "gelu", ("norm_last", "norm_first", "no_norm"), **options)


@numbered
def hidden_state(
    x: Integer[Array, "*batch l"], types: Any, theta: Any, mask: Any, length: Any, f: Lines
) -> Float[Array, "d_f *batch l"]:
    """Lines 1-11 of Algorithm 9."""
    X = encoding(x, types, theta, mask, length, f)  # lines 1-9
    X = f.activate(linear(theta.W_f, X, theta.b_f, f.implementation))  # line 10
    X = f.layer_norm(X, theta.norm)  # line 11
    return X


@numbered
def encoding(
    x: Integer[Array, "*batch l"], types: Any, theta: Any, mask: Any, length: Any, f: Lines
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-9 of Algorithm 9: from the tokens to the residual stream after the last layer."""
    t = positions_in(x)  # line 1
    X = f.embedding(zero_padding(x, length), t, theta, types)  # lines 2-3
    X = residual_stream(X, t, theta, mask, length, f)  # lines 4-9
    return X


@numbered
def residual_stream(
    X: Float[Array, "d_e *batch l"], t: Any, theta: Any, mask: Any, length: Any, f: Lines
) -> Float[Array, "d_e *batch l"]:
    """Lines 4-9 of Algorithm 9: from the embeddings to the residual stream after the last layer."""
    X = pad_embeddings(X, theta.W_e if theta.W_in is None else theta.W_in, length)
    mask = padded(mask, length)
    f = f.sharing(theta.distances, X[0], t, theta, both_ways=True)

    def layer(X, theta_l, f):
        W, norm1, mlp, norm2 = theta_l
        X_tilde = f.before(X, norm1)  # X in the paper
        X = X + f.mh_attention(X_tilde, X_tilde, W, mask, t, t)  # line 5
        X = f.after(X, norm1)  # line 6
        X = X + f.mlp(f.before(X, norm2), mlp)  # line 7
        X = f.after(X, norm2)  # line 8
        return X

    X = f.each_layer(layer, X, theta.layers, reads=mask)  # line 4
    return X


# Partial passes, which start or end with an intermediate result


@compiled
def e_hidden_state(
    x: Integer[Array, "*batch l"],
    theta: WithHead,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    types: Types = None,
    mask: SelfMask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_f *batch l"]:
    """Lines 1-11 of Algorithm 9: the encoder's hidden state X, from which W_u predicts the masked tokens."""
    f = encoder_lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return hidden_state(x, types, theta, mask, length, f)


@compiled
def e_encoding(
    x: Integer[Array, "*batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    types: Types = None,
    mask: SelfMask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-9 of Algorithm 9: the residual stream after the last layer, for classifiers and embeddings of texts.

    ``types`` are the tokens' types, such as BERT's first and second sentence, if the parameters embed them; None: all
    tokens have type 0.
    """
    f = encoder_lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return encoding(x, types, theta, mask, length, f)


@compiled
@numbered
def e_embedding(
    x: Integer[Array, "*batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    length: Length = None,
    types: Types = None,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-3 of Algorithm 9: the tokens' embeddings X, the input of `e_layers`."""
    t = positions_in(x)  # line 1
    X = encoder_lines(variant, implementation).embedding(zero_padding(x, length), t, theta, types)  # lines 2-3
    return X


@compiled
def e_layers(
    X: Float[Array, "d_e *batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    mask: SelfMask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 4-9 of Algorithm 9: the layers, starting from embeddings X, whose columns need not be tokens."""
    f = encoder_lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return residual_stream(X, positions_in(X[0]), theta, mask, length, f)

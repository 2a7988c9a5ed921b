"""Algorithm 10, the decoder-only transformer, as in GPT: predicts each next token of a sequence."""

from collections.abc import Mapping
from typing import Annotated, Any

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import Lines, lines_of, pad_embeddings, padded, positions_in, side_by_side, zero_padding
from algorithms.machinery.compiled import compiled
from algorithms.machinery.contract import Relation
from algorithms.machinery.naming import numbered
from algorithms.machinery.registry import algorithm
from algorithms.masks import UNIDIRECTIONAL, SelfMask, documents
from algorithms.model.distances import ByDistance
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from algorithms.notation import Implementation, Length, OptionalKey, Remat, Unroll
from algorithms.parameters import DTransformerParams


def _check_distances(arguments: Mapping[str, Any]) -> None:
    by_distance = any(isinstance(line.positions, ByDistance) for line in arguments["variant"].attentions)
    if by_distance and arguments["positions"] is not None and arguments["segments"] is None:
        raise ValueError(
            "positions: expected None without segments, since the variant's scores depend on the distance of columns, "
            "got an array; give segments, too"
        )


Positions = Integer[Array, "*#batch l"] | None
Segments = Annotated[Integer[Array, "*#batch l"] | None, Relation(_check_distances)]


@algorithm(10, "DTransformer")
@numbered
def d_transformer(
    x: Integer[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 10: P ← DTransformer(x | θ). The decoder-only transformer, GPT's.

    Column t of P is the distribution P̂(x[t+1] | x[1:t]) of the next token.

    ``mask`` replaces the mask of line 6. In addition, the variant's windows apply, and tokens from ``length`` on are
    masked.

    Departures: none with ``variant=PAPER``. A token ID outside [0, N_V) makes its column and all later ones NaN (and,
    since 0 · NaN is NaN, possibly earlier ones).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> d_transformer(jnp.array([3, 0, 1]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    f = decoder_lines(variant, implementation, key=key)
    X = hidden_state(x, None, theta, mask, length, f)  # lines 1-10
    P = f.unembedding(X, theta)  # return
    return P


def decoder_lines(variant: Variant, implementation: Implementation, **options: Any) -> Lines:
    """The lines of a variant, with the defaults of Algorithm 10."""
    return lines_of(variant, implementation, "gelu", ("norm_first", "norm_last", "side_by_side", "no_norm"), **options)


@numbered
def hidden_state(
    x: Integer[Array, "*columns"], t: Any, theta: Any, mask: Any, length: Any, f: Lines
) -> Float[Array, "d_e *columns"]:
    """Lines 1-10 of Algorithm 10, for a whole sequence, or for one token if ``f.attend`` reads a cache."""
    t = positions_in(x) if t is None else t  # line 1
    X = f.embedding(zero_padding(x, length), t, theta)  # lines 2-3
    X = residual_stream(X, t, theta, padded(mask, length), f)  # lines 4-10
    return X


@numbered
def residual_stream(
    X: Float[Array, "d_e *columns"], t: Any, theta: Any, mask: Any, f: Lines
) -> Float[Array, "d_e *columns"]:
    """Lines 4-10 of Algorithm 10: from the embeddings to the hidden state."""
    f = f.sharing(theta.distances, X[0], t, theta)

    def layer(X, theta_l, f):
        W, norm1, mlp, norm2 = theta_l
        X_tilde = f.before(X, norm1)  # line 5
        X = X + f.mh_attention(X_tilde, X_tilde, W, mask, t, t)  # line 6
        X = f.after(X, norm1)
        X_tilde = f.before(X, norm2)  # line 7
        X = X + f.mlp(X_tilde, mlp)  # line 8
        X = f.after(X, norm2)
        return X

    layer = side_by_side(mask, t) if f.order == "side_by_side" else layer
    X = f.each_layer(layer, X, theta.layers, reads=mask)  # line 4
    X = f.layer_norm(X, theta.norm)  # line 10
    return X


# Partial passes, which start or end with an intermediate result


@compiled
def d_hidden_state(
    x: Integer[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    positions: Positions = None,
    segments: Segments = None,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-10 of Algorithm 10: the decoder's hidden state X, from which W_u predicts the next token.

    For packed documents, ``segments`` numbers each token's document, the only one it attends to, and ``positions`` is
    each token's position in its document.
    """
    mask = mask if segments is None else mask & documents(segments)
    f = decoder_lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return hidden_state(x, positions, theta, mask, length, f)


@compiled
@numbered
def d_embedding(
    x: Integer[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    length: Length = None,
    positions: Positions = None,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-3 of Algorithm 10: the tokens' embeddings X, the input of `d_layers`."""
    t = positions_in(x) if positions is None else positions  # line 1
    X = decoder_lines(variant, implementation).embedding(zero_padding(x, length), t, theta)  # lines 2-3
    return X


@compiled
def d_layers(
    X: Float[Array, "d_e *batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    positions: Positions = None,
    segments: Segments = None,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 4-10 of Algorithm 10: the decoder, starting from embeddings X, whose columns need not be tokens.

    ``d_layers(d_embedding(x, theta), theta)`` equals ``d_hidden_state(x, theta)``. X already includes the positional
    embeddings; ``positions`` is for variants whose attention depends on positions.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, d_embedding, init_d_transformer
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_d_transformer(jax.random.key(0), config)
        >>> d_layers(d_embedding(jnp.array([3, 0, 1]), theta), theta).shape
        (6, 3)
    """
    mask = mask if segments is None else mask & documents(segments)
    f = decoder_lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    t = positions_in(X[0]) if positions is None else positions
    return residual_stream(pad_embeddings(X, theta.W_e, length), t, theta, padded(mask, length), f)

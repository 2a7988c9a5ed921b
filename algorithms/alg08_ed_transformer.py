"""Algorithm 8, the encoder-decoder transformer: predicts each next token of a sequence, given a context."""

from typing import Annotated, Any

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import Lines, lines_of, pad_embeddings, padded, positions_in, zero_padding
from algorithms.machinery.compiled import compiled
from algorithms.machinery.contract import Relation
from algorithms.machinery.naming import numbered
from algorithms.machinery.registry import algorithm
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, ContextMask, Mask, PrimaryMask
from algorithms.model.distances import Table
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from algorithms.notation import ContextLength, Implementation, OptionalKey, Remat, Unroll
from algorithms.ops.dropout import fold_in
from algorithms.parameters import EDTransformerParams


def _check_one_for_each(arguments) -> None:
    if arguments["variant"].dropout and arguments["z"].ndim != arguments["x"].ndim:
        raise ValueError(
            "z: expected one context per sequence of x, since dropout draws separately for each, got one for all"
        )


Context = Annotated[Integer[Array, "*#batch l_z"], Relation(_check_one_for_each)]

OWN = "relu", ("norm_last", "norm_first", "no_norm")
"""The activation of Algorithm 8, and the orders that its layers may have, its own first."""


@algorithm(8, "EDTransformer")
@numbered
def ed_transformer(
    z: Context,
    x: Integer[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    z_mask: ContextMask = BIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
) -> Float[Array, "N_V *batch l_x"]:
    """Algorithm 8: P ← EDTransformer(z, x | θ). The encoder-decoder transformer, the original one.

    z is the context, such as a sentence in English, and x the primary sequence, such as its German translation. Column
    t of P is the distribution P̂(x[t+1] | x[1:t], z) of the next token.

    ``mask``, ``z_mask`` and ``cross_mask`` replace the masks of lines 14, 5 and 16. In addition, tokens of z from
    ``z_length`` on are masked.

    Departures: none with ``variant=PAPER``. Whatever depends on a token ID outside [0, N_V) is NaN.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import EDTransformerConfig, init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> ed_transformer(jnp.array([0, 1]), jnp.array([3, 1, 0]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    f = _lines(variant, implementation, key=key)
    X = hidden_state(z, x, theta, (mask, z_mask, cross_mask), z_length, f)  # lines 1-20
    P = f.unembedding(X, theta)  # return
    return P


@numbered
def hidden_state(
    z: Any, x: Integer[Array, "*batch l_x"], theta: Any, masks: tuple[Any, Any, Any], z_length: Any, f: Lines
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 1-20 of Algorithm 8; ``masks`` are those of lines 14, 5 and 16."""
    mask, z_mask, cross_mask = masks
    Z = context_encoding(z, theta, z_mask, z_length, f._replace(key=fold_in(f.key, 0)))  # lines 1-9
    f, t, cross_mask = f._replace(key=fold_in(f.key, 1)), positions_in(x), padded(cross_mask, z_length)
    X = decoder_hidden_state(Z, x, t, theta, mask, cross_mask, f)  # lines 10-20
    return X


@numbered
def context_encoding(
    z: Integer[Array, "*batch l_z"], theta: Any, z_mask: Any, z_length: Any, f: Lines
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 1-9 of Algorithm 8: encode the context sequence."""
    t = positions_in(z)  # line 1
    Z = f.embedding(zero_padding(z, z_length), t, _embedding_of_context(theta))  # lines 2-3
    Z = context_residual_stream(Z, t, theta, padded(z_mask, z_length), f)  # lines 4-9
    return Z


@numbered
def context_residual_stream(
    Z: Float[Array, "d_e *batch l_z"], t: Any, theta: Any, z_mask: Any, f: Lines
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 4-9 of Algorithm 8: from the embeddings to the encoded context."""
    f = f._replace(table=Table(theta.encoder_distances, both_ways=True))

    def layer(Z, theta_l, f):
        W_enc, norm1, mlp, norm2 = theta_l
        Z_tilde = f.before(Z, norm1)  # Z in the paper
        Z = Z + f.mh_attention(Z_tilde, Z_tilde, W_enc, z_mask, t, t)  # line 5
        Z = f.after(Z, norm1)  # line 6
        Z = Z + f.mlp(f.before(Z, norm2), mlp)  # line 7
        Z = f.after(Z, norm2)  # line 8
        return Z

    Z = f.each_layer(layer, Z, theta.encoder, reads=z_mask)  # line 4
    return f.layer_norm(Z, theta.encoder_norm)


@numbered
def decoder_hidden_state(
    Z: Any, x: Integer[Array, "*columns"], t: Any, theta: Any, mask: Any, cross_mask: Any, f: Lines
) -> Float[Array, "d_e *columns"]:
    """Lines 10-20 of Algorithm 8, for a whole sequence, or for one token if ``f.attend`` reads a cache."""
    X = f.embedding(x, t, theta)  # lines 10-12
    X = primary_residual_stream(Z, X, t, theta, mask, cross_mask, f)  # lines 13-20
    return X


@numbered
def primary_residual_stream(
    Z: Any, X: Float[Array, "d_e *columns"], t: Any, theta: Any, mask: Any, cross_mask: Any, f: Lines
) -> Float[Array, "d_e *columns"]:
    """Lines 13-20 of Algorithm 8: from the embeddings to the hidden state."""
    f = f._replace(table=Table(theta.decoder_distances))

    def layer(X, theta_l, f):
        W_dec, norm3, W_ed, norm4, mlp, norm5 = theta_l
        X_tilde = f.before(X, norm3)  # X in the paper
        X = X + f.mh_attention(X_tilde, X_tilde, W_dec, mask, t, t)  # line 14
        X = f.after(X, norm3)  # line 15
        X = X + f.mh_attention(f.before(X, norm4), Z, W_ed, cross_mask, t, None)  # line 16
        X = f.after(X, norm4)  # line 17
        X = X + f.mlp(f.before(X, norm5), mlp)  # line 18
        X = f.after(X, norm5)  # line 19
        return X

    X = f.each_layer(layer, X, theta.decoder, reads=(Z, mask, cross_mask), draws=3)  # line 13
    return f.layer_norm(X, theta.decoder_norm)


def _embedding_of_context(theta: EDTransformerParams) -> EDTransformerParams:
    """θ with the context's own W_e, W_p and norm of the embeddings, where it has them."""
    own = {} if theta.context is None else theta.context._asdict()
    return theta._replace(**{name: array for name, array in own.items() if array is not None})


# Partial passes, which start or end with an intermediate result


@compiled
def ed_hidden_state(
    z: Context,
    x: Integer[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    z_mask: ContextMask = BIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 1-20 of Algorithm 8: the decoder's hidden state X, from which W_u predicts the next token."""
    f = _lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return hidden_state(z, x, theta, (mask, z_mask, cross_mask), z_length, f)


@compiled
def ed_encoding(
    z: Integer[Array, "*batch l_z"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    z_length: ContextLength = None,
    z_mask: ContextMask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 1-9 of Algorithm 8: encode the context sequence."""
    f = lines_of(variant, implementation, *OWN, key=key, remat=remat, unroll=unroll)
    return context_encoding(z, theta, z_mask, z_length, f)


@compiled
def ed_encoder_layers(
    Z: Float[Array, "d_e *batch l_z"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    z_length: ContextLength = None,
    z_mask: ContextMask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 4-9 of Algorithm 8: the encoder, starting from embeddings Z, whose columns need not be tokens."""
    f = lines_of(variant, implementation, *OWN, key=key, remat=remat, unroll=unroll)
    Z = pad_embeddings(Z, theta.W_e, z_length)
    return context_residual_stream(Z, positions_in(Z[0]), theta, padded(z_mask, z_length), f)


@compiled
def ed_decoding(
    Z: Float[Array, "d_e *#batch l_z"],
    x: Integer[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 10-20 of Algorithm 8: decode the primary sequence, conditioning on the encoded context Z."""
    f = _lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return decoder_hidden_state(Z, x, positions_in(x), theta, mask, padded(cross_mask, z_length), f)


@compiled
def ed_decoder_layers(
    Z: Float[Array, "d_e *#batch l_z"],
    X: Float[Array, "d_e *batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: OptionalKey = None,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
    remat: Remat = False,
    unroll: Unroll = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 13-20 of Algorithm 8: the decoder, starting from embeddings X, whose columns need not be tokens."""
    f = _lines(variant, implementation, key=key, remat=remat, unroll=unroll)
    return primary_residual_stream(Z, X, positions_in(X[0]), theta, mask, padded(cross_mask, z_length), f)


def _lines(variant: Variant, implementation: Implementation, **options: Any) -> Lines:
    """The lines of a variant, if they suit line 16, whose queries and keys belong to different sequences."""
    if variant.embedding.positions == "in_attention":
        raise ValueError(
            "variant.embedding.positions: expected a value other than 'in_attention' in Algorithm 8, since the queries "
            "and keys of its line 16 belong to different sequences"
        )
    if not all(line.positions is None or line.positions.in_context for line in variant.attentions):
        raise ValueError(
            "variant.attention: expected positions of None, Distances or ALiBi in Algorithm 8, since the queries and "
            "keys of its line 16 belong to different sequences"
        )
    return lines_of(variant, implementation, *OWN, **options)

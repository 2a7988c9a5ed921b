"""Algorithm 8, the encoder-decoder transformer: predicts each next token of a sequence, given a context."""

# pyright: reportGeneralTypeIssues=false
# The name of a loop's body is bound to what comes out of the loop, and its decorator reads what goes in.

from typing import Any, Unpack

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import Lines, lines_of
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import algorithm, compiled, takes_what
from algorithms.machinery.naming import numbered
from algorithms.machinery.options import dropout_key
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, ContextMask, Mask, PrimaryMask, StructuralMask, in_documents
from algorithms.model.theta import EDTransformerParams
from algorithms.notation import ContextLength, LoopOptions, Options
from algorithms.ops.activation import relu
from algorithms.ops.dropout import fold_in


@algorithm(8, "EDTransformer")
def ed_transformer(
    z: Integer[AnyArray, "*#batch l_z"],
    x: Integer[AnyArray, "*batch l_x"] | Float[AnyArray, "d_e *batch l_x"],
    theta: EDTransformerParams,
    *,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    z_mask: ContextMask = BIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
    **options: Unpack[Options],
) -> Float[Array, "N_V *batch l_x"]:
    """Algorithm 8: P ← EDTransformer(z, x | θ). The encoder-decoder transformer, the original one.

    z is the context, such as a sentence in English, and x the primary sequence, such as its German translation. Column
    t of P is the distribution P̂(x[t+1] | x[1:t], z) of the next token. ``mask``, ``z_mask`` and ``cross_mask`` replace
    the masks of lines 14, 5 and 16, where tokens of z from ``z_length`` on are masked, too.
    Departures: none with ``theta.variant == PAPER``. Whatever depends on a token ID outside [0, N_V) is NaN.

    Example:
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> ed_transformer(jnp.array([0, 1]), jnp.array([3, 1, 0]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    masks: Any = {"z_length": z_length, "mask": mask, "z_mask": z_mask, "cross_mask": cross_mask}
    X = ed_hidden_state(z, x, theta, **masks)  # lines 1-20
    P = theta.variant.unembedding(X, theta)  # return
    return P


@compiled
def ed_encoding(
    z: Integer[AnyArray, "*batch l_z"] | Float[AnyArray, "d_e *batch l_z"],
    theta: EDTransformerParams,
    *,
    z_length: ContextLength = None,
    z_mask: ContextMask = BIDIRECTIONAL,
    z_segments: Integer[AnyArray, "*#batch l_z"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 1-9 of Algorithm 8: encode the context sequence."""
    z_mask, positions = in_documents(z_mask, z_segments)
    f = lines_of("encoder of Algorithm 8", z, theta, length=z_length, positions=positions)
    Z = f.embedding(z, of_context(theta))  # lines 1-3

    @f.each_layer(Z, theta.encoder, z_mask)  # line 4
    def Z(Z, W, f, mask):
        Z = Z + f.mh_attention(Z, W.attention, mask)  # line 5
        Z = f.layer_norm(Z, W.norm1)  # line 6
        Z = Z + f.mlp(Z, W.mlp, relu)  # line 7
        Z = f.layer_norm(Z, W.norm2)  # line 8
        return Z

    Z = f.layer_norm(Z, theta.encoder_norm)  # line 9: end; with a norm, if a model has one here
    return Z


@compiled
def ed_decoding(
    Z: Float[AnyArray, "d_e *#batch l_z"],
    x: Integer[AnyArray, "*batch l_x"] | Float[AnyArray, "d_e *batch l_x"],
    theta: EDTransformerParams,
    *,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
    z_segments: Integer[AnyArray, "*#batch l_z"] | None = None,
    segments: Integer[AnyArray, "*#batch l_x"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 10-20 of Algorithm 8: decode the primary sequence, conditioning on the encoded context Z.

    Tokens of a document see those of the context whose number in ``z_segments`` is theirs in ``segments``.
    """
    mask, positions = in_documents(mask, segments)
    if segments is not None:
        cross_mask = cross_mask & StructuralMask(documents_z=z_segments, documents_x=segments)
    f = lines_of("decoder of Algorithm 8", x, theta, z_length=z_length, positions=positions)
    return ed_decoder_lines(f, Z, x, theta, mask, cross_mask)


@numbered
def ed_decoder_lines(
    f: Lines, Z: Any, x: Any, theta: EDTransformerParams, mask: Mask, cross_mask: Mask
) -> Float[Array, "d_e *columns"]:
    """Lines 10-20 of Algorithm 8, with the lines f of θ's variant."""
    X = f.embedding(x, theta)  # lines 10-12

    @f.each_layer(X, theta.decoder, mask, Z, cross_mask)  # line 13
    def X(X, W, f, mask, Z, cross_mask):
        X = X + f.mh_attention(X, W.self_attention, mask)  # line 14
        X = f.layer_norm(X, W.norm3)  # line 15
        X = X + f.mh_attention(X, W.cross_attention, cross_mask, context=Z)  # line 16
        X = f.layer_norm(X, W.norm4)  # line 17
        X = X + f.mlp(X, W.mlp, relu)  # line 18
        X = f.layer_norm(X, W.norm5)  # line 19
        return X

    X = f.layer_norm(X, theta.decoder_norm)  # line 20
    return X


@compiled
def ed_hidden_state(
    z: Integer[AnyArray, "*#batch l_z"],
    x: Integer[AnyArray, "*batch l_x"] | Float[AnyArray, "d_e *batch l_x"],
    theta: EDTransformerParams,
    *,
    z_length: ContextLength = None,
    mask: PrimaryMask = UNIDIRECTIONAL,
    z_mask: ContextMask = BIDIRECTIONAL,
    cross_mask: Mask = BIDIRECTIONAL,
    z_segments: Integer[AnyArray, "*#batch l_z"] | None = None,
    segments: Integer[AnyArray, "*#batch l_x"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 1-20 of Algorithm 8: the decoder's hidden state X, from which W_u predicts the next token."""
    of_z: Any = {"z_length": z_length, "z_segments": z_segments}
    key: Any = dropout_key.get()
    Z = ed_encoding(z, theta, z_mask=z_mask, **of_z, key=fold_in(key, 0))
    masks: Any = of_z | {"mask": mask, "cross_mask": cross_mask, "segments": segments}
    return ed_decoding(Z, x, theta, **masks, key=fold_in(key, 1))


@compiled
@takes_what(ed_hidden_state)
def ed_logits(z: Any, x: Any, theta: EDTransformerParams, **options: Any) -> Float[Array, "N_V *batch l_x"]:
    """The logits of Algorithm 8, before the softmax of its last line, as `d_logits`."""
    return theta.variant.unembedding.logits(ed_hidden_state(z, x, theta, **options), theta)


def of_context(theta: EDTransformerParams) -> EDTransformerParams:
    """θ with the context's own W_e, W_p and norm of the embeddings, where it has them."""
    own = {} if theta.context is None else theta.context._asdict()
    return theta._replace(**{name: array for name, array in own.items() if array is not None})

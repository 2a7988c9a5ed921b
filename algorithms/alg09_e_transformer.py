"""Algorithm 9, the encoder-only transformer, as in BERT: predicts the masked tokens of a sequence."""

# pyright: reportGeneralTypeIssues=false
# The name of a loop's body is bound to what comes out of the loop, and its decorator reads what goes in.

from typing import Any, Unpack

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import lines_of
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import algorithm, compiled, takes_what
from algorithms.masks import BIDIRECTIONAL, SelfMask, in_documents
from algorithms.model.theta import ETransformerParams
from algorithms.notation import Length, LoopOptions, Options
from algorithms.ops.activation import gelu


@algorithm(9, "ETransformer")
def e_transformer(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_in *batch l"],
    theta: ETransformerParams,
    *,
    length: Length = None,
    types: Integer[AnyArray, "*#batch l"] | None = None,
    mask: SelfMask = BIDIRECTIONAL,
    **options: Unpack[Options],
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 9: P ← ETransformer(x | θ). The encoder-only transformer, BERT's.

    Column t of P is the distribution of the token at position t, which may be masked in x. ``mask`` replaces the mask
    of line 5.
    Departures: W_u is [N_V, d_f] (the paper prints [N_V, d_e], but multiplies it by d_f rows). Otherwise none with
    ``theta.variant == PAPER``. A token ID outside [0, N_V) makes all columns NaN.

    Example:
        >>> theta = init_e_transformer(jax.random.key(0), ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> e_transformer(jnp.array([3, 2, 1]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    X = e_hidden_state(x, theta, length=length, types=types, mask=mask)  # lines 1-11
    P = theta.variant.unembedding(X, theta)  # return
    return P


@compiled
def e_encoding(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_in *batch l"],
    theta: ETransformerParams,
    *,
    length: Length = None,
    types: Integer[AnyArray, "*#batch l"] | None = None,
    mask: SelfMask = BIDIRECTIONAL,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-9 of Algorithm 9: the residual stream after the last layer, for classifiers and embeddings of texts."""
    mask, positions = in_documents(mask, segments, positions)
    f = lines_of("Algorithm 9", x, theta, length=length, positions=positions)
    X = f.embedding(x, theta, types)  # lines 1-3

    @f.each_layer(X, theta.layers, mask)  # line 4
    def X(X, W, f, mask):
        X = X + f.mh_attention(X, W.attention, mask)  # line 5
        X = f.layer_norm(X, W.norm1)  # line 6
        X = X + f.mlp(X, W.mlp, gelu)  # line 7
        X = f.layer_norm(X, W.norm2)  # line 8
        return X

    X = f.layer_norm(X, theta.encoder_norm)  # line 9: end; with a norm, if a model has one here
    return X


@compiled
@takes_what(e_encoding)
def e_hidden_state(x: Any, theta: ETransformerParams, **options: Any) -> Float[Array, "d_f *batch l"]:
    """Lines 1-11 of Algorithm 9: the encoder's hidden state X, from which W_u predicts the masked tokens."""
    X = e_encoding(x, theta, **options)  # lines 1-9
    f = lines_of("Algorithm 9", x, theta)
    X = f.projection(X, theta, gelu)  # line 10
    X = f.layer_norm(X, theta.norm)  # line 11
    return X


@compiled
@takes_what(e_hidden_state)
def e_logits(x: Any, theta: ETransformerParams, **options: Any) -> Float[Array, "N_V *batch l"]:
    """The logits of Algorithm 9, before the softmax of its last line, as `d_logits`."""
    return theta.variant.unembedding.logits(e_hidden_state(x, theta, **options), theta)

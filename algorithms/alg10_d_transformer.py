"""Algorithm 10, the decoder-only transformer, as in GPT: predicts each next token of a sequence."""

# pyright: reportGeneralTypeIssues=false
# The name of a loop's body is bound to what comes out of the loop, and its decorator reads what goes in.

from typing import Any, Unpack

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import Lines, lines_of
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import algorithm, compiled, takes_what
from algorithms.machinery.naming import numbered
from algorithms.masks import UNIDIRECTIONAL, SelfMask, in_documents
from algorithms.model.theta import DTransformerParams
from algorithms.notation import Length, LoopOptions, Options
from algorithms.ops.activation import gelu


@algorithm(10, "DTransformer")
def d_transformer(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_e *batch l"],
    theta: DTransformerParams,
    *,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    **options: Unpack[Options],
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 10: P ← DTransformer(x | θ). The decoder-only transformer, GPT's.

    Column t of P is the distribution P̂(x[t+1] | x[1:t]) of the next token. ``mask`` replaces the mask of line 6.
    Departures: none with ``theta.variant == PAPER``. A token ID outside [0, N_V) makes its column and all later ones
    NaN (and, since 0 · NaN is NaN, possibly earlier ones).

    Example:
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> d_transformer(jnp.array([3, 0, 1]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    X = d_hidden_state(x, theta, length=length, mask=mask)  # lines 1-10
    P = theta.variant.unembedding(X, theta)  # return
    return P


@numbered
def d_lines(f: Lines, x: Any, theta: DTransformerParams, mask: SelfMask) -> Float[Array, "d_e *columns"]:
    """Lines 1-10 of Algorithm 10, with the lines f of θ's variant."""
    X = f.embedding(x, theta)  # lines 1-3
    f = f.with_inputs(x, X, theta)  # not in the paper: inputs of every layer, as in Gemma 4

    @f.each_layer(X, theta.layers, mask)  # line 4
    def X(X, W, f, mask):
        X_tilde = f.layer_norm(X, W.norm1)  # line 5
        X = X + f.mh_attention(X_tilde, W.attention, mask)  # line 6
        X_tilde = f.layer_norm(X, W.norm2)  # line 7
        X = X + f.mlp(X_tilde, W.mlp, gelu)  # line 8
        return X

    X = f.layer_norm(X, theta.norm)  # line 10
    X = f.projected(X, theta)  # line 10: with lines 10 and 11 of Algorithm 9, if a model has them here
    return X


@compiled
def d_hidden_state(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_e *batch l"],
    theta: DTransformerParams,
    *,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-10 of Algorithm 10: the decoder's hidden state X, from which W_u predicts the next token.

    For packed documents, ``segments`` numbers each token's document; a document is a run of equal numbers. A token sees
    its own document only, and positions restart at 0 in each unless ``positions`` are given.
    """
    mask, positions = in_documents(mask, segments, positions)
    f = lines_of("Algorithm 10", x, theta, length=length, positions=positions)
    return d_lines(f, x, theta, mask)


@compiled
@takes_what(d_hidden_state)
def d_logits(x: Any, theta: DTransformerParams, **options: Any) -> Float[Array, "N_V *batch l"]:
    """The logits of Algorithm 10, before the softmax of its last line: ``W_u X + b_u 1ᵀ``, capped.

    b_u and the cap are the variant's, as is the scale of a tied W_u; the logits are in at least float32. For
    log-probabilities use ``jax.nn.log_softmax(d_logits(x, theta), axis=0)``, since the logarithm of `d_transformer`'s
    probabilities is −∞ where these underflow. The arguments are those of `d_hidden_state`.
    """
    return theta.variant.unembedding.logits(d_hidden_state(x, theta, **options), theta)

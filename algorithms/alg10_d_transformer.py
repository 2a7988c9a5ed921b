"""Algorithm 10, the decoder-only transformer, as in GPT: predicts each next token of a sequence."""

# pyright: reportGeneralTypeIssues=false
# The name of a loop's body is bound to what comes out of the loop, and its decorator reads what goes in.

from jax import Array
from jaxtyping import Float, Integer

from algorithms.layers import PLAIN, How, lines_of
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import algorithm, compiled
from algorithms.machinery.naming import up_to
from algorithms.masks import UNIDIRECTIONAL, SelfMask, documents
from algorithms.model.theta import DTransformerParams
from algorithms.notation import Dropout, FirstLayer, Implementation, Length, OptionalKey, Remat, Unroll


@algorithm(10, "DTransformer")
def d_transformer(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_e *batch l"],
    theta: DTransformerParams,
    *,
    implementation: Implementation = "auto",
    dropout: Dropout = 0.0,
    key: OptionalKey = None,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    how: How = PLAIN,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 10: P ← DTransformer(x | θ). The decoder-only transformer, GPT's.

    Column t of P is the distribution P̂(x[t+1] | x[1:t]) of the next token. ``mask`` replaces the mask of line 6.

    Departures: none with ``theta.variant == PAPER``. A token ID outside [0, N_V) makes its column and all later ones
    NaN (and, since 0 · NaN is NaN, possibly earlier ones).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> d_transformer(jnp.array([3, 0, 1]), theta).sum(axis=0).round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    f = lines_of("Algorithm 10", x, theta, implementation, dropout, key, length=length, how=how)
    X = f.embedding(x, theta)  # lines 1-3

    @f.each_layer(X, theta.layers, theta.first_mlp)  # line 4
    def X(X, W, f):
        X_tilde = f.layer_norm(X, W.norm1)  # line 5
        X = X + f.mh_attention(X_tilde, X_tilde, W.attention, mask)  # line 6
        X_tilde = f.layer_norm(X, W.norm2)  # line 7
        X = X + f.mlp(X_tilde, W.mlp)  # line 8
        return X

    X = f.layer_norm(X, theta.norm)  # line 10
    P = f.unembedding(X, theta)  # return
    return P


@compiled
def d_hidden_state(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_e *batch l"],
    theta: DTransformerParams,
    *,
    implementation: Implementation = "auto",
    dropout: Dropout = 0.0,
    key: OptionalKey = None,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    remat: Remat = False,
    unroll: Unroll = False,
    first_layer: FirstLayer = 0,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-10 of Algorithm 10: the decoder's hidden state X, from which W_u predicts the next token.

    For packed documents, ``segments`` numbers each token's document, the only one it attends to, and ``positions`` is
    each token's position in its document. ``first_layer`` is for a θ with only some of a model's layers: the number of
    the first, from 0, which decides the layers' windows and dropout.
    """
    mask = mask if segments is None else mask & documents(segments)
    how = How(positions=positions, remat=remat, unroll=unroll, hidden=True, first_layer=first_layer)
    options = {"implementation": implementation, "dropout": dropout, "key": key, "length": length}
    with up_to(10, "10"):
        return d_transformer(x, theta, mask=mask, how=how, **options)

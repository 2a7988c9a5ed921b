"""Algorithm 10, the decoder-only transformer of GPT: from a sequence to the distribution of each next token."""

from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg07_unembedding import unembedding, unembedding_matrix
from algorithms.layers import Keys, Steps, for_each_layer
from algorithms.masks import UNIDIRECTIONAL, Mask, documents
from algorithms.model.variants import PAPER, Variant
from algorithms.notation import Implementation, Remat
from algorithms.parameters import DTransformerParams, TransformerLayerParams


def d_transformer(
    x: Integer[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 10: P ← DTransformer(x | θ). The decoder-only transformer, GPT's.

    Column t of P is the distribution P̂(x[t+1] | x[1:t]) of the next token.

    Departures: none with ``variant=PAPER``. A token ID outside [0, N_V) makes NaN of its column and all later ones
    (and, since 0 · NaN is NaN, perhaps of earlier ones).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> d_transformer(jnp.array([3, 0, 1]), init_d_transformer(jax.random.key(0), config)).shape
        (5, 3)

    Source: Phuong and Hutter 2022, Algorithm 10.
    """
    X = d_hidden_state(x, theta, variant=variant, implementation=implementation, key=key)  # lines 1-10
    P = unembedding(X, unembedding_matrix(theta), b_u=theta.b_u)  # return
    return P


def d_hidden_state(
    x: Integer[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    positions: Integer[Array, "*#batch l"] | None = None,
    segments: Integer[Array, "*#batch l"] | None = None,
    remat: Remat = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-10 of Algorithm 10: the decoder's hidden state X, from which W_u predicts the next token.

    For packed documents, ``segments`` has the number of the document of each token, which attends to its own document
    only, and ``positions`` the position of each token in its document.
    """
    f = Steps(variant, implementation, "gelu")
    mask = UNIDIRECTIONAL if segments is None else UNIDIRECTIONAL & documents(segments)
    X = f.token_embedding(x, theta) + f.positional_embedding(x, theta, positions)  # lines 1-3
    X = for_each_layer(d_layer, X, theta.layers, mask, f, key=key, remat=remat)  # line 4
    X = f.layer_norm(X, *theta.norm)  # line 10
    return X


def d_layer(
    X: Float[Array, "d_e *batch l"],
    theta_l: TransformerLayerParams,
    mask: Mask,
    f: Steps,
    keys: Keys,
) -> Float[Array, "d_e *batch l"]:
    """Lines 5-8 of Algorithm 10: one layer."""
    W, norm1, mlp, norm2 = theta_l
    X_tilde = f.layer_norm(X, *norm1)  # line 5
    X = X + f.mh_attention(X_tilde, X_tilde, W, mask, keys[0])  # line 6
    X_tilde = f.layer_norm(X, *norm2)  # line 7
    X = X + f.mlp(X_tilde, *mlp, keys[1])  # line 8
    return X

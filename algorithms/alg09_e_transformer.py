"""Algorithm 9, the encoder-only transformer of BERT: from a sequence with masked tokens to their distributions."""

from collections.abc import Mapping
from typing import Annotated, Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg01_embedding import token_embedding
from algorithms.alg07_unembedding import unembedding, unembedding_matrix
from algorithms.layers import Keys, Steps, for_each_layer, zero_padding
from algorithms.machinery.contract import Relation, UpTo
from algorithms.masks import Mask, StructuralMask
from algorithms.model.variants import PAPER, Variant
from algorithms.notation import Implementation, Remat
from algorithms.ops.linear import linear
from algorithms.parameters import ETransformerParams, TransformerLayerParams


def _check_has_head(arguments: Mapping[str, Any]) -> None:
    if arguments["theta"].W_f is None:
        raise ValueError("theta.W_f: expected parameters of lines 10 and 11, got a bare encoder's; call e_encoding")


def _check_has_types(arguments: Mapping[str, Any]) -> None:
    if arguments["types"] is not None and arguments["theta"].W_t is None:
        raise ValueError("types: expected None, since theta.W_t is None, so these parameters have no token types")


Length = Annotated[Integer[Array, "*#batch"] | int | None, UpTo("l")]
Types = Annotated[Integer[Array, "*#batch l"] | None, Relation(_check_has_types)]
WithHead = Annotated[ETransformerParams, Relation(_check_has_head)]


def e_transformer(
    x: Integer[Array, "*batch l"],
    theta: WithHead,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    length: Length = None,
    types: Types = None,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 9: P ← ETransformer(x | θ). The encoder-only transformer, BERT's.

    Column t of P is a distribution over the vocabulary for the token that stands at t, or that was masked there.

    Departures: W_u is [N_V, d_f] (the paper prints [N_V, d_e], but multiplies it by d_f rows). None else with
    ``variant=PAPER``. A token ID outside [0, N_V) makes NaN of all columns.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import ETransformerConfig, init_e_transformer
        >>> config = ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> e_transformer(jnp.array([3, 2, 1]), init_e_transformer(jax.random.key(0), config)).shape
        (5, 3)

    Source: Phuong and Hutter 2022, Algorithm 9.
    """
    X = e_hidden_state(  # lines 1-11
        x, theta, variant=variant, implementation=implementation, key=key, length=length, types=types
    )
    P = unembedding(X, unembedding_matrix(theta), b_u=theta.b_u)  # return
    return P


def e_hidden_state(
    x: Integer[Array, "*batch l"],
    theta: WithHead,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    length: Length = None,
    types: Types = None,
    remat: Remat = False,
) -> Float[Array, "d_f *batch l"]:
    """Lines 1-11 of Algorithm 9: the encoder's hidden state X, from which W_u predicts the masked tokens."""
    X = e_encoding(  # lines 1-9
        x, theta, variant=variant, implementation=implementation, key=key, length=length, types=types, remat=remat
    )
    f = Steps(variant, implementation, "gelu")
    X = f.activate(linear(theta.W_f, X, theta.b_f, implementation))  # line 10
    X = f.layer_norm(X, *theta.norm)  # line 11
    return X


def e_encoding(
    x: Integer[Array, "*batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    length: Length = None,
    types: Types = None,
    remat: Remat = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-9 of Algorithm 9: the residual stream after the last layer, which classifiers and embeddings read.

    ``types`` has the type of each token, where the parameters embed it: BERT's two sentences. None: all are of type 0.
    """
    f = Steps(variant, implementation, "gelu")
    mask = StructuralMask(length=length)  # Mask ≡ 1, but for the padding
    x = zero_padding(x, length)
    X = f.token_embedding(x, theta) + f.positional_embedding(x, theta)  # lines 1-3
    if theta.W_t is not None:
        types = jnp.zeros_like(x) if types is None else jnp.broadcast_to(types, x.shape)
        X = X + token_embedding(types, theta.W_t, implementation=implementation)
    X = f.normalized(X, theta.embedding_norm)
    X = for_each_layer(e_layer, X, theta.layers, mask, f, key=key, remat=remat)  # line 4
    return X


def e_layer(
    X: Float[Array, "d_e *batch l"],
    theta_l: TransformerLayerParams,
    mask: Mask,
    f: Steps,
    keys: Keys,
) -> Float[Array, "d_e *batch l"]:
    """Lines 5-8 of Algorithm 9: one layer."""
    W, norm1, mlp, norm2 = theta_l
    X = X + f.mh_attention(X, X, W, mask, keys[0])  # line 5
    X = f.layer_norm(X, *norm1)  # line 6
    X = X + f.mlp(X, *mlp, keys[1])  # line 7
    X = f.layer_norm(X, *norm2)  # line 8
    return X

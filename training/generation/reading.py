"""Reading whole prompts and contexts into caches of keys and values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from algorithms import UNIDIRECTIONAL, DTransformerParams, EDTransformerParams, ed_encoding
from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import Keep, keeping, lines_of, zero_padding
from training.generation.cache import KeyValues
from training.generation.layout import are_apart, rows_of_parts
from training.generation.states import Context, State, begun, prompt_tokens


def prefill(
    theta: DTransformerParams,
    x: Int[Array, "B P"] | np.ndarray,
    lengths: Int[Array, "B"] | np.ndarray,
    *,
    C: int,
    most: int | None = None,
) -> State:
    """Read prompts, padded on the right, with Algorithm 10, all columns at once, into a cache of C > P slots that keeps
    the last `most` tokens (None: all). Layers in a tuple, as `apart` returns them, run as separate programs that read
    their parameters in place; a loop over stacked ones would copy them. The last layer only computes keys and values.
    """
    P = x.shape[1]
    R, rooms = min(P, most or P), {"C": C, "most": most, "n": rows_of_parts(theta, len(x))}
    if not are_apart(theta.layers):
        return begun(x, lengths, _keys_and_values(theta, x, lengths, R=R), **rooms)
    caches, X = [], _embedded(theta._replace(layers=()), x, lengths)
    for l, layer in enumerate(theta.layers):
        embedding = theta.variant.embedding.of_later_layers()
        turn = theta.variant.from_layer(l).but(attention=theta.variant.attention_of(l), embedding=embedding)
        of_layer = theta._replace(layers=(layer,), norm=None, embedding_norm=None, variant=turn)
        X, cache = layer_read(X, of_layer, lengths, R=R, is_last=l == len(theta.layers) - 1)
        caches.append(cache)
    return begun(x, lengths, tuple(caches), **rooms)


def _rows(rows: Int[Array, "B R"]) -> Keep:
    """Return what keeps these rows of the keys and values of whole sequences."""
    return lambda _, read: KeyValues.of(read.K, read.V).arranged(rows)


@functools.partial(jax.jit, static_argnames=("R",))
def _keys_and_values(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, R: int
) -> tuple[KeyValues, ...]:
    """Return each layer's cache of R rows of the prompts' keys and values, from stacked parameters."""
    x = zero_padding(x, lengths)
    f = lines_of("Algorithm 10", x, theta, "auto", keep=_rows(prompt_tokens(lengths, x.shape[1], R)))
    stacked = keeping(d_lines, f, x, theta, UNIDIRECTIONAL)[1].own
    return tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))


@jax.jit
def _embedded(theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"]) -> Float[Array, "d_e B P"]:
    """Return the embeddings of prompts: lines 1-3 of Algorithm 10."""
    x = zero_padding(x, lengths)
    return lines_of("Algorithm 10", x, theta, implementation="auto").embedding(x, theta)


@functools.partial(jax.jit, static_argnames=("R", "is_last"))
def layer_read(
    X: Float[Array, "d_e B P"], theta: DTransformerParams, lengths: Int[Array, "B"], *, R: int, is_last: bool
) -> tuple[Float[Array, "d_e B P"] | None, KeyValues]:
    """Return the residual stream after one layer (None if it is the last), and the layer's cache of R rows."""
    f = lines_of("Algorithm 10", X, theta, "auto", keep=_rows(prompt_tokens(lengths, X.shape[-1], R)))
    X, kept = keeping(d_lines, f, X, theta, UNIDIRECTIONAL)
    return None if is_last else X, kept.own[0]


@jax.jit
def encode(theta: EDTransformerParams, z: Int[Array, "B l_z"], z_lengths: Int[Array, "B"]) -> Context:
    """Encode contexts with lines 1-9 of Algorithm 8, and compute the keys and values that its line 16 attends to."""
    Z, variant = ed_encoding(z, theta, z_length=z_lengths), theta.variant

    def of_layer(l):
        W = jax.tree.map(lambda a: a[l // variant.shared_layers], theta.decoder.cross_attention)
        return variant.by_attention(l, lambda line: lambda W: KeyValues.of(*line.context(Z, W, "auto")), W)

    L = variant.shared_layers * len(jax.tree.leaves(theta.decoder)[0])
    stacked = jax.lax.map(of_layer, jnp.arange(L))
    caches = tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))
    return Context(caches, jnp.arange(z.shape[1])[None] < z_lengths[:, None])

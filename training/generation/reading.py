"""Reading whole prompts and contexts into caches of keys and values."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from algorithms import UNIDIRECTIONAL, DTransformerParams, EDTransformerParams, Variant, ed_encoding
from algorithms.alg10_d_transformer import decoder_lines, hidden_state, residual_stream
from algorithms.layers import attend_in_full, positions_in, zero_padding
from training.generation.cache import KeyValues, keys_and_values
from training.generation.layout import are_apart
from training.generation.states import Context, State, begun, prompt_tokens


def prefill(
    theta: DTransformerParams,
    x: Int[Array, "B P"] | np.ndarray,
    lengths: Int[Array, "B"] | np.ndarray,
    *,
    variant: Variant,
    C: int,
    most: int | None = None,
) -> State:
    """Read prompts, padded on the right, with Algorithm 10, all columns at once, into a cache of C > P slots that keeps
    the last `most` tokens (None: all).

    If the layers are a tuple, as `apart` returns them, each runs as a separate program that reads its parameters in
    place; a loop over stacked layers would copy them. The last layer only computes keys and values.
    """
    R = min(C, most or C)
    if not are_apart(theta.layers):
        return begun(x, lengths, _keys_and_values(theta, x, lengths, variant=variant, R=R), C=C)
    caches, lines, X = [], variant.attentions, _embedded(theta._replace(layers=()), x, lengths, variant=variant)
    for l, layer in enumerate(theta.layers):
        of_layer = theta._replace(layers=(layer,), norm=None)
        turn = variant.but(attention=lines[l % len(lines)])
        X, cache = layer_read(X, of_layer, lengths, variant=turn, R=R, is_last=l == len(theta.layers) - 1)
        caches.append(cache)
    return begun(x, lengths, tuple(caches), C=C)


@functools.partial(jax.jit, static_argnames=("variant", "R"))
def _keys_and_values(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, variant: Variant, R: int
) -> tuple[KeyValues, ...]:
    """Return each layer's cache of R rows of the prompts' keys and values, from stacked parameters."""
    kept: list[Any] = []
    f = decoder_lines(variant, "auto", attend=_keeping(lengths, x.shape[1], R), kept=kept)
    hidden_state(zero_padding(x, lengths), None, theta, UNIDIRECTIONAL, None, f)
    (stacked,) = kept
    return tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))


@functools.partial(jax.jit, static_argnames=("variant",))
def _embedded(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, variant: Variant
) -> Float[Array, "d_e B P"]:
    """Return the embeddings of prompts: lines 1-3 of Algorithm 10."""
    x = zero_padding(x, lengths)
    return decoder_lines(variant, "auto").embedding(x, positions_in(x), theta)


@functools.partial(jax.jit, static_argnames=("variant", "R", "is_last"))
def layer_read(
    X: Float[Array, "d_e B P"],
    theta: DTransformerParams,
    lengths: Int[Array, "B"],
    *,
    variant: Variant,
    R: int,
    is_last: bool,
) -> tuple[Float[Array, "d_e B P"] | None, KeyValues]:
    """Return the residual stream after one layer (None if it is the last), and the layer's cache of R rows."""
    kept: list[KeyValues] = []
    keeping = _keeping(lengths, X.shape[-1], R)

    def attend(*arguments, **options):
        Y, keys_and_values = keeping(*arguments, **options)
        kept.append(keys_and_values)
        return Y, None

    f = decoder_lines(variant, "auto", attend=attend)
    X = residual_stream(X, positions_in(X[0]), theta, UNIDIRECTIONAL, f)
    return None if is_last else X, kept[0]


def _keeping(lengths: Int[Array, "B"], P: int, R: int) -> Callable[..., tuple[Array, KeyValues]]:
    """Return an attention over whole prompts of P slots that also returns a cache of R rows of its keys and values."""
    rows = prompt_tokens(lengths, P, R)

    def attend(line, X, Z, W, mask, **options):
        Y, _ = attend_in_full(line, X, Z, W, mask, **options)
        return Y, keys_and_values(Z, W, line, options["t_z"], "auto", options["table"].positions).arranged(rows)

    return attend


@functools.partial(jax.jit, static_argnames=("variant",))
def encode(
    theta: EDTransformerParams, z: Int[Array, "B l_z"], z_lengths: Int[Array, "B"], *, variant: Variant
) -> Context:
    """Encode contexts with lines 1-9 of Algorithm 8, and compute the keys and values that its line 16 attends to."""
    Z, line = ed_encoding(z, theta, variant=variant, z_length=z_lengths), variant.attentions[0]
    stacked = jax.lax.map(lambda W: keys_and_values(Z, W, line, None, "auto"), theta.decoder.cross_attention)
    own = tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))
    caches = tuple(cache for cache in own for _ in range(variant.shared_layers))
    return Context(caches, jnp.arange(z.shape[1])[None] < z_lengths[:, None])

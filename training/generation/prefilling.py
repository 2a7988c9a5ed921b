"""Reading whole prompts and contexts into caches of keys and values."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from algorithms import UNIDIRECTIONAL, DTransformerParams, EDTransformerParams, ed_encoding
from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import CacheSelection, lines_of, with_caches, zero_padding
from algorithms.machinery.options import using
from algorithms.model.parallel import Both
from algorithms.model.theta import count_layers, places, stacks_of
from training.generation.cache import Cache, KeyValues, RecurrentState, held, rows_of_parts
from training.generation.projections import has_cache
from training.generation.states import Context, Limits, State, begun, prompt_tokens


def prefill(
    theta: DTransformerParams,
    x: Int[Array, "B P"] | np.ndarray,
    lengths: Int[Array, "B"] | np.ndarray,
    *,
    C: int,
    limits: Limits | None = None,
) -> State:
    """Read prompts, padded on the right, with Algorithm 10, all columns at once, into caches of C > P slots, those of
    layers with `limits` for their last tokens. Layers in a tuple, as `apart` returns them, run as separate programs
    that read their parameters in place, where no layer reads what another computes; a loop over stacked ones would copy
    them. The last layer only computes what is kept.
    """
    rooms = {"C": C, "n": rows_of_parts(theta, len(x))}
    limits = limits or (None,) * count_layers(theta.layers, theta.variant)
    variant = theta.variant
    if not isinstance(theta.layers, list) or variant.lenders or variant.layer_end:
        return begun(x, lengths, _of_every_layer(theta, x, lengths, limits=limits), **rooms)
    caches, X = [], _embedded(theta._replace(layers=[]), x, lengths)
    for l, layer in enumerate(theta.layers):
        of_one = dict.fromkeys(("norm", "embedding_norm", "W_f", "norm_f", "mtp")) | {"variant": variant.of_layer(l)}
        of_layer = theta._replace(layers=[layer], **of_one)
        X, cache = layer_read(X, of_layer, lengths, limit=limits[l], is_last=l == len(limits) - 1)
        caches.append(cache)
    return begun(x, lengths, tuple(caches), **rooms)


def _selection(lengths: Int[Array, "B"], P: int, limit: int | None) -> CacheSelection:
    """Return what keeps a mixer's state, or keys and values of prompts of P columns: the last `limit`, or all."""
    rows = prompt_tokens(lengths, P, min(P, limit or P))

    def select(line, cached):
        if isinstance(cached, Both):
            return Both(*(select(part, of_part) for (part, _), of_part in zip(line.parts(), cached, strict=True)))
        if not has_cache(line):
            return RecurrentState(() if cached is None else cached)
        return KeyValues.of(cached.K, cached.V, limit).arranged(rows)

    return select


@functools.partial(jax.jit, static_argnames=("limits",))
def _of_every_layer(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, limits: Limits
) -> tuple[Cache, ...]:
    """Return each layer's cache of the prompts without their last tokens, from stacked parameters."""
    P, L, apart = x.shape[1], count_layers(theta.layers, theta.variant), isinstance(theta.layers, list)
    x, widest = zero_padding(x, lengths), None if None in limits else max(filter(None, limits), default=None)
    with using(implementation="auto"):
        f = lines_of("Algorithm 10", x, theta, select=_selection(lengths, P, widest), cache_length=lengths - 1)
        stacks = with_caches(d_lines, f, x, theta, UNIDIRECTIONAL)[1].own

    def of_layer(l, stack, row):
        cache: Any = stacks[l] if apart else jax.tree.map(lambda a: a[row], stacks[stack])
        if isinstance(cache, RecurrentState) or limits[l] == widest:
            return cache
        held_now, needed = (held(P, min(P, limit or P)) for limit in (widest, limits[l]))
        rows = (needed[:, None] == held_now[None]).argmax(axis=1)
        return dataclasses.replace(cache.arranged(jnp.broadcast_to(rows, (len(x), len(rows)))), limit=limits[l])

    return tuple(of_layer(l, *at) for l, at in enumerate(places(theta.variant, L)))


@jax.jit
def _embedded(theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"]) -> Float[Array, "d_e B P"]:
    """Return the embeddings of prompts: lines 1-3 of Algorithm 10."""
    x = zero_padding(x, lengths)
    with using(implementation="auto"):
        return lines_of("Algorithm 10", x, theta).embedding(x, theta)


@functools.partial(jax.jit, static_argnames=("limit", "is_last"))
def layer_read(
    X: Float[Array, "d_e B P"], theta: DTransformerParams, lengths: Int[Array, "B"], *, limit: int | None, is_last: bool
) -> tuple[Float[Array, "d_e B P"] | None, Cache]:
    """Return the residual stream after one layer (None if it is the last), and the layer's cache."""
    with using(implementation="auto"):
        f = lines_of("Algorithm 10", X, theta, select=_selection(lengths, X.shape[-1], limit), cache_length=lengths - 1)
        X, cached = with_caches(d_lines, f, X, theta, UNIDIRECTIONAL)
    return None if is_last else X, cached.own[0]


@jax.jit
def encode(theta: EDTransformerParams, z: Int[Array, "B l_z"], z_lengths: Int[Array, "B"]) -> Context:
    """Encode contexts with lines 1-9 of Algorithm 8, and compute the keys and values that its line 16 attends to."""
    Z, variant = ed_encoding(z, theta, z_length=z_lengths), theta.variant

    def of_stack(run, stack):
        def of_layer(of):
            l, row = of
            W = jax.tree.map(lambda a: a[row // variant.shared_layers], stack.cross_attention)
            return variant.by_attention(l, run.layers, lambda line, W: KeyValues.of(*line.context(Z, W)), W)

        numbers = jnp.asarray(run.numbers)
        return jax.lax.map(of_layer, (numbers, jnp.arange(len(numbers))))

    L = count_layers(theta.decoder, variant)
    with using(implementation="auto"):
        stacks = list(map(of_stack, itertools.chain(*variant.parts(L)), stacks_of(theta.decoder)))
    caches = tuple(jax.tree.map(lambda a, row=row: a[row], stacks[stack]) for stack, row in places(variant, L))
    return Context(caches, jnp.arange(z.shape[1])[None] < z_lengths[:, None])

"""Parameters laid out for generation: layer by layer, and for processing one column at a time."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from algorithms import (
    DTransformerConfig,
    DTransformerParams,
    EDTransformerParams,
    MHAttentionParams,
    MLPParams,
    Variant,
)
from algorithms.lines import Attention
from algorithms.machinery.apart import shapes_of_leaves
from algorithms.model.attention import axes_of_own
from algorithms.model.columnwise import mixed, of_one_layer
from training.generation.cache import Projections, is_in_parts, sizes_of_heads
from training.generation.int8 import Int8Matrix
from training.generation.slots import smallest_part

Weights = DTransformerParams | EDTransformerParams  # as `unstacked` lays them out


def unstacked(theta: DTransformerParams | EDTransformerParams, *, int8: bool = False) -> Weights:
    """Return the parameters of Algorithm 10 or 8, stacked or `apart`, laid out for processing one column at a time:
    layers in a tuple, since slices would be copied for every token; with ``int8``, what every token reads is rounded.
    """
    is_decoder, variant = isinstance(theta, DTransformerParams), theta.variant
    stacked = getattr(theta, "layers" if is_decoder else "decoder")
    if int8:
        theta = theta._replace(W_u=_rounded(variant.unembedding.matrix(theta)))

    def laid_out(layer):
        layer = _layer(layer, variant)
        return _in_int8(layer) if int8 else layer

    _check_lines(theta, stacked)
    layers = _one_by_one(stacked, theta, laid_out)
    theta = theta._replace(layers=layers, first_mlp=None) if is_decoder else theta._replace(decoder=layers)
    sizes_of_layers(theta)  # raises ValueError if lines cannot read these weights, or keep caches of several shapes
    return theta


def _check_lines(theta: Weights, layers: Any) -> None:
    """Raise ValueError if a step, which has one column and the keys and values of others, cannot compute a line."""
    instead = "use algorithms.d_inference or ed_inference, which read all tokens for each new one"
    found = mixed(theta)
    if found is not None:
        raise ValueError(
            f"{found.name}: expected a column{found.result and f' of {found.result}'} that depends on that column of "
            f"its input alone, got one that changes with the other columns, which a step of generation does not read; "
            f"{instead}"
        )
    W = (layers[0] if are_apart(layers) else of_one_layer(layers))[0]  # of self-attention
    for line in dict.fromkeys(theta.variant.attentions):
        reads = type(line).read is not Attention.read and line.replaces_softmax
        for axes in axes_of_own(line, *shapes_of_leaves(W), len(theta.W_e)) if reads else ():
            if axes.sequences is not None or axes.columns:
                raise ValueError(
                    f"{type(line).__name__}.read: expected arrays in `own` without axes of sequences and columns, "
                    f"since a cache keeps only keys and values, got one that has them; make it rows of Q, K or V, or "
                    f"{instead}"
                )


def _parts(stacked: Array) -> list[Array]:
    """The layers of a stacked array: on a CPU views of the same memory, elsewhere copies."""
    if not _is_here(stacked):
        return [stacked[l] for l in range(len(stacked))]
    place = stacked.sharding if stacked.committed else None
    return jax.device_put(list(np.asarray(stacked)), place, may_alias=True)


def _is_here(a: Any) -> bool:
    """Whether an array is on a single CPU device."""
    is_array = isinstance(a, jax.Array) and not isinstance(a, Tracer)
    return is_array and [device.platform for device in a.devices()] == ["cpu"]


def _layer(params: Any, variant: Variant) -> Any:
    """Return a layer with `Projections` for attentions, except where a line of one's own reads a context."""
    reads = any(type(line).read is not Attention.read for line in variant.attentions)

    def laid_out(name):
        context = name == "cross_attention"

        def of(W):
            is_ours = isinstance(W, MHAttentionParams) and not (context and reads)
            return Projections.of(W, context=context) if is_ours else W

        return jax.tree.map(of, getattr(params, name), is_leaf=lambda W: isinstance(W, MHAttentionParams))

    return params._replace(**{name: laid_out(name) for name in params._fields if "attention" in name})


_rounded = jax.jit(Int8Matrix.of)  # once per shape: one program for all layers would compile every matrix separately


def _in_int8(layer: Any) -> Any:
    """Return a layer with rounded matrices: those of `Projections`, also within others, and of the paper's MLP."""

    def rounded(part):
        is_ours = isinstance(part, Projections)
        return dataclasses.replace(part, W=_rounded(part.W), W_o=_rounded(part.W_o)) if is_ours else part

    layer = jax.tree.map(rounded, layer, is_leaf=lambda part: isinstance(part, Projections))
    if not isinstance(layer.mlp, MLPParams):
        return layer
    matrices = {name: W for name, W in layer.mlp._asdict().items() if name.startswith("W_") and W is not None}
    return layer._replace(mlp=layer.mlp._replace(**{name: _rounded(W) for name, W in matrices.items()}))


def are_apart(layers: Any) -> bool:
    """Whether layers are a tuple, as `apart` returns them."""
    return isinstance(layers, tuple) and not hasattr(layers, "_fields")


def sizes_of_layers(theta: Weights) -> tuple[int, int, int, int]:
    """Return what `sizes_of_heads` does, of a θ whose (decoder's) layers are stacked or a tuple. Raises ValueError if
    the attentions that they take in turn differ in these sizes: their caches are of one shape.
    """
    is_decoder = isinstance(theta, DTransformerParams)
    layers: Any = theta.layers if is_decoder else theta.decoder
    layer = layers[0] if are_apart(layers) else layers
    W = layer.attention if is_decoder else layer.self_attention
    W = W if are_apart(layers) else of_one_layer(W)
    lines = dict.fromkeys(theta.variant.attentions)
    sizes = {sizes_of_heads(line, W, len(theta.W_e), theta.W_e.dtype): line for line in lines}
    if len(sizes) > 1:
        kinds = " and ".join(type(line).__name__ for line in sizes.values())
        raise ValueError(
            f"variant.attention: expected lines whose keys and values have equal shapes, since all layers have caches "
            f"of one shape, got {kinds} with H, H_kv, and rows of keys and values of {' and '.join(map(str, sizes))}; "
            "use algorithms.d_inference or ed_inference, which keep no cache"
        )
    return next(iter(sizes))


def bytes_of_token(theta: DTransformerParams, config: DTransformerConfig) -> int:
    """Return the bytes of the keys and values of a token in all layers."""
    _, H_kv, d_attn, d_mid = sizes_of_layers(theta)
    return config.L * H_kv * (d_attn + d_mid) * theta.W_e.dtype.itemsize


def rows_of_parts(theta: Weights, B: int) -> int | None:
    """Return the rows of the smallest part of a cache for B sequences; None for a cache in one part."""
    if not is_in_parts(jax.tree.leaves(theta.W_e)[0]):
        return None
    H, H_kv, _, _ = sizes_of_layers(theta)
    return smallest_part(B, len(theta.W_e), H, H_kv)


def apart(theta: DTransformerParams) -> DTransformerParams:
    """Return the parameters with the layers as a tuple, in the same memory; unchanged if that is impossible."""
    if not all(_is_here(a) for a in jax.tree.leaves(theta.layers)):
        return theta
    return theta._replace(layers=_one_by_one(theta.layers, theta, lambda layer: layer), first_mlp=None)


def _one_by_one(stacked: Any, theta: Any, laid_out: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return every layer of θ, stacked or `apart`, laid out; layers that share parameters share the arrays."""
    variant: Variant = theta.variant
    if are_apart(stacked):
        layers = stacked[:: variant.shared_layers]
    elif variant.first is None:
        layers = _taken_apart(stacked)
    else:
        mlps = (*_taken_apart(theta.first_mlp), *_taken_apart(stacked.mlp))
        rest = _taken_apart(stacked._replace(mlp=None))
        layers = [layer._replace(mlp=mlp) for layer, mlp in zip(rest, mlps, strict=True)]
    return tuple(layer for layer in map(laid_out, layers) for _ in range(variant.shared_layers))


def _taken_apart(stacked: Any) -> list[Any]:
    leaves, tree = jax.tree.flatten(stacked)
    return [jax.tree.unflatten(tree, of_layer) for of_layer in zip(*map(_parts, leaves), strict=True)]

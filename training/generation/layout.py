"""Parameters laid out for generation: layer by layer, and for processing one column at a time."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from algorithms import DTransformerParams, EDTransformerParams, MHAttentionParams, MLPParams, Variant
from algorithms.lines import Attention
from algorithms.machinery.options import shapes_of_leaves
from algorithms.model.columnwise import check_columns
from algorithms.model.theta import count_layers, of_each_layer, places, stacks_of
from training.generation.projections import Projections, has_cache, sizes_of_heads
from training.generation.quantized import QuantizedMatrix

Weights = DTransformerParams | EDTransformerParams  # as `unstacked` lays them out


def unstacked(theta: DTransformerParams | EDTransformerParams, *, int8: bool = False) -> Weights:
    """Return the parameters of Algorithm 10 or 8, stacked or `apart`, laid out for processing one column at a time:
    layers in a tuple, since slices would be copied for every token; with ``int8``, what every token reads is rounded.
    """
    is_decoder, variant = isinstance(theta, DTransformerParams), theta.variant
    stacked = getattr(theta, "layers" if is_decoder else "decoder")
    if int8:
        theta = theta._replace(W_u=_rounded(variant.unembedding.but(factor=1.0).matrix(theta)))

    def laid_out(layer):
        layer = _layer(layer, variant)
        return _in_int8(layer) if int8 else layer

    check_columns(theta, stacked)
    layers = _one_by_one(stacked, theta, laid_out)
    theta = theta._replace(layers=layers) if is_decoder else theta._replace(decoder=layers)
    sizes_of_each_layer(theta)  # raises ValueError if lines cannot read these weights, or keep caches of several shapes
    return theta


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
    """Return a layer with `Projections` for attentions, except where a custom line reads a context."""
    reads = any(getattr(type(line), "read", None) is not Attention.read for line in variant.attentions)

    def laid_out(name):
        context = name == "cross_attention"

        def of(W):
            is_ours = isinstance(W, MHAttentionParams) and not (context and reads)
            return Projections.of(W, context=context) if is_ours else W

        return jax.tree.map(of, getattr(params, name), is_leaf=lambda W: isinstance(W, MHAttentionParams))

    return params._replace(**{name: laid_out(name) for name in params._fields if "attention" in name})


_of_shape = jax.jit(QuantizedMatrix.of)  # one program for all layers would compile every matrix separately


def _rounded(W: Any) -> QuantizedMatrix:
    """Return a matrix in int8; one that is quantized stays as it is."""
    return W if isinstance(W, QuantizedMatrix) else _of_shape(W)


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


Sizes = tuple[int, int, int, int]
"""The result of `sizes_of_heads`."""


def sizes_of_layers(theta: Weights) -> Sizes | None:
    """Return the sizes of θ's (decoder's) first attention, or None if it has none; raises as `sizes_of_each_layer`."""
    return next((sizes for sizes in sizes_of_each_layer(theta) if sizes is not None), None)


def sizes_of_each_layer(theta: Weights) -> list[Sizes | None]:
    """Return the sizes of every (decoder's) layer's attention, None for none. Raises ValueError if a stack's differ."""
    variant = theta.variant
    layers = theta.layers if isinstance(theta, DTransformerParams) else theta.decoder
    of: list[Any] = [variant.attention_of(l).parts(W[0])[0] for l, W in enumerate(of_each_layer(layers, variant))]
    of = [(line, *shapes_of_leaves(W), W) for line, W in of]
    found: dict[Any, Any] = {}
    for line, *shapes, W in of:
        if has_cache(line) and (line, *shapes) not in found:
            found[line, *shapes] = sizes_of_heads(line, W, len(theta.W_e), theta.W_e.dtype)
    if variant.is_one_stack and len(sizes := {size: type(key[0]).__name__ for key, size in found.items()}) > 1:
        raise ValueError(
            f"variant.attention: expected lines whose keys and values have equal shapes, since all layers have caches "
            f"of one shape, got {' and '.join(sizes.values())} with H, H_kv, and rows of keys and values of "
            f"{' and '.join(map(str, sizes))}; use algorithms.d_inference or ed_inference, which keep no cache"
        )
    return [found.get((line, *shapes)) for line, *shapes, _ in of]


def bytes_kept(theta: DTransformerParams) -> list[tuple[int, int]]:
    """Return, for every layer, the bytes that it keeps of each token, and those of each sequence, however long."""
    found = []
    of = zip(sizes_of_each_layer(theta), of_each_layer(theta.layers, theta.variant), strict=True)
    for l, (sizes, W) in enumerate(of):
        of_token = 0 if sizes is None else sizes[1] * sum(sizes[2:]) * theta.W_e.dtype.itemsize
        others = [part for part in theta.variant.attention_of(l).parts(W[0]) if not isinstance(part[0], Attention)]
        states = [jax.eval_shape(functools.partial(line.begin, B=1), of) for line, of in others]
        found.append((of_token, sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(states))))
    return found


def bytes_of_token(theta: DTransformerParams) -> int:
    """Return the bytes of the keys and values of a token in all layers."""
    return sum(of_token for of_token, _ in bytes_kept(theta))


def apart(theta: DTransformerParams) -> DTransformerParams:
    """Return the parameters with the layers as a tuple, in the same memory; unchanged if that is impossible."""
    if not all(_is_here(a) for a in jax.tree.leaves(theta.layers)):
        return theta
    return theta._replace(layers=_one_by_one(theta.layers, theta, lambda layer: layer))


def _one_by_one(stacked: Any, theta: Any, laid_out: Callable[[Any], Any]) -> list[Any]:
    """Return every layer of θ, stacked or `apart`, laid out; layers that share parameters share the arrays."""
    variant, shared = theta.variant, theta.variant.shared_layers
    if isinstance(stacked, list):
        layers = stacked[::shared]
    else:
        of_stacks = [_taken_apart(stack) for stack in stacks_of(stacked)]
        at = places(variant, count_layers(stacked, variant))[::shared]
        layers = [of_stacks[stack][row // shared] for stack, row in at]
    return [layer for layer in map(laid_out, layers) for _ in range(shared)]


def _taken_apart(stacked: Any) -> list[Any]:
    leaves, tree = jax.tree.flatten(stacked)
    return [jax.tree.unflatten(tree, of_layer) for of_layer in zip(*map(_parts, leaves), strict=True)]

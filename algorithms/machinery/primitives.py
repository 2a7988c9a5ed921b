"""Primitives of our own, in a separate file because ``jax.extend`` loads Pallas, which is slow to import."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

named_p = Primitive("named")
"""``named(value)``: the identity. The first ``mapped`` axes come from `jax.vmap`, the outermost first;
``differentiated`` is whether the observed function differentiates the value."""

beside_p = Primitive("beside")
"""``beside(value, *others)``: the value. A trace keeps the computation of the others; compilation drops it."""

derived_p = Primitive("derived")
"""``derived(*values, *arguments)``: the n values, with the derivatives of ``f(*arguments)``.

``jax.custom_jvp`` would do, but JAX drops its rule when it linearizes a ``jax.lax.scan``, so that second derivatives
through a loop would be those of the value.
"""

for primitive in (named_p, beside_p):
    primitive.def_impl(lambda value, *_, **__: value)
    primitive.def_abstract_eval(lambda value, *_, **__: value)
    mlir.register_lowering(primitive, lambda _, value, *__, **___: [value])
derived_p.multiple_results = True
derived_p.def_impl(lambda *arguments, f, n: list(arguments[:n]))
derived_p.def_abstract_eval(lambda *arguments, f, n: list(arguments[:n]))
mlir.register_lowering(derived_p, lambda _, *arguments, f, n: list(arguments[:n]))


def _jvp_of_named(primals, tangents, **params):
    return named_p.bind(*primals, **params | {"differentiated": True}), tangents[0]


def _batched_named(values, axes, **params):
    front = jnp.moveaxis(values[0], axes[0], 0)
    return named_p.bind(front, **params | {"mapped": params["mapped"] + 1}), 0


def _jvp_of_derived(primals: Any, tangents: Any, *, f: Callable[..., Any], n: int) -> tuple[Any, Any]:
    values = derived_p.bind(*primals, f=f, n=n)
    _, found = jax.jvp(f, (*primals[n:],), tuple(map(ad.instantiate_zeros, tangents[n:])))
    return values, [tangent.astype(value.dtype) for tangent, value in zip(found, values, strict=True)]


def _batched_derived(arguments: Any, axes: Any, *, f: Callable[..., Any], n: int) -> tuple[Any, Any]:
    size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)
    first = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arguments, axes, strict=True)]
    values = [jnp.broadcast_to(a, (size, *a.shape)) if axes[i] is None else a for i, a in enumerate(first[:n])]
    of_each = jax.vmap(f, in_axes=tuple(None if axis is None else 0 for axis in axes[n:]), axis_size=size)
    return derived_p.bind(*values, *first[n:], f=of_each, n=n), [0] * n


ad.primitive_jvps[named_p] = _jvp_of_named
ad.primitive_jvps[beside_p] = lambda primals, tangents: (beside_p.bind(*primals), tangents[0])
ad.primitive_jvps[derived_p] = _jvp_of_derived
batching.primitive_batchers[named_p] = _batched_named
batching.primitive_batchers[beside_p] = lambda values, axes: (beside_p.bind(*values), axes[0])
batching.primitive_batchers[derived_p] = _batched_derived

"""The primitive of a value with the derivative of a function, in a separate file because ``jax.extend`` loads Pallas.

``jax.custom_jvp`` would do, but JAX drops its rule when it linearizes a ``jax.lax.scan``, so that second derivatives
through a loop would be those of the value.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

derived_p = Primitive("derived")
"""``derived(*values, *arguments)``: the values, with the derivatives of ``f(*arguments)``."""


def _jvp(primals: Any, tangents: Any, *, f: Callable[..., Any], n: int) -> tuple[Any, Any]:
    values = derived_p.bind(*primals, f=f, n=n)
    _, found = jax.jvp(f, (*primals[n:],), tuple(map(ad.instantiate_zeros, tangents[n:])))
    return values, [tangent.astype(value.dtype) for tangent, value in zip(found, values, strict=True)]


def _batched(arguments: Any, axes: Any, *, f: Callable[..., Any], n: int) -> tuple[Any, Any]:
    size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)
    first = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arguments, axes, strict=True)]
    values = [jnp.broadcast_to(a, (size, *a.shape)) if axes[i] is None else a for i, a in enumerate(first[:n])]
    of_each = jax.vmap(f, in_axes=tuple(None if axis is None else 0 for axis in axes[n:]), axis_size=size)
    return derived_p.bind(*values, *first[n:], f=of_each, n=n), [0] * n


derived_p.multiple_results = True
derived_p.def_impl(lambda *arguments, f, n: list(arguments[:n]))
derived_p.def_abstract_eval(lambda *arguments, f, n: list(arguments[:n]))
mlir.register_lowering(derived_p, lambda _, *arguments, f, n: list(arguments[:n]))
ad.primitive_jvps[derived_p] = _jvp
batching.primitive_batchers[derived_p] = _batched

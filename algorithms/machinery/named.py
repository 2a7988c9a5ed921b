"""The primitives that name values, in a separate file because ``jax.extend`` loads Pallas, which is slow to import."""

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

named_p = Primitive("named")
"""``named(value)``: the identity. The first ``mapped`` axes come from `jax.vmap`, the outermost first;
``differentiated`` is whether the observed function differentiates the value."""

beside_p = Primitive("beside")
"""``beside(value, *others)``: the value. A trace keeps the computation of the others; compilation drops it."""

for primitive in (named_p, beside_p):
    primitive.def_impl(lambda value, *_, **__: value)
    primitive.def_abstract_eval(lambda value, *_, **__: value)
    mlir.register_lowering(primitive, lambda _, value, *__, **___: [value])


def _jvp_of_named(primals, tangents, **params):
    return named_p.bind(*primals, **params | {"differentiated": True}), tangents[0]


def _batched_named(values, axes, **params):
    front = jnp.moveaxis(values[0], axes[0], 0)
    return named_p.bind(front, **params | {"mapped": params["mapped"] + 1}), 0


ad.primitive_jvps[named_p] = _jvp_of_named
ad.primitive_jvps[beside_p] = lambda primals, tangents: (beside_p.bind(*primals), tangents[0])
batching.primitive_batchers[named_p] = _batched_named
batching.primitive_batchers[beside_p] = lambda values, axes: (beside_p.bind(*values), axes[0])

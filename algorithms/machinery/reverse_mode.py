"""The primitives that refuse forward mode, in a separate file because ``jax.extend`` loads Pallas.

Reverse mode is forward mode, linearized and transposed, so a rule that JAX applies in forward mode cannot simply raise.
`reverse_mode_p` stands before a hand-derived rule, and compilation removes it. Its derivative passes the tangents
through `transposed_p`, which the reverse pass transposes, and everything else refuses.
"""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

reverse_mode_p = Primitive("reverse_mode")
"""``reverse_mode(*values)``: the values."""

transposed_p = Primitive("transposed")
"""``transposed(*tangents, *traces)``: the tangents, to be transposed, not computed.

The traces, an empty part of each value, let it see that the values are differentiated once more.
"""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "forward-mode differentiation (jax.jvp, jax.jacfwd, jax.linearize) of a backward pass derived by hand, which "
        'has reverse mode only; give implementation="paper", which JAX differentiates itself, to any order'
    )


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    traces = [jnp.ravel(jax.lax.slice_in_dim(jnp.atleast_1d(value), 0, 0)) for value in primals]
    passed = transposed_p.bind(*(tangents[i] for i in moving), *traces, number=len(moving))
    found = dict(zip(moving, passed, strict=True))
    return list(primals), [found.get(i, tangent) for i, tangent in enumerate(tangents)]


for primitive in (reverse_mode_p, transposed_p):
    primitive.multiple_results = True

reverse_mode_p.def_impl(lambda *values: list(values))
reverse_mode_p.def_abstract_eval(lambda *values: list(values))
mlir.register_lowering(reverse_mode_p, lambda _, *values: list(values))
ad.primitive_jvps[reverse_mode_p] = _jvp
batching.primitive_batchers[reverse_mode_p] = lambda values, axes: (reverse_mode_p.bind(*values), axes)

transposed_p.def_impl(_refuse)
transposed_p.def_abstract_eval(lambda *values, number: list(values[:number]))
mlir.register_lowering(transposed_p, _refuse)
ad.primitive_jvps[transposed_p] = _refuse
batching.primitive_batchers[transposed_p] = _refuse
ad.primitive_transposes[transposed_p] = lambda cotangents, *values, number: [
    *cotangents,
    *(None for _ in values[number:]),
]

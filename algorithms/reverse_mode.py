"""What the hand-derived backward passes have in common: they are for reverse mode, and say so in forward mode.

A rule is a ``jax.custom_vjp``, which JAX can not push forward. Its arguments pass through ``reverse_only``:
differentiated in reverse mode it is the identity; in forward mode it raises an error that names the way out.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["is_hand_derived", "reverse_only"]

T = TypeVar("T")


def is_hand_derived(implementation: str) -> bool:
    """Whether an implementation uses the hand-derived backward passes: all but ``"paper"`` do."""
    return implementation != "paper"


def reverse_only(arguments: T) -> T:
    """The arguments themselves, which can be differentiated in reverse mode only.

    Raises:
        TypeError: in forward mode (``jax.jvp``, ``jax.jacfwd``, ``jax.hessian``), when the tangent is evaluated.
    """

    def guard(leaf):
        return _argument.bind(leaf) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(guard, arguments)


_argument = Primitive("reverse_only")
_tangent = Primitive("reverse_only_tangent")


@_argument.def_impl
def _pass_on(x):
    return x


@_tangent.def_impl
def _refuse(*_):
    raise TypeError(
        "forward-mode differentiation (jax.jvp, jax.jacfwd, jax.hessian) of a backward pass derived by hand: "
        'only reverse mode has one; give implementation="paper", which JAX differentiates itself, to any order'
    )


_argument.def_abstract_eval(lambda aval: aval)
_tangent.def_abstract_eval(lambda aval: aval)
mlir.register_lowering(_argument, lambda _, x: [x])
mlir.register_lowering(_tangent, _refuse)
batching.defvectorized(_argument)
batching.defvectorized(_tangent)
ad.primitive_jvps[_argument] = lambda primals, tangents: (primals[0], _tangent.bind(ad.instantiate_zeros(tangents[0])))
ad.deflinear2(_tangent, lambda cotangent, _: [cotangent])

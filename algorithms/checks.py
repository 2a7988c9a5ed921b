"""Loud input: what a function expected, what came, and what to do about it.

Everything here reads shapes and dtypes only, so it runs once per compilation and costs nothing afterwards.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from algorithms.masks import StructuralMask
from algorithms.parameters import MHAttentionParams, MLPParams
from algorithms.variants import Variant

__all__ = [
    "Axes",
    "check_count",
    "check_dropout",
    "check_implementation",
    "check_key",
    "check_length",
    "check_lengths_value",
    "check_mask",
    "check_positions",
    "check_tokens",
    "check_variant",
    "is_known",
]


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]


def _require_array(name: str, value: Any, expected: str) -> None:
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise TypeError(f"{name}: expected {expected}, got {_described(value)}; make it an array with jnp.asarray")


class Axes:
    """The sizes of the named axes met so far, and where each was first seen.

    Each array is checked against axes such as ``"d_attn d_x"``; a new name is bound, a known one must agree. A product
    such as ``H*d_mid`` must have been bound factor by factor.
    """

    def __init__(self, **sizes: int) -> None:
        self._sizes = dict(sizes)
        self._origin = dict.fromkeys(sizes, "the configuration")

    def __getitem__(self, axis: str) -> int:
        return self._sizes[axis]

    def alias(self, **names: str) -> None:
        """Let each new name stand for the size of a known axis, as in ``alias(d_x="d_e")``."""
        for name, axis in names.items():
            self._sizes[name], self._origin[name] = self._sizes[axis], self._origin[axis]

    def forget(self, *names: str) -> None:
        """Free names whose size may differ from one pytree to the next (d_attn of two attentions, for example)."""
        for name in names:
            self._sizes.pop(name, None)

    def _size(self, axis: str) -> int | None:
        factors = axis.split("*")
        return math.prod(self._sizes[f] for f in factors) if all(f in self._sizes for f in factors) else None

    def check(self, name: str, array: Any, axes: str) -> None:
        """Check one floating-point array.

        Raises:
            TypeError: if it is no floating-point array.
            ValueError: if its shape disagrees with ``axes``.
        """
        names = axes.split()
        _require_array(name, array, f"an array [{', '.join(names)}]")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name}: expected a floating-point array, got {_described(array)}")
        expected = [self._size(axis) for axis in names]
        if len(names) == array.ndim and all(e in (None, n) for e, n in zip(expected, array.shape, strict=True)):
            for axis, size in zip(names, array.shape, strict=True):
                if axis not in self._sizes and "*" not in axis:
                    self._sizes[axis], self._origin[axis] = size, name
            return
        known = ", ".join(
            f"{axis} = {self._sizes[axis]} from {self._origin[axis]}"
            for axis in dict.fromkeys(factor for name in names for factor in name.split("*"))
            if axis in self._sizes
        )
        raise ValueError(
            f"{name}: expected shape [{', '.join(names)}]"
            + (f" with {known}" if known else "")
            + f", got {list(array.shape)}; tokens are columns, weights are [d_out, d_in], and jax.vmap adds a batch"
        )

    def check_params(self, name: str, params: Any, kind: type, stack: str = "", skip: tuple[str, ...] = ()) -> None:
        """Check a NamedTuple of parameters against the shapes that its class declares, ``stack`` axes in front.

        Raises:
            TypeError: if it is no instance of ``kind``, or holds something that is no floating-point array.
            ValueError: if a shape disagrees.
        """
        if not isinstance(params, kind):
            raise TypeError(f"{name}: expected {kind.__name__}, got {_described(params)}")
        for field, annotation in kind.__annotations__.items():
            value = getattr(params, field)
            alternatives = getattr(annotation, "__args__", (annotation,))
            if field in skip or (value is None and type(None) in alternatives):
                continue
            declared = alternatives[0]
            inner = " ".join(filter(None, (stack, _STACKED.get(field))))
            if hasattr(declared, "dim_str"):
                self.check(f"{name}.{field}", value, declared.dim_str.replace("*stack", inner))
            else:
                self.check_params(f"{name}.{field}", value, declared, inner)
        self.forget(*_OWN_SIZES.get(kind, ()))


_STACKED = {
    "heads": "H",
    "layers": "L",
    "encoder": "L_enc",
    "decoder": "L_dec",
}  # fields → the axis stacked in front
_OWN_SIZES: dict[type, tuple[str, ...]] = {MHAttentionParams: ("H", "d_attn", "d_mid"), MLPParams: ("d_mlp",)}


def check_positions(W_p: Any, variant: Variant) -> None:
    """Check that a transformer without W_p has positions to compute.

    Raises:
        ValueError: if W_p is None and the positions of the variant are learned.
    """
    if W_p is None and variant.positions == "learned":
        raise ValueError(
            f"theta.W_p: expected an array [d_e, l_max], since variant {variant.name} has learned positions, got None; "
            "use a variant with sinusoidal positions, or W_p = sinusoidal_positional_embedding(d_e, l_max)"
        )


def check_tokens(name: str, tokens: Any, l_max: int | None = None, *, axes: str = "l") -> None:
    """Check an integer array of token IDs, the last axis of which is the sequence.

    Raises:
        TypeError: if it holds no integers.
        ValueError: if it has another rank than ``axes``, is empty, or is longer than ``l_max``.
    """
    expected = f"integer token IDs [{', '.join(axes.split())}]"
    _require_array(name, tokens, expected)
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"{name}: expected {expected}, got {_described(tokens)}")
    if tokens.ndim != len(axes.split()):
        raise ValueError(f"{name}: expected {expected}, got {_described(tokens)}; jax.vmap adds a batch")
    if 0 in tokens.shape:
        raise ValueError(f"{name}: expected at least one token, got {_described(tokens)}; begin with bos_token")
    if l_max is not None and tokens.shape[-1] > l_max:
        raise ValueError(
            f"{name}: expected at most l_max = {l_max} tokens, got {tokens.shape[-1]}; cut it into chunks, "
            "or make the parameters with a larger l_max"
        )


def check_length(name: str, length: Any, shape: tuple[int, ...] = ()) -> None:
    """Check an optional number of tokens that are not padding, an integer of the given shape.

    Raises:
        TypeError: if it is no integer.
        ValueError: if it has another shape.
    """
    if length is None:
        return
    if isinstance(length, bool) or not jnp.issubdtype(jnp.result_type(length), jnp.integer):
        raise TypeError(f"{name}: expected an integer number of tokens, got {_described(length)}")
    if jnp.shape(length) != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(jnp.shape(length))}; jax.vmap adds a batch")


def check_lengths_value(name: str, lengths: Any, x: Any) -> None:
    """Check that lengths whose values are at hand lie within [0, l], where x has l tokens in each row.

    Raises:
        ValueError: if one does not.
    """
    if isinstance(lengths, (int, np.ndarray)) and hasattr(x, "shape"):
        l = x.shape[-1]
        if np.any(np.asarray(lengths) < 0) or np.any(np.asarray(lengths) > l):
            raise ValueError(f"{name}: expected at least 0 and at most l = {l} tokens, got {lengths}")


def check_count(name: str, count: Any, at_least: int = 0) -> None:
    """Check an integer that is compiled in.

    Raises:
        TypeError: if it is no integer.
        ValueError: if it is too small.
    """
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer, got {_described(count)}")
    if count < at_least:
        raise ValueError(f"{name}: expected at least {at_least}, got {count}")


def check_mask(mask: Any, l_z: int, l_x: int) -> None:
    """Check a structural mask, or a dense boolean one of shape [l_z, l_x].

    Raises:
        TypeError: if it is neither a structural mask nor boolean.
        ValueError: if it has another shape.
    """
    if isinstance(mask, StructuralMask):
        for name, numbers, l in (("z", mask.documents_z, l_z), ("x", mask.documents_x, l_x)):
            if numbers is not None and numbers.shape != (l,):
                raise ValueError(
                    f"mask.documents_{name}: expected one number per token, [{l}], got {list(numbers.shape)}"
                )
        return
    _require_array("mask", mask, "a boolean [l_z, l_x] array or a structural mask such as UNIDIRECTIONAL")
    if mask.dtype != bool:
        raise TypeError(f"mask: expected booleans, True where token t_x may attend t_z, got {_described(mask)}")
    if mask.shape != (l_z, l_x):
        raise ValueError(
            f"mask: expected [l_z, l_x] = [{l_z}, {l_x}], got {list(mask.shape)}; rows are context tokens, "
            "columns are the tokens that attend them"
        )


def check_key(key: Any) -> None:
    """Check an optional typed key.

    Raises:
        TypeError: if it is no typed key.
        ValueError: if it is an array of several keys.
    """
    if key is None:
        return
    if not (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"key: expected a typed key, jax.random.key(seed), got {_described(key)}")
    if key.ndim:
        raise ValueError(f"key: expected one key, got {_described(key)}; jax.vmap over the keys of a batch")


def check_dropout(rate: Any) -> None:
    """Check a probability to drop something.

    Raises:
        ValueError: if it is not in [0, 1).
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout: expected a probability in [0, 1), got {rate!r}")


def is_known(value: Any) -> bool:
    """Whether a value is at hand: not an array that is being traced."""
    return not isinstance(value, Tracer)


def check_variant(variant: Any) -> None:
    """Check that a variant is one.

    Raises:
        TypeError: if it is not.
    """
    if not isinstance(variant, Variant):
        raise TypeError(f"variant: expected a Variant such as PAPER, got {_described(variant)}")


def check_implementation(implementation: Any, known: tuple[str, ...]) -> None:
    """Check the name of an implementation.

    Raises:
        ValueError: if there is none of that name.
    """
    if implementation not in known:
        raise ValueError(f"implementation: expected one of {', '.join(map(repr, known))}, got {implementation!r}")

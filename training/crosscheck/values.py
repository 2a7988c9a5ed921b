"""From what a run's locals hold (tracers, lists, trees) to float64 arrays that can be compared."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import softmax

from training import oracle

__all__ = ["TOLERANCE", "AbstractValueError", "difference", "finished_translation", "mapped", "of_each_token", "plain",
           "prediction", "prefix", "tree"]  # fmt: skip

TOLERANCE = 1e-10
"""Largest difference of two float64 values that counts as none."""

Locals = Mapping[str, Any]


class AbstractValueError(ValueError):
    """A value that is not known: it was traced, not computed."""


def mapped(value: Any) -> tuple[np.ndarray, int]:
    """The array behind a value, and how many axes `jax.vmap` took off it.

    `value`: an array, a number, or a tracer of eagerly executed code. Result: The array with the mapped axes in
    front, the outermost first; and their number.

    Raises:
        AbstractValueError: if there is no array behind the value.
    """
    import jax.core  # noqa: PLC0415  # which a report does not need

    axes, value = 0, value.array() if hasattr(value, "named") else value  # scores that wait
    if isinstance(value, jax.core.Tracer):
        tracer: Any = value  # whose attributes depend on its transformation
        if hasattr(value, "primal"):  # of differentiation
            return mapped(tracer.primal)
        if not hasattr(value, "batch_dim"):  # vmap's tracers have one
            raise AbstractValueError(f"expected a computed value, got {type(value).__name__}")
        array, axes = mapped(tracer.val)
        if tracer.batch_dim is None:
            return array, axes
        return np.moveaxis(array, axes + tracer.batch_dim, axes), axes + 1
    return np.asarray(value), axes


def plain(value: Any) -> np.ndarray:
    """The array behind a value, its mapped axes, if any, in front."""
    return mapped(value)[0]


def tree(value: Any) -> dict[str, np.ndarray]:
    """The arrays of parameters by path, with heads and layers one by one, as the oracle holds them."""
    import jax  # noqa: PLC0415

    return oracle.flatten(oracle.unstack(jax.tree.map(plain, value)))


def prefix(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The part of a padded array that a shorter one is to be compared with; the array itself where none is that large."""
    if array.ndim != len(shape) or any(have < want for have, want in zip(array.shape, shape, strict=True)):
        return array
    return array[tuple(slice(n) for n in shape)]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest absolute difference: infinite for other shapes, or where only one is NaN or infinite."""
    if a.shape != b.shape:
        return np.inf
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0.0))


# From what a statement of the code computes, and the locals there, to the value that its line speaks of.


def of_each_token(m: Any, _: Locals) -> np.ndarray:
    """One number for each token, without the axis of 1 that it is kept on."""
    m = plain(m)
    return m[0] if m.ndim > 1 and m.shape[0] == 1 else m


def prediction(X: Any, names: Locals) -> np.ndarray:
    """P = softmax(W_u X), which the code leaves to the next line, from the X that its line ends with; the logits have
    Cohere's factor, and are capped as Gemma 2's.
    """
    theta, line = names["theta"], names["theta"].variant.unembedding
    Y = line.factor * (plain(theta.W_e).T if theta.W_u is None else plain(theta.W_u)) @ plain(X)
    Y = Y if theta.b_u is None else Y + plain(theta.b_u)[:, None]
    return softmax(Y if line.cap is None else line.cap * np.tanh(Y / line.cap), axis=0)


def finished_translation(returned: Any, _: Locals) -> np.ndarray:
    """The translation without what pads it to l_max tokens."""
    x_hat, length = returned
    return plain(x_hat)[: int(plain(length))]

"""What the areas share: random arrays, and how near two results must be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["BOUNDS", "assert_near", "chance", "normal", "one_of"]

BOUNDS = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 1e-1}
"""How far a result may be from the exact one, relative to the largest entry of all."""


def one_of(rng: np.random.Generator, *choices: Any) -> Any:
    """One of some things, each as likely."""
    return choices[int(rng.integers(len(choices)))]


def chance(rng: np.random.Generator, p: float) -> bool:
    """True with probability p."""
    return bool(rng.random() < p)


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float64", scale: float = 1.0) -> jax.Array:
    """A normal array."""
    return jnp.asarray(scale * rng.standard_normal(shape), dtype)


def assert_near(actual: Any, expected: Any, bound: float, what: str) -> None:
    """Each array of a pytree near its counterpart, and finite."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(expected)]
    scale = max([1e-3, *(float(np.abs(leaf).max(initial=0)) for leaf in leaves)])
    found = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(actual)]
    assert len(found) == len(leaves), what
    for a, b in zip(found, leaves, strict=True):
        assert a.shape == b.shape, f"{what}: shape {a.shape} is not {b.shape}"
        assert np.isfinite(a).all(), f"{what}: not finite"
        worst = float(np.abs(a - b).max(initial=0))
        assert worst <= bound * scale, f"{what}: {worst} of {scale}"

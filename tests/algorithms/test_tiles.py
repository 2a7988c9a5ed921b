"""Attention's tiles: in turn, side by side, and one by one they are the same."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import BIDIRECTIONAL, UNIDIRECTIONAL, padding, prefix
from algorithms.machinery.options import using
from algorithms.masks import StructuralMask
from algorithms.ops.attention import strips, tiles
from tests import cases

H, B, D, L_X, L_Z = 3, 3, 4, 7, 9  # nine tiles: an odd number, so that one is left over
QUERIES, KEYS, VALUES, E = (cases.normal(H, D, B, l) for l in (L_X, L_Z, L_Z, L_X))
LENGTHS = cases.array([9, 4, 0])
DROPOUT_KEYS = cases.keys(2, B)
MASKS = {
    "none": BIDIRECTIONAL,
    "unidirectional": UNIDIRECTIONAL,
    "lengths": padding(LENGTHS),
    "prefixes": prefix(LENGTHS),
    "array": cases.array(np.random.default_rng(5).random((B, L_Z, L_X)) < 0.6),
}


def value_and_gradients(implementation, mask, key, small, monkeypatch):
    monkeypatch.setattr(tiles, "SMALL", small)
    monkeypatch.setattr(strips, "SCORES", 2 * L_X * L_Z)  # two tiles at once

    @jax.jit
    def compiled(mask, key):
        def objective(Q, K, V):
            with using(implementation=implementation, dropout=0.0 if key is None else 0.4, key=key):
                V_tilde = cases.attended(Q, K, V, mask)
            return (V_tilde * E).sum(), V_tilde

        (_, V_tilde), gradients = jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(QUERIES, KEYS, VALUES)
        return V_tilde, *gradients

    return compiled(mask, key)


@functools.cache
def printed(mask, dropped):
    """With the mask as an array, so that there is one program for all of them."""
    array = MASKS[mask]
    array = array.dense(L_Z, L_X) if isinstance(array, StructuralMask) else array
    array = jnp.broadcast_to(array, (B, L_Z, L_X))
    with pytest.MonkeyPatch.context() as patch:
        return value_and_gradients("paper", array, DROPOUT_KEYS if dropped else None, 0, patch)


QUICK = {("lengths", True, 0), ("lengths", True, L_X * L_Z), ("array", False, 0)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mask", "dropped", "small"), cases.quick_of(QUICK, itertools.product(MASKS, (False, True), (0, L_X * L_Z)))
)
@pytest.mark.parametrize("implementation", ["dense", "blockwise", "strips"])
def test_tiles_in_turn_are_those_side_by_side_and_of_one_head(implementation, mask, dropped, small, monkeypatch):
    found = value_and_gradients(implementation, MASKS[mask], DROPOUT_KEYS if dropped else None, small, monkeypatch)
    for ours, theirs in zip(found, printed(mask, dropped), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)

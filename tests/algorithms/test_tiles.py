"""Attention's tiles: in turn, side by side, and one by one they are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import BIDIRECTIONAL, UNIDIRECTIONAL, padding
from algorithms.attention import _as_printed
from algorithms.ops.attention import per_head
from algorithms.ops.attention.choice import attend
from tests import cases

H, B, D, L_X, L_Z = 3, 3, 4, 7, 9  # nine tiles: an odd number, so that one is left over
QUERIES, KEYS, VALUES, E = (cases.normal(H, D, B, l) for l in (L_X, L_Z, L_Z, L_X))
LENGTHS = jnp.array([9, 4, 0])
MASKS = {
    "none": BIDIRECTIONAL,
    "unidirectional": UNIDIRECTIONAL,
    "lengths": padding(LENGTHS),
    "array": jnp.asarray(np.random.default_rng(5).random((B, L_Z, L_X)) < 0.6),
}


def value_and_gradients(implementation, mask, key, small, monkeypatch):
    monkeypatch.setattr(per_head, "SMALL", small)

    @jax.jit
    def compiled(mask, key):
        def objective(Q, K, V):
            options = {"implementation": implementation, "dropout": 0.0 if key is None else 0.4, "key": key}
            V_tilde = attend(_as_printed, Q, K, V, mask, heads=True, **options)
            return (V_tilde * E).sum(), V_tilde

        (_, V_tilde), gradients = jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(QUERIES, KEYS, VALUES)
        return V_tilde, *gradients

    return compiled(mask, key)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_tiles_in_turn_are_those_side_by_side_and_as_printed(implementation, mask, dropped, monkeypatch):
    key = jax.random.split(jax.random.key(2), B) if dropped else None
    expected = value_and_gradients("paper", MASKS[mask], key, 0, monkeypatch)
    for small in (0, L_X * L_Z):
        found = value_and_gradients(implementation, MASKS[mask], key, small, monkeypatch)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)

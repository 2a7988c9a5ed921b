"""Attention's tiles: in turn, side by side, and one by one they are the same, whatever masks the sequences have."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.machinery.options import using
from algorithms.masks import StructuralMask
from algorithms.ops.attention import strips, tiles
from tests import cases

H, BATCH, D, L_X, L_Z = 3, (5, 3), 4, 9, 6  # an odd number of tiles, so that one is left over
KEYS = cases.keys(2, *BATCH)
# The masks of a batch, and that of one of its sequences as an array; some are one for all sequences.
OF_LENGTH = np.random.default_rng(7).integers(L_Z + 1, size=BATCH)
OF_LENGTH[0, 0] = 0  # nothing to attend to
NUMBERS = np.sort(np.random.default_rng(8).integers(3, size=(*BATCH, L_X)), axis=-1)
t_z, t_x = np.indices((L_Z, L_X))
t_1, t_2 = np.indices((L_X, L_X))
EACH, ONE = (np.random.default_rng(6).random(shape) < 0.5 for shape in ((*BATCH, L_Z, L_X), (L_Z, L_X)))
MASKS = {
    "none": (alg.BIDIRECTIONAL, lambda i: t_z >= 0),
    "one rule for all": (alg.UNIDIRECTIONAL & alg.banded(4), lambda i: (t_x - 4 < t_z) & (t_z <= t_x)),
    "a window of all": (alg.near(2) & alg.padding(cases.array(4)), lambda i: (abs(t_x - t_z) < 2) & (t_z < 4)),
    "one length for all": (alg.padding(cases.array(4)), lambda i: t_z < 4),
    "a length of each": (
        alg.UNIDIRECTIONAL & alg.padding(cases.array(OF_LENGTH)),
        lambda i: (t_z <= t_x) & (t_z < OF_LENGTH[i]),
    ),
    "documents of each": (
        alg.UNIDIRECTIONAL & cases.documents(NUMBERS),
        lambda i: (t_1 <= t_2) & (NUMBERS[i][t_1] == NUMBERS[i][t_2]),
    ),
    "documents of all, a length of each": (
        cases.documents(NUMBERS[0, 0]) & alg.padding(cases.array(OF_LENGTH)),
        lambda i: (NUMBERS[0, 0][t_1] == NUMBERS[0, 0][t_2]) & (t_1 < OF_LENGTH[i]),
    ),
    "a first query of each": (
        StructuralMask(unidirectional=True, first=cases.array(OF_LENGTH)),
        lambda i: t_z <= t_x + OF_LENGTH[i],
    ),
    "a prefix of each": (
        alg.prefix(cases.array(OF_LENGTH)) & alg.near(5),
        lambda i: ((t_z <= t_x) | (t_z < OF_LENGTH[i])) & (abs(t_x - t_z) < 5),
    ),
    "blocks of each": (alg.blocks(cases.array(NUMBERS)), lambda i: NUMBERS[i][t_1] <= NUMBERS[i][t_2]),
    "an array for all": (cases.array(ONE), lambda i: ONE),
    "an array of each": (cases.array(EACH), lambda i: EACH[i]),
}


def dense_of(name):
    """A mask as an array of each sequence, by its definition."""
    return np.stack([MASKS[name][1](index) for index in np.ndindex(BATCH)]).reshape(*BATCH, -1, L_X)


def value_and_gradients(implementation, mask, key, small, l_z, monkeypatch):
    monkeypatch.setattr(tiles, "SMALL", small)
    monkeypatch.setattr(strips, "SCORES", 2 * L_X * L_Z)  # two tiles at once
    matrices = [cases.normal(H, D, *BATCH, l, seed=seed) for seed, l in enumerate((L_X, l_z, l_z))]

    @jax.jit
    def compiled(mask, key):
        def objective(Q, K, V):
            with using(implementation=implementation, dropout=0.0 if key is None else 0.4, key=key):
                V_tilde = cases.attended(Q, K, V, mask)
            return jnp.sin(V_tilde).sum(), V_tilde

        (_, V_tilde), gradients = jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(*matrices)
        return V_tilde, *gradients

    return compiled(mask, key)


@functools.cache
def printed(name, dropped):
    """With the mask as an array, so that there is one program for all of them."""
    dense = dense_of(name)
    with pytest.MonkeyPatch.context() as patch:
        return value_and_gradients("paper", jnp.asarray(dense), KEYS if dropped else None, 0, dense.shape[-2], patch)


QUICK = {("a length of each", True, 0), ("a length of each", True, 10**6), ("an array of each", False, 0)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "dropped", "small"), cases.quick_of(QUICK, itertools.product(MASKS, (False, True), (0, 10**6)))
)
@pytest.mark.parametrize("implementation", ["dense", "blockwise", "strips"])
def test_tiles_in_turn_are_those_side_by_side_and_of_one_head(implementation, name, dropped, small, monkeypatch):
    key, expected = KEYS if dropped else None, printed(name, dropped)
    found = value_and_gradients(implementation, MASKS[name][0], key, small, expected[2].shape[-1], monkeypatch)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["a length of each", "documents of each", "documents of all, a length of each"])
def test_a_structural_mask_of_a_batch_becomes_an_array_of_each_sequence(name):
    mask, expected = MASKS[name][0], dense_of(name)
    np.testing.assert_array_equal(jax.jit(lambda mask: mask.dense(expected.shape[-2], L_X))(mask), expected)


def test_a_structural_mask_joins_with_arrays_of_each_sequence():
    expected = EACH & (t_z <= t_x) & (t_z < OF_LENGTH[..., None, None])
    for joined in (
        alg.UNIDIRECTIONAL & alg.padding(jnp.asarray(OF_LENGTH)) & jnp.asarray(EACH),
        jnp.asarray(EACH) & (alg.UNIDIRECTIONAL & alg.padding(jnp.asarray(OF_LENGTH))),
    ):
        np.testing.assert_array_equal(joined, expected)
    of_each_length = jnp.asarray(ONE) & alg.padding(jnp.asarray(OF_LENGTH))
    np.testing.assert_array_equal(of_each_length, ONE & (t_z < OF_LENGTH[..., None, None]))

"""Structural masks: what they permit, written out, and how they join."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import BIDIRECTIONAL, UNIDIRECTIONAL, banded, blocks, documents, near, padding, prefix
from algorithms.masks import StructuralMask

NUMBERS = jax.device_put(np.array([4, 4, 0, 0, 0, 9, 9]))


@pytest.mark.parametrize(("l_z", "l_x"), [(1, 1), (7, 5), (5, 7), (7, 7)])
def test_each_mask_permits_what_its_definition_says(l_z, l_x):
    masks = (BIDIRECTIONAL, UNIDIRECTIONAL, banded(3), near(3), padding(2), prefix(2))
    dense = (np.asarray(mask.dense(l_z, l_x)) for mask in masks)
    everything, unidirectional, band, both_sides, padded, after_prefix = dense
    for t_z, t_x in itertools.product(range(l_z), range(l_x)):
        assert everything[t_z, t_x]
        assert unidirectional[t_z, t_x] == (t_z <= t_x)
        assert band[t_z, t_x] == (t_x - 3 < t_z <= t_x)
        assert both_sides[t_z, t_x] == (abs(t_x - t_z) < 3)
        assert padded[t_z, t_x] == (t_z < 2)
        assert after_prefix[t_z, t_x] == (t_z <= t_x or t_z < 2)


def test_documents_attend_themselves_only():
    """A number that comes back is another document."""
    expected = np.zeros((7, 7), int)
    for first, end in ((0, 2), (2, 5), (5, 7)):
        expected[first:end, first:end] = 1
    for numbers in (NUMBERS, jnp.asarray([4, 4, 0, 0, 0, 4, 4], jnp.uint8)):
        np.testing.assert_array_equal(documents(numbers).dense(7, 7), expected)


def test_blocks_attend_themselves_and_blocks_of_smaller_numbers():
    expected = [[int(z <= x) for x in NUMBERS] for z in NUMBERS]
    np.testing.assert_array_equal(blocks(NUMBERS).dense(7, 7), expected)
    np.testing.assert_array_equal(blocks(jnp.arange(7)).dense(7, 7), UNIDIRECTIONAL.dense(7, 7))


MASKS = {
    "bidirectional": BIDIRECTIONAL,
    "unidirectional": UNIDIRECTIONAL,
    "banded 2": banded(2),
    "banded 4": banded(4),
    "near 3": near(3),
    "padding 3": padding(3),
    "padding 5": padding(jax.device_put(np.asarray(5))),
    "prefix 2": prefix(2),
    "prefix 4": prefix(jax.device_put(np.asarray(4))),
    "documents": documents(NUMBERS),
    "other documents": documents(jax.device_put(np.asarray([5, 5, -1, 5, 5, 5, 2**31 - 1]))),
    "blocks": blocks(NUMBERS),
}


def joinable(names):
    return [pair for pair in names if set(pair) != {"blocks"}]


@pytest.mark.parametrize(("a", "b"), joinable(itertools.product(MASKS, repeat=2)))
def test_a_conjunction_permits_what_both_permit(a, b):
    dense = MASKS[a].dense(7, 7) & MASKS[b].dense(7, 7)
    np.testing.assert_array_equal((MASKS[a] & MASKS[b]).dense(7, 7), dense)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("kind", "batch"), [(np.asarray, ()), (jnp.asarray, ()), (jnp.asarray, (1,))])
def test_a_dense_array_joins_from_either_side(name, kind, batch):
    array = kind(np.random.default_rng(0).random((*batch, 7, 7)) < 0.5)
    expected = np.asarray(array) & np.asarray(MASKS[name].dense(7, 7))
    np.testing.assert_array_equal(MASKS[name] & array, expected)
    np.testing.assert_array_equal(array & MASKS[name], expected)


def test_a_token_may_attend_to_itself_alone():
    for mask in (banded(1), near(1)):
        np.testing.assert_array_equal(mask.dense(3, 3), np.eye(3, dtype=bool))


def test_a_unidirectional_window_has_one_side():
    assert UNIDIRECTIONAL & near(3) == banded(3)
    assert banded(5) & near(3) == banded(3) & near(5) == banded(3)


def test_prefixes_join_to_the_shorter_and_vanish_in_a_unidirectional_mask():
    assert (prefix(3) & prefix(5)).prefix == 3
    assert UNIDIRECTIONAL & prefix(3) == prefix(3) & banded(2**30) == UNIDIRECTIONAL


def test_documents_of_another_context_join_and_those_of_each_sequence():
    rng = np.random.default_rng(0)
    a, b = (
        StructuralMask(documents_z=rng.integers(0, 3, (*batch, 7)), documents_x=rng.integers(0, 3, 5))
        for batch in ((2,), ())
    )
    np.testing.assert_array_equal((a & b).dense(7, 5), a.dense(7, 5) & b.dense(7, 5)[None])
    assert (c := documents(NUMBERS) & documents(NUMBERS[::-1])).documents_z is c.documents_x


def test_the_first_query_of_a_device_stays_so_when_masks_join():
    for mask in (UNIDIRECTIONAL, prefix(4)):
        moved = dataclasses.replace(mask, first=jnp.asarray(2))
        np.testing.assert_array_equal(moved.dense(7, 4), mask.dense(7, 6)[:, 2:])
        for joined in (moved & padding(5), padding(5) & moved):
            np.testing.assert_array_equal(joined.dense(7, 4), moved.dense(7, 4) & padding(5).dense(7, 4))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("other", "of_length"), [(UNIDIRECTIONAL, padding), (near(2), prefix)])
def test_a_length_may_be_traced_and_mapped_over(other, of_length):
    lengths = jnp.arange(4)
    masks = jax.jit(jax.vmap(lambda length: (other & of_length(length)).dense(5, 3)))(lengths)
    for length in range(4):
        np.testing.assert_array_equal(masks[length], (other & of_length(length)).dense(5, 3))


@pytest.mark.end_to_end
@pytest.mark.parametrize("width", [2**30, 2**31, 2**70])
def test_a_window_wider_than_any_sequence_is_no_band(width):
    assert banded(width) == UNIDIRECTIONAL
    assert near(width) == BIDIRECTIONAL
    assert (UNIDIRECTIONAL & banded(width)).dense(3, 3).tolist() == UNIDIRECTIONAL.dense(3, 3).tolist()
    assert banded(2**30 - 1).dense(3, 3).tolist() == UNIDIRECTIONAL.dense(3, 3).tolist()

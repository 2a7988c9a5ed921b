"""Which blocks of the scores blockwise attention visits: all that a mask permits anything in, and hardly more."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    BIDIRECTIONAL,
    UNIDIRECTIONAL,
    banded,
    blocks,
    near,
    padding,
    prefix,
    scaled_dot_product_attention,
)
from algorithms.ops.attention import blockwise
from algorithms.ops.attention.scores import Scores
from tests.cases import small_blocks

pytestmark = pytest.mark.sampled(3)

BLOCK = 4
LENGTHS = (1, 4, 7, 13, 16)


def masks():
    yield "bidirectional", BIDIRECTIONAL
    yield "unidirectional", UNIDIRECTIONAL
    for width in (1, 2, 3, 4, 5, 6, 7, 9, 13, 40):
        yield f"banded({width})", banded(width)
        yield f"banded({width}) and padded", banded(width) & padding(6)
        yield f"near({width})", near(width)
        yield f"near({width}) and padded", near(width) & padding(6)
    for length in (0, 1, 4, 5, 8):
        yield f"padding({length})", padding(length)
        yield f"prefix({length})", prefix(length)
        yield f"prefix({length}) and padded", prefix(length) & padding(6)
    for size in (1, 3, 4, 6, 20):
        yield f"blocks of {size}", blocks(jnp.arange(LENGTHS[-1]) // size)


@pytest.fixture(autouse=True)
def _small_blocks():
    with small_blocks(BLOCK):
        yield


def visited(blocks, i):
    """The context blocks that are visited for the primary block i."""

    def step(j, is_visited, found):
        return [*found, int(j)] if is_visited else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "in_turn", _in_python)
        return blocks.over_context(i, step, [])


def _in_python(n, step, state):
    for k in range(n):
        state = step(k, state)
    return state


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "mask"), [pytest.param(name, mask, id=name) for name, mask in masks()])
def test_every_block_that_a_mask_permits_something_in_is_visited(name, mask):
    for l_z, l_x in itertools.product(LENGTHS, LENGTHS):
        blocks = blockwise._Blocks(l_z, l_x, Scores(mask))
        permitted = np.asarray(mask.dense(l_z, l_x))
        for i in range(blocks.n_x):
            columns = permitted[:, i * blocks.b_x : (i + 1) * blocks.b_x]
            of_blocks = [columns[j * blocks.b_z : (j + 1) * blocks.b_z].any() for j in range(blocks.n_z)]
            found = visited(blocks, i)
            assert found == sorted(set(found))
            assert set(np.flatnonzero(of_blocks)) <= set(found), (l_z, l_x, i)
            last = (i + 1) * blocks.b_x == l_x or l_x % blocks.b_x == 0
            if blocks.n_z > 1 and last and any(of_blocks):
                assert found == list(np.flatnonzero(of_blocks)), (l_z, l_x, i)


@pytest.mark.parametrize("width", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("window", [banded, near])
def test_a_blocks_mask_is_the_masks_block(window, width):
    mask = window(width)
    blocks = blockwise._Blocks(13, 11, Scores(mask))
    whole = np.zeros((blocks.n_z * blocks.b_z, blocks.n_x * blocks.b_x), bool)
    for j, i in np.ndindex(blocks.n_z, blocks.n_x):
        whole[j * blocks.b_z :, i * blocks.b_x :][: blocks.b_z, : blocks.b_x] = blocks.block(jnp.asarray(j), i).mask
    np.testing.assert_array_equal(whole[:13, :11], mask.dense(13, 11))
    assert not whole[13:].any()


def test_the_blocks_outside_a_band_are_never_computed(monkeypatch):
    """GPT-3's window of 256 in 8,192 tokens: 63 of 1,024 blocks of 256, and the loop runs 3 times, not 32."""
    monkeypatch.setattr(blockwise, "BLOCK", 512)
    blocks = blockwise._Blocks(8192, 8192, Scores(banded(256)))
    assert (blocks.n_x, blocks.b_x) == (32, 256)
    assert sum(len(visited(blocks, i)) for i in range(blocks.n_x)) == 63
    assert blocks._most_visited() == 3
    both_sides = blockwise._Blocks(8192, 8192, Scores(near(256)))
    assert sum(len(visited(both_sides, i)) for i in range(both_sides.n_x)) == 63 + 31
    assert both_sides._most_visited() == 4
    dense = blockwise._Blocks(8192, 8192, Scores(UNIDIRECTIONAL))
    assert sum(len(visited(dense, i)) for i in range(dense.n_x)) == 16 * 17 // 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", [prefix(2048), blocks(jnp.arange(8192) // 64)], ids=["prefix", "blocks"])
def test_a_structural_mask_needs_a_fraction_of_the_memory_of_an_array(mask, monkeypatch):
    """Of a compiled gradient, with its arguments."""
    monkeypatch.setattr(blockwise, "BLOCK", 512)

    def in_all(mask):
        gradient = jax.jit(jax.grad(lambda Q, K, V, mask: scaled_dot_product_attention(Q, K, V, mask).sum(), (0, 1, 2)))
        matrices = [jax.ShapeDtypeStruct((64, 8192), jnp.float32)] * 3
        of_program = gradient.lower(*matrices, mask).compile().memory_analysis()
        return of_program.temp_size_in_bytes + of_program.argument_size_in_bytes

    assert in_all(mask) < in_all(jax.ShapeDtypeStruct((8192, 8192), bool)) / 6


def test_what_stands_in_blocks_outside_a_band_is_not_read():
    """NaN there reaches neither the value nor the gradients of tokens whose windows end before."""
    Q, K, V = (np.random.default_rng(i).standard_normal((3, 24)) for i in range(3))
    V[:, : 2 * BLOCK] = np.nan

    def of_late(Q, K, mask):
        out = scaled_dot_product_attention(Q, K, V, mask, implementation="blockwise")
        return out[:, 3 * BLOCK + 1 : 4 * BLOCK].sum()

    of_both = jax.jit(jax.value_and_grad(of_late, argnums=(0, 1)))
    in_band, in_all = (jax.device_get(of_both(Q, K, mask)) for mask in (banded(2), UNIDIRECTIONAL))
    assert all(np.isfinite(a).all() for a in jax.tree.leaves((in_band[0], in_band[1][0][:, 3 * BLOCK + 1 :])))
    assert np.isnan(in_all[0])

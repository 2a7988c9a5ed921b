"""Which blocks of the scores blockwise attention visits: all that a mask permits anything in, and hardly more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms import blocks
from algorithms.ops.attention import blockwise
from algorithms.ops.attention.tiles import Scores
from tests.cases import small_blocks

pytestmark = pytest.mark.sampled(3)

BLOCK = 4


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


def test_the_blocks_outside_a_band_are_never_computed(monkeypatch):
    """GPT-3's window of 256 in 8,192 tokens: 63 of 1,024 blocks of 256, and the loop runs 3 times, not 32."""
    monkeypatch.setattr(blockwise, "BLOCK", 512)
    blocks = blockwise._Blocks(8192, 8192, Scores(alg.banded(256)))
    assert (blocks.n_x, blocks.b_x) == (32, 256)
    assert sum(len(visited(blocks, i)) for i in range(blocks.n_x)) == 63
    assert blocks._most_visited() == 3
    both_sides = blockwise._Blocks(8192, 8192, Scores(alg.near(256)))
    assert sum(len(visited(both_sides, i)) for i in range(both_sides.n_x)) == 63 + 31
    assert both_sides._most_visited() == 4
    dense = blockwise._Blocks(8192, 8192, Scores(alg.UNIDIRECTIONAL))
    assert sum(len(visited(dense, i)) for i in range(dense.n_x)) == 16 * 17 // 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "mask", [alg.prefix(2048), blocks(jax.device_put(np.arange(8192) // 64))], ids=["prefix", "blocks"]
)
def test_a_structural_mask_needs_a_fraction_of_the_memory_of_an_array(mask, monkeypatch):
    """Of a compiled gradient, with its arguments."""
    monkeypatch.setattr(blockwise, "BLOCK", 512)

    def in_all(mask):
        gradient = jax.jit(
            jax.grad(lambda Q, K, V, mask: alg.scaled_dot_product_attention(Q, K, V, mask).sum(), (0, 1, 2))
        )
        matrices = [jax.ShapeDtypeStruct((64, 8192), jnp.float32)] * 3
        of_program = gradient.lower(*matrices, mask).compile().memory_analysis()
        return of_program.temp_size_in_bytes + of_program.argument_size_in_bytes

    assert in_all(mask) < in_all(jax.ShapeDtypeStruct((8192, 8192), bool)) / 6


def test_what_stands_in_blocks_outside_a_band_is_not_read():
    """NaN there reaches neither the value nor the gradients of tokens whose windows end before."""
    Q, K, V = (np.random.default_rng(i).standard_normal((3, 24)) for i in range(3))
    V[:, : 2 * BLOCK] = np.nan

    def of_late(Q, K, mask):
        out = alg.scaled_dot_product_attention(Q, K, V, mask, implementation="blockwise")
        return out[:, 3 * BLOCK + 1 : 4 * BLOCK].sum()

    of_both = jax.jit(jax.value_and_grad(of_late, argnums=(0, 1)))
    in_band, in_all = (jax.device_get(of_both(Q, K, mask)) for mask in (alg.banded(2), alg.UNIDIRECTIONAL))
    assert all(np.isfinite(a).all() for a in jax.tree.leaves((in_band[0], in_band[1][0][:, 3 * BLOCK + 1 :])))
    assert np.isnan(in_all[0])

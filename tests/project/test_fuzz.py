"""Random cases of attention, drawn by hypothesis: sizes, masks and dtypes, each implementation against "paper".

    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz                      ten thousand
    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz --hypothesis-seed 7  the same cases again

hypothesis prints the seed of a case that fails, and begins with that case the next time.
"""

import itertools
from unittest import mock

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import algorithms as alg
from algorithms.ops.attention import tiles
from tests.cases import assert_close, small_blocks

AT_ONCE = 40
"""Cases after which JAX forgets what it has compiled: its compiler has crashed in a process that kept thousands."""
CASES = itertools.count(1)
PROFILE = hypothesis.settings()
FEW_OR_MANY = hypothesis.settings(
    max_examples=3 if PROFILE.derandomize else PROFILE.max_examples,
    phases=set(PROFILE.phases) - {hypothesis.Phase.shrink},  # a smaller seed is another case, not a simpler one
)
BOUNDS = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 1e-1}
"""How far a result may be from the exact one, relative to the largest entry."""


def random_mask(rng, batch, l_z, l_x):
    """A mask of any kind or a conjunction, and the same as an array ``[*batch, l_z, l_x]``."""
    t_z, t_x = np.indices((l_z, l_x))
    mask, dense = alg.BIDIRECTIONAL, np.ones((*batch, l_z, l_x), bool)
    of_each = batch if rng.random() < 0.5 else ()
    width, kind_of_length = int(rng.integers(1, max(l_z, l_x) + 3)), ("int32", "uint8", "int64")[rng.integers(3)]
    lengths = rng.integers(l_z + 1, size=of_each)
    numbers = rng.integers(4, size=(*of_each, l_z))
    documents, array = np.sort(numbers, axis=-1), rng.random((*of_each, l_z, l_x)) < rng.random()
    length, of_each_column = jnp.asarray(lengths, kind_of_length), lengths[..., None, None]
    kinds = {
        "unidirectional": (alg.UNIDIRECTIONAL, t_z <= t_x),
        "band": (alg.banded(width), (t_z <= t_x) & (t_x - width < t_z)),
        "near": (alg.near(width), abs(t_x - t_z) < width),
        "padding": (alg.padding(length), t_z < of_each_column),
        "prefix": (alg.prefix(length), (t_z <= t_x) | (t_z < of_each_column)),
        "array": (jnp.asarray(array), array),
    }
    if l_z == l_x:
        kinds["blocks"] = alg.blocks(jnp.asarray(numbers)), numbers[..., :, None] <= numbers[..., None, :]
        same = documents[..., :, None] == documents[..., None, :]
        kinds["documents"] = alg.documents(jnp.asarray(documents)), same
    for kind in rng.permutation([*kinds])[: rng.integers(4)]:
        mask, dense = mask & kinds[kind][0], dense & kinds[kind][1]
    return mask, np.broadcast_to(dense, (*batch, l_z, l_x))


@pytest.mark.slow
@FEW_OR_MANY
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_random_cases_pass(seed):
    """Value and gradients."""
    rng = np.random.default_rng(seed)
    batch = ((), (int(rng.integers(1, 4)),), (2, int(rng.integers(1, 3))))[rng.integers(3)]
    l_x, l_z, d_attn, d_mid = (int(n) for n in rng.integers(1, (14, 14, 6, 6)))
    l_z = l_x if rng.random() < 0.5 else l_z
    dtype = ("float64", "float64", "float32", "bfloat16")[rng.integers(4)]
    mask, dense = random_mask(rng, batch, l_z, l_x)
    shared = () if rng.random() < 0.2 else batch  # keys and values without batch axes serve all
    scale = 30.0 if dtype == "float64" and rng.random() < 0.3 else 1.0
    shapes = (d_attn, *batch, l_x), (d_attn, *shared, l_z), (d_mid, *shared, l_z)
    Q, K, V = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)
    Q, G = scale * Q, rng.standard_normal((d_mid, *batch, l_x))
    options = {}
    if rng.random() < 0.3:
        key = jax.random.key(int(rng.integers(1000)))
        options = {"dropout": float(rng.random() * 0.8), "key": jax.random.split(key, batch) if batch else key}

    def pulled(Q, K, V, mask, how):
        def weighted(Q, K, V):
            V_tilde = alg.scaled_dot_product_attention(Q, K, V, mask, implementation=how, **options)
            return (V_tilde.astype(jnp.float64) * G).sum(), V_tilde

        (_, V_tilde), gradients = jax.value_and_grad(weighted, (0, 1, 2), has_aux=True)(Q, K, V)
        return V_tilde, *gradients

    of_case = jax.jit(pulled, static_argnames="how")
    expected = of_case(*(a.astype(jnp.float64) for a in (Q, K, V)), jnp.asarray(dense), "paper")
    how = ("dense", "blockwise", "strips", "auto")[rng.integers(4)]
    least, ranges, block = (int(n) for n in rng.integers(1, (7, 4, 7)))
    with (
        small_blocks(block, LEAST=least, RANGES=ranges),
        mock.patch.object(tiles, "SMALL", (4, 10**6)[rng.integers(2)]),
    ):
        found = of_case(Q, K, V, mask, how)
    bound = BOUNDS[dtype] * (1 if scale == 1 else 1e3)
    largest = max(1e-3, *(float(np.abs(a).max(initial=0)) for a in expected[1:]))
    for name, a, b in zip(("Ṽ", *"QKV"), found, expected, strict=True):
        of_all = None if name == "Ṽ" else largest
        assert_close(a, b, bound, f"{name} of {how}, {dtype}, Q {Q.shape}, K {K.shape}", of_all)
    nothing = ~dense.any(axis=-2)
    for a in found[:2]:
        assert (np.asarray(a, np.float64)[:, nothing] == 0).all(), "a token that attends to nothing"
    if next(CASES) % AT_ONCE == 0:
        jax.clear_caches()

"""What is true of every decoder: padding, documents, meshes, narrow types, and each way to compute a gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms as alg
from tests import cases, family_cases
from tests.algorithms.test_sharding import mesh_of
from tests.cases import assert_close, assert_trees_close, quick_of, small_blocks
from tests.own_lines.retention import HYBRID

ROWS = {name: family_cases.config_of(name) for name in family_cases.EVERY | family_cases.OWN}
ROWS["RETENTION"] = family_cases.config_of("LLAMA", variant=HYBRID, L=4)
QUICK = ("DEEPSEEK", "BLOOM", "HYBRID", "LAYERS", "GPT3_SHARED", "SINKS", "EXPERTS", "MAMBA", "RETENTION")
LENGTHS, X = np.array([13, 6]), family_cases.X
SEGMENTS = np.array([[0] * 6 + [1] + [2] * 6, [3] * 2 + [1] * 11])


@functools.cache
def theta_of(name):
    return family_cases.theta_of(ROWS[name])


@pytest.mark.end_to_end
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", quick_of(QUICK, ROWS))
def test_documents_and_padding_are_each_by_themselves(name):
    """By the oracle, or a custom line alone; what stands in the padding may be anything."""
    theta, variant = theta_of(name), ROWS[name].variant

    @jax.jit
    def of_both(x):
        padded = alg.d_logits(jnp.where(np.arange(13) < LENGTHS[:, None], x, -1), theta, length=LENGTHS)
        return padded, alg.d_logits(x, theta, segments=SEGMENTS)

    def expected(x):
        return family_cases.oracle_logits(x, theta, variant) if name in family_cases.EVERY else alg.d_logits(x, theta)

    with small_blocks(5):
        padded, packed = of_both(X)
    for b, l in enumerate(LENGTHS):
        assert_close(padded[:, b, :l], expected(X[b, :l]), 1e-9)
    for b, part in ((0, slice(6)), (0, slice(6, 7)), (0, slice(7, 13)), (1, slice(2, 13))):
        assert_close(packed[:, b, part], expected(X[b, part]), 1e-9)


def loss(theta, x, **options):
    """Not linear; every column matters."""
    return jnp.sin(alg.d_token_losses(x, theta, **options)).sum()


def gradient(**options):
    return jax.jit(jax.grad(functools.partial(loss, **options)))


def on_a_mesh(mesh, **options):
    def gradient_there(theta, x):
        with jax.set_mesh(mesh()):
            specs = alg.partition_specs(theta, mesh()), P("data")
            places = jax.tree.map(lambda spec: NamedSharding(mesh(), spec), specs)
            return jax.device_get(gradient(**options)(*jax.device_put((theta, x), places)))

    return gradient_there


def of_several(theta, x):
    """The gradient of the second of two models under vmap."""
    both = jax.tree.map(lambda W: np.stack([1.1 * np.asarray(W), W]), theta)
    return jax.tree.map(lambda W: W[1], jax.jit(jax.vmap(jax.grad(loss), (0, None)))(both, x))


SIZES = {"data": 2, "context": 2, "model": 2}
WAYS = {
    "as printed": gradient(implementation="paper"),
    "computed again": gradient(remat=True),
    "unrolled": gradient(unroll=True),
    "a checkpoint": jax.jit(jax.grad(jax.checkpoint(loss))),
    "a mesh": on_a_mesh(lambda: mesh_of(**SIZES), implementation="blockwise"),
    "a mesh of explicit axes": on_a_mesh(lambda: jax.make_mesh((2, 2, 2), tuple(SIZES))),
    "several models": of_several,
}
CASES = [(name, way) for name in ROWS for way in WAYS]


@pytest.mark.end_to_end
@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "way"), quick_of([c for c in CASES if c[0] in QUICK], CASES))
def test_a_gradient_is_the_same_however_it_is_computed(name, way):
    theta, x = theta_of(name), np.stack([X[0, :12], X[0, 1:], X[1, :12], X[1, 1:]])
    expected = gradient()(theta, x)
    assert_trees_close(WAYS[way](theta, x), jax.device_get(expected), 1e-10)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(expected))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", quick_of(QUICK, ROWS))
def test_narrow_types(name, dtype):
    theta = jax.tree.map(lambda W: np.asarray(W).astype(dtype), theta_of(name))

    computed = jax.jit(functools.partial(cases.pulled, lambda theta: alg.d_hidden_state(X, theta)))
    (Y, gradients), (expected, _) = computed(theta), computed(jax.tree.map(lambda W: W.astype(float), theta))
    assert Y.dtype == dtype
    assert all(g.dtype == dtype and np.isfinite(np.asarray(g, float)).all() for g in jax.tree.leaves(gradients))
    assert np.linalg.norm(np.asarray(Y, float) - expected) < 0.1 * np.linalg.norm(expected)

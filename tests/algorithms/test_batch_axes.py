"""A batch is said outright: with any number of batch axes, every function is a loop over the sequences.

Inside it is a wider matrix; and so are its gradients.
"""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases
from tests.algorithms import functions
from tests.algorithms.functions import batch_axes, called, of_batch, returned_axes
from tests.algorithms.test_attention import head_params, mh_params

pytestmark = pytest.mark.sampled(2)

BATCHES = [(8,), (8, 6), (0,), (8, 0)]  # no size is another's, so that no two axes can be confused
L_X, L_Z = 9, 6
HEAD, HEADS = head_params(d_x=11, d_z=13), mh_params(d_x=11, d_z=13, d_out=19)
W_U = cases.normal(17, 11, seed=1)
implementations = pytest.mark.parametrize("implementation", cases.IMPLEMENTATIONS)
exact_and_default = pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)
QUICK = [name for name in functions.BATCHED if "scaled_dot_product" not in name]


def of_sequence(array, axis, index):
    """By NumPy, since every new index would be a compilation; it has no typed keys."""
    array = array if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)
    return jax.device_put(array[(slice(None),) * axis + index])


@pytest.mark.parametrize(
    ("name", "batch"),
    cases.quick_of([*itertools.product(QUICK, [(8, 6), (0,)])], itertools.product(functions.BATCHED, BATCHES)),
)
def test_a_batch_is_a_loop_over_its_sequences(name, batch):
    given, axes, returned = (f(name) for f in (lambda n: of_batch(n, batch), batch_axes, returned_axes))
    together, mapped = called(name, **given), lambda given: called(name, **given)
    for _ in batch:
        mapped = jax.vmap(mapped, (axes,), 0 if returned is None else returned)
    of_each = jax.jit(mapped)(given)
    if returned is None:
        cases.assert_close(np.sum(of_each), together, 1e-12, name)
    else:
        cases.assert_trees_close(of_each, together, 1e-12)
    for index in itertools.islice(np.ndindex(batch), 0, None, 7):
        alone = called(name, **{n: of_sequence(a, axes[n], index) for n, a in given.items()})
        found = jax.tree.map(lambda a, axis, i=index: of_sequence(a, axis, i), of_each, returned or 0)
        cases.assert_trees_close(found, alone, 1e-12)
        assert [a.dtype for a in jax.tree.leaves(together)] == [a.dtype for a in jax.tree.leaves(alone)]


@pytest.mark.end_to_end
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in functions.BATCHED if batch_axes(name, shared=True)])
def test_what_has_no_batch_axes_serves_every_sequence_of_a_batch(name):
    of_one = functions.CASES[name].floats | functions.CASES[name].others
    shared = {n: np.stack([of_one[n]] * 8, axis) for n, axis in batch_axes(name, shared=True).items()}
    given = of_batch(name, (8,)) | shared
    without = {n: a for n, a in given.items() if n not in shared}
    cases.assert_trees_close(called(name, **without), called(name, **given), 1e-12)


EMPTY_MASKS = {
    "bidirectional": lambda l_z, l_x: alg.BIDIRECTIONAL,
    "unidirectional": lambda l_z, l_x: alg.UNIDIRECTIONAL,
    "padding": lambda l_z, l_x: alg.padding(0),
    "array": lambda l_z, l_x: jnp.ones((l_z, l_x), bool),
}


@pytest.mark.parametrize(
    ("name", "batch"),
    cases.quick_of([("unidirectional", ()), ("array", (3,))], itertools.product(EMPTY_MASKS, [(), (3,), (4, 3)])),
)
@implementations
def test_without_context_or_without_tokens_nothing_is_attended_and_no_gradient_sent(implementation, name, batch):
    for l_z, l_x in ((0, L_X), (L_Z, 0)):
        mask, matrices = EMPTY_MASKS[name](l_z, l_x), [cases.normal(5, *batch, l) for l in (l_x, l_z, l_z)]
        attend = functools.partial(alg.scaled_dot_product_attention, mask=mask, implementation=implementation)
        results = jax.jit(functools.partial(cases.pulled, attend))(*matrices)
        for actual, like in zip(results, (matrices[0], *matrices), strict=True):
            np.testing.assert_array_equal(actual, np.zeros(like.shape))


@exact_and_default
def test_without_context_a_head_gives_0_and_the_heads_their_bias(implementation):
    X, Z = cases.normal(11, 3, L_X), jnp.zeros((13, 3, 0))
    np.testing.assert_array_equal(
        alg.attention(X, Z, HEAD, alg.BIDIRECTIONAL, implementation=implementation), np.zeros((3, 3, L_X))
    )
    V_tilde = alg.mh_attention(X, Z, HEADS, alg.UNIDIRECTIONAL, implementation=implementation)
    np.testing.assert_array_equal(V_tilde, np.broadcast_to(HEADS.b_o[:, None, None], (19, 3, L_X)))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_single_query_without_context_is_0(batch):
    e, E, W = cases.normal(11, *batch), jnp.zeros((11, *batch, 0)), head_params(d_x=11, d_z=11)
    np.testing.assert_array_equal(alg.single_query_attention(e, E, W), np.zeros((3, *batch)))
    for gradient in jax.tree.leaves(jax.grad(lambda e, W: alg.single_query_attention(e, E, W).sum(), (0, 1))(e, W)):
        np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))


def loss_and_gradients(implementation, **options):
    @jax.jit
    def f(X, W_u, targets, weights):
        def loss(X, W_u):
            return alg.log_loss(X, W_u, targets, weights=weights, implementation=implementation, **options)

        return jax.value_and_grad(loss, (0, 1))(X, W_u)

    return f


@pytest.mark.parametrize("shape", [(0,), (0, L_X), (3, 0)])
@exact_and_default
def test_the_loss_of_nothing_is_0(implementation, shape):
    weights = jnp.ones(shape)
    loss, (dX, dW_u) = loss_and_gradients(implementation)(jnp.ones((11, *shape)), W_U, jnp.zeros(shape, int), weights)
    assert loss == 0
    assert dX.shape == (11, *shape)
    np.testing.assert_array_equal(dW_u, np.zeros(W_U.shape))


# What a batch is inside.

x = cases.random_tokens(3, 7)


def products_with(theta, program):
    """The lines of a lowered program that are products with the weights of the MLP, or with their transposes."""
    d_mlp, d_e = theta.layers.mlp.W_mlp1.shape[1:]
    weights = rf"(<{d_mlp}x{d_e}xf64>|<{d_e}x{d_mlp}xf64>)"
    return [line for line in program.splitlines() if re.search(rf"dot_general.*{weights}", line)]


@pytest.mark.parametrize("by_vmap", [False, True])
@pytest.mark.parametrize("architecture", ["e", "d"])
def test_a_batch_reaches_the_mlp_as_a_wider_matrix(architecture, by_vmap):
    """[d_mlp, d_e] × [d_e, columns]: no product with the weights of the MLP has a batch dimension."""
    f, config = {"e": (alg.e_transformer, cases.E), "d": (alg.d_transformer, cases.D)}[architecture]
    theta = cases.random_theta(config)
    of_batch = jax.vmap(f, (0, None), 1) if by_vmap else f
    products = products_with(theta, jax.jit(of_batch).lower(x, theta).as_text())
    assert len(products) == 2
    assert not any("batching_dims" in line for line in products)

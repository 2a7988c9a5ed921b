"""JAX's transformations work by JAX's own rules, in any nesting, for every implementation, or say what to do."""

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
from tests.algorithms.functions import EVERY, D
from tests.algorithms.test_attention import mh_params

pytestmark = pytest.mark.sampled(2, tests=6)

# At these sizes "auto" is "dense".
implementations = pytest.mark.parametrize("implementation", cases.quick_of({*EVERY} - {"dense"}, EVERY))


# Attention of a batch [2, 3] of sequences, whose masks are one for each of the outer axis, or of the inner one.
A, B, L = 2, 3, 9
Q, V = (cases.normal(A, B, d, L, seed=d) for d in (5, 7))
LENGTHS = {A: cases.array([4, 7]), B: cases.array([0, 9, 5])}
ARRAYS = {n: cases.array(np.random.default_rng(n).random((n, L, L)) < 0.5) for n in (A, B)}
NUMBERS = {n: np.sort(cases.random_tokens(n, L, n=3, seed=n)) for n in (A, B)}
t_z, t_x = np.indices((L, L))
# name → (what is batched, the mask from it, the same as an array)
BATCHED_MASKS = {
    "length": (LENGTHS, lambda l: alg.UNIDIRECTIONAL & alg.padding(l), lambda l: (t_z <= t_x) & (t_z < np.asarray(l))),
    "documents": (NUMBERS, alg.documents, lambda n: np.asarray(n)[t_z] == np.asarray(n)[t_x]),
    "array": (ARRAYS, lambda mask: mask, np.asarray),
}
W = mh_params(d_x=5, d_z=7, d_out=7)


def pulled(mask, X, Z, implementation):
    """Ṽ and the gradients of a weighting of it by X and Z."""
    return cases.pulled(lambda X, Z: alg.mh_attention(X, Z, W, mask, implementation=implementation), X, Z)


printed = jax.jit(functools.partial(pulled, implementation="paper"))


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize(
    ("kind", "n"),
    cases.quick_of([("length", A), ("array", A), ("documents", B)], itertools.product(BATCHED_MASKS, (A, B))),
)
@implementations
def test_a_mask_of_one_of_two_nested_vmaps(kind, n, implementation):
    """As sequence by sequence, from the mask as an array."""
    batched, make_mask, as_array = BATCHED_MASKS[kind]

    def of_sequence(what, X, Z):
        return pulled(make_mask(what), X, Z, implementation)

    inner = jax.vmap(of_sequence, (0 if n == B else None, 0, 0))
    results = jax.jit(jax.vmap(inner, (0 if n == A else None, 0, 0)))(batched[n], Q, V)
    for a, b in np.ndindex(A, B):
        expected = printed(jnp.asarray(as_array(batched[n][a if n == A else b])), Q[a, b], V[a, b])
        for part, actual, of_loop in zip(("Ṽ", "dX", "dZ"), results, expected, strict=True):
            cases.assert_close(actual[a, b], of_loop, 1e-12, part)


@pytest.mark.parametrize(
    "implementation", [pytest.param(h, marks=pytest.mark.thorough if h == "auto" else pytest.mark.slow) for h in EVERY]
)
def test_nothing_leaks(implementation):
    """``jax.checking_leaks`` raises where a traced value outlives its transformation."""
    names = ("e_token_losses", "ed_hidden_state", "d_token_losses, of columns", "mh_attention, holes, dropped")
    for name in names:
        by = next(iter(functions.CASES[name].floats))

        def gradient(given, name=name, by=by):
            floats = functions.CASES[name].floats | given
            return jax.grad(lambda W: functions.called(name, implementation, **given | {by: W}).sum())(floats[by])

        with jax.checking_leaks():
            axes = functions.batch_axes(name)
            jax.jit(jax.vmap(gradient, (axes,))).trace(functions.of_batch(name, (3,)))


# Ahead of time. The program stands for any length, or the function says that it cannot.
LONG = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY | {"l_max": 331}))
HEADS_OF_1 = mh_params(d_x=1, d_z=1)


def numbers(x):
    """A matrix of one row from tokens, so that they are all that an exported program takes."""
    return jnp.sin(x.astype(float))[None]


EXPORTED = {
    "d_transformer": lambda x, how: alg.d_transformer(x, LONG, implementation=how),
    "mh_attention": lambda x, how: alg.mh_attention(
        numbers(x), numbers(x + 1), HEADS_OF_1, alg.UNIDIRECTIONAL, implementation=how
    ),
    "gradient of the attention": lambda x, how: jax.grad(
        lambda X: (alg.mh_attention(X, X, HEADS_OF_1, alg.UNIDIRECTIONAL, implementation=how) ** 2).sum()
    )(numbers(x)),
    "log_loss": lambda x, how: alg.log_loss(numbers(x), cases.normal(7, 1), x, implementation=how),
}


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize(
    ("name", "implementation", "axes"),
    cases.quick_of(
        [("d_transformer", "auto", "b, l"), ("mh_attention", "paper", "b, l"), ("mh_attention", "auto", "b, l")],
        itertools.product(EXPORTED, EVERY, ("b, l", "l")),
    ),
)
@pytest.mark.usefixtures("as_for_users")  # beartype takes a symbol for no size
def test_an_exported_program_of_symbolic_lengths_is_right_or_refused(name, implementation, axes):
    """Which kernel is the fastest may not be chosen as if the length were known."""
    f = jax.jit(functools.partial(EXPORTED[name], how=implementation))
    shape = jax.export.symbolic_shape(axes, constraints=["l >= 1", "l <= 331"])
    try:
        exported = jax.export.export(f)(jax.ShapeDtypeStruct(shape, jnp.int32))
    except ValueError as error:
        message = str(error)
    else:
        for length in ((2, 5), (3, 311)):
            x = cases.random_tokens(*length[-len(shape) :], n=7)
            cases.assert_close(exported.call(x), f(x), 1e-12, str(length))
        return
    assert re.search("symbolic", message), message
    assert re.search("implementation=|length", message), message


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["auto", "paper"])
@pytest.mark.usefixtures("as_for_users")  # beartype cannot compare l − 1 with l − 1
def test_an_exported_loss_of_the_next_tokens(implementation):
    """The sizes are then l − 1, which JAX does not know to be positive, and b·(l − 1)."""

    def loss(theta, x):
        X = alg.d_hidden_state(x[..., :-1], theta, implementation=implementation)
        return alg.log_loss(X, theta.W_u, x[..., 1:], implementation=implementation)

    program, x = jax.jit(jax.value_and_grad(loss)), cases.random_tokens(3, 5, n=7)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), D)
    exported = jax.export.export(program)(shapes, jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, l"), x.dtype))
    cases.assert_trees_close(exported.call(D, x), program(D, x), 1e-11)

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
from tests.algorithms.test_attention import head_params, mh_params
from tests.algorithms.test_batch_axes import ED, D, E

pytestmark = pytest.mark.sampled(2, tests=6)

EVERY = (*cases.IMPLEMENTATIONS, "auto")
# At these sizes "auto" is "dense".
implementations = pytest.mark.parametrize("implementation", cases.quick_of({*EVERY} - {"dense"}, EVERY))


# Attention of a batch [2, 3] of sequences, whose masks are one for each of the outer axis, or of the inner one.
A, B, L = 2, 3, 9
Q, K, V, G = (cases.normal(A, B, d, L, seed=d + i) for i, d in enumerate((5, 5, 7, 7)))
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
W_QKV, W = head_params(d_x=5, d_z=7), mh_params(d_x=5, d_z=7, d_out=7)
# name → function of a mask, two matrices of 5 and of 7 rows, and the implementation
ATTENTIONS = {
    "scaled_dot_product_attention": lambda mask, Q, V, how: alg.scaled_dot_product_attention(
        Q, jnp.sin(Q), V, mask, implementation=how
    ),
    "attention": lambda mask, X, Z, how: alg.attention(X, Z, W_QKV, mask, implementation=how),
    "mh_attention": lambda mask, X, Z, how: alg.mh_attention(X, Z, W, mask, implementation=how),
}


def value(name, mask, X, Z, implementation):
    return (ATTENTIONS[name](mask, X, Z, implementation),)


def pullback(name, mask, X, Z, implementation):
    """Ṽ and the gradients of a weighting of it by X and Z."""
    V_tilde, of_V_tilde = jax.vjp(lambda X, Z: ATTENTIONS[name](mask, X, Z, implementation), X, Z)
    return V_tilde, *of_V_tilde(jnp.cos(V_tilde))


printed_pullback = jax.jit(functools.partial(pullback, implementation="paper"), static_argnums=0)


@functools.cache
def expected_of_masks(name, kind, n):
    """Sequence by sequence, by the printed lines, from the mask as an array."""
    batched, _, as_array = BATCHED_MASKS[kind]
    results = [
        printed_pullback(name, jnp.asarray(as_array(batched[n][a if n == A else b])), Q[a, b], V[a, b])
        for a in range(A)
        for b in range(B)
    ]
    return [np.stack(part).reshape(A, B, *part[0].shape) for part in zip(*results, strict=True)]


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize(
    ("f", "name", "kind", "n"),
    cases.quick_of(
        [
            (value, "mh_attention", "length", A),
            (value, "mh_attention", "array", A),
            (pullback, "scaled_dot_product_attention", "documents", A),
        ],
        itertools.product((value, pullback), ATTENTIONS, BATCHED_MASKS, (A, B)),
    ),
)
@implementations
def test_a_mask_of_one_of_two_nested_vmaps(f, name, kind, n, implementation):
    batched, make_mask, _ = BATCHED_MASKS[kind]

    def of_sequence(what, X, Z):
        return f(name, make_mask(what), X, Z, implementation)

    inner = jax.vmap(of_sequence, (0 if n == B else None, 0, 0))
    results = jax.jit(jax.vmap(inner, (0 if n == A else None, 0, 0)))(batched[n], Q, V)
    for part, actual, expected in zip(("Ṽ", "dX", "dZ"), results, expected_of_masks(name, kind, n), strict=False):
        cases.assert_close(actual, expected, 1e-12, part)


x, z = cases.random_tokens(A, B, 7), cases.random_tokens(A, B, 5, seed=1)


# One objective of everything that has backward rules: attention, linear maps, norms, embedding and loss.
x1, l1 = cases.random_tokens(B, 7), cases.array([2, 7, 1])


def objective(theta, x, length, implementation):
    X = alg.e_hidden_state(x, theta, length=length, implementation=implementation)
    return alg.log_loss(X, theta.W_u, x, implementation=implementation)


# name → (function of arrays of one sequence and the implementation, the arrays of a batch of them)
OF_SEQUENCES = {
    "attention": (
        lambda Q, K, V, how: (
            alg.scaled_dot_product_attention(Q, K, V, alg.UNIDIRECTIONAL & alg.padding(4), implementation=how) ** 2
        ).sum(),
        [cases.array(np.asarray(a)[0]) for a in (Q, K, V)],
    ),
    "log_loss": (
        lambda X, W_u, b_u, how: alg.log_loss(X, W_u, jnp.arange(L), b_u=b_u, label_smoothing=0.1, implementation=how),
        (Q[0], cases.normal(B, 17, 5), cases.normal(B, 17)),
    ),
}


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize(
    ("name", "implementation"),
    cases.quick_of(
        [("attention", "dense"), ("attention", "blockwise"), ("log_loss", "auto")],
        itertools.product(OF_SEQUENCES, EVERY),
    ),
)
def test_loops_and_checkpoints_inside_and_outside_of_gradients(name, implementation):
    f, arrays = OF_SEQUENCES[name]
    f, printed = (functools.partial(f, how=how) for how in (implementation, "paper"))
    by_all, again = tuple(range(3)), jax.checkpoint(f)

    @jax.jit
    def gradients(arrays):
        return {
            "lax.map of the gradient": jax.lax.map(lambda a: jax.grad(f, by_all)(*a), arrays),
            "vmap of a checkpoint": jax.grad(lambda arrays: jax.vmap(again)(*arrays).sum())(arrays),
            "lax.map of a checkpoint": jax.grad(lambda arrays: jax.lax.map(lambda a: again(*a), arrays).sum())(arrays),
        }

    expected = jax.jit(jax.vmap(jax.grad(printed, by_all)))(*arrays)
    for how, of_batch in gradients(arrays).items():
        for actual, of_loop in zip(of_batch, expected, strict=True):
            cases.assert_close(actual, of_loop, 1e-12, how)


@pytest.mark.parametrize(
    "implementation", [pytest.param(h, marks=pytest.mark.thorough if h == "auto" else pytest.mark.slow) for h in EVERY]
)
def test_nothing_leaks(implementation):
    """``jax.checking_leaks`` raises where a traced value outlives its transformation."""
    gradient = functools.partial(jax.grad(objective), implementation=implementation)
    of_one = jax.grad(lambda theta: alg.ed_hidden_state(x1, x1, theta, implementation=implementation)[0, 0, 0])
    with jax.checking_leaks():
        jax.jit(jax.vmap(gradient, (None, 0, 0))).trace(E, x1, l1)
        jax.jit(of_one).trace(ED)


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

    program, x = jax.jit(jax.value_and_grad(loss)), cases.random_tokens(3, 9, n=17)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), D)
    exported = jax.export.export(program)(shapes, jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, l"), x.dtype))
    cases.assert_trees_close(exported.call(D, x), program(D, x), 1e-11)

"""A batch is said outright: with any number of batch axes, every function is a loop over the sequences.

Inside it is a wider matrix; and so are its gradients.
"""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.masks import StructuralMask
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params, random_mask

pytestmark = pytest.mark.sampled(2)

# No size is another's, a batch axis's neither, so that no two axes can be confused.
SIZES = {"N_V": 17, "l_max": 23, "H": 2, "d_e": 11, "d_mlp": 13, "d_attn": 5, "d_mid": 7}
L_X, L_Z = 9, 6
BATCHES = [(3,), (4, 3), (0,), (3, 0)]
# Under one name each, so that a function is compiled once for all tests.
ED = cases.random_theta(alg.EDTransformerConfig(L_enc=1, L_dec=1, **SIZES))
E = cases.random_theta(alg.ETransformerConfig(L=1, d_f=19, **SIZES))
D = cases.random_theta(alg.DTransformerConfig(L=1, **SIZES))
W_E, W_U = cases.normal(11, 17), cases.normal(17, 11, seed=1)
HEAD, HEADS = head_params(d_x=11, d_z=13), mh_params(d_x=11, d_z=13, d_out=19)
GAMMA, BETA = cases.normal(11, seed=2), cases.normal(11, seed=3)
implementations = pytest.mark.parametrize("implementation", cases.IMPLEMENTATIONS)
exact_and_default = pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)


class Argument(NamedTuple):
    """What every sequence has of its own: made for given batch axes, which begin at ``axis``."""

    make: Callable[[tuple[int, ...]], jax.Array]
    axis: int


def columns(rows, *l, seed=0):
    return Argument(lambda batch: cases.normal(rows, *batch, *l, seed=seed), 1)


def tokens(*l, seed=0, n=17):
    return Argument(lambda batch: cases.random_tokens(*batch, *l, seed=seed, n=n), 0)


def lengths(l, seed=4):
    return Argument(lambda batch: jax.device_put(1 + np.asarray(cases.random_tokens(*batch, seed=seed, n=l))), 0)


KEYS = Argument(lambda batch: jax.random.split(jax.random.key(5), batch), 0)
MASKS = Argument(lambda batch: jax.device_put(np.random.default_rng(6).random((*batch, L_Z, L_X)) < 0.5), 0)

X_AND_Z = [columns(11, L_X), columns(13, L_Z, seed=1)]
# (function of what a sequence has of its own, that)
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Argument]]] = {
    "token_embedding": (lambda v: alg.token_embedding(v, W_E), [tokens()]),
    "positional_embedding": (lambda t: alg.positional_embedding(t, W_E), [tokens()]),
    "single_query_attention": (
        lambda e, E: alg.single_query_attention(e, E, head_params(d_x=11, d_z=11)),
        [columns(11), columns(11, L_Z, seed=1)],
    ),
    "attention": (lambda X, Z, l: alg.attention(X, Z, HEAD, alg.padding(l)), [*X_AND_Z, lengths(L_Z)]),
    "mh_attention": (lambda X, Z, mask: alg.mh_attention(X, Z, HEADS, mask), [*X_AND_Z, MASKS]),
    "dropout of the weights": (
        lambda X, Z, key: alg.mh_attention(X, Z, HEADS, alg.BIDIRECTIONAL, dropout=0.3, key=key),
        [*X_AND_Z, KEYS],
    ),
    "layer_norm": (lambda e: alg.layer_norm(e, GAMMA, BETA, epsilon=0.1), [columns(11)]),
    "rms_norm": (lambda e: alg.rms_norm(e, GAMMA), [columns(11)]),
    "unembedding": (lambda e: alg.unembedding(e, W_U), [columns(11)]),
    "ed_transformer": (
        lambda z, x, l: alg.ed_transformer(z, x, ED, z_length=l),
        [tokens(L_Z, seed=1), tokens(L_X), lengths(L_Z)],
    ),
    "ed_hidden_state": (lambda z, x: alg.ed_hidden_state(z, x, ED), [tokens(L_Z, seed=1), tokens(L_X)]),
    "ed_encoding": (lambda z, l: alg.ed_encoding(z, ED, z_length=l), [tokens(L_Z), lengths(L_Z)]),
    "ed_decoding": (
        lambda Z, x, l: alg.ed_decoding(Z, x, ED, z_length=l),
        [columns(11, L_Z), tokens(L_X), lengths(L_Z)],
    ),
    "e_transformer": (lambda x, l: alg.e_transformer(x, E, length=l), [tokens(L_X), lengths(L_X)]),
    "e_hidden_state": (lambda x: alg.e_hidden_state(x, E), [tokens(L_X)]),
    "e_encoding": (lambda x, l: alg.e_encoding(x, E, length=l), [tokens(L_X), lengths(L_X)]),
    "d_transformer": (lambda x: alg.d_transformer(x, D), [tokens(L_X)]),
    "d_hidden_state": (
        lambda x, t, n: alg.d_hidden_state(x, D, positions=t, segments=n),
        [tokens(L_X), tokens(L_X, seed=1, n=23), tokens(L_X, seed=2, n=2)],
    ),
    "dropout of a model": (lambda x, key: alg.d_hidden_state(x, D, dropout=0.3, key=key), [tokens(L_X), KEYS]),
    "d_inference": (lambda x, key: alg.d_inference(x, D, l_gen=4, tau=1.0, key=key), [tokens(5), KEYS]),
}
CASES = list(itertools.product(FUNCTIONS, BATCHES))
# The quick tests leave out what is a part of something else here.
PARTS = {"ed_hidden_state", "ed_encoding", "ed_decoding", "e_hidden_state", "e_encoding", "d_transformer"}
QUICK = [(name, batch) for name, batch in CASES if name not in PARTS and batch in ((4, 3), (0,))]


def of_sequence(array, axis, index):
    """By NumPy, since every new index would be a compilation; it has no typed keys."""
    array = array if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)
    return jax.device_put(array[(slice(None),) * axis + index])


@pytest.mark.parametrize(("name", "batch"), cases.quick_of(QUICK, CASES))
def test_a_batch_is_a_loop_over_its_sequences(name, batch):
    f, arguments = FUNCTIONS[name]
    out_axis = 0 if name == "d_inference" else 1  # where the batch begins in the result
    made = [argument.make(batch) for argument in arguments]
    together = f(*made)
    mapped = f
    for _ in batch:
        mapped = jax.vmap(mapped, tuple(argument.axis for argument in arguments), out_axis)
    cases.assert_close(jax.jit(mapped)(*made), together, 1e-12, f"{name} by vmap")
    one = jax.eval_shape(f, *(argument.make(()) for argument in arguments))
    assert together.shape == (*one.shape[:out_axis], *batch, *one.shape[out_axis:])
    assert together.dtype == one.dtype
    for index in np.ndindex(batch):
        alone = f(*(of_sequence(a, argument.axis, index) for a, argument in zip(made, arguments, strict=True)))
        cases.assert_close(of_sequence(together, out_axis, index), alone, 1e-12, f"{name}{index}")


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", [(4, 3), pytest.param((0,), marks=pytest.mark.slow)])
def test_a_batch_of_transductions_is_a_loop_where_each_ends_by_itself(batch):
    z, l, keys = (a.make(batch) for a in (tokens(L_Z), lengths(L_Z), KEYS))
    uneven = ED._replace(W_u=ED.W_u.at[16].mul(2))  # eos_token comes soon in some, late in others
    x_hat, x_lengths = alg.ed_inference(z, uneven, tau=4.0, key=keys, l_max=8, z_length=l)
    assert (x_hat.shape, x_lengths.shape) == ((*batch, 8), batch)
    for index in np.ndindex(batch):
        alone, length = alg.ed_inference(
            of_sequence(z, 0, index), uneven, tau=4.0, key=keys[index], l_max=8, z_length=of_sequence(l, 0, index)
        )
        np.testing.assert_array_equal(x_hat[index], alone)
        assert x_lengths[index] == length
    assert 0 in batch or len(np.unique(x_lengths)) > 2


@pytest.mark.end_to_end
def test_what_has_no_batch_axes_serves_every_sequence_of_a_batch():
    x = tokens(L_X).make((3,))
    cases.assert_close(alg.e_transformer(x, E, length=4), alg.e_transformer(x, E, length=jnp.array([4, 4, 4])), 1e-14)
    z = tokens(L_Z, seed=1).make(())
    cases.assert_close(alg.ed_transformer(z, x, ED), alg.ed_transformer(jnp.stack([z, z, z]), x, ED), 1e-12)
    X, Z = columns(11, L_X).make((3,)), columns(13, L_Z, seed=1).make(())
    of_each = jnp.broadcast_to(Z[:, None], (13, 3, L_Z))
    of_one, of_three = (alg.mh_attention(X, context, HEADS, alg.UNIDIRECTIONAL) for context in (Z, of_each))
    cases.assert_close(of_one, of_three, 1e-14)
    t, n = jnp.arange(L_X)[::-1], jnp.arange(L_X) // 4
    each = {"positions": jnp.stack([t, t, t]), "segments": jnp.stack([n, n, n])}
    cases.assert_close(alg.d_hidden_state(x, D, positions=t, segments=n), alg.d_hidden_state(x, D, **each), 1e-14)


# The masks of a batch, and that of one of its sequences as an array; some are one for all sequences.
BATCH = (4, 3)
OF_LENGTH = np.random.default_rng(7).integers(L_Z + 1, size=BATCH)
OF_LENGTH[0, 0] = 0  # nothing to attend to
NUMBERS = np.sort(np.random.default_rng(8).integers(3, size=(*BATCH, L_X)), axis=-1)
t_z, t_x = np.indices((L_Z, L_X))
t_1, t_2 = np.indices((L_X, L_X))
EACH, ONE = np.asarray(MASKS.make(BATCH)), random_mask(L_Z, L_X)
BATCH_MASKS = {
    "one rule for all": (alg.UNIDIRECTIONAL & alg.banded(4), lambda i: (t_x - 4 < t_z) & (t_z <= t_x)),
    "a window of all": (
        alg.near(2) & alg.padding(cases.array(4)),
        lambda i: (abs(t_x - t_z) < 2) & (t_z < 4),
    ),
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


@functools.partial(jax.jit, static_argnums=1)
def value_and_gradients(mask, implementation, Q, K, V, E):
    """Lines 4 to the end of Algorithm 4, and their pullback: compiled as one program."""
    attend = functools.partial(alg.scaled_dot_product_attention, mask=mask, implementation=implementation)
    V_tilde, pullback = jax.vjp(attend, Q, K, V)
    return V_tilde, *pullback(E)


@functools.cache
def expected_of_masks(name):
    """By the printed lines, sequence by sequence, from the mask as an array."""
    _, dense = BATCH_MASKS[name]
    l_z = dense((0, 0)).shape[0]
    Q, K, V, E = matrices = (
        cases.normal(5, *BATCH, L_X),
        *(cases.normal(d, *BATCH, l, seed=d + l) for d, l in ((5, l_z), (7, l_z), (7, L_X))),
    )
    stacked = [np.zeros(a.shape) for a in (E, Q, K, V)]
    for index in np.ndindex(BATCH):
        one = (of_sequence(a, 1, index) for a in matrices)
        results = value_and_gradients(jnp.asarray(dense(index)), "paper", *one)
        for whole, one in zip(stacked, results, strict=True):
            whole[(slice(None), *index)] = one
    return matrices, stacked


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", cases.quick_of(("a length of each", "an array of each"), BATCH_MASKS))
@implementations
def test_masks_of_one_and_of_each_sequence(name, implementation):
    mask, _ = BATCH_MASKS[name]
    matrices, expected = expected_of_masks(name)
    results = value_and_gradients(mask, implementation, *matrices)
    for part, actual, of_loop in zip(("Ṽ", "dQ", "dK", "dV"), results, expected, strict=True):
        cases.assert_close(actual, of_loop, 1e-12, part)


@pytest.mark.parametrize("name", ["a length of each", "documents of each", "documents of all, a length of each"])
def test_a_structural_mask_of_a_batch_becomes_an_array_of_each_sequence(name):
    mask, dense = BATCH_MASKS[name]
    l_z = dense((0, 0)).shape[0]
    expected = np.stack([dense(index) for index in np.ndindex(BATCH)]).reshape(*BATCH, l_z, L_X)
    np.testing.assert_array_equal(jax.jit(lambda mask: mask.dense(l_z, L_X))(mask), expected)


def test_a_structural_mask_joins_with_arrays_of_each_sequence():
    expected = EACH & (t_z <= t_x) & (t_z < OF_LENGTH[..., None, None])
    for joined in (
        alg.UNIDIRECTIONAL & alg.padding(jnp.asarray(OF_LENGTH)) & jnp.asarray(EACH),
        jnp.asarray(EACH) & (alg.UNIDIRECTIONAL & alg.padding(jnp.asarray(OF_LENGTH))),
    ):
        np.testing.assert_array_equal(joined, expected)
    of_each_length = jnp.asarray(ONE) & alg.padding(jnp.asarray(OF_LENGTH))
    np.testing.assert_array_equal(of_each_length, ONE & (t_z < OF_LENGTH[..., None, None]))


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
        Q, K, V, E = (cases.normal(d, *batch, l, seed=d) for d, l in ((5, l_x), (5, l_z), (7, l_z), (7, l_x)))
        results = value_and_gradients(EMPTY_MASKS[name](l_z, l_x), implementation, Q, K, V, E)
        for actual, like in zip(results, (E, Q, K, V), strict=True):
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


@pytest.mark.sampled(1)
@exact_and_default  # one rule for all others
def test_the_loss_of_a_batch_is_the_sum_of_its_sequences_losses(implementation):
    X, targets = cases.normal(11, *BATCH, L_X), cases.random_tokens(*BATCH, L_X)
    weights = jnp.asarray(np.random.default_rng(1).random((*BATCH, L_X))).at[0].set(0.0)
    f, printed = (loss_and_gradients(how, label_smoothing=0.1) for how in (implementation, "paper"))
    loss, (dX, dW_u) = f(X, W_U, targets, weights)
    each = {
        i: printed(of_sequence(X, 1, i), W_U, of_sequence(targets, 0, i), of_sequence(weights, 0, i))
        for i in np.ndindex(BATCH)
    }
    cases.assert_close(loss, sum(one for one, _ in each.values()), 1e-12)
    cases.assert_close(dW_u, sum(of_W_u for _, (_, of_W_u) in each.values()), 1e-12)
    for index, (_, (of_X, _)) in each.items():
        cases.assert_close(dX[(slice(None), *index)], of_X, 1e-12, str(index))


@pytest.mark.parametrize("shape", [(0,), (0, L_X), (3, 0)])
@exact_and_default
def test_the_loss_of_nothing_is_0(implementation, shape):
    weights = jnp.ones(shape)
    loss, (dX, dW_u) = loss_and_gradients(implementation)(jnp.ones((11, *shape)), W_U, jnp.zeros(shape, int), weights)
    assert loss == 0
    assert dX.shape == (11, *shape)
    np.testing.assert_array_equal(dW_u, np.zeros(W_U.shape))


# What a batch is inside.

B = 3
x = cases.random_tokens(B, 7)


def products_with(theta, program):
    """The lines of a lowered program that are products with the weights of the MLP, or with their transposes."""
    d_mlp, d_e = theta.layers.mlp.W_mlp1.shape[1:]
    weights = rf"(<{d_mlp}x{d_e}xf64>|<{d_e}x{d_mlp}xf64>)"
    return [line for line in program.splitlines() if re.search(rf"dot_general.*{weights}", line)]


@pytest.mark.parametrize("by_vmap", [False, True])
@pytest.mark.parametrize("architecture", ["e", "d"])
def test_a_batch_reaches_the_mlp_as_a_wider_matrix(architecture, by_vmap):
    """[d_mlp, d_e] × [d_e, columns]: no product with the weights of the MLP has a batch dimension."""
    f, theta = {"e": (alg.e_transformer, E), "d": (alg.d_transformer, D)}[architecture]
    of_batch = jax.vmap(f, (0, None), 1) if by_vmap else f
    products = products_with(theta, jax.jit(of_batch).lower(x, theta).as_text())
    assert len(products) == 2
    assert not any("batching_dims" in line for line in products)

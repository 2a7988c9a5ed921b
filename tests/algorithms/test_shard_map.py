"""Inside ``jax.shard_map``, with its checks, several devices compute the gradients that one device computes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.lines import MixerMetadata
from tests import cases
from tests.algorithms import test_recurrences
from tests.algorithms.test_attention import head_params, mh_params
from tests.algorithms.test_batch_axes import ED, D, E
from tests.algorithms.test_sharding import mesh_of

pytestmark = pytest.mark.sampled(2)

EVERY = (*cases.IMPLEMENTATIONS, "auto")
B, L_X, L_Z, CAUSAL = 8, 9, 6, alg.UNIDIRECTIONAL
COLUMNS, ROWS = P(None, "data"), P("data")  # where the batch stands in matrices, and in tokens and lengths


def gradients_inside(loss, n, specs, theta, data, given):
    """By the parameters, which every device has, and by the data, of which each has its share: taken on the device."""

    def of_device(theta, data, given):
        value, gradients = jax.value_and_grad(loss, (0, 1))(theta, data, given)
        return jax.lax.psum(value, "data"), gradients

    return jax.shard_map(
        of_device, mesh=mesh_of(data=n), in_specs=(P(), *specs), out_specs=(P(), (P(), specs[0])), check_vma=True
    )(theta, data, given)


def gradients_outside(loss, n, specs, theta, data, given):
    """The same of the sum over the devices, taken outside of the map."""

    def of_device(theta, data, given):
        return jax.lax.psum(loss(theta, data, given), "data")

    summed = jax.shard_map(of_device, mesh=mesh_of(data=n), in_specs=(P(), *specs), out_specs=P(), check_vma=True)
    return jax.value_and_grad(summed, (0, 1))(theta, data, given)


WAYS = {"inside": gradients_inside, "outside": gradients_outside}


def assert_devices_are_one(loss, specs, theta, data, given, n, ways):
    """``loss`` is a sum over the sequences. All in one program, since compiling is what takes the time."""

    @jax.jit
    def compute(theta, data, given):
        expected = jax.value_and_grad(loss, (0, 1))(theta, data, given)
        return expected, {way: WAYS[way](loss, n, specs, theta, data, given) for way in ways}

    (expected_value, expected), of_ways = compute(theta, data, given)
    for value, gradients in of_ways.values():
        cases.assert_close(value, expected_value, 1e-11)
        for actual, of_one in zip(gradients, expected, strict=True):
            cases.assert_trees_close(actual, of_one, 1e-11)


def sum_of_cubes(V_tilde):
    """Not linear, so that a wrong cotangent shows."""
    return (V_tilde**3).sum()


X, Z = cases.normal(11, B, L_X), cases.normal(13, B, L_Z, seed=1)
LENGTHS = cases.array(np.random.default_rng(2).integers(1, L_Z + 1, size=B))
ARRAYS = cases.array(np.random.default_rng(3).random((B, L_Z, L_X)) < 0.6)
x, z = cases.random_tokens(B, L_X), cases.random_tokens(B, L_Z, seed=1)
NUMBERS = cases.random_tokens(B, L_X, n=3, seed=2)
WEIGHTS = cases.array(np.random.default_rng(4).random((B, L_X)))
HEAD, HEADS = head_params(d_x=11, d_z=13), mh_params(d_x=11, d_z=13)
W_U, GAMMA, BETA = cases.normal(17, 11, seed=4), cases.normal(11, seed=5), cases.normal(11, seed=6)

# name → (loss of parameters, data, what else is given, and the implementation; the first three)
FUNCTIONS = {
    "attention": (
        lambda W, d, given, how: sum_of_cubes(alg.attention(d["X"], d["Z"], W, alg.padding(given), implementation=how)),
        (HEAD, {"X": X, "Z": Z}, LENGTHS),
    ),
    "mh_attention": (
        lambda W, d, given, how: sum_of_cubes(alg.mh_attention(d["X"], d["Z"], W, given, implementation=how)),
        (HEADS, {"X": X, "Z": Z}, ARRAYS),
    ),
    "mh_attention, one mask": (
        lambda W, d, given, how: sum_of_cubes(alg.mh_attention(d["X"], d["Z"], W, CAUSAL, implementation=how)),
        (HEADS, {"X": X, "Z": Z}, ()),
    ),
    "mh_attention, one context": (
        lambda W, d, given, how: sum_of_cubes(
            alg.mh_attention(d["X"], jnp.stack([W["Z"]] * d["X"].shape[1], 1), W["W"], ARRAYS[0], implementation=how)
        ),
        ({"W": HEADS, "Z": cases.array(np.asarray(Z)[:, 0])}, {"X": X}, ()),
    ),
    "scaled_dot_product_attention": (
        lambda W, d, given, how: sum_of_cubes(
            W
            * alg.scaled_dot_product_attention(d["Q"], d["K"], d["V"], CAUSAL & alg.padding(given), implementation=how)
        ),
        (
            cases.array(1.3),
            {"Q": cases.normal(5, B, L_X), "K": cases.normal(5, B, L_Z, seed=1), "V": cases.normal(7, B, L_Z, seed=2)},
            LENGTHS,
        ),
    ),
    "log_loss": (
        lambda W, d, given, how: alg.log_loss(
            d["X"], W["W_u"], given[0], weights=given[1], b_u=W["b_u"], label_smoothing=0.1, implementation=how
        ),
        ({"W_u": W_U, "b_u": cases.normal(17, seed=7)}, {"X": X}, (x, WEIGHTS)),
    ),
}
QUICK = [
    ("mh_attention", "paper", 4, ("inside",)),
    ("mh_attention", "dense", 4, ("inside",)),
    ("mh_attention", "blockwise", 4, ("inside",)),
    ("mh_attention, one mask", "auto", 8, ("inside",)),
    ("attention", "auto", 2, ("outside",)),
    ("log_loss", "paper", 4, ("inside",)),
    ("log_loss", "auto", 4, ("inside", "outside")),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "implementation", "n", "ways"),
    cases.quick_of(QUICK, [*QUICK, *itertools.product(FUNCTIONS, EVERY, (2, 8), [tuple(WAYS)])]),
)
def test_gradients_of_replicated_parameters_and_of_sharded_data(name, implementation, n, ways):
    loss, arguments = FUNCTIONS[name]
    assert_devices_are_one(functools.partial(loss, how=implementation), (COLUMNS, ROWS), *arguments, n=n, ways=ways)


@pytest.mark.parametrize("n", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_gradients_of_the_position_wise_functions(n):
    """Those without an implementation to choose, in one program; what is split is the second of two batch axes."""
    theta = {"W_e": cases.normal(11, 17), "gamma": GAMMA, "beta": BETA, "W_u": W_U}

    def loss(theta, X, x):
        return (
            sum_of_cubes(alg.token_embedding(x, theta["W_e"]))
            + sum_of_cubes(alg.layer_norm(X, theta["gamma"], theta["beta"], epsilon=0.1))
            + 2 * sum_of_cubes(alg.rms_norm(X, theta["gamma"]))
            + 3 * sum_of_cubes(alg.unembedding(X, theta["W_u"]))
        )

    specs = P(None, None, "data"), P(None, "data")
    assert_devices_are_one(loss, specs, theta, jnp.swapaxes(X, 1, 2), x.T, n=n, ways=tuple(WAYS))


CONSTANTS = {
    "log_loss": (lambda W, X, x, how: alg.log_loss(X, W, x, implementation=how), W_U),
    "attention": (
        lambda W, X, x, how: sum_of_cubes(alg.attention(X, X, W, alg.UNIDIRECTIONAL, implementation=how)),
        head_params(d_x=11, d_z=11),
    ),
    "layer_norm": (lambda W, X, x, how: sum_of_cubes(alg.layer_norm(X, W, 2 * W)), GAMMA),
}
QUICK_CONSTANTS = [("log_loss", "paper"), ("log_loss", "auto"), ("attention", "dense"), ("attention", "blockwise")]
QUICK_CONSTANTS += [("layer_norm", "auto")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "implementation"),
    cases.quick_of(QUICK_CONSTANTS, [("layer_norm", "auto"), *itertools.product(("log_loss", "attention"), EVERY)]),
)
def test_features_that_are_constants_and_parameters_that_are(name, implementation):
    """A gradient by W alone, or by X alone: what is not differentiated has no cotangent, and still its devices."""
    f, W = CONSTANTS[name]
    f = functools.partial(f, how=implementation)
    by_W, by_X = jax.grad(f), jax.grad(f, 1)

    def by_stopped_features(W, X, x):
        return jax.grad(lambda W: f(W, jax.lax.stop_gradient(jnp.sin(X)), x))(W)

    @jax.jit
    def compute(W, X, x):
        functions = {"W": (by_W, P()), "X": (by_X, COLUMNS), "W, features stopped": (by_stopped_features, P())}
        return {
            what: (
                gradient(W, X, x),
                jax.shard_map(gradient, mesh=mesh_of(data=4), in_specs=(P(), COLUMNS, ROWS), out_specs=out)(W, X, x),
            )
            for what, (gradient, out) in functions.items()
        }

    for what, (expected, actual) in compute(W, X, x).items():
        cases.assert_trees_close({what: actual}, {what: expected}, 1e-11)


MODELS = {
    "d": (lambda theta, x, z, n, l, **options: alg.d_hidden_state(x, theta, segments=n, **options), D),
    "e": (lambda theta, x, z, n, l, **options: alg.e_hidden_state(x, theta, length=l, **options), E),
    "ed": (lambda theta, x, z, n, l, **options: alg.ed_hidden_state(z, x, theta, z_length=l, **options), ED),
}
QUICK_MODEL = ("d", "auto", 8, ("inside",))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("architecture", "implementation", "n", "ways"),
    cases.quick_of([QUICK_MODEL], [QUICK_MODEL, *itertools.product(MODELS, EVERY, (2, 4), [tuple(WAYS)])]),
)
def test_a_models_training_loss(architecture, implementation, n, ways):
    """Every parameter by name: of the embeddings, the layers inside ``lax.scan``, and the unembedding."""
    hidden_state, theta = MODELS[architecture]

    def loss(theta, weights, tokens):
        X, targets = hidden_state(theta, *tokens, implementation=implementation), jnp.roll(tokens[0], -1, axis=-1)
        return alg.log_loss(X, theta.W_u, targets, implementation=implementation) + 0 * weights.sum()

    assert_devices_are_one(loss, (ROWS, ROWS), theta, WEIGHTS, (x, z, NUMBERS, LENGTHS), n=n, ways=ways)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("implementation", ["auto", "paper"])
def test_reverse_mode_over_some_axes_of_a_mesh(kind, implementation):
    """What is divided by the others is left to JAX."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))

    def loss(given, x):
        theta, W = given
        columns = alg.d_hidden_state(x, theta, implementation=implementation)
        V_tilde = alg.attention(columns, columns, W, CAUSAL, implementation=implementation)
        losses = alg.d_token_losses(x, theta, implementation=implementation)
        log_loss = alg.log_loss(columns, theta.W_e.T, x, implementation=implementation)
        return losses.sum() + sum_of_cubes(V_tilde) + log_loss

    def of_devices(given, x):
        options = {"mesh": mesh, "in_specs": (P(), ROWS), "out_specs": P(), "axis_names": {"data"}}
        return jax.shard_map(lambda *arguments: jax.lax.psum(loss(*arguments), "data"), **options)(given, x)

    given = D, head_params(d_x=11, d_z=11)
    with jax.set_mesh(mesh):
        found = jax.jit(jax.value_and_grad(of_devices))(given, x)
    cases.assert_trees_close(jax.device_get(found), jax.device_get(jax.jit(jax.value_and_grad(loss))(given, x)), 1e-11)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", cases.quick_of(["delta"], test_recurrences.LINES))
@pytest.mark.parametrize("implementation", test_recurrences.RULES)
def test_a_recurrence(name, implementation):
    """Its rule by hand and by tokens, of packed documents."""
    line, _ = test_recurrences.LINES[name]

    def loss(W, X, numbers):
        mask, given = CAUSAL & alg.documents(numbers), MixerMetadata(jnp.arange(L_X))
        return sum_of_cubes(cases.by(implementation, line.whole, X, W, mask, given)[0])

    data = cases.normal(test_recurrences.D_E, B, L_X), jnp.sort(NUMBERS, axis=-1)
    W = test_recurrences.parameters(line)
    assert_devices_are_one(loss, (COLUMNS, ROWS), W, *data, n=4, ways=tuple(WAYS))

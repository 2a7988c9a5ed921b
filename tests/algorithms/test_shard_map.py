"""Inside ``jax.shard_map``, with its checks, several devices compute the gradients that one device computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.lines import MixerMetadata
from tests import cases
from tests.algorithms import functions, test_recurrences
from tests.algorithms.functions import D
from tests.algorithms.test_attention import head_params
from tests.algorithms.test_sharding import mesh_of

pytestmark = pytest.mark.sampled(2)

B = 8
ROWS = P("data")


def gradients_inside(loss, n, specs, *arguments):
    """By the parameters, which every device has, and by the data, of which each has its share: taken on the device."""

    def of_device(*arguments):
        value, gradients = jax.value_and_grad(loss, (0, 1))(*arguments)
        return jax.lax.psum(value, "data"), gradients

    options = {"in_specs": (P(), *specs), "out_specs": (P(), (P(), specs[0])), "check_vma": True}
    return jax.shard_map(of_device, mesh=mesh_of(data=n), **options)(*arguments)


def gradients_outside(loss, n, specs, *arguments):
    """The same of the sum over the devices, taken outside of the map."""

    def of_device(*arguments):
        return jax.lax.psum(loss(*arguments), "data")

    options = {"in_specs": (P(), *specs), "out_specs": P(), "check_vma": True}
    return jax.value_and_grad(jax.shard_map(of_device, mesh=mesh_of(data=n), **options), (0, 1))(*arguments)


def gradients_one_by_one(loss, n, specs, theta, data, given):
    """By the parameters alone, and by the data alone: what is constant has no cotangent, and still its devices."""

    def of_device(theta, data, given):
        by_theta, by_data = (jax.grad(loss, i)(theta, data, given) for i in (0, 1))
        return jax.lax.psum(loss(theta, data, given), "data"), (by_theta, by_data)

    options = {"in_specs": (P(), *specs), "out_specs": (P(), (P(), specs[0])), "check_vma": True}
    return jax.shard_map(of_device, mesh=mesh_of(data=n), **options)(theta, data, given)


WAYS = {"inside": gradients_inside, "outside": gradients_outside, "one by one": gradients_one_by_one}


def assert_devices_are_one(loss, specs, *arguments, n, ways):
    """``loss`` is a sum over the sequences. All in one program, since compiling is what takes the time."""

    @jax.jit
    def compute(*arguments):
        expected = jax.value_and_grad(loss, (0, 1))(*arguments)
        return expected, {way: WAYS[way](loss, n, specs, *arguments) for way in ways}

    (expected_value, expected), of_ways = compute(*arguments)
    for value, gradients in of_ways.values():
        cases.assert_close(value, expected_value, 1e-11)
        for actual, of_one in zip(gradients, expected, strict=True):
            cases.assert_trees_close(actual, of_one, 1e-11)


NAMES = [name for name in functions.BATCHED if not functions.returns(name, "Integer")]
QUICK = [
    ("mh_attention", "paper", 4, ("inside",)),
    ("mh_attention", "dense", 4, ("inside",)),
    ("mh_attention, holes, dropped", "blockwise", 4, ("inside",)),
    ("attention", "auto", 2, ("outside",)),
    ("attention", "blockwise", 4, ("one by one",)),
    ("log_loss", "paper", 4, ("one by one",)),
    ("log_loss", "auto", 4, ("inside", "outside")),
    ("layer_norm", "auto", 8, ("one by one",)),
    ("token_embedding", "auto", 4, ("outside",)),
]
ALL_AUTO = [(name, "auto", 4, ("inside",)) for name in NAMES if "theta" not in functions.CASES[name].floats]
ALL = ALL_AUTO + [(name, how, 4, tuple(WAYS)) for name in NAMES for how in functions.implementations_of(name)]


@pytest.mark.parametrize(("name", "implementation", "n", "ways"), cases.quick_of(QUICK + ALL_AUTO, QUICK + ALL))
def test_gradients_of_replicated_parameters_and_of_sharded_data(name, implementation, n, ways):
    floats, given = functions.CASES[name].floats, functions.of_batch(name, (B,))
    places = {n: P(*[None] * axis, "data") for n, axis in functions.batch_axes(name).items()}
    theta = {n: W for n, W in floats.items() if n not in given}
    data, others = ({n: a for n, a in given.items() if (n in floats) is is_float} for is_float in (True, False))

    def loss(theta, data, others):
        out = functions.called(name, implementation, **theta, **data, **others)
        return (out**3).sum() if out.ndim else out  # not linear, so that a wrong cotangent shows

    specs = ({n: places[n] for n in data}, {n: places[n] for n in others})
    assert_devices_are_one(loss, specs, theta, data, others, n=n, ways=ways)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("implementation", ["auto", "paper"])
def test_reverse_mode_over_some_axes_of_a_mesh(kind, implementation):
    """What is divided by the others is left to JAX."""
    mesh, x = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind)), cases.random_tokens(B, 5, n=7)

    def loss(given, x):
        theta, W = given
        columns = alg.d_hidden_state(x, theta, implementation=implementation)
        V_tilde = alg.attention(columns, columns, W, alg.UNIDIRECTIONAL, implementation=implementation)
        losses = alg.d_token_losses(x, theta, implementation=implementation)
        log_loss = alg.log_loss(columns, theta.W_e.T, x, implementation=implementation)
        return losses.sum() + (V_tilde**3).sum() + log_loss

    def of_devices(given, x):
        options = {"mesh": mesh, "in_specs": (P(), ROWS), "out_specs": P(), "axis_names": {"data"}}
        return jax.shard_map(lambda *arguments: jax.lax.psum(loss(*arguments), "data"), **options)(given, x)

    given = D, head_params(d_x=3, d_z=3)
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
        mask, given = alg.UNIDIRECTIONAL & alg.documents(numbers), MixerMetadata(jnp.arange(9))
        return (cases.by(implementation, line.whole, X, W, mask, given)[0] ** 3).sum()

    numbers = cases.array(np.sort(np.random.default_rng(2).integers(3, size=(B, 9))))
    data = cases.normal(test_recurrences.D_E, B, 9), numbers
    W = test_recurrences.parameters(line)
    assert_devices_are_one(loss, (P(None, "data"), ROWS), W, *data, n=4, ways=("inside", "outside"))

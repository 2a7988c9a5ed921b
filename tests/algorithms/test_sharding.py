"""In a mesh that XLA divides programs along, the functions compute what one device computes, gradients too."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.machinery.devices import shard, split_attention
from algorithms.masks import StructuralMask
from tests import cases
from tests.algorithms.test_attention import mh_params
from training.tasks.objectives import likeliest

pytestmark = pytest.mark.sampled(2)

B, L_X = 4, 12
LENGTHS, NUMBERS = cases.array([3, 12, 1, 7]), cases.random_tokens(B, L_X, n=3, seed=2)
MASKS = {
    "unidirectional": alg.UNIDIRECTIONAL,
    "banded": alg.banded(3),
    "near": alg.near(3),
    "documents": alg.UNIDIRECTIONAL & cases.documents(NUMBERS),
    "later": StructuralMask(unidirectional=True, first=cases.array(2)),
    "prefix": alg.prefix(LENGTHS),
    "blocks": alg.blocks(NUMBERS),
    "padding": alg.BIDIRECTIONAL & alg.padding(LENGTHS),
    "array": cases.array(np.random.default_rng(3).random((B, L_X, L_X)) < 0.6),
    "one array": cases.array(np.random.default_rng(4).random((L_X, L_X)) < 0.6),
}


def mesh_of(**sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


EIGHT = {"data": 2, "context": 2, "model": 2}


def assert_mesh_changes_nothing(loss, *arguments, sizes):
    """``loss`` and its gradients by the first argument."""

    def compute():
        return jax.jit(jax.value_and_grad(loss))(*arguments)  # traced anew

    expected = compute()
    with jax.set_mesh(mesh_of(**sizes)):
        actual = compute()
    cases.assert_trees_close(jax.device_get(actual), jax.device_get(expected), 1e-11)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("mask", "implementation", "dropout", "sizes"),
    [
        ("documents", "blockwise", 0.3, EIGHT),
        ("unidirectional", "blockwise", 0.3, {"data": 2, "context": 3}),
        ("banded", "dense", 0.3, EIGHT),
        ("near", "blockwise", 0.3, EIGHT),
        ("later", "blockwise", 0.0, EIGHT),
        ("prefix", "blockwise", 0.0, EIGHT),
        ("blocks", "blockwise", 0.0, EIGHT),
        ("one array", "dense", 0.3, EIGHT),
        *(
            pytest.param(mask, how, rate, sizes, marks=pytest.mark.slow)
            for mask in MASKS
            for how, rate in (("paper", 0.3), ("dense", 0.0), ("blockwise", 0.3))
            for sizes in (EIGHT, {"replica": 2, "context": 4})
        ),
    ],
)
def test_attention_of_queries_that_are_divided(mask, implementation, dropout, sizes):
    W, X = mh_params(d_x=11, d_z=11), cases.normal(11, B, L_X)
    key = jax.random.split(jax.random.key(1), B)

    def loss(arrays):
        W, X = arrays
        options = {"implementation": implementation, "dropout": dropout, "key": key}
        return (alg.mh_attention(X, X, W, MASKS[mask], **options) ** 3).sum()

    with cases.small_blocks(5):  # several of a device's queries
        assert_mesh_changes_nothing(loss, (W, X), sizes=sizes)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_devices_that_divide_the_queries_of_a_causal_mask_have_as_much_to_do(n):
    """Of 2n halves each computes two whose numbers add up to 2n − 1, and all of them reach their places."""
    seen = [[] for _ in range(n)]

    def kernel(Q, K, V, scores, first):
        jax.debug.callback(lambda i, first: seen[i].append(int(first)), jax.lax.axis_index("context"), first)
        return Q + first

    Q, K = jnp.zeros((1, 1, 1, 6 * n)), jnp.zeros((1, 1, 1, 6 * n))
    mesh = jax.make_mesh((n,), ("context",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])
    with jax.set_mesh(mesh):
        found = jax.jit(lambda: split_attention(kernel, (Q, K, K), (), tuple, balanced=True))()
        jax.effects_barrier()
    np.testing.assert_array_equal(found[0, 0, 0], np.arange(6 * n) // 3 * 3)
    assert [sum(first // 3 for first in firsts) for firsts in seen] == [2 * n - 1] * n


@pytest.mark.parametrize("sizes", [EIGHT, pytest.param({"replica": 2, "model": 4}, marks=pytest.mark.slow)])
def test_loss_with_a_divided_vocabulary_that_has_padding(sizes):
    x, weights = cases.random_tokens(B, L_X, n=13), jnp.asarray(np.random.default_rng(4).random((B, L_X)))
    theta = {"X": cases.normal(6, B, L_X), "W_u": cases.normal(16, 6, seed=1), "b_u": cases.normal(16, seed=2)}
    few = {"X": theta["X"], "W_u": np.asarray(theta["W_u"])[:13], "b_u": np.asarray(theta["b_u"])[:13]}

    def loss(theta, N_V=None, how="auto"):
        options = {"weights": weights, "b_u": theta["b_u"], "label_smoothing": 0.1, "N_V": N_V, "implementation": how}
        return alg.log_loss(theta["X"], theta["W_u"], x, **options)

    assert_mesh_changes_nothing(functools.partial(loss, N_V=13), theta, sizes=sizes)
    expected, gradients = jax.jit(jax.value_and_grad(functools.partial(loss, how="paper")))(few)
    for how in ("paper", "auto"):
        of_padded = jax.jit(jax.value_and_grad(functools.partial(loss, N_V=13, how=how)))
        value, padded = jax.tree.map(np.asarray, of_padded(theta))
        cases.assert_close(value, expected, 1e-12)
        cases.assert_trees_close({**padded, "W_u": padded["W_u"][:13], "b_u": padded["b_u"][:13]}, gradients, 1e-12)
        assert not padded["W_u"][13:].any()
        assert not padded["b_u"][13:].any()


def test_the_likeliest_token_is_the_first_of_the_largest_logits_and_no_padding():
    """Of whole numbers, so that equal rows of W_u give equal logits, whatever order they are added in."""
    X, W_u = (jnp.round(9 * a) for a in (jnp.abs(cases.normal(3, B, L_X)), cases.normal(4, 3)))
    W_u = jnp.concatenate([W_u, W_u, jnp.full((2, 3), 99.0)])
    expected = jnp.einsum("vd,dbl->vbl", W_u[:8], X).argmax(0)
    assert len(np.unique(expected)) > 1
    with jax.set_mesh(mesh_of(**EIGHT)):
        actual = jax.jit(functools.partial(likeliest, N_V=8))(X, W_u, None)
    np.testing.assert_array_equal(actual, expected)


def sharded(X, model):
    return jax.jit(functools.partial(shard, model=model))(X)


def test_where_activations_lie():
    with jax.set_mesh(mesh_of(replica=2, context=2, model=2)):
        X = jnp.zeros((6, 4, 8))
        found = [sharded(X, model).sharding.spec for model in ("tokens", None, "rows")]
        odd = sharded(jnp.zeros((5, 3, 8)), "rows").sharding
    assert found[0] == P(None, "replica", ("context", "model"))
    assert found[1] == P(None, "replica", "context")
    assert found[2] == P("model", "replica", "context")
    assert odd.shard_shape((5, 3, 8)) == (5, 3, 4)


@pytest.mark.thorough
def test_a_narrow_gradient_is_summed_over_devices_before_it_is_rounded():
    W_u, X = jnp.zeros((2, 1), jnp.bfloat16), jnp.ones((1, 2, 2), jnp.bfloat16)
    weights = jnp.array([[512.0, 2], [-512, 0]])  # ∂F/∂W_u is -257 + 256, and bfloat16 has no 257
    gradient = jax.grad(lambda W_u: (weights * alg.token_losses(X, W_u, jnp.zeros((2, 2), int))).sum())
    with jax.set_mesh(mesh_of(data=2)):
        np.testing.assert_array_equal(jax.jit(gradient)(W_u), [[-1], [1]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("data", [None, ("pod", "dp")], ids=["all others", "by name"])
def test_axes_of_other_names_divide_the_same(data):
    sizes = {"pod": 2, "cp": 2, "tp": 2}
    names = {"model": "tp", "context": "cp", "data": data and tuple(a for a in data if a in sizes)}
    X = jnp.zeros((6, 4, 8))
    with jax.set_mesh(mesh_of(**sizes)), alg.mesh_axes(**names):
        found = [sharded(X, model).sharding.spec for model in ("tokens", None, "rows")]
    assert found == [P(None, "pod", ("cp", "tp")), P(None, "pod", "cp"), P("tp", "pod", "cp")]
    W, X = mh_params(d_x=11, d_z=11), cases.normal(11, B, L_X)

    def loss(W):
        return (alg.mh_attention(X, X, W, alg.UNIDIRECTIONAL, implementation="blockwise") ** 3).sum()

    with alg.mesh_axes(**names):
        assert_mesh_changes_nothing(loss, W, sizes=sizes)


def test_an_axis_that_is_not_named_divides_nothing():
    with jax.set_mesh(mesh_of(pod=2, dp=2, tp=2)), alg.mesh_axes(model="tp", data="dp"):
        assert sharded(jnp.zeros((6, 4, 8)), "rows").sharding.spec == P("tp", "dp")


def gathered_by_a_step(names, context):
    """The shapes that a compiled training step gathers, in a mesh with these names of ``data`` and ``model``."""
    config = alg.DTransformerConfig(N_V=64, l_max=32, L=2, H=4, d_e=32, d_mlp=48, d_attn=4, d_mid=5, variant=alg.LLAMA)
    theta = jax.eval_shape(lambda key: alg.init_d_transformer(key, config), jax.random.key(0))
    mesh = jax.make_mesh((4, 2), (names["data"], names["model"]), axis_types=(AxisType.Auto,) * 2)

    def step(theta, x):
        def loss(theta):
            return alg.log_loss(alg.d_hidden_state(x[:, :-1], theta), theta.W_u, x[:, 1:])

        return jax.tree.map(lambda a, g: a - 0.1 * g, theta, jax.grad(loss)(theta))

    specs = alg.partition_specs(theta, mesh, data=None, model=names["model"])._replace(W_e=P())
    of_theta = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda spec: isinstance(spec, P))
    of_x = NamedSharding(mesh, P(names["data"]))
    with jax.set_mesh(mesh), context:
        x = jax.ShapeDtypeStruct((8, 33), jnp.int32)
        compiled = jax.jit(step, in_shardings=(of_theta, of_x), out_shardings=of_theta).lower(theta, x).compile()
    gathered = re.findall(r"= f\w+\[([\d,]+)\]\S* all-gather(?:-start)?\(", compiled.as_text())
    weights = {a.shape[-k:] for a in jax.tree.leaves(theta) for k in (2, 3) if len(a.shape) >= k}
    shapes = [tuple(map(int, shape.split(","))) for shape in gathered]
    return sorted(shapes), [s for s in shapes if s in weights or s[::-1] in weights]


@pytest.mark.end_to_end
def test_a_step_gathers_no_weights_if_the_axes_are_named():
    theirs, ours = {"data": "data", "model": "model"}, {"data": "dp", "model": "tp"}
    expected, _ = gathered_by_a_step(theirs, contextlib.nullcontext())
    found, weights = gathered_by_a_step(ours, alg.mesh_axes(model="tp", data="dp"))
    assert found == expected
    assert not weights
    _, weights = gathered_by_a_step(ours, contextlib.nullcontext())
    assert weights  # otherwise the test sees none


def test_an_axis_that_a_mesh_lacks_is_named():
    message = "mesh_axes: expected axes of the mesh, which are dp, tp, got pt"
    with pytest.raises(ValueError, match=message), jax.set_mesh(mesh_of(dp=4, tp=2)), alg.mesh_axes(model="pt"):
        sharded(jnp.zeros((6, 4, 8)), "rows")

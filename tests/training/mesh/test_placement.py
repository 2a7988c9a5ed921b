"""What lies where, and what a mesh must divide."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from algorithms import (
    DTransformerConfig,
    EDTransformerConfig,
    d_token_losses,
    init_d_transformer,
    init_ed_transformer,
    partition_specs,
)
from tests.training_cases import settings_for
from training.mesh.padding import padded, unpadded
from training.mesh.placement import Placement, shardings
from training.mesh.shape import MeshError, check_devices, check_sizes, parse
from training.runs.checkpoints import sums
from training.runs.named_arrays import flatten
from training.tasks import TASKS
from training.tasks.models import model_config, model_shapes

CONFIG = DTransformerConfig(N_V=24, l_max=8, L=3, H=4, d_e=16, d_mlp=32)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", ["PAPER", "BERT"])
def test_every_parameter_is_divided(task, variant):
    settings = settings_for(task, H=4, d_e=16, d_mlp=32, variant=variant)
    theta = model_shapes(task, model_config(settings, 24), N_C=2)
    specs = partition_specs(theta, AbstractMesh((2, 2), ("data", "model")))
    for name, spec in flatten(specs).items():
        assert "data" in str(spec) or name == "b_c" or task == "gato", name  # with sizes that are odd


def test_what_lies_where():
    theta = jax.eval_shape(lambda key: init_d_transformer(key, CONFIG), jax.random.key(0))
    state = jax.eval_shape(optax.adamw(1e-3).init, theta)
    placement = Placement("data=4,model=2")
    of_theta, of_state = (flatten(placement.placed(tree)) for tree in (theta, state))
    specs = {name: leaf.sharding.spec for name, leaf in of_theta.items()}
    assert specs["layers.attention.heads.W_q"] == P(None, "model", None, "data")
    assert specs["layers.attention.W_o"] == P(None, "data", "model")
    assert specs["layers.mlp.W_mlp1"] == P(None, "model", "data")
    assert (specs["layers.mlp.b_mlp1"], specs["W_e"]) == (P(None, ("model", "data")), P("data", "model"))
    assert specs["W_u"] == P("model", "data")
    for name, leaf in of_state.items():
        symbol = name.partition(".mu.")[2] or name.partition(".nu.")[2]
        assert leaf.sharding.spec == (specs[symbol] if symbol else P()), name
    assert {leaf.sharding.num_devices for leaf in of_theta.values()} == {8}


def test_what_does_not_divide_is_whole():
    config = dataclasses.replace(CONFIG, N_V=17, d_e=6, d_attn=4, d_mlp=6)
    theta = jax.eval_shape(lambda key: init_d_transformer(key, config), jax.random.key(0))
    specs = partition_specs({"theta": theta, "count": np.zeros(())}, AbstractMesh((4, 2), ("data", "model")))
    assert specs["theta"].W_e == P(None, None)
    assert specs["theta"].layers.mlp.b_mlp1 == P(None, "model")
    assert specs["count"] == P()


@pytest.mark.end_to_end
def test_a_mesh_of_ones_own_names():
    theta = init_d_transformer(jax.random.key(0), CONFIG)
    mesh = jax.make_mesh((2, 2, 2), ("pod", "fsdp", "tp"), axis_types=(AxisType.Auto,) * 3)
    placement = Placement(mesh, data="fsdp", model="tp")
    specs = {name: leaf.sharding.spec for name, leaf in flatten(placement.placed(theta)).items()}
    assert specs == flatten(partition_specs(theta, mesh, data="fsdp", model="tp"))
    assert specs["layers.attention.heads.W_q"] == P(None, "tp", None, "fsdp")
    assert specs["layers.mlp.b_mlp1"] == P(None, ("tp", "fsdp"))
    assert specs["W_u"] == P("tp", "fsdp")
    assert flatten(partition_specs(theta, mesh, data=None, model="tp"))["W_u"] == P("tp", None)
    x = np.random.default_rng(0).integers(0, 21, (8, 7))
    batch = placement.batch({"x": x}, 8)
    assert batch["x"].sharding.spec == P(("pod", "fsdp"))
    places = jax.tree.map(jax.device_put, theta, shardings(placement.placed(theta)))

    def nats(theta, batch):
        return d_token_losses(batch["x"], theta).sum()

    compiled = placement.compiled(jax.value_and_grad(nats), (places, batch))
    found, expected = compiled(places, batch), jax.value_and_grad(nats)(theta, {"x": x})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    with pytest.raises(ValueError, match=r"expected axes of the mesh, which are pod, fsdp, tp, got mp"):
        Placement(mesh, data="fsdp", model="mp")


@pytest.mark.parametrize("text", ["data", "data=0", "data=2,data=4", "rows=2", "data=two", "data=-1", "data=2;model=4"])
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(MeshError, match=rf"--mesh: expected replica, data, context, model, .*, got {text!r}"):
        parse(text)


@pytest.mark.parametrize(
    ("mesh", "values", "message"),
    [
        ("data=3", {}, r"the mesh data=3 is for 3 devices, but there are 8: give data=8"),
        ("data=3,model=2", {}, r"mesh data=3,model=2 is for 6 devices, but there are 8: give data=4,model=2"),
        ("data=8", {"batch_size": 12}, r"batch_size is 12, which data=8 does not divide: give batch_size (8|16)"),
        (
            "replica=2,data=4",
            {"accumulation_steps": 2},
            r"is 8 in 2 parts, which replica=2,data=4 .*: give batch_size 16",
        ),
        ("model=8", {"H": 6}, r"H is 6, which model=8 does not divide: give H 8, or model=6"),
        ("model=4,data=2", {"H": 4, "d_mlp": 13}, r"d_mlp is 13, which model=4 does not divide: give d_mlp 12, or mo"),
        ("context=8", {"l_max": 20}, r"l_max is 20, which context=8 does not divide: give l_max (16|24), or context=5"),
        ("model=8", {"H": 8}, r"N_V is 17, which model=8 does not divide: give vocabulary_multiple 8, or model=1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, values, message):
    settings = settings_for("d", mesh=mesh, **{"batch_size": 8, "l_max": 8, "d_mlp": 16, "d_e": 24, **values})

    def check():
        Placement(mesh)
        check_sizes(settings, 17)

    with pytest.raises(MeshError, match=message):
        check()
    with pytest.raises(MeshError, match="data=2,model=2 is for 4 devices, but there is one: give data=1,model=1"):
        check_devices({"data": 2, "model": 2}, 1)


def test_padding_is_behind_the_tokens_and_comes_off():
    config = dataclasses.replace(CONFIG, N_V=21, tied=False)
    theta = init_d_transformer(jax.random.key(0), config)
    wide = padded(theta, 21, 8)
    assert (wide.W_e.shape, wide.W_u.shape) == ((16, 24), (24, 16))
    assert not wide.W_e[:, 21:].any()
    assert not wide.W_u[21:].any()
    for tree in (unpadded(wide, 21, 8), padded(theta, 21, 7)):
        jax.tree.map(np.testing.assert_array_equal, tree, theta)


def test_only_axes_of_the_vocabulary_are_padded():
    """Others may have its size, also those of arrays with the names of embeddings."""
    config = EDTransformerConfig(N_V=21, N_V_z=21, l_max=21, L_enc=1, L_dec=1, H=1, d_e=21, d_mlp=21, tied=False)
    theta = init_ed_transformer(jax.random.key(0), config)
    before, wide = flatten(theta), flatten(padded(theta, 21, 8))
    assert {name: a.shape for name, a in wide.items() if a.shape != before[name].shape} == {
        "W_e": (21, 24),
        "W_u": (24, 21),
    }


def test_a_sum_is_the_same_wherever_the_parts_lie_and_sees_every_bit():
    rng = np.random.default_rng(0)
    leaves = {"W": rng.normal(size=(8, 6)).astype(np.float32), "b": rng.normal(size=8).astype(np.float64)}
    leaves |= {"n": np.array(3, np.int32), "is": rng.random((8, 2)) < 0.5}
    leaves |= {"half": rng.normal(size=(2, 4)).astype(np.float16)}
    found = sums(leaves)
    assert len(set(found.values())) == len(leaves)
    places = Placement("data=4,model=2").placed(leaves)
    placed = jax.tree.map(lambda leaf, place: jax.device_put(leaf, place.sharding), leaves, places)
    divided = jax.device_put(leaves["W"], jax.NamedSharding(jax.make_mesh((8,), ("x",)), P("x")))
    assert sums(placed) == found == sums({**leaves, "W": divided})
    for bit in (0, 100, 8 * leaves["W"].nbytes - 1):
        damaged = bytearray(leaves["W"].tobytes())
        damaged[bit // 8] ^= 1 << bit % 8
        assert sums({"W": np.frombuffer(damaged, np.float32).reshape(8, 6)})["W"] != found["W"]
    assert sums({"W": leaves["W"].T})["W"] != sums({"W": leaves["W"].reshape(6, 8)})["W"] != found["W"]

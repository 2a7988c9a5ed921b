"""The kernel is chosen for the platform that a function is lowered for, and loaded when it is used."""

import contextlib
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from algorithms import UNIDIRECTIONAL, mh_attention, scaled_dot_product_attention
from tests.algorithms.test_attention import mh_params

TPU = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
KERNEL = "tpu_custom_call"
# What the TPU's kernel takes exactly: float32, whole blocks of 128 tokens.
TILE = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def mesh(device):
    return AbstractMesh((1,), ("data",), (AxisType.Explicit,), abstract_device=device)


def cpu_mesh():
    return jax.make_mesh((1,), ("data",), (AxisType.Explicit,), devices=jax.devices("cpu")[:1])


@pytest.fixture(autouse=True)
def _nothing_is_compiled_yet():
    """A program that was traced for another platform must not be found again, nor be left behind."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def attention_of_a_tile(Q, K, V, implementation="auto"):
    return scaled_dot_product_attention(Q, K, V, UNIDIRECTIONAL, implementation=implementation)


def lowered(*contexts, platform="cpu", f=attention_of_a_tile, arguments=(TILE, TILE, TILE)):
    """A program that is traced in these contexts, for a platform of which there need be no device."""
    with jax.enable_x64(False):
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            traced = jax.jit(functools.partial(f)).trace(*arguments)
        return traced.lower(lowering_platforms=(platform,)).as_text()


def test_in_a_mesh_of_tpus_it_is_the_tpus():
    assert KERNEL in lowered(jax.sharding.use_abstract_mesh(mesh(TPU)), platform="tpu")


def test_with_a_tpu_as_default_device_it_is_the_tpus():
    assert KERNEL in lowered(jax.default_device("tpu"), platform="tpu")


def test_on_a_cpu_it_is_the_cpus():
    assert KERNEL not in lowered()
    assert KERNEL not in lowered(jax.set_mesh(cpu_mesh()))
    assert KERNEL not in lowered(jax.default_device(jax.devices("cpu")[0]))


def test_the_mesh_in_use_comes_before_the_default_device():
    assert KERNEL not in lowered(jax.default_device("tpu"), jax.set_mesh(cpu_mesh()))


def test_a_program_of_one_platform_is_not_found_again_for_another():
    """In one process the second is traced anew: the platform is a part of what a program is compiled for."""

    def programs():
        yield lowered()
        yield lowered(jax.sharding.use_abstract_mesh(mesh(TPU)), platform="tpu")
        yield lowered()
        yield lowered(jax.default_device("tpu"), platform="tpu")

    assert [KERNEL in text for text in programs()] == [False, True, False, True]


def test_a_kernel_asked_for_by_name_is_refused_where_the_program_is_for_another_platform():
    by_name = functools.partial(attention_of_a_tile, implementation="pallas")
    with pytest.raises(ValueError, match=r'implementation="pallas".* TPU.*cpu'):
        lowered(f=by_name)
    assert KERNEL in lowered(jax.default_device("tpu"), platform="tpu", f=by_name)


def test_the_heads_of_a_batch_reach_the_kernel():
    """Through Algorithm 5, with batch axes."""
    W = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32), mh_params(d_attn=8, d_mid=8, d_x=11, d_z=11))
    X = jax.ShapeDtypeStruct((11, 3, 128), jnp.float32)

    def f(X, W):
        return mh_attention(X, X, W, UNIDIRECTIONAL)

    assert KERNEL in lowered(jax.default_device("tpu"), platform="tpu", f=f, arguments=(X, W))


def test_importing_loads_no_kernel():
    """``jax.experimental.pallas`` takes longer to import than all of ``algorithms``."""
    program = "import sys, algorithms; print([m for m in sys.modules if 'pallas' in m])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

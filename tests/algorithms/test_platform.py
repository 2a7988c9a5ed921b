"""The kernel is chosen for the platform that a function is lowered for, and loaded when it is used."""

import contextlib
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import algorithms as alg
from tests import cases
from tests.algorithms.test_attention import mh_params
from tests.algorithms.test_library_attention import MODEL, TPU, cudnn  # noqa: F401 (a fixture)

KERNEL = "tpu_custom_call"
CUDNN = [jax.export.DisabledSafetyCheck.custom_call(f"__cudnn$fmhaSoftmax{of}") for of in ("", "Backward")]
# What the TPU's kernel takes exactly: float32, whole blocks of 128 tokens.
TILE = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def cpu_mesh():
    return jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices("cpu")[:1])


@pytest.fixture(autouse=True)
def _nothing_is_compiled_yet():
    """A program that was traced for another platform must not be found again, nor be left behind."""
    with cases.traced_anew():
        yield


def attention_of_a_tile(Q, K, V, implementation="auto"):
    return alg.scaled_dot_product_attention(Q, K, V, alg.UNIDIRECTIONAL, implementation=implementation)


def lowered(*contexts, platform="cpu", f=attention_of_a_tile, arguments=(TILE, TILE, TILE)):
    """A program that is traced in these contexts, for a platform of which there need be no device."""
    with jax.enable_x64(False):
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            traced = jax.jit(functools.partial(f)).trace(*arguments)
        return traced.lower(lowering_platforms=(platform,)).as_text()


def test_on_a_cpu_it_is_the_cpus_and_the_mesh_in_use_comes_before_the_default_device():
    assert KERNEL not in lowered(jax.set_mesh(cpu_mesh()))
    assert KERNEL not in lowered(jax.default_device(jax.devices("cpu")[0]))
    assert KERNEL not in lowered(jax.default_device("tpu"), jax.set_mesh(cpu_mesh()))


def test_a_program_of_one_platform_is_not_found_again_for_another():
    """In one process the second is traced anew: the platform is a part of what a program is compiled for."""

    def programs():
        yield lowered()
        mesh = AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=TPU)
        yield lowered(jax.sharding.use_abstract_mesh(mesh), platform="tpu")
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
        return alg.mh_attention(X, X, W, alg.UNIDIRECTIONAL)

    assert KERNEL in lowered(jax.default_device("tpu"), platform="tpu", f=f, arguments=(X, W))


def hidden(theta, x):
    """In bfloat16, which all platforms' kernels take."""
    return alg.d_hidden_state(x, jax.tree.map(lambda a: a.astype(jnp.bfloat16), theta))


def updated(theta, x):
    """A step of gradient descent."""

    def loss(theta):
        W_u = alg.GPT2.unembedding.matrix(theta).astype(jnp.bfloat16)
        return alg.log_loss(hidden(theta, x), W_u, x)

    value, gradient = jax.value_and_grad(loss)(theta)
    return value, jax.tree.map(lambda a, g: a - 0.1 * g, theta, gradient)


def exported(f, *arguments, platforms):
    with alg.for_platform(platforms[0]):
        return jax.export.export(jax.jit(f), platforms=platforms, disabled_checks=CUDNN)(*arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("f", "kernels"), [(hidden, 1), (updated, 2)])
@pytest.mark.parametrize(("platform", "kernel"), [("cpu", None), ("cuda", "__cudnn$"), ("tpu", KERNEL)])
@pytest.mark.usefixtures("cudnn")
def test_an_exported_program_has_its_platforms_kernel(platform, kernel, f, kernels):
    """Forward and backward."""
    theta, x = cases.random_theta(MODEL, dtype="float32"), cases.random_tokens(2, 128, n=97)
    with jax.enable_x64(False):
        program = exported(f, theta, x, platforms=(platform,))
    assert program.platforms == (platform,)
    found = {name: program.mlir_module().count(name) for name in (KERNEL, "__cudnn$")}
    assert found == {KERNEL: 0, "__cudnn$": 0} | ({kernel: kernels} if kernel else {})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("platforms", "call"), [(("cuda",), "custom_call @"), (("cpu", "cuda", "tpu"), KERNEL)], ids=["float32", "all"]
)
def test_a_program_has_no_kernel_that_does_not_take_its_dtype_or_that_not_all_its_platforms_have(platforms, call):
    """cuDNN does not take float32; the program that is exported can be lowered for it."""
    with jax.enable_x64(False):
        program = exported(attention_of_a_tile, TILE, TILE, TILE, platforms=platforms)
    assert call not in program.mlir_module()


@pytest.mark.end_to_end
def test_importing_loads_no_kernel():
    """``jax.experimental.pallas`` takes longer to import than all of ``algorithms``."""
    program = "import sys, algorithms; print([m for m in sys.modules if 'pallas' in m])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

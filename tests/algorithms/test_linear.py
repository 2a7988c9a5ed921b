"""The linear map of many columns, and of a single one, whose rows are taken in groups on a CPU."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import log_loss
from algorithms.machinery import devices
from algorithms.ops import linear as module
from algorithms.ops.linear import linear, product, tied_logits
from tests import cases


@pytest.mark.parametrize("implementation", ["paper", "auto"])
@pytest.mark.parametrize("rows", [(512,), (4, 3, 64), (1023,)], ids=str)
@pytest.mark.parametrize("columns", [(1,), (2, 3)], ids=str)
def test_every_column_is_mapped_alike(rows, columns, implementation):
    W, X, b = cases.normal(*rows, 256), cases.normal(256, *columns, seed=1), cases.normal(*rows, seed=2)
    Y = cases.by(implementation, linear, W, X, b)
    expected = np.tensordot(np.asarray(W), np.asarray(X), 1) + np.asarray(b).reshape(*rows, *(1 for _ in columns))
    assert Y.shape == (*rows, *columns)
    np.testing.assert_allclose(Y, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("implementation", ["paper", "auto"])
@pytest.mark.parametrize(("rows", "d_in", "columns"), [(512, 256, (1,)), (3, 5, ())])
def test_a_single_column_has_the_gradient_of_the_printed_line(rows, d_in, columns, implementation):
    W, x, b = cases.normal(rows, d_in), cases.normal(d_in, *columns, seed=1), cases.normal(rows, seed=2)
    found = jax.jit(jax.grad(lambda *a: jnp.sin(cases.by(implementation, linear, *a)).sum(), (0, 1, 2)))(W, x, b)
    dy = np.cos(np.asarray(W) @ np.ravel(x) + b)
    expected = np.outer(dy, x), (np.asarray(W).T @ dy).reshape(x.shape), dy
    for gradient, by_hand in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, by_hand, rtol=0, atol=1e-12 if columns else 5e-14)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_product_is_accumulated_in_the_dtype_asked_for(columns):
    W, X = cases.normal(512, 256, dtype=jnp.bfloat16), cases.normal(256, columns, seed=1, dtype=jnp.bfloat16)
    Y = product(W, X, jnp.dtype("float32"))
    assert Y.dtype == jnp.float32
    np.testing.assert_allclose(Y, np.asarray(W, np.float64) @ np.asarray(X, np.float64), rtol=1e-4, atol=1e-4)


def test_groups_of_rows_are_for_processors_only():
    W, x = jax.ShapeDtypeStruct((512, 256), jnp.float32), jax.ShapeDtypeStruct((256, 1), jnp.float32)
    of_platform = {
        name: jax.jit(product).trace(W, x).lower(lowering_platforms=(name,)).as_text()
        for name in ("cpu", "cuda", "tpu")
    }
    assert "tensor<2x256x256xf32>" in of_platform["cpu"]
    assert "tensor<2x256x256xf32>" not in of_platform["cuda"] + of_platform["tpu"]


BFLOAT16_SIZES = [((2, 17), 23, (3, 19)), ((16,), 16, (16,)), ((64,), 64, (2,)), ((2048,), 512, (1,))]
"""Rows, terms and columns; the last product is one of 16 groups of rows."""


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(("rows", "d_in", "columns"), BFLOAT16_SIZES)
def test_products_of_bfloat16_are_sums_in_float32(rows, d_in, columns, native, monkeypatch):
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: native)
    shapes = (d_in, math.prod(rows)), (d_in, *columns), (*rows, *columns)
    W_t, X, E = (cases.normal(*shape, seed=i, dtype=jnp.bfloat16) for i, shape in enumerate(shapes))

    @jax.jit
    def value_and_gradients(W_t, X):  # XLA would make the transposition a part of the product
        def of(W_t, X):
            Y = linear(W_t.T.reshape(*rows, d_in), X)
            return (Y * E).astype(jnp.float32).sum(), Y

        (_, Y), gradients = jax.value_and_grad(of, (0, 1), has_aux=True)(W_t, X)
        return Y, *gradients

    exact = [np.asarray(a, np.float64) for a in (W_t, X.reshape(d_in, -1), E.reshape(W_t.shape[1], -1))]
    expected = exact[0].T @ exact[1], exact[1] @ exact[2].T, exact[0] @ exact[2]
    for ours, theirs in zip(value_and_gradients(W_t, X), expected, strict=True):
        assert ours.dtype == jnp.bfloat16
        error = np.abs(np.asarray(ours, np.float64).reshape(theirs.shape) - theirs)
        assert (error <= 2**-8 * np.abs(theirs) + 1e-5 * np.abs(theirs).max()).all()


@pytest.mark.parametrize(("columns", "factors"), [(16, "bf16"), (15, "f32")])
def test_only_products_wide_enough_are_left_to_the_processor(columns, factors, monkeypatch):
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)
    W, X = jax.ShapeDtypeStruct((32, 64), jnp.bfloat16), jax.ShapeDtypeStruct((64, columns), jnp.bfloat16)
    of_float32 = functools.partial(product, dtype=jnp.dtype("float32"))
    text = jax.jit(of_float32).trace(W, X).lower(lowering_platforms=("cpu",)).as_text()
    assert f"(tensor<32x64x{factors}>, tensor<64x{columns}x{factors}>) -> tensor<32x{columns}xf32>" in text


def test_whether_the_processor_multiplies_bfloat16_is_never_an_error(monkeypatch, tmp_path):
    def asked(path):
        monkeypatch.setattr(devices, "CPU_INFO", path)
        return devices.multiplies_bfloat16.__wrapped__()

    file = tmp_path / "cpuinfo"
    amd, intel = ("vendor_id : AuthenticAMD\n", "vendor_id : GenuineIntel\n")
    for text, expected in (
        (amd + "flags : fpu avx512_bf16 sse\n", True),
        (intel + "flags : fpu avx512_bf16 sse\n", False),
        (intel + "flags : fpu avx512_bf16 amx_bf16\n", True),
        (amd + "flags : fpu avx512f\n", False),
        ("", False),
    ):
        file.write_text(text)
        assert asked(file) is expected
    assert asked(tmp_path / "nowhere") is False


def test_a_transposed_factor_of_bfloat16_in_a_loop_of_one_turn_is_multiplied(monkeypatch):
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)
    X, W_e = cases.normal(32, 2, 24, dtype=jnp.bfloat16), cases.normal(32, 40, seed=1, dtype=jnp.bfloat16)
    targets = jnp.arange(48).reshape(2, 24) % 40

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(implementation, X, W_e):
        losses = functools.partial(log_loss, targets=targets, implementation=implementation)
        return jax.grad(lambda X, W_e: losses(X, W_e.T), (0, 1))(X, W_e)

    exact = gradients("paper", X.astype(jnp.float64), W_e.astype(jnp.float64))
    for ours, theirs in zip(gradients("auto", X, W_e), exact, strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, atol=0.02 * np.abs(theirs).max())


@pytest.mark.end_to_end
@pytest.mark.parametrize("columns", [(), (1,), (3, 2)])
def test_logits_of_a_tied_unembedding_are_those_of_the_transposed_embedding(columns):
    X, W_e, b_u = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(5, *columns), (5, 7), (7,)]))
    expected = np.einsum("dn,d...->n...", W_e, X)
    np.testing.assert_allclose(tied_logits(jnp.asarray(X), jnp.asarray(W_e)), expected, rtol=1e-12)
    found = tied_logits(jnp.asarray(X), jnp.asarray(W_e), jnp.asarray(b_u))
    np.testing.assert_allclose(found, expected + b_u.reshape(-1, *(1,) * len(columns)), rtol=1e-12)
    narrow = tied_logits(jnp.asarray(X, jnp.bfloat16), jnp.asarray(W_e, jnp.bfloat16))
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow, expected, rtol=0.05, atol=0.05)

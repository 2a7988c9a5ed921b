"""The activations and their first two derivatives against mpmath, in every dtype and far into both tails."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from algorithms import gelu, gelu_tanh, relu
from algorithms.ops.activation import activate, gelu_sigmoid, relu_squared, silu
from tests import cases

FUNCTIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "gelu_sigmoid": gelu_sigmoid, "silu": silu}
FUNCTIONS["relu_squared"] = relu_squared
POINTS = (-10.5, -8.25, -6.5, -5.0, -4.0, -3.0, -2.0, -1.25, -0.5, -0.125, 0.25, 0.75, 1.5, 3.0, 5.0, 9.0)
"""Exact in bfloat16. In the left tail GELU is 1e-25, where 1 + erf(x/√2) has no digit left in any dtype."""

# Relative: on the left to the value itself, which is as exact as exp(−x²/2) is; on the right, where it is almost x,
# to 1. A smaller value than a dtype's least is 0.
BOUNDS = {"float64": 5e-14, "float32": 2e-5, "bfloat16": 5e-3}


def exact(name, x):
    """A function's value and first two derivatives at x, to 40 digits."""

    def u(x):
        return mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)

    functions = {
        "relu": lambda x: max(x, mpmath.mpf(0)),
        "relu_squared": lambda x: max(x, mpmath.mpf(0)) ** 2,
        "gelu": lambda x: x * mpmath.ncdf(x),
        "gelu_tanh": lambda x: x / 2 * (1 + mpmath.tanh(u(x))),
        "gelu_sigmoid": lambda x: x / (1 + mpmath.exp(-mpmath.mpf("1.702") * x)),
        "silu": lambda x: x / (1 + mpmath.exp(-x)),
    }
    with mpmath.workdps(80):
        return [float(mpmath.diff(functions[name], mpmath.mpf(x), n)) for n in range(3)]


@functools.cache
def derivatives(name, implementation):
    """The value and the first two derivatives by JAX, of every entry."""

    def f(x):
        return cases.by(implementation, activate, name, x)

    first = jax.grad(lambda x: f(x).sum())
    second = jax.grad(lambda x: first(x).sum())
    return jax.jit(lambda x: (f(x), first(x), second(x)))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("implementation", ["paper", "auto"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_activation_and_its_derivatives(name, implementation, dtype):
    expected = np.array([exact(name, x) for x in POINTS]).T
    actual = derivatives(name, implementation)(jnp.asarray(POINTS, dtype))
    for order, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == dtype
        scale = np.maximum(np.abs(e), np.asarray(POINTS) > 0)
        error = np.abs(np.asarray(a, np.float64) - e)
        assert (error <= BOUNDS[dtype] * scale + float(jnp.finfo(dtype).tiny)).all(), (order, a, e)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_public_function_is_the_one_that_layers_use(name):
    x = jnp.asarray(POINTS)
    np.testing.assert_array_equal(FUNCTIONS[name](x), activate(name, x))


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_ends_of_the_line(name, dtype):
    """Large arguments neither overflow nor become NaN, in value and derivative."""
    x = jnp.asarray([-1e6, -1e4, 0.0, 1e4, 1e6], dtype)
    value, first, second = derivatives(name, "auto")(x)
    positive, is_squared = np.maximum(np.asarray(x), 0), name == "relu_squared"
    np.testing.assert_array_equal(value, positive * positive if is_squared else positive)
    np.testing.assert_array_equal(first, 2 * positive if is_squared else [0, 0, 0 if name == "relu" else 0.5, 1, 1])
    assert np.isfinite(np.asarray(second, np.float64)).all()

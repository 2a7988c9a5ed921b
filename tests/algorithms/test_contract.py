"""What every one of the fifteen promises a JAX user: compiled, pure, typed keys, float64 in and float64 out."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import REGISTRY, UNIDIRECTIONAL
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

ED = algorithms.EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY)
E = algorithms.ETransformerConfig(L=1, **cases.TINY)
D = algorithms.DTransformerConfig(L=1, **cases.TINY)
KEY = jax.random.key(0)


def arguments(number, seed=0, dtype="float64"):
    """Positional and keyword arguments of an algorithm: other values for another seed, the shapes the same."""

    def normal(*shape):
        return cases.normal(*shape, seed=seed, dtype=dtype)

    def tokens(*shape):
        return cases.random_tokens(*shape, seed=seed, n=cases.TINY["N_V"])

    def theta(config):
        return cases.random_theta(config, seed, dtype)

    rate, key = 0.1 + seed / 10, jax.random.key(seed)
    return {
        1: lambda: ((tokens(), normal(5, 7)), {}),
        2: lambda: ((tokens(), normal(5, 7)), {}),
        3: lambda: ((normal(7), normal(7, 3), head_params(d_z=7, seed=seed, dtype=dtype)), {}),
        4: lambda: ((normal(7, 3), normal(7, 3), head_params(d_z=7, seed=seed, dtype=dtype), UNIDIRECTIONAL), {}),
        5: lambda: ((normal(7, 3), normal(7, 3), mh_params(d_z=7, seed=seed, dtype=dtype), UNIDIRECTIONAL), {}),
        6: lambda: ((normal(7), normal(7) + 1, normal(7)), {}),
        7: lambda: ((normal(5), normal(7, 5)), {}),
        8: lambda: ((tokens(4), tokens(3), theta(ED)), {"z_length": 2 + seed}),
        9: lambda: ((tokens(4), theta(E)), {"length": 2 + seed}),
        10: lambda: ((tokens(4), theta(D)), {}),
        11: lambda: (
            (tokens(2, 4), tokens(2, 3), theta(ED)),
            {"N_epochs": 1, "eta": rate, "x_lengths": np.array([3, 1 + seed])},
        ),
        12: lambda: ((tokens(2, 3), theta(E)), {"N_epochs": 1, "eta": rate, "p_mask": rate, "key": key}),
        13: lambda: ((tokens(2, 3), theta(D)), {"N_epochs": 1, "eta": rate}),
        14: lambda: ((tokens(2), theta(D)), {"l_gen": 3, "tau": rate, "key": key}),
        15: lambda: ((tokens(4), theta(ED)), {"tau": rate, "key": key, "z_length": 2 + seed}),
    }[number]()


every_algorithm = pytest.mark.parametrize("number", range(1, 16))


def test_the_registry_has_the_fifteen_under_their_names():
    assert sorted(REGISTRY) == list(range(1, 16))
    for number, entry in REGISTRY.items():
        assert entry.number == number
        assert getattr(algorithms, entry.lines.__name__) is entry.function
        assert entry.function.__doc__.startswith(f"Algorithm {number}: ")
        for section in ("Departures: ", "Example:", f"Source: Phuong and Hutter 2022, Algorithm {number}"):
            assert section in entry.function.__doc__, section
        for told_once in ("Args:", "Raises:"):  # in algorithms/notation.py, and by the signature
            assert told_once not in entry.function.__doc__, told_once


@every_algorithm
def test_it_is_compiled_once_pure_and_the_same_again(number):
    f = REGISTRY[number].function
    f.clear_cache()
    results = []
    for seed in (0, 1, 0):
        args, kwargs = arguments(number, seed)
        before = jax.tree.map(np.array, args)
        results.append(f(*args, **kwargs))
        assert f._cache_size() == 1
        chex.assert_trees_all_equal(args, before)
    chex.assert_trees_all_equal(results[0], results[2])
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, results[:2]), strict=True))


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.slow if n > 7 else ()) for n in range(1, 16)])
def test_eager_is_compiled(number):
    f = REGISTRY[number].function
    # Without a trace the types of the signature, JAX's arrays, meet what was passed.
    args, kwargs = jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, arguments(number))
    with jax.disable_jit():
        eager = f(*args, **kwargs)
    cases.assert_trees_close(eager, f(*args, **kwargs), 1e-12)


@every_algorithm
def test_the_dtype_of_the_parameters_is_that_of_the_result(number):
    """Inside a larger program, where all arrays are traced, lengths, η and τ among them."""
    args, kwargs = arguments(number, dtype="bfloat16")
    static = {k: v for k, v in kwargs.items() if k in ("N_epochs", "l_gen")}
    traced = {k: v for k, v in kwargs.items() if k not in static}
    f = REGISTRY[number].function
    result = jax.eval_shape(lambda args, traced: f(*args, **traced, **static), args, traced)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(result)}
    probabilities = jnp.dtype("float32")  # so that few of them are equal
    expected = jnp.dtype("int32") if number > 13 else probabilities if 7 <= number <= 10 else jnp.dtype("bfloat16")
    assert dtypes == {expected}


@pytest.mark.usefixtures("x32")
@every_algorithm
def test_in_32_bit_mode_nothing_is_64_bit(number):
    args, kwargs = arguments(number, dtype="float32")
    program, result = jax.make_jaxpr(lambda *args: REGISTRY[number].function(*args, **kwargs), return_shape=True)(*args)
    assert "64[" not in str(program)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype("int32" if number > 13 else "float32")}


@pytest.mark.parametrize("number", [12, 14])
def test_no_key_is_used_twice(number):
    args, kwargs = arguments(number)
    with jax.debug_key_reuse(True):
        jax.block_until_ready(REGISTRY[number].function(*args, **kwargs))


@every_algorithm
def test_keyword_arguments_are_keyword_only(number):
    _, kwargs = arguments(number)
    parameters = inspect.signature(REGISTRY[number].function).parameters
    for name in kwargs:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY

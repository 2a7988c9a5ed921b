"""What every one of the fifteen promises a JAX user: compiled, pure, typed keys, float64 in and float64 out."""

import copy
import inspect
import itertools
import pickle
import pydoc
import sys
import types

import chex
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import REGISTRY, UNIDIRECTIONAL
from algorithms.machinery.contract import check_value
from algorithms.machinery.record import Range
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

ED = algorithms.EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY)
E = algorithms.ETransformerConfig(L=1, **cases.TINY)
D = algorithms.DTransformerConfig(L=1, **cases.TINY)


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
            {"N_epochs": 1, "eta": rate, "length": np.array([3, 1 + seed])},
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
        assert getattr(algorithms, entry.function.__name__) is entry.function
        assert entry.function.__doc__.startswith(f"Algorithm {number}: ")
        for section in ("Departures: ", "Example:"):
            assert section in entry.function.__doc__, section
        for told_once in ("Args:", "Raises:", "Source:"):  # in algorithms/notation.py, and by the signature
            assert told_once not in inspect.unwrap(entry.function).__doc__, told_once


@every_algorithm
def test_help_shows_a_readable_signature_and_options_are_keyword_only(number):
    f = REGISTRY[number].function
    shown = pydoc.render_doc(f, renderer=pydoc.plaintext)
    signature = shown.splitlines()[2]
    assert len(signature) < 600
    assert not any(word in signature for word in ("jaxtyping", "algorithms.", "typing.", "Annotated", "object at"))
    for name, parameter in inspect.signature(f).parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY or name not in arguments(number)[1], name


def test_the_signature_of_algorithm_10_is_readable():
    shown = str(inspect.signature(algorithms.d_transformer))
    assert shown.startswith(
        "(x: Integer[*batch l] | Float[d_e *batch l], theta: DTransformerParams, *, implementation: "
    )
    assert "length: Integer[*#batch] | int | None = None, mask: StructuralMask | Bool[*#batch l l] = Struct" in shown
    # what only internal callers give is not shown
    assert shown.endswith("= StructuralMask(unidirectional=True)) -> Float[N_V *batch l]")


def test_a_record_of_options_is_part_of_the_signature():
    of, like = (inspect.signature(f).parameters for f in (algorithms.d_hidden_state, algorithms.d_logits))
    assert [str(p) for p in like.values()] == [str(p) for p in of.values()]
    assert [*like][:7] == ["x", "theta", "implementation", "dropout", "key", "remat", "unroll"]
    assert (like["implementation"].default, like["remat"].default, like["key"].default) == ("auto", False, None)
    (x, theta), _ = arguments(10)
    with pytest.raises(TypeError, match="unexpected keyword argument 'remats'"):
        algorithms.d_logits(x, theta, remats=True)
    with pytest.raises(ValueError, match="remat: expected one of False, True"):
        algorithms.d_logits(x, theta, remat=3)
    given = algorithms.d_logits(x, theta, implementation="paper", length=2, remat=True)
    np.testing.assert_allclose(given, algorithms.d_logits(x, theta, length=2), atol=1e-12)


@pytest.mark.parametrize(
    "shown",
    [
        *algorithms.VARIANTS,
        "GPT2.but(norm=LayerNorm(epsilon=1e-06))",
        "PAPER.but(order='norm_last')",
        "ALBERT.but(shared_layers=24)",
        "LLAMA.but(attention=Attention(positions=Rotary(scaling=Llama3()), biases=False))",
        "GPT2.but(attention=(Attention(), Attention(window=3)))",
    ],
)
def test_a_variant_is_shown_by_its_name_and_what_differs(shown):
    variant = eval(shown, vars(algorithms) | vars(algorithms.lines))
    assert repr(variant) == shown or algorithms.VARIANTS[repr(variant)] == variant


@pytest.mark.end_to_end
@pytest.mark.sampled(6)
@every_algorithm
def test_it_is_compiled_once_pure_and_the_same_again(number):
    f, results = REGISTRY[number].function, []
    for seed in (0, 1, 0):
        args, kwargs = arguments(number, seed)
        before = jax.tree.map(np.array, args)
        compiled = cases.compilations(lambda args=args, kwargs=kwargs: results.append(f(*args, **kwargs)))
        assert not compiled or len(results) == 1
        chex.assert_trees_all_equal(args, before)
    chex.assert_trees_all_equal(results[0], results[2])
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, results[:2]), strict=True))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", cases.quick_of(range(8), range(1, 16)))
def test_eager_is_compiled(number):
    f = REGISTRY[number].function
    # Without a trace the types of the signature, JAX's arrays, meet what was passed.
    args, kwargs = jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, arguments(number))
    with jax.disable_jit():
        eager = f(*args, **kwargs)
    cases.assert_trees_close(eager, f(*args, **kwargs), 1e-12)


@every_algorithm
def test_the_dtype_of_the_parameters_is_that_of_the_result(number):
    """Inside a larger program, where all arrays are traced, lengths, η and τ among them; promoted by us alone."""
    args, kwargs = arguments(number, dtype="bfloat16")
    static = {k: v for k, v in kwargs.items() if k in ("N_epochs", "l_gen")}
    traced = {k: v for k, v in kwargs.items() if k not in static}
    f = REGISTRY[number].function
    with jax.numpy_dtype_promotion("strict"):
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


@pytest.mark.end_to_end
@pytest.mark.parametrize("number", [12, 14])
def test_no_key_is_used_twice(number):
    args, kwargs = arguments(number)
    with jax.debug_key_reuse(True):
        jax.block_until_ready(REGISTRY[number].function(*args, **kwargs))


@every_algorithm
def test_there_is_one_function_of_a_name_and_it_can_be_pickled(number):
    function = REGISTRY[number].function
    assert getattr(sys.modules[function.__module__], function.__name__) is function
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


@pytest.mark.parametrize(
    "value", [algorithms.GPT2, D, algorithms.banded(3), UNIDIRECTIONAL & algorithms.padding(3)], ids=str
)
def test_what_is_static_can_be_pickled(value):
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


def names_of_programs(program):
    """The names of the compiled functions inside of a program."""
    for equation in program.eqns:
        if equation.primitive.name in ("jit", "pjit"):
            yield equation.params["name"]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from names_of_programs(inner)


def test_algorithms_that_call_each_other_are_one_program():
    args, kwargs = arguments(8)
    program = jax.make_jaxpr(lambda *args: algorithms.ed_transformer(*args, **kwargs))(*args).jaxpr
    ours = {entry.function.__name__ for entry in REGISTRY.values()} | {"ed_hidden_state", "ed_encoding", "ed_decoding"}
    assert [name for name in names_of_programs(program) if name in ours] == ["ed_transformer"]


class OnDevice(jax.Array):
    """An array whose values may only be read if they are on a CPU."""

    def __init__(self, platform, addressable=True):
        self.platform, self.addressable = platform, addressable

    def __array__(self, *args, **kwargs):
        assert (self.platform, self.addressable) == ("cpu", True), "it was copied"
        return np.array(-1)

    def devices(self):
        return [types.SimpleNamespace(platform=self.platform)]

    is_fully_addressable = property(lambda self: self.addressable)
    __str__ = __repr__ = lambda self: "-1"


@pytest.mark.parametrize("on_device", [("gpu",), ("tpu",), ("cpu", False)], ids=str)
def test_no_check_copies_from_an_accelerator_or_another_process(on_device):
    check_value("n", OnDevice(*on_device), Range("a number >= 0", lambda n: n >= 0))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "at_hand",
    [-1, np.array([1, -1]), cases.array(-1), OnDevice("cpu")],
    ids=lambda value: type(value).__name__,
)
def test_values_at_hand_are_checked_at_every_call(at_hand):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"n: expected a number >= 0, got (\[ 1 )?-1"):
            check_value("n", at_hand, Range("a number >= 0", lambda n: n >= 0))


# The three trainings have 8 to 10 inside; all are traced in bfloat16 by the default above.
PROMOTED = [*((n, "bfloat16", "paper") for n in (11, 12, 13)), (13, "float32", "blockwise"), (15, "float32", "auto")]


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("number", "dtype", "implementation"),
    cases.quick_of(PROMOTED, itertools.product(range(8, 16), ("float32", "bfloat16"), ("auto", "paper", "blockwise"))),
)
def test_dtypes_are_promoted_by_us_alone(number, dtype, implementation):
    """With JAX's strict rules, under which it promotes nothing; gradients are inside of Algorithms 11 to 13."""
    args, kwargs = arguments(number, dtype=dtype)
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(lambda *args: REGISTRY[number].function(*args, **kwargs, implementation=implementation), *args)

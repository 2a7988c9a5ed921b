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
from tests.algorithms.functions import CASES, called

SIZES = algorithms.DTransformerConfig(L=1, **cases.TINY)
STATIC = ("N_epochs", "l_gen", "epsilon", "mask")


def name_of(number):
    return REGISTRY[number].function.__name__


def arguments(number, seed=0, dtype="float64"):
    """The arguments of an algorithm, by name: other values for another seed, the shapes the same."""
    rng = np.random.default_rng(seed)

    def changed(value):
        if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.fold_in(value, seed)
        value = np.asarray(value)
        if value.dtype.kind == "f":
            return cases.array(value * (1 + 0.3 * seed * rng.standard_normal(value.shape)), dtype)
        return cases.array(rng.permuted(value) if seed and value.ndim else value)

    floats, others = CASES[name_of(number)]
    static = {n: others[n] for n in STATIC if n in others}
    return jax.tree.map(changed, {**floats, **{n: a for n, a in others.items() if n not in static}}) | static


def traced(trace, number, dtype="float64", **options):
    """The result of a transformation, such as `jax.eval_shape`, of an algorithm as a function of all its arrays."""
    given = arguments(number, dtype=dtype)
    options |= {n: given.pop(n) for n in STATIC if n in given}
    return trace(lambda given: REGISTRY[number].function(**given, **options), given)


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
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY or parameter.default is parameter.empty, name


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
    x, theta = (arguments(10)[name] for name in ("x", "theta"))
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
        given = arguments(number, seed)
        floats = {n: given[n] for n in CASES[name_of(number)].floats}
        before = jax.tree.map(np.array, floats)
        compiled = cases.compilations(lambda given=given: results.append(f(**given)))
        assert not compiled or len(results) == 1
        chex.assert_trees_all_equal(floats, before)
    chex.assert_trees_all_equal(results[0], results[2])
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, results[:2]), strict=True))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", cases.quick_of(range(8), range(1, 16)))
def test_eager_is_compiled(number):
    f = REGISTRY[number].function
    # Without a trace the types of the signature, JAX's arrays, meet what was passed.
    given = arguments(number)
    with jax.disable_jit():
        eager = f(**given)
    cases.assert_trees_close(eager, f(**given), 1e-12)


@every_algorithm
def test_the_dtype_of_the_parameters_is_that_of_the_result(number):
    """Inside a larger program, where all arrays are traced, lengths, η and τ among them; promoted by us alone."""
    with jax.numpy_dtype_promotion("strict"):
        result = traced(jax.eval_shape, number, "bfloat16")
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(result)}
    probabilities = jnp.dtype("float32")  # so that few of them are equal
    expected = jnp.dtype("int32") if number > 13 else probabilities if 7 <= number <= 10 else jnp.dtype("bfloat16")
    assert dtypes == {expected}


@pytest.mark.usefixtures("x32")
@every_algorithm
def test_in_32_bit_mode_nothing_is_64_bit(number):
    program, result = traced(lambda f, given: jax.make_jaxpr(f, return_shape=True)(given), number, "float32")
    assert "64[" not in str(program)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype("int32" if number > 13 else "float32")}


WITH_INTEGERS = [name for name, case in CASES.items() if {"x", "z", "targets"} & case.others.keys()]


@pytest.mark.end_to_end
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
@pytest.mark.parametrize("name", WITH_INTEGERS)
def test_integers_of_few_bits_are_what_they_say(name, dtype):
    """ℓ − 1 of ℓ = 0 would wrap to 255."""
    integers = {n: a for n, a in CASES[name].others.items() if getattr(a, "dtype", None) in (np.int32, np.int64)}
    narrow = called(name, **{n: np.asarray(a, dtype) for n, a in integers.items()})
    cases.assert_trees_close(narrow, called(name), 1e-13)


@pytest.mark.end_to_end
@pytest.mark.parametrize("number", [12, 14])
def test_no_key_is_used_twice(number):
    with jax.debug_key_reuse(True):
        jax.block_until_ready(REGISTRY[number].function(**arguments(number)))


@every_algorithm
def test_there_is_one_function_of_a_name_and_it_can_be_pickled(number):
    function = REGISTRY[number].function
    assert getattr(sys.modules[function.__module__], function.__name__) is function
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


@pytest.mark.parametrize(
    "value", [algorithms.GPT2, SIZES, algorithms.banded(3), UNIDIRECTIONAL & algorithms.padding(3)], ids=str
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
    program = traced(lambda f, given: jax.make_jaxpr(f)(given), 8).jaxpr
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
    "at_hand", [-1, np.array([1, -1]), cases.array(-1), OnDevice("cpu")], ids=lambda value: type(value).__name__
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
    with jax.numpy_dtype_promotion("strict"):
        traced(jax.eval_shape, number, dtype, implementation=implementation)

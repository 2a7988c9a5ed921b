"""What the tests of `algorithms` share: small models with random parameters, and how results are compared.

All sizes are distinct primes, so that no two axes can be confused without an error or a wrong value, and no parameter
stays at 0 or 1, so that none can be left out unnoticed.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import (
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
)
from algorithms.alg14_inference import sample
from algorithms.machinery.options import using
from algorithms.masks import StructuralMask
from algorithms.model.initialization import MADE_BY
from algorithms.model.theta import theta_shapes
from algorithms.ops.activation import softmax
from algorithms.ops.attention import blockwise, strips
from algorithms.ops.attention.dispatch import scores

N_V, L_MAX = 17, 23
SHARED = {"N_V": N_V, "l_max": L_MAX, "H": 3, "d_e": 11, "d_mlp": 13, "d_attn": 5, "d_mid": 7}
ED = EDTransformerConfig(L_enc=3, L_dec=2, **SHARED)
E = ETransformerConfig(L=2, d_f=19, **SHARED)
D = DTransformerConfig(L=2, **SHARED)
# So few parameters that the oracle's complex steps, one for each of them, take a second.
TINY = {"N_V": 7, "l_max": 5, "H": 2, "d_e": 3, "d_mlp": 2, "d_attn": 1, "d_mid": 2}

# What the library itself computes ("auto" is one of them); the kernels of other libraries need their platform.
IMPLEMENTATIONS = tuple(name for name in algorithms.IMPLEMENTATIONS if name not in ("auto", "cudnn", "pallas"))

# For whole models, each of which takes seconds to compile: the printed lines and the default.
EXACT_AND_DEFAULT = ("paper", "auto")


def initializer(config: Any) -> Any:
    """The function that makes parameters for a configuration."""
    return {
        EDTransformerConfig: init_ed_transformer,
        ETransformerConfig: init_e_transformer,
        DTransformerConfig: init_d_transformer,
    }[type(config)]


def array(values: Any, dtype: Any = None) -> jax.Array:
    """These values, without a program for each shape, as ``jnp.asarray`` compiles."""
    return jax.device_put(np.asarray(values, dtype))


def key(seed: int) -> jax.Array:
    """``jax.random.key(seed)``, without a program."""
    return jax.random.wrap_key_data(array([0, seed], np.uint32))


def keys(seed: int, *shape: int) -> jax.Array:
    """Typed keys, without a program."""
    return jax.random.wrap_key_data(array(np.random.default_rng(seed).integers(2**32, size=(*shape, 2)), np.uint32))


def documents(numbers: Any) -> StructuralMask:
    """The mask `algorithms.documents` of these numbers, made by NumPy."""
    numbers = np.asarray(numbers)
    runs = np.cumsum(np.diff(numbers, prepend=numbers[..., :1]) != 0, axis=-1, dtype=np.int32)
    return StructuralMask(documents_z=(of := array(runs)), documents_x=of)


def random_like(shapes: Any, seed: int = 0, dtype: Any = jnp.float64, scale: float = 0.5) -> Any:
    """A pytree of normal arrays; the scales γ vary around 1."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        is_gamma = any(getattr(entry, "name", None) == "gamma" for entry in path)
        return array(is_gamma + scale * rng.standard_normal(leaf.shape), dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def shapes_of(config: Any) -> Any:
    """The shapes of the parameters of the model that a configuration describes, as declared: tracing takes longer."""
    shapes, sizes = theta_shapes(MADE_BY[initializer(config)][0], config.variant, config), config.sizes()
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape.of(sizes), jnp.float32), shapes)


def random_theta(config: Any, seed: int = 0, dtype: Any = jnp.float64, scale: float = 0.5) -> Any:
    """Random parameters of the model that a configuration describes."""
    return random_like(shapes_of(config), seed, dtype, scale)


def later(make: Callable[[], Any]) -> Callable[[], Any]:
    """What a function makes, when it is first needed, instead of at import; also while something is traced."""

    @functools.cache
    def made() -> Any:
        with jax.ensure_compile_time_eval():
            return make()

    return made


def random_tokens(*shape: int, seed: int = 0, n: int = N_V) -> jax.Array:
    """Token IDs, the three special ones among them."""
    return array(np.random.default_rng(seed).integers(n, size=shape), jnp.int32)


def normal(*shape: int, seed: int = 0, dtype: Any = jnp.float64) -> jax.Array:
    """A normal array."""
    return array(np.random.default_rng(seed).standard_normal(shape), dtype)


def padded(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Sequences as the rows of one array, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    return np.stack([np.pad(row, (0, lengths.max() - len(row))) for row in rows]), lengths


@jax.jit
def _drawn(theta, x, lengths, tau, key):
    """What Algorithm 14 draws behind each column t of each sequence r, with the key of its token t - lengths[r] + 1."""
    i = jnp.maximum(jnp.arange(x.shape[1])[None] - lengths[:, None] + 1, 0)
    keys = jax.vmap(lambda r, i_r: jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, r), i_r))
    return sample(jnp.log(algorithms.d_transformer(x, theta)), tau, keys(jnp.arange(len(x)), i))


def assert_drawn(
    theta: Any, prompts: Sequence[Any], tokens: Sequence[Any], tau: float, key: jax.Array, columns: int | None = None
) -> None:
    """Algorithm 14 draws these tokens behind each prompt, each given those before it, and request r with
    ``fold_in(key, r)``: a token attends to none after it, so one pass over this many columns gives them all.
    """
    texts = [np.concatenate([prompt, of_prompt[:-1]]) for prompt, of_prompt in zip(prompts, tokens, strict=True)]
    x = np.zeros((len(texts), columns or max(map(len, texts))), np.int32)
    for row, text in zip(x, texts, strict=True):
        row[: len(text)] = text
    expected = np.asarray(_drawn(theta, x, np.array([len(prompt) for prompt in prompts]), tau, key))
    for row, prompt, of_prompt in zip(expected, prompts, tokens, strict=True):
        np.testing.assert_array_equal(of_prompt, row[len(prompt) - 1 :][: len(of_prompt)])


def certain(theta: Any, token: int) -> Any:
    """θ whose every distribution is all but certain of one token: only its row of W_u sees the norm's β."""

    def only_beta(norm: Any) -> Any:
        return norm._replace(gamma=np.zeros_like(norm.gamma), beta=np.ones_like(norm.beta))

    if hasattr(theta, "norm"):
        theta = theta._replace(norm=only_beta(theta.norm))
    else:
        theta = theta._replace(decoder=theta.decoder._replace(norm5=only_beta(theta.decoder.norm5)))
    W_u = np.zeros_like(theta.W_u)
    W_u[token] = 100.0
    return jax.device_put(theta._replace(W_u=W_u))


def quick_of(quick: Any, every: Any) -> list[Any]:
    """Cases for ``parametrize``: all that are not among the quick ones are slow."""
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=marks[c in quick]) for c in every]


def assert_close(
    actual: Any, expected: Any, tolerance: float = 1e-10, name: str = "", largest: float | None = None
) -> None:
    """Every entry within ``tolerance`` times the largest expected one, the shapes equal, and nothing NaN."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape} is not {expected.shape}"
    largest = np.max(np.abs(expected), initial=0.0) if largest is None else largest
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest, err_msg=name, equal_nan=False)


def assert_trees_close(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """The arrays of two pytrees of one structure, each by its name, relative to the largest entry of all.

    (The gradient of b_k is 0 but for rounding: it adds the same to every score of a column.)
    """
    actual_leaves, actual_treedef = jax.tree_util.tree_flatten_with_path(actual)
    expected_leaves, expected_treedef = jax.tree_util.tree_flatten_with_path(expected)
    assert actual_treedef == expected_treedef
    largest = max([0.0, *(float(np.max(np.abs(np.asarray(b, np.float64)), initial=0.0)) for _, b in expected_leaves)])
    for (path, a), (_, b) in zip(actual_leaves, expected_leaves, strict=True):
        assert_close(a, b, tolerance, jax.tree_util.keystr(path), largest)


def by(implementation: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function of this package that is not public computes by an implementation."""
    with using(implementation=implementation):
        return function(*arguments, **options)


def attended(Q: Any, K: Any, V: Any, mask: Any, *, heads: bool = True, **options: Any) -> Any:
    """Lines 4 to the end of Algorithm 4; ``options`` are fields of `LazyScores`."""
    return V @ softmax(scores(K, Q, heads=heads, **options).where(mask) / math.sqrt(Q.shape[heads]))


def pulled(f: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """What a function returns, and the pullback of a random weighting of it by each of its arguments."""
    out, pullback = jax.vjp(f, *arguments)
    return out, *pullback(normal(*out.shape, seed=99).astype(out.dtype))


def dot(a: Any, b: Any) -> jax.Array:
    """The inner product of two pytrees."""
    return sum(jnp.vdot(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def common_factor(actual: Any, expected: Any) -> float:
    """The c for which ``c expected`` is nearest to ``actual``: an error that all entries share, not their rounding."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.vdot(expected, actual) / np.vdot(expected, expected))


_traced_as = jax.make_user_context(default_value=None)
"""What a test has changed of the library: what is traced under one value is not found again under another."""


def traced_anew() -> contextlib.AbstractContextManager[None]:
    """Trace and lower inside of it what has been traced before, and find nothing of it again afterwards."""
    return _traced_as(object())


@contextlib.contextmanager
def small_blocks(n: int, **of_strips: int) -> Iterator[None]:
    """Blocks of n tokens, and strips of these sizes, so that small sequences have several, and some that a mask rules
    out.
    """
    with pytest.MonkeyPatch.context() as patch, _traced_as((n, *sorted(of_strips.items()))):
        patch.setattr(blockwise, "BLOCK", n)
        for name, size in of_strips.items():
            patch.setattr(strips, name, size)
        yield


def compilations(function: Callable[[], Any]) -> list[str]:
    """The names of the programs that are compiled, or loaded in place of this, while the function runs."""
    names = []

    def note(event, _, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        jax.block_until_ready(function())
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    return names


def every_equation(jaxpr):
    """The equations of a jaxpr, and of all that are inside it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from every_equation(inner)


def inner_jaxprs(eqn):
    """The jaxprs of an equation that is a loop, a branch or a call."""
    for value in jax.tree.leaves(eqn.params, is_leaf=lambda value: hasattr(value, "jaxpr")):
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value

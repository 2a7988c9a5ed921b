"""Initial parameters, by Glorot's scheme or GPT-2's. Heads and layers are created stacked."""

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Key

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.contract import Shape, check_key
from algorithms.model.sizes import DTransformerConfig, EDTransformerConfig, ETransformerConfig, TransformerConfig
from algorithms.model.theta import DTransformerParams, EDTransformerParams, ETransformerParams, declared, theta_shapes
from algorithms.notation import mask_token
from algorithms.ops.dropout import by_own_key

Scheme = Literal["glorot", "gpt2"]
T = TypeVar("T")

WRITES = {"L": 2, "L_enc": 2, "L_dec": 3}
"""How often each of these layers adds to the residual stream."""


def init_ed_transformer(
    key: Key[Array, ""], config: EDTransformerConfig, *, scheme: Scheme = "glorot", dtype: DTypeLike = jnp.float32
) -> EDTransformerParams:
    """θ of Algorithm 8.

    ``"glorot"``: matrices are uniform in ±√(6/(rows + columns)) (Glorot and Bengio 2010). ``"gpt2"``: matrices are
    normal with standard deviation 0.02 (W_p: 0.01); W_o and W_mlp2, which write to the residual stream, are divided by
    the square root of their number. In both, γ is 1 and everything else 0.

    Raises:
        TypeError: if config is another architecture's, or the key is untyped.
        ValueError: if the scheme is unknown.

    Example:
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=2, H=2, d_e=6, d_mlp=8)
        >>> init_ed_transformer(jax.random.key(0), config).decoder.cross_attention.heads.W_q.shape
        (2, 2, 3, 6)
    """
    return _initial(init_ed_transformer, key, config, scheme, dtype)


def init_e_transformer(
    key: Key[Array, ""], config: ETransformerConfig, *, scheme: Scheme = "glorot", dtype: DTypeLike = jnp.float32
) -> ETransformerParams:
    """θ of Algorithm 9, by the schemes of ``init_ed_transformer``; arguments and errors are the same."""
    return _initial(init_e_transformer, key, config, scheme, dtype)


def init_d_transformer(
    key: Key[Array, ""], config: DTransformerConfig, *, scheme: Scheme = "glorot", dtype: DTypeLike = jnp.float32
) -> DTransformerParams:
    """θ of Algorithm 10, by the schemes of ``init_ed_transformer``; arguments and errors are the same."""
    return _initial(init_d_transformer, key, config, scheme, dtype)


def count_params(init: Callable, config: TransformerConfig) -> int:
    """The number of parameters that an initializer makes for a configuration.

    Example:
        >>> gpt2 = DTransformerConfig(N_V=50257, l_max=1024, L=12, H=12, d_e=768, d_mlp=3072, variant=GPT2)
        >>> count_params(init_d_transformer, gpt2)
        124439808
    """
    shapes = jax.tree.leaves(_shapes(init, config))
    return sum(math.prod(shape.of(config.sizes())) for shape in shapes)


def grow_vocabulary(theta: T, n: int, *, first: int | None = None) -> T:
    """θ with n more tokens, whose IDs begin at ``first``; later IDs grow by n.

    By default these are the special tokens, which stay the last; ``first=N_V`` appends. A new token has the mean of the
    columns of W_e, and of the rows of W_u and b_u. Optimizer states must be initialized again.

    Raises:
        ValueError: if n is negative, or first is not from 0 to N_V.

    Example:
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> grow_vocabulary(theta, 2).W_e.shape
        (6, 7)
    """
    tree: Any = theta
    N_V, shapes = tree.W_e.shape[1], declared(tree)
    first = mask_token(N_V) if first is None else first
    if n < 0 or not 0 <= first <= N_V:
        raise ValueError(f"grow_vocabulary: expected n >= 0 and first from 0 to {N_V}, got n = {n} and first = {first}")

    def grown(path, a):
        axes = shapes[path].axes.split()
        if "N_V" not in axes:
            return a
        axis = axes.index("N_V")
        before, after = jnp.split(a, [first], axis)
        mean = jnp.mean(a, axis, keepdims=True, dtype=accumulation_dtype(a.dtype)).astype(a.dtype)
        return jnp.concatenate([before, jnp.repeat(mean, n, axis), after], axis)

    return jax.tree.map_with_path(grown, theta)


MADE_BY = {
    init_ed_transformer: (EDTransformerParams, EDTransformerConfig),
    init_e_transformer: (ETransformerParams, ETransformerConfig),
    init_d_transformer: (DTransformerParams, DTransformerConfig),
}
"""Initializer → class of θ, and of its configuration."""


def _shapes(init: Callable, config: Any) -> Any:
    params, of = MADE_BY[init]
    if not isinstance(config, of):
        raise TypeError(f"config: expected {of.__name__}, got {type(config).__name__}")
    return theta_shapes(params, config.variant, config)


def _initial(init: Callable, key: Any, config: Any, scheme: str, dtype: Any) -> Any:
    shapes = _shapes(init, config)
    if scheme not in ("glorot", "gpt2"):
        raise ValueError(f"scheme: expected 'glorot' or 'gpt2', got {scheme!r}")
    check_key("key", key)
    sizes, numbers = config.sizes(), itertools.count()
    writes = sum(n * getattr(config, layers, 0) for layers, n in WRITES.items())

    def array(path, of: Shape):
        name, shape = path[-1].name, of.of(sizes)
        if of.deviation is None and of.role_of(name) == "vector":
            return jnp.full(shape, of.start, dtype)

        def drawn(key):
            if of.deviation is not None:
                return of.start + of.deviation * jax.random.normal(key, shape, dtype)
            if scheme == "glorot":
                bound = (6 / (shape[-2] + shape[-1])) ** 0.5  # for each matrix of a stack
                return jax.random.uniform(key, shape, dtype, -bound, bound)
            to_stream = 0.02 / writes**0.5
            deviation = {"W_p": 0.01, "W_o": to_stream, "W_mlp2": to_stream}.get(name, 0.02)
            return deviation * jax.random.normal(key, shape, dtype)

        return by_own_key(drawn)(jax.random.fold_in(key, next(numbers)))

    return jax.tree.map_with_path(array, shapes)

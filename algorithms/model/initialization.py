"""Initial parameters, by Glorot's scheme or GPT-2's. Heads and layers are created stacked."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Key

from algorithms.machinery.contract import Shape, check_key
from algorithms.model.sizes import DTransformerConfig, EDTransformerConfig, ETransformerConfig, TransformerConfig
from algorithms.model.theta import DTransformerParams, EDTransformerParams, ETransformerParams, theta_shapes
from algorithms.ops.dropout import by_own_key

Scheme = Literal["glorot", "gpt2"]

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


MADE_BY = {
    init_ed_transformer: (EDTransformerParams, EDTransformerConfig),
    init_e_transformer: (ETransformerParams, ETransformerConfig),
    init_d_transformer: (DTransformerParams, DTransformerConfig),
}
"""An initializer → the class of what it makes, and that of its configuration."""


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
    sizes, drawn = config.sizes(), itertools.count()
    writes = sum(n * getattr(config, layers, 0) for layers, n in WRITES.items())

    def array(path, of: Shape):
        name, shape = path[-1].name, of.of(sizes)
        if of.deviation is None and of.role_of(name) == "vector":
            return jnp.full(shape, of.start, dtype)
        draw = _glorot if scheme == "glorot" else functools.partial(_gpt2, name=name, writes=writes)
        draw = draw if of.deviation is None else functools.partial(_normal, of=of)
        return by_own_key(lambda key: draw(key, shape, dtype))(jax.random.fold_in(key, next(drawn)))

    return jax.tree.map_with_path(array, shapes)


def _glorot(key, shape, dtype):
    bound = (6 / (shape[-2] + shape[-1])) ** 0.5  # for each matrix of a stack
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def _normal(key, shape, dtype, *, of: Shape):
    return of.start + (of.deviation or 0) * jax.random.normal(key, shape, dtype)


def _gpt2(key, shape, dtype, *, name: str, writes: int):
    to_stream = 0.02 / writes**0.5
    deviation = {"W_p": 0.01, "W_o": to_stream, "W_mlp2": to_stream}.get(name, 0.02)
    return deviation * jax.random.normal(key, shape, dtype)

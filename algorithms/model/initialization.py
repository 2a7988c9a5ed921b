"""How the parameters start: Glorot's scheme, and GPT-2's by name. Heads and layers are made stacked."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key

from algorithms.machinery.contract import check_key
from algorithms.model.sizes import DTransformerConfig, EDTransformerConfig, ETransformerConfig, TransformerConfig
from algorithms.parameters import (
    AttentionParams,
    DTransformerParams,
    EDDecoderLayerParams,
    EDTransformerParams,
    EmbeddingParams,
    ETransformerParams,
    LayerNormParams,
    MHAttentionParams,
    MLPParams,
    TransformerLayerParams,
)

Scheme = Literal["glorot", "gpt2"]


def init_ed_transformer(
    key: Key[Array, ""],
    config: EDTransformerConfig,
    *,
    scheme: Scheme = "glorot",
    dtype: DTypeLike = jnp.float32,
) -> EDTransformerParams:
    """θ of Algorithm 8.

    ``"glorot"``: every matrix is uniform in ±√(6/(rows + columns)), biases and β are 0, γ is 1 (Glorot and Bengio).
    ``"gpt2"``: matrices are normal with deviation 0.02 (W_p: 0.01), and those that write to the residual stream, W_o
    and W_mlp2, are divided by the square root of how many do.

    Args:
        key: randomness, consumed.
        config: the sizes.
        scheme: how the matrices are drawn.
        dtype: of all arrays.

    Raises:
        TypeError: if config is another architecture's, or the key is untyped.
        ValueError: if there is no such scheme.

    Example:
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=2, H=2, d_e=6, d_mlp=8)
        >>> init_ed_transformer(jax.random.key(0), config).decoder.cross_attention.heads.W_q.shape
        (2, 2, 3, 6)
    """
    make = _Initializer(key, config, EDTransformerConfig, scheme, dtype, L_enc=2, L_dec=3)
    L, variant = config.L_dec, config.variant
    return EDTransformerParams(
        W_e=make.matrix(config.d_e, config.N_V),
        W_p=make.positions(),
        encoder=make.layers(config.L_enc),
        decoder=EDDecoderLayerParams(
            self_attention=make.mh_attention(L),
            norm3=make.norm(L, config.d_e),
            cross_attention=make.mh_attention(L),
            norm4=make.norm(L, config.d_e),
            mlp=make.mlp(L),
            norm5=make.norm(L, config.d_e),
        ),
        W_u=make.unembedding(config.d_e),
        context=make.context(),
        embedding_norm=make.norm(None, config.d_e) if variant.normalize_embedding else None,
        encoder_norm=make.norm(None, config.d_e) if variant.final_norm else None,
        decoder_norm=make.norm(None, config.d_e) if variant.final_norm else None,
        b_u=make.unembedding_bias(),
    )


def init_e_transformer(
    key: Key[Array, ""],
    config: ETransformerConfig,
    *,
    scheme: Scheme = "glorot",
    dtype: DTypeLike = jnp.float32,
) -> ETransformerParams:
    """θ of Algorithm 9, by the schemes of ``init_ed_transformer``; arguments and errors are the same."""
    make = _Initializer(key, config, ETransformerConfig, scheme, dtype, L=2)
    variant = config.variant
    return ETransformerParams(
        W_e=make.matrix(config.d_e, config.N_V),
        W_p=make.positions(),
        layers=make.layers(config.L),
        W_f=make.matrix(config.d_f, config.d_e) if variant.head else None,
        b_f=make.zeros(config.d_f) if variant.head else None,
        norm=make.norm(None, config.d_f) if variant.head else None,
        W_u=make.unembedding(config.d_f),
        embedding_norm=make.norm(None, config.d_e) if variant.normalize_embedding else None,
        b_u=make.unembedding_bias(),
        W_t=make.matrix(config.d_e, config.N_types) if config.N_types else None,
        W_pool=make.matrix(config.d_e, config.d_e) if variant.pooler else None,
        b_pool=make.zeros(config.d_e) if variant.pooler else None,
    )


def init_d_transformer(
    key: Key[Array, ""],
    config: DTransformerConfig,
    *,
    scheme: Scheme = "glorot",
    dtype: DTypeLike = jnp.float32,
) -> DTransformerParams:
    """θ of Algorithm 10, by the schemes of ``init_ed_transformer``; arguments and errors are the same."""
    make = _Initializer(key, config, DTransformerConfig, scheme, dtype, L=2)
    return DTransformerParams(
        W_e=make.matrix(config.d_e, config.N_V),
        W_p=make.positions(),
        layers=make.layers(config.L),
        norm=make.norm(None, config.d_e),
        W_u=make.unembedding(config.d_e),
        b_u=make.unembedding_bias(),
    )


def count_params(init: Callable, config: TransformerConfig) -> int:
    """How many parameters an initializer makes for a configuration, without allocating any.

    Example:
        >>> from algorithms import GPT2
        >>> gpt2 = DTransformerConfig(N_V=50257, l_max=1024, L=12, H=12, d_e=768, d_mlp=3072, variant=GPT2)
        >>> count_params(init_d_transformer, gpt2)
        124439808
    """
    shapes = jax.eval_shape(lambda key: init(key, config), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


class _Initializer:
    """Makes arrays by one scheme, each from a key of its own."""

    def __init__(self, key, config, kind: type, scheme: str, dtype, **writes_of_layer: int) -> None:
        if not isinstance(config, kind):
            raise TypeError(f"config: expected {kind.__name__}, got {type(config).__name__}")
        if scheme not in ("glorot", "gpt2"):
            raise ValueError(f"scheme: expected 'glorot' or 'gpt2', got {scheme!r}")
        check_key("key", key)
        self._config, self._scheme, self._dtype = config, scheme, dtype
        self._residual_writes = sum(n * getattr(config, layers) for layers, n in writes_of_layer.items())
        self._key, self._drawn = key, 0

    def matrix(self, *shape: int, deviation: float = 0.02) -> Float[Array, "*shape"]:
        """[*stack, d_out, d_in]: each of the stacked matrices by itself."""
        key = jax.random.fold_in(self._key, self._drawn)
        self._drawn += 1
        if self._scheme == "gpt2":
            return deviation * jax.random.normal(key, shape, self._dtype)
        bound = (6 / (shape[-2] + shape[-1])) ** 0.5
        return jax.random.uniform(key, shape, self._dtype, -bound, bound)

    def zeros(self, *shape: int) -> Float[Array, "*shape"]:
        return jnp.zeros(shape, self._dtype)

    def norm(self, L: int | None, d: int) -> LayerNormParams:
        shape = (d,) if L is None else (L, d)
        beta = None if self._config.variant.norm == "rms_norm" else self.zeros(*shape)
        return LayerNormParams(jnp.ones(shape, self._dtype), beta)

    def positions(self) -> Float[Array, "d_e l_max"] | None:
        c = self._config
        if c.variant.positions != "learned":
            return None
        return self.matrix(c.d_e, c.l_max + c.variant.first_position, deviation=0.01)

    def context(self) -> EmbeddingParams | None:
        c = self._config
        own = EmbeddingParams(
            W_e=None if c.N_V_z is None else self.matrix(c.d_e, c.N_V_z),
            W_p=self.positions() if c.variant.context_positions else None,
            embedding_norm=self.norm(None, c.d_e) if c.variant.normalize_embedding else None,
        )
        return None if all(array is None for array in own) else own

    def unembedding(self, d: int) -> Float[Array, "N_V d"] | None:
        return None if self._config.tied else self.matrix(self._config.N_V, d)

    def unembedding_bias(self) -> Float[Array, "N_V"] | None:
        return self.zeros(self._config.N_V) if self._config.variant.unembedding_bias else None

    def mh_attention(self, L: int) -> MHAttentionParams:
        c = self._config
        H, d_e, d_attn, d_mid = c.H, c.d_e, c.d_attn, c.d_mid
        heads = AttentionParams(
            W_q=self.matrix(L, H, d_attn, d_e),
            b_q=self.zeros(L, H, d_attn),
            W_k=self.matrix(L, H, d_attn, d_e),
            b_k=self.zeros(L, H, d_attn),
            W_v=self.matrix(L, H, d_mid, d_e),
            b_v=self.zeros(L, H, d_mid),
        )
        return MHAttentionParams(heads, self._residual(L, d_e, H * d_mid), self.zeros(L, d_e))

    def mlp(self, L: int) -> MLPParams:
        c = self._config
        return MLPParams(
            W_mlp1=self.matrix(L, c.d_mlp, c.d_e),
            b_mlp1=self.zeros(L, c.d_mlp),
            W_mlp2=self._residual(L, c.d_e, c.d_mlp),
            b_mlp2=self.zeros(L, c.d_e),
        )

    def layers(self, L: int) -> TransformerLayerParams:
        d_e = self._config.d_e
        return TransformerLayerParams(self.mh_attention(L), self.norm(L, d_e), self.mlp(L), self.norm(L, d_e))

    def _residual(self, *shape: int) -> Float[Array, "*shape"]:
        return self.matrix(*shape, deviation=0.02 / self._residual_writes**0.5)

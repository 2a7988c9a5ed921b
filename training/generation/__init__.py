"""Algorithms 14 and 15 for use: the same tokens, for a batch of requests, at the price of one column a token.

`generate` continues prompts with a decoder, `translate` translates with an encoder-decoder. `Generator` and
`Translator` are the same with a model that is kept ready for many calls, and can hand out tokens as they come.

What is compiled serves all prompts, contexts and outputs whose lengths lie in one bucket, for one batch size.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from algorithms import (
    DTransformerConfig,
    DTransformerParams,
    EDTransformerConfig,
    EDTransformerParams,
    bos_token,
    eos_token,
)
from algorithms.machinery.contract import check_key
from training.generation import beam_search, decoding, inputs
from training.generation.cache import bucket, capacity
from training.generation.decoding import Context, State
from training.generation.sampling import draw

__all__ = ["Generator", "Translator", "generate", "translate"]

LENGTH_PENALTY = 0.6


def generate(
    theta: DTransformerParams,
    prompts: Int[Array, "B l"] | np.ndarray,
    *,
    lengths: Int[Array, "B"] | np.ndarray,
    config: DTransformerConfig,
    l_gen: int,
    tau: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos: int | None = None,
    key: Key[Array, ""],
) -> Int[Array, "B l_gen"]:
    """Continue prompts: for each of them the tokens of Algorithm 14, ``d_inference(prompt, theta, …)``.

    Request r draws with the key ``fold_in(key, r)``, and its token i with ``fold_in(that, i)``; so its tokens do not
    depend on the other requests, nor on the padding.

    Args:
        theta: trained parameters.
        prompts: token IDs, padded on the right.
        lengths: tokens of each prompt that are not padding.
        config: sizes and variant of the model.
        l_gen: how many tokens to generate.
        tau: temperature τ: 0 takes the likeliest token, 1 samples faithfully, inf uniformly.
        top_k: draw from the k likeliest tokens only (and those as likely as the last of them).
        top_p: draw from the nucleus only, the fewest likeliest tokens which together have this probability, at
            temperature τ and after `top_k`.
        eos: a token that ends a sequence; what follows it is eos again. None: none does.
        key: randomness, consumed.

    Returns:
        the continuations.

    Raises:
        TypeError: for tokens or lengths that are no integers, parameters or a configuration of another architecture, or
            an untyped key.
        ValueError: for a prompt that is empty, has an unknown token, or would outgrow l_max; for sizes that
            disagree; or for an impossible tau, top_k, top_p, eos or l_gen.

    Example:
        >>> from algorithms import init_d_transformer
        >>> config = DTransformerConfig(N_V=5, l_max=8, L=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_d_transformer(jax.random.key(0), config)
        >>> prompts, lengths = jnp.array([[3, 0, 1], [3, 0, 0]]), jnp.array([3, 1])
        >>> generate(theta, prompts, lengths=lengths, config=config, l_gen=4, key=jax.random.key(1)).shape
        (2, 4)
    """
    return Generator(theta, config).generate(
        prompts, lengths=lengths, l_gen=l_gen, tau=tau, top_k=top_k, top_p=top_p, eos=eos, key=key
    )


class Generator:
    """A decoder that is kept ready; see `generate`."""

    def __init__(self, theta: DTransformerParams, config: DTransformerConfig) -> None:
        inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
        self.theta = theta
        self.config = dataclasses.replace(config, variant=config.variant.without_dropout())
        self.weights = decoding.unstacked(theta)

    def generate(
        self,
        prompts: Int[Array, "B l"] | np.ndarray,
        *,
        lengths: Int[Array, "B"] | np.ndarray,
        l_gen: int,
        tau: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
        key: Key[Array, ""],
        first: int = 0,
        begins: Bool[np.ndarray, "B N_V"] | None = None,
    ) -> Int[Array, "B l_gen"]:
        """As the function of this name; `first` is the number of the first request, where they are some of many, and
        `begins` has the tokens that each continuation may begin with.
        """
        state, keys, options = self._begun(prompts, lengths, l_gen, tau, top_k, top_p, eos, key, first, begins)
        last = int(state.first)
        state = _decoded(self.weights, None, state, keys, last + l_gen, options)
        generated = np.asarray(state.tokens)[:, last + 1 : int(state.slot) + 1]
        return jnp.asarray(np.pad(generated, ((0, 0), (0, l_gen - generated.shape[1])), constant_values=eos or 0))

    def stream(
        self,
        prompts: Int[Array, "B l"] | np.ndarray,
        *,
        lengths: Int[Array, "B"] | np.ndarray,
        l_gen: int,
        tau: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
        key: Key[Array, ""],
        first: int = 0,
        begins: Bool[np.ndarray, "B N_V"] | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield what `generate` returns, column by column, as they come, until all sequences have ended."""
        state, keys, options = self._begun(prompts, lengths, l_gen, tau, top_k, top_p, eos, key, first, begins)
        last = int(state.first)
        for stop in range(last + 1, last + l_gen + 1):
            state = _decoded(self.weights, None, state, keys, stop, options)
            if int(state.slot) < stop:
                return
            yield np.asarray(state.tokens[:, stop])

    def _begun(
        self, prompts, lengths, l_gen, tau, top_k, top_p, eos, key, first, begins
    ) -> tuple[State, Array, dict[str, Any]]:
        inputs.check_count("l_gen", l_gen)
        inputs.check_sampling(tau, top_k, top_p, eos, self.config.N_V)
        check_key("key", key)
        x, lengths = inputs.checked("prompts", prompts, lengths, self.config)
        inputs.check_room(lengths, l_gen, self.config.l_max)
        state, keys = self.read(x, lengths), _keys_of(key, len(x), first)
        options = _options(self.config, tau, top_k, top_p, eos)
        if begins is not None:
            state = _begin_among(jnp.asarray(begins.T), self.weights, state, keys, **options)
        return state, keys, options

    def read(self, x: np.ndarray, lengths: np.ndarray) -> State:
        """Read prompts, as `inputs.checked` returns them, with the forward pass of whole sequences."""
        P = min(bucket(x.shape[1]), self.config.l_max)
        x = np.pad(x, ((0, 0), (0, P - x.shape[1])))
        return decoding.prefill(self.theta, x, lengths, variant=self.config.variant, C=capacity(P + 2))


def translate(
    theta: EDTransformerParams,
    z: Int[Array, "B l_z"] | np.ndarray,
    *,
    lengths: Int[Array, "B"] | np.ndarray,
    config: EDTransformerConfig,
    l_max: int,
    beam_size: int = 1,
    length_penalty: float = LENGTH_PENALTY,
    tau: float = 0.0,
    key: Key[Array, ""] | None = None,
    bos: int | None = None,
    eos: int | None = None,
) -> tuple[Int[Array, "B l_max"], Int[Array, "B"], Float[Array, "B"]]:
    """Translate contexts: for each of them what Algorithm 15 gives, ``ed_inference(z, theta, …)``, or a beam search.

    A beam search keeps the ``beam_size`` translations Y with the largest
    ``log P(Y | z) / ((5 + |Y|)/6)^length_penalty`` until all of them have ended, where |Y| counts the tokens after
    bos_token (Wu et al. 2016, equation 14), and returns the best.

    Args:
        theta: trained parameters.
        z: token IDs of the contexts, padded on the right.
        lengths: tokens of each context that are not padding.
        config: sizes and variant of the model.
        l_max: length at which to stop without eos_token, bos_token counted.
        beam_size: how many translations to keep; 1 for one, greedy or drawn.
        length_penalty: exponent of the length, for beams; 0 compares log-probabilities as they are.
        tau: temperature: 0 takes the likeliest token; other ones need a key, and beam_size 1.
        key: randomness, consumed: request r draws its token i with ``fold_in(fold_in(key, r), i)``.
        bos: the token that a translation begins with; None: the paper's bos_token, N_V − 2.
        eos: the token that ends it; None: the paper's eos_token, N_V − 1.

    Returns:
        the translations from bos_token to eos_token, padded with eos_token; how many of their tokens are no padding;
        and the log-probability of each, in nats.

    Raises:
        TypeError, ValueError: as `generate`; and for an impossible l_max, beam_size or length_penalty.

    Example:
        >>> from algorithms import init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=8, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> z, lengths = jnp.array([[0, 1, 1], [1, 0, 0]]), jnp.array([3, 1])
        >>> tokens, lengths, scores = translate(theta, z, lengths=lengths, config=config, l_max=6, beam_size=2)
        >>> tokens.shape, lengths.shape, scores.shape
        ((2, 6), (2,), (2,))
    """
    return Translator(theta, config, bos=bos, eos=eos).translate(
        z, lengths=lengths, l_max=l_max, beam_size=beam_size, length_penalty=length_penalty, tau=tau, key=key
    )


class Translator:
    """An encoder-decoder that is kept ready; see `translate`."""

    def __init__(
        self,
        theta: EDTransformerParams,
        config: EDTransformerConfig,
        *,
        bos: int | None = None,
        eos: int | None = None,
    ) -> None:
        for name, token in (("bos", bos), ("eos", eos)):
            inputs.check_token(name, token, config.N_V)
        self.bos = bos_token(config.N_V) if bos is None else bos
        self.eos = eos_token(config.N_V) if eos is None else eos
        inputs.check_model(theta, config, EDTransformerParams, EDTransformerConfig)
        self.theta = theta
        self.config = dataclasses.replace(config, variant=config.variant.without_dropout())
        self.weights = decoding.unstacked(theta)

    def translate(
        self,
        z: Int[Array, "B l_z"] | np.ndarray,
        *,
        lengths: Int[Array, "B"] | np.ndarray,
        l_max: int,
        beam_size: int = 1,
        length_penalty: float = LENGTH_PENALTY,
        tau: float = 0.0,
        key: Key[Array, ""] | None = None,
        first: int = 0,
    ) -> tuple[Int[Array, "B l_max"], Int[Array, "B"], Float[Array, "B"]]:
        """As the function of this name; `first` is the number of the first request."""
        context, keys, options = self._begun(z, lengths, l_max, beam_size, length_penalty, tau, key, first)
        if beam_size > 1:
            return beam_search.beam_search(
                self.weights,
                context,
                l_max=l_max,
                beam_size=beam_size,
                length_penalty=length_penalty,
                variant=self.config.variant,
                bos=self.bos,
                eos=self.eos,
            )
        state = decoding.empty_state(self.weights, B=len(keys), C=capacity(2), bos=self.bos)
        state = _decoded(self.weights, context, state, keys, l_max - 1, options)
        tokens = np.full((len(keys), l_max), self.eos, np.int32)
        written = int(state.slot) + 1
        tokens[:, :written] = np.asarray(state.tokens)[:, :written]
        ended = tokens[:, 1:] == self.eos  # some models begin with it, too
        counts = np.where(ended.any(1), ended.argmax(1) + 2, l_max)
        return jnp.asarray(tokens), jnp.asarray(counts, jnp.int32), state.scores

    def stream(
        self,
        z: Int[Array, "B l_z"] | np.ndarray,
        *,
        lengths: Int[Array, "B"] | np.ndarray,
        l_max: int,
        tau: float = 0.0,
        key: Key[Array, ""] | None = None,
        first: int = 0,
    ) -> Iterator[np.ndarray]:
        """Yield the tokens of `translate` that follow bos_token, column by column, as they come."""
        context, keys, options = self._begun(z, lengths, l_max, 1, 0.0, tau, key, first)
        state = decoding.empty_state(self.weights, B=len(keys), C=capacity(2), bos=self.bos)
        for stop in range(1, l_max):
            state = _decoded(self.weights, context, state, keys, stop, options)
            if int(state.slot) < stop:
                return
            yield np.asarray(state.tokens[:, stop])

    def _begun(
        self, z, lengths, l_max, beam_size, length_penalty, tau, key, first
    ) -> tuple[Context, Array, dict[str, Any]]:
        inputs.check_translation(l_max, beam_size, length_penalty, tau, key, self.config)
        z, lengths = inputs.checked("z", z, lengths, self.config, N_V=self.config.N_V_z)
        P = min(bucket(z.shape[1]), self.config.l_max)
        z = np.pad(z, ((0, 0), (0, P - z.shape[1])))
        context = decoding.encode(self.theta, z, lengths, variant=self.config.variant)
        key = jax.random.key(0) if key is None else key
        return context, _keys_of(key, len(z), first), _options(self.config, tau, None, None, self.eos)


def _keys_of(key: Key[Array, ""], B: int, first: int) -> Key[Array, "B"]:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(B))


@functools.partial(jax.jit, static_argnames=("variant", "top_k"), donate_argnames=("state",))
def _begin_among(
    begins: Bool[Array, "N_V B"], weights, state: State, keys, *, tau, top_p, eos, variant, top_k
) -> State:
    """Return the state with the first token, drawn from those that each sequence may begin with."""
    P, caches = decoding.step(weights, None, state, variant=variant)
    P = jnp.where(begins, P, 0)
    y = draw(P / P.sum(axis=0, keepdims=True), keys, 0, tau=tau, top_k=top_k, top_p=top_p)
    slot = state.slot + 1
    tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, y[:, None], slot, axis=1)
    return state._replace(caches=caches, tokens=tokens, slot=slot)


def _options(config, tau, top_k, top_p, eos) -> dict[str, Any]:
    return {
        "tau": float(tau),  # weakly typed, as in Algorithms 14 and 15: the draw has the dtype of the parameters
        "top_p": None if top_p is None else float(top_p),
        "top_k": top_k,
        "eos": jnp.asarray(-1 if eos is None else eos, jnp.int32),
        "variant": config.variant,
    }


def _decoded(weights, context: Context | None, state: State, keys, stop: int, options: dict[str, Any]) -> State:
    """Generate up to slot `stop`, one compiled loop for each bucket of the cache."""
    while True:
        C = state.tokens.shape[1]
        here = min(stop, C - 1)
        state = decoding.decode(weights, context, state, keys, stop=jnp.asarray(here, jnp.int32), **options)
        if here == stop or int(state.slot) < here:
            return state
        state = decoding.grow(state, C=2 * C)

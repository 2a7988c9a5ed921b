"""Algorithms 14 and 15 for use: the same tokens for a batch of requests, computing one column per token.

`generate` continues prompts with a decoder; `translate` translates with an encoder-decoder. `Generator` and
`Translator` keep a model ready for many calls, and can stream tokens.

A compiled program serves all prompts, contexts and outputs whose lengths fall into the same bucket, for one batch size.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms import DTransformerConfig, DTransformerParams, EDTransformerConfig, EDTransformerParams
from algorithms.notation import bos_token, eos_token
from training.generation import decoding, inputs, layout, prefilling, states
from training.generation.beam_search import beam_search
from training.generation.buckets import bucketed, capacity
from training.generation.continuation import Generator
from training.generation.inputs import Lengths, Tokens
from training.generation.requests import keys_of
from training.generation.sampling import Sampling, SamplingArrays
from training.generation.states import Context, State

LENGTH_PENALTY = 0.6


def generate(
    theta: DTransformerParams,
    prompts: Tokens,
    *,
    lengths: Lengths,
    config: DTransformerConfig,
    l_gen: int,
    key: Key[Array, "*B"],
    sliding: bool = False,
    **sampling: Unpack[Sampling],
) -> Int[Array, "B l_gen"]:
    """Continue each prompt, padded on the right, with the l_gen tokens of Algorithm 14, ``d_inference(prompt, theta,
    …)``.

    Request r has the key ``fold_in(key, r)``, or its own if there is one for each, and draws its token i with
    ``fold_in(that, i)``, so its tokens do not depend on the other requests or the padding. `Sampling` says how they are
    drawn. If `sliding`, prompts may be longer than l_max, and texts outgrow it, with the windows of `window_start`:
    past l_max, each token is predicted from the l_max/2 to l_max tokens before it.

    It compiles its own programs for the lengths and settings that come, so `jax.jit` and `jax.vmap` cannot trace it:
    in your own programs, use `algorithms.read_tokens`.

    Raises TypeError if tokens or lengths are not integers, the model is of another architecture, or the key is untyped,
    and ValueError if a prompt is empty, has an unknown token, or would outgrow l_max, or sizes or options are invalid.

    Example:
        >>> from algorithms import init_d_transformer
        >>> config = DTransformerConfig(N_V=5, l_max=8, L=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_d_transformer(jax.random.key(0), config)
        >>> prompts, lengths = jnp.array([[3, 0, 1], [3, 0, 0]]), jnp.array([3, 1])
        >>> generate(theta, prompts, lengths=lengths, config=config, l_gen=4, key=jax.random.key(1)).shape
        (2, 4)
    """
    generator = Generator(theta, config)
    return generator.generate(prompts, lengths=lengths, l_gen=l_gen, key=key, sliding=sliding, **sampling)


def translate(
    theta: EDTransformerParams,
    z: Int[Array, "B l_z"] | np.ndarray,
    *,
    lengths: Lengths,
    config: EDTransformerConfig,
    l_max: int,
    beam_size: int = 1,
    length_penalty: float = LENGTH_PENALTY,
    tau: float = 0.0,
    key: Key[Array, ""] | None = None,
    bos: int | None = None,
    eos: int | None = None,
) -> tuple[Int[Array, "B l_max"], Int[Array, "B"], Float[Array, "B"]]:
    """Translate each context, padded on the right, with Algorithm 15, ``ed_inference(z, theta, …)``, or a beam search.

    A beam search keeps the ``beam_size`` translations Y with the largest ``log P(Y | z) / ((5 +
    |Y|)/6)^length_penalty`` until all of them have ended, where |Y| counts the tokens after bos_token (Wu et al. 2016,
    equation 14), and returns the best. A `tau` above 0 needs a key and beam_size 1: request r draws its token i with
    ``fold_in(fold_in(key, r), i)``. A translation begins with `bos` and ends with `eos` (None: the paper's, N_V − 2 and
    N_V − 1).

    Returns the translations from bos_token to eos_token, padded with eos_token to l_max; how many of their tokens are
    not padding; and the log-probability of each, in nats. Raises TypeError and ValueError as `generate`.

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
    """An encoder-decoder that is ready for many calls; see `translate`, and `Generator` for ``int8``."""

    def __init__(
        self,
        theta: EDTransformerParams,
        config: EDTransformerConfig,
        *,
        bos: int | None = None,
        eos: int | None = None,
        int8: bool = False,
    ) -> None:
        for name, token in (("bos", bos), ("eos", eos)):
            inputs.check_token(name, token, config.N_V)
        self.bos = bos_token(config.N_V) if bos is None else bos
        self.eos = eos_token(config.N_V) if eos is None else eos
        inputs.check_model(theta, config, EDTransformerParams, EDTransformerConfig)
        self.theta, self.config, self.weights = theta, config, layout.unstacked(theta, int8=int8)

    def translate(
        self,
        z: Int[Array, "B l_z"] | np.ndarray,
        *,
        lengths: Lengths,
        l_max: int,
        beam_size: int = 1,
        length_penalty: float = LENGTH_PENALTY,
        tau: float = 0.0,
        key: Key[Array, ""] | None = None,
        first: int = 0,
    ) -> tuple[Int[Array, "B l_max"], Int[Array, "B"], Float[Array, "B"]]:
        """Translate contexts; see the function `translate`. `first` is the number of the first request."""
        inputs.check_translation(l_max, tau, key, self.config, beam_size=beam_size, length_penalty=length_penalty)
        if beam_size > 1:
            options = {"l_max": l_max, "beam_size": beam_size, "length_penalty": length_penalty}
            return beam_search(self.weights, self._encoded(z, lengths), **options, bos=self.bos, eos=self.eos)
        state, advance = self._begun(z, lengths, tau, key, first)
        state = decoding.grown_until(l_max - 1, state, advance)
        tokens = np.full((len(state.tokens), l_max), self.eos, np.int32)
        written = int(state.slot) + 1
        tokens[:, :written] = np.asarray(state.tokens)[:, :written]
        ended = tokens[:, 1:] == self.eos  # some models begin with eos, too
        counts = np.where(ended.any(1), ended.argmax(1) + 2, l_max)
        return jnp.asarray(tokens), jnp.asarray(counts, jnp.int32), state.log_p.sum(axis=1)

    def stream(
        self,
        z: Int[Array, "B l_z"] | np.ndarray,
        *,
        lengths: Lengths,
        l_max: int,
        tau: float = 0.0,
        key: Key[Array, ""] | None = None,
        first: int = 0,
    ) -> Iterator[np.ndarray]:
        """Yield the columns of what `translate` returns as they are generated, without bos_token."""
        inputs.check_translation(l_max, tau, key, self.config)
        state, advance = self._begun(z, lengths, tau, key, first)
        for stop in range(1, l_max):
            state = decoding.grown_until(stop, state, advance)
            if int(state.slot) < stop:
                return
            yield np.asarray(state.tokens[:, stop])

    def _encoded(self, z, lengths) -> Context:
        z, lengths = inputs.checked("z", z, lengths, self.config, N_V=self.config.N_V_z)
        return prefilling.encode(self.theta, bucketed(z, self.config.l_max), lengths)

    def _begun(self, z, lengths, tau, key, first) -> tuple[State, Callable[..., State]]:
        """Return the state of translations that have only bos, and the function that continues one."""
        context = self._encoded(z, lengths)
        B = len(context.permitted)
        keys = keys_of(jax.random.key(0) if key is None else key, B, first)
        sampling: Sampling = {"tau": tau, "eos": self.eos}
        drawn = SamplingArrays.of([sampling] * B, self.config.N_V)
        advance = functools.partial(decoding.decode, self.weights, context, keys=keys, sampling=drawn)
        return states.empty_state(self.weights, B=B, C=capacity(2), bos=self.bos), advance

"""Algorithms 14 and 15 for use: the same tokens for a batch of requests, computing one column per token.

`generate` continues prompts with a decoder; `translate` translates with an encoder-decoder. `Generator` and
`Translator` keep a model ready for many calls, and can stream tokens.

A compiled program serves all prompts, contexts and outputs whose lengths fall into the same bucket, for one batch size.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Required, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms import (
    DTransformerConfig,
    DTransformerParams,
    EDTransformerConfig,
    EDTransformerParams,
    bos_token,
    eos_token,
)
from algorithms.inside import At
from algorithms.machinery.contract import check_key
from training.generation import beam_search, decoding, inputs, layout, reading, states
from training.generation.cache import bucketed, capacity
from training.generation.continuation import Continuation, Model
from training.generation.inputs import Lengths, Tokens
from training.generation.inside import Inside
from training.generation.prefixes import Prefixes
from training.generation.requests import Request, check_requests, keys_of
from training.generation.sampling import Sampling, SamplingArrays
from training.generation.states import Context, State

__all__ = ["Continuation", "Generator", "Sampling", "Translator", "generate", "translate"]

LENGTH_PENALTY = 0.6


class Requests(Sampling, total=False):
    """The arguments of `generate` that `Generator` takes for each call."""

    lengths: Required[Lengths]
    l_gen: Required[int]
    key: Required[Key[Array, "*B"]]
    sliding: bool


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
    """Continue each prompt with the tokens of Algorithm 14, ``d_inference(prompt, theta, …)``.

    Request r has the key ``fold_in(key, r)`` and draws its token i with ``fold_in(that, i)``, so its tokens do not
    depend on the other requests or the padding.

    Args:
        theta: trained parameters.
        prompts: token IDs, padded on the right.
        lengths: tokens of each prompt that are not padding.
        config: sizes and variant of the model.
        l_gen: how many tokens to generate.
        key: randomness, consumed; or one key per request, used instead of ``fold_in(key, r)``.
        sliding: continue past l_max, and accept longer prompts, with the windows of `window_start`: past l_max, each
            token is predicted from the l_max/2 to l_max tokens before it.
        **sampling: how to draw, see `Sampling`.

    Returns:
        the continuations.

    Raises:
        TypeError: for tokens or lengths that are not integers, parameters or a configuration of another architecture,
            or an untyped key.
        ValueError: for a prompt that is empty, has an unknown token, or would outgrow l_max; for sizes that
            disagree; or for an invalid l_gen or `Sampling`.

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


class Generator:
    """A decoder that is ready for many calls; see `generate`."""

    def __init__(
        self,
        theta: DTransformerParams,
        config: DTransformerConfig,
        *,
        prefixes: Prefixes | None = None,
        changes: Mapping[str, Any] | Mapping[At, Any] | None = None,
        names: Sequence[str] = (),
        int8: bool = False,
    ) -> None:
        """Lay out the parameters.

        `prefixes` caches keys and values, so that a prompt that begins like an earlier text is read only from where
        they differ; `changes` and `names` turn it off. `changes` are applied to every token, as
        `algorithms.inside.intervene` takes them; `names` are recorded for every token, as `algorithms.inside.record`
        takes them, and returned by `Continuation.seen`. `int8` rounds the matrices that every generated token reads,
        with a scale per row; prompts are read with the original parameters.
        """
        inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
        self.theta = theta
        self.config = config
        self._apart = layout.apart(theta)
        self.weights = layout.unstacked(self._apart, int8=int8)
        self.prefixes = prefixes
        self._inside = Inside(changes or {}, names, config.L) if changes or names else None

    def generate(self, prompts: Tokens, **requests: Unpack[Requests]) -> Int[Array, "B l_gen"]:
        """Continue prompts; see the function `generate`."""
        continuation, l_gen = self.begin(prompts, **requests), requests["l_gen"]
        continuation.extend(l_gen)
        missing = l_gen - continuation.tokens.shape[1]
        fill = max(0, int(continuation.sampling.eos[0, 0]))
        return jnp.asarray(np.pad(continuation.tokens, ((0, 0), (0, missing)), constant_values=fill))

    def stream(self, prompts: Tokens, **requests: Unpack[Requests]) -> Iterator[np.ndarray]:
        """Yield the columns of what `generate` returns as they are generated, until all sequences have ended."""
        yield from self.begin(prompts, **requests).columns(requests["l_gen"])

    def begin(
        self,
        prompts: Tokens,
        *,
        lengths: Lengths,
        l_gen: int,
        key: Key[Array, "*B"],
        sliding: bool = False,
        likeliest: int = 0,
        **sampling: Unpack[Sampling],
    ) -> Continuation:
        """Read prompts, and return the `Continuation` that generates step by step. Besides the arguments of the
        function `generate`: `likeliest` is how many of the likeliest tokens to record at each position.
        """
        inputs.check_count("l_gen", l_gen)
        check_key("key", key)
        x, lengths = inputs.checked("prompts", prompts, lengths, self.config, sliding=sliding)
        if not sliding:
            inputs.check_room(lengths, l_gen, self.config.l_max)
        keys = key if key.ndim else keys_of(key, len(x), 0)
        if len(keys) != len(x):
            raise ValueError(f"key: expected one key, or one for each of the {len(x)} requests, got {len(keys)}")
        of_rows = zip(x, lengths, keys, strict=True)
        return self.answer([Request(x[:l], key, l_gen, sampling) for x, l, key in of_rows], likeliest=likeliest)

    def answer(self, requests: Sequence[Request], *, likeliest: int = 0) -> Continuation:
        """Read the prompts of requests, each with its own sampling, and return their `Continuation`, which may slide
        past l_max; `likeliest`: see `begin`. Raises TypeError or ValueError as `check_requests`.
        """
        check_requests(requests, self.config)
        return Continuation(self._model, requests, likeliest=likeliest)

    @property
    def _model(self) -> Model:
        return Model(self.theta, self._apart, self.weights, self.config, self.prefixes, self._inside)

    def read(self, x: np.ndarray, lengths: np.ndarray) -> State:
        """Read prompts, as `inputs.checked` returns them, in one forward pass."""
        return self._model.read(x, lengths)


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
    """Translate each context with Algorithm 15, ``ed_inference(z, theta, …)``, or with a beam search.

    A beam search keeps the ``beam_size`` translations Y with the largest
    ``log P(Y | z) / ((5 + |Y|)/6)^length_penalty`` until all of them have ended, where |Y| counts the tokens after
    bos_token (Wu et al. 2016, equation 14), and returns the best.

    Args:
        theta: trained parameters.
        z: token IDs of the contexts, padded on the right.
        lengths: tokens of each context that are not padding.
        config: sizes and variant of the model.
        l_max: most tokens of a translation, bos_token included.
        beam_size: how many translations to keep; 1 for a single one, greedy or drawn.
        length_penalty: exponent of the length in a beam search; 0 compares plain log-probabilities.
        tau: temperature; 0 takes the likeliest token, any other needs a key and beam_size 1.
        key: randomness, consumed: request r draws its token i with ``fold_in(fold_in(key, r), i)``.
        bos: the token that a translation begins with; None: the paper's bos_token, N_V − 2.
        eos: the token that ends it; None: the paper's eos_token, N_V − 1.

    Returns:
        the translations from bos_token to eos_token, padded with eos_token; how many of their tokens are not padding;
        and the log-probability of each, in nats.

    Raises:
        TypeError, ValueError: as `generate`; and for an invalid l_max, beam_size or length_penalty.

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
        self.theta = theta
        self.config = config
        self.weights = layout.unstacked(theta, int8=int8)

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
        context, keys, options = self._encoded(z, lengths, tau, key, first)
        if beam_size > 1:
            return beam_search.beam_search(
                self.weights,
                context,
                l_max=l_max,
                beam_size=beam_size,
                length_penalty=length_penalty,
                bos=self.bos,
                eos=self.eos,
            )
        state = states.empty_state(self.weights, B=len(keys), C=capacity(2), bos=self.bos)
        state = decoding.decode_until(self.weights, context, state, keys, l_max - 1, options)
        tokens = np.full((len(keys), l_max), self.eos, np.int32)
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
        context, keys, options = self._encoded(z, lengths, tau, key, first)
        state = states.empty_state(self.weights, B=len(keys), C=capacity(2), bos=self.bos)
        for stop in range(1, l_max):
            state = decoding.decode_until(self.weights, context, state, keys, stop, options)
            if int(state.slot) < stop:
                return
            yield np.asarray(state.tokens[:, stop])

    def _encoded(self, z, lengths, tau, key, first) -> tuple[Context, Array, dict[str, Any]]:
        """Return the encoded contexts, the key of each, and the options of `decoding.decode`."""
        z, lengths = inputs.checked("z", z, lengths, self.config, N_V=self.config.N_V_z)
        context = reading.encode(self.theta, bucketed(z, self.config.l_max), lengths)
        key = jax.random.key(0) if key is None else key
        sampling: Sampling = {"tau": tau, "eos": self.eos}
        drawn = SamplingArrays.of([sampling] * len(z), self.config.N_V)
        return context, keys_of(key, len(z), first), {"sampling": drawn}

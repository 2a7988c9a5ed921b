"""Requests to a decoder: what to continue, and how."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Key

from algorithms import DTransformerConfig
from algorithms.ops.dropout import by_own_key
from training.generation import inputs
from training.generation.buckets import padded_rows
from training.generation.sampling import DRAWN_FAITHFULLY, Sampling, SamplingArrays


class Prompt(NamedTuple):
    """A prompt as a decoder reads it."""

    tokens: list[int]  # from bos on
    given: int = 0  # how many characters of its end the continuation repeats
    begins: Bool[np.ndarray, "N_V"] | None = None  # the tokens that the continuation may begin with; None for all
    answers: bool = False  # whether the continuation is a text of its own

    @property
    def before(self) -> list[int]:
        """The tokens whose text the continuation goes on."""
        return [] if self.answers else self.tokens


class Request(NamedTuple):
    """A continuation that is wanted."""

    tokens: Sequence[int] | Int[np.ndarray, "l"]  # what to continue
    key: Key[Array, ""]  # token i is drawn with ``fold_in(key, i)``
    l_gen: int  # most tokens to generate
    sampling: Sampling  # how they are drawn
    begins: Bool[np.ndarray, "N_V"] | None = None  # the tokens that it may begin with; None for all
    drawn: int = 0  # how many of the last tokens were generated before
    # the tokens that may follow all of those generated, if not any may: see `training.generation.grammars`
    permits: Callable[[Int[np.ndarray, "n"]], Bool[np.ndarray, "N_V"]] | None = None


def check_requests(requests: Sequence[Request], config: DTransformerConfig) -> None:
    """Raise TypeError or ValueError for an empty prompt, an unknown token, or an invalid l_gen or `Sampling`."""
    inputs.checked("prompts", *padded_rows([request.tokens for request in requests]), config, sliding=True)
    for request in requests:
        inputs.check_count("l_gen", request.l_gen)
        inputs.check_sampling({**DRAWN_FAITHFULLY, **request.sampling}, config.N_V)


def begins_of(requests: Sequence[Request], N_V: int) -> Bool[Array, "N_V B"] | None:
    """Return the tokens that each continuation may begin with, or None if that is any for all of them."""
    if all(request.begins is None for request in requests):
        return None
    every = np.ones(N_V, bool)
    return jnp.asarray(np.stack([every if r.begins is None else r.begins for r in requests], axis=1))


def sampling_arrays(requests: Sequence[Request], N_V: int) -> SamplingArrays:
    """Return how requests are drawn, with biases for what `permits` forbids."""
    sampling = SamplingArrays.of([request.sampling for request in requests], N_V)
    if sampling.logit_bias is not None or all(request.permits is None for request in requests):
        return sampling
    return sampling._replace(logit_bias=jnp.zeros((N_V, len(requests)), np.float32))


def permitting(sampling: SamplingArrays, requests: Sequence[Request], drawn: Sequence[np.ndarray]) -> SamplingArrays:
    """Return how the next tokens are drawn, among those that requests permit after those that were."""
    biases = np.array(sampling.logit_bias)
    for column, request, tokens in zip(biases.T, requests, drawn, strict=True):
        if request.permits is not None:
            column[~request.permits(tokens)] = -np.inf
    return sampling._replace(logit_bias=jnp.asarray(biases))


@functools.partial(jax.jit, static_argnames="B")
def keys_of(key: Key[Array, ""], B: int, first: int) -> Key[Array, "B"]:
    """Return the keys ``fold_in(key, r)`` of B requests, counted from `first`."""
    return jax.vmap(by_own_key(jax.random.fold_in), (None, 0))(key, first + jnp.arange(B, dtype=jnp.uint32))

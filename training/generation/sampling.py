"""Drawing the next token: as in Algorithms 14 and 15, from the k likeliest ones, or from the nucleus.

Each sequence of a batch has its own settings, which are arrays: one compiled program serves all of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from algorithms.alg14_inference import is_greedy, sample, tempered
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.ops.draws import by_own_key
from algorithms.ops.softmax import softmax


class Sampling(TypedDict, total=False):
    """How the next token is drawn."""

    tau: float  # temperature τ: 0 takes the likeliest token, 1 samples faithfully, inf uniformly
    top_k: int | None  # draw from the k likeliest tokens only (and those as likely as the last of them); None: from all
    # draw from the nucleus only, the fewest likeliest tokens which together have this probability, at temperature τ and
    # after `top_k`; None: from all
    top_p: float | None
    # a token that ends a sequence, or several; what follows is the first of them again. None: no token does
    eos: int | Sequence[int] | None
    # what the scores of tokens that were there before are divided by where they are positive, and multiplied by where
    # they are negative, before all else; 1: nothing
    repetition_penalty: float
    no_repeat_ngram_size: int  # forbid repeating any n-gram of this size (eos where that rules out all). 0: allow all
    frequency_penalty: float  # what is taken from the score of a token for each time that it was generated; 0: nothing
    presence_penalty: float  # what is taken from it once if it was generated at all; 0: nothing
    # what is added to the scores of some tokens, after the penalty and before the temperature; None: nothing
    logit_bias: dict[int, float] | None


DRAWN_FAITHFULLY: Sampling = {
    "tau": 1.0,
    "top_k": None,
    "top_p": None,
    "eos": None,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": None,
}
"""How Algorithm 14 draws, at temperature 1."""


class SamplingArrays(NamedTuple):
    """The `Sampling` of each of B sequences."""

    tau: Float[Array, "B"]  # temperatures
    top_k: Int[Array, "B"]  # 0 where it is None
    top_p: Float[Array, "B"]  # 1 where it is None
    eos: Int[Array, "B E"]  # those of each, then −1; the first ones fill what follows an end
    repetition_penalty: Float[Array, "B"]  # 1 where there is none
    no_repeat_ngram_size: Int[Array, "B"]  # 0 where there is none
    frequency_penalty: Float[Array, "B"]  # 0 where there is none
    presence_penalty: Float[Array, "B"]  # likewise
    logit_bias: Float[Array, "N_V B"] | None  # 0 where there is none; None where no sequence has one

    @staticmethod
    def of(samplings: Sequence[Sampling], N_V: int) -> "SamplingArrays":
        """Return the settings of sequences as arrays; what one leaves out is that of `DRAWN_FAITHFULLY`."""
        rows: list[dict[str, Any]] = [{**DRAWN_FAITHFULLY, **sampling} for sampling in samplings]

        def floats(name: str, default: float = 0.0) -> Array:
            values = np.array([default if row[name] is None else row[name] for row in rows], np.float64)
            with np.errstate(over="ignore"):  # a temperature beyond the largest number is inf
                return jnp.asarray(values.astype(jax.dtypes.canonicalize_dtype(np.float64)))

        def integers(name: str, default: int) -> Array:
            return jnp.asarray(np.array([default if row[name] is None else row[name] for row in rows], np.int32))

        return SamplingArrays(
            tau=floats("tau"),
            top_k=integers("top_k", 0),
            top_p=floats("top_p", 1.0),
            eos=jnp.asarray(_ends([row["eos"] for row in rows])),
            repetition_penalty=floats("repetition_penalty"),
            no_repeat_ngram_size=integers("no_repeat_ngram_size", 0),
            frequency_penalty=floats("frequency_penalty"),
            presence_penalty=floats("presence_penalty"),
            logit_bias=_biases([row["logit_bias"] for row in rows], N_V),
        )

    @property
    def uses_history(self) -> bool:
        """Whether what came before decides what may come in one of the sequences."""
        by = (self.no_repeat_ngram_size, self.frequency_penalty, self.presence_penalty)
        return bool(
            (np.asarray(self.repetition_penalty) != 1).any() or any(np.asarray(of_each).any() for of_each in by)
        )

    def beside(self, other: "SamplingArrays", rows: Int[np.ndarray, "n"]) -> "SamplingArrays":
        """Return the settings of some of these sequences, followed by those of others."""

        def both(name: str) -> Array:
            parts = [np.asarray(getattr(of, name)) for of in (self, other)]
            parts = [_wide(part, max(p.shape[1] for p in parts)) for part in parts] if name == "eos" else parts
            return jnp.asarray(np.concatenate(parts)[rows])

        biases = [of.logit_bias for of in (self, other)]
        N_V = next((len(bias) for bias in biases if bias is not None), None)
        joined = None
        if N_V is not None:
            zeros = (np.zeros((N_V, len(of.tau)), np.float32) for of in (self, other))
            columns = [zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)]
            joined = jnp.asarray(np.concatenate(columns, axis=1)[:, rows])
        return SamplingArrays(**{name: both(name) for name in self._fields[:-1]}, logit_bias=joined)


def _ends(of_rows: list[int | Sequence[int] | None]) -> Int[np.ndarray, "B E"]:
    ends = [[] if eos is None else [eos] if isinstance(eos, int | np.integer) else list(eos) for eos in of_rows]
    width = max(1, *map(len, ends))
    return np.stack([_wide(np.array([row], np.int32), width)[0] for row in ends])


def _wide(ends: Int[np.ndarray, "B E"], width: int) -> Int[np.ndarray, "B E2"]:
    return np.pad(ends, ((0, 0), (0, width - ends.shape[1])), constant_values=-1)


def _biases(biases: list[dict[int, float] | None], N_V: int) -> Float[Array, "N_V B"] | None:
    if not any(biases):
        return None
    columns = np.zeros((N_V, len(biases)), np.float32)
    for column, bias in zip(columns.T, biases, strict=True):
        for token, value in (bias or {}).items():
            column[token] = value
    return jnp.asarray(columns)


def draw(
    log_P: Float[Array, "N_V B"], keys: Key[Array, "B"], i: Int[Array, "B"], sampling: SamplingArrays
) -> Int[Array, "B"]:
    """Draw a token for each sequence from the distribution in its column, whose logarithm may be off by a constant,
    with the key ``fold_in(key, i)`` for token i.

    The draw is from ``q ∝ p^{1/τ}`` of the permitted tokens, in float32 at least, as by Algorithm 14's `sample`:
    the likeliest for τ = 0, of the k likeliest only (0: all), and of the nucleus of q only (1: all).
    """
    tau = jnp.asarray(sampling.tau, accumulation_dtype(log_P.dtype))

    def drawn(_):
        of_token = jax.vmap(by_own_key(jax.random.fold_in))(keys, i)
        return sample(permitted(log_P, sampling), tau, of_token)

    likeliest = jnp.argmax(log_P, axis=0)
    return jax.lax.cond(jnp.all(is_greedy(tau)), lambda _: likeliest, drawn, None).astype(jnp.int32)


def permitted(log_P: Float[Array, "N_V B"], sampling: SamplingArrays) -> Float[Array, "N_V B"]:
    """``log P``, up to a constant in each column, of the tokens that may be drawn, −∞ of the others.

    First the ``top_k`` likeliest are left; of these then the nucleus, the fewest likeliest tokens which together have
    probability ``top_p`` or more under q ∝ p^{1/τ}, at least one. Tokens as likely as the last that is left stay too.

    Example:
        >>> log_P = jnp.log(jnp.array([[0.5], [0.125], [0.375]]))
        >>> jnp.isneginf(permitted(log_P, SamplingArrays.of([{"top_k": 2}], 3)))[:, 0].tolist()
        [False, True, False]
    """
    log_P = log_P.astype(accumulation_dtype(log_P.dtype))
    limits = jnp.any((sampling.top_k > 0) | (sampling.top_p < 1))
    left = jax.lax.cond(limits, lambda: _left(log_P, sampling), lambda: jnp.ones_like(log_P, bool))
    return jnp.where(left, log_P, -jnp.inf)


def _left(log_P, sampling: SamplingArrays) -> Bool[Array, "N_V B"]:
    """Which tokens `top_k` and `top_p` leave of each column: at least the likeliest."""
    N_V, (tau, top_k, top_p) = log_P.shape[0], sampling[:3]
    k = jnp.where((top_k > 0) & (top_k < N_V), top_k, N_V)
    left = jnp.take_along_axis(jnp.sort(log_P, axis=0, descending=True), k[None] - 1, axis=0) <= log_P
    Q = softmax(tempered(jnp.where(left, log_P, -jnp.inf), jnp.asarray(tau, log_P.dtype)))
    descending = jnp.sort(Q, axis=0, descending=True)
    before = jnp.cumsum(descending, axis=0) - descending
    in_nucleus = (before < top_p[None]) | (jnp.arange(N_V)[:, None] == 0)
    least = jnp.min(jnp.where(in_nucleus, descending, jnp.inf), axis=0)
    return left & ((least[None] <= Q) | (top_p[None] == 1))

"""Drawing the next token: as in Algorithms 14 and 15, from the k likeliest tokens, or from the nucleus.

Each sequence of a batch has its own settings. They are arrays, so one compiled program serves all settings.
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
    top_k: int | None  # draw only from the k likeliest tokens, and any as likely as the last of them; None: from all
    # draw only from the nucleus: the fewest likeliest tokens whose total probability, at temperature τ and after
    # `top_k`, reaches this; None: from all
    top_p: float | None
    # the token or tokens that end a sequence; the rest of its row is filled with the first of them. None: no token
    eos: int | Sequence[int] | None
    # the scores of all earlier tokens, if positive, are divided by this, and otherwise multiplied by it, before all
    # else; 1: no effect
    repetition_penalty: float
    no_repeat_ngram_size: int  # forbid repeating any n-gram of this size (eos if that rules out all); 0: allow all
    frequency_penalty: float  # subtracted from the score of a token for each time that it was generated; 0: no effect
    presence_penalty: float  # subtracted once from the score of every generated token; 0: no effect
    # added to the scores of these tokens, after the penalties and before the temperature; None: nothing
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

    tau: Float[Array, "B"]
    top_k: Int[Array, "B"]  # 0 for None
    top_p: Float[Array, "B"]  # 1 for None
    eos: Int[Array, "B E"]  # padded with −1
    repetition_penalty: Float[Array, "B"]
    no_repeat_ngram_size: Int[Array, "B"]
    frequency_penalty: Float[Array, "B"]
    presence_penalty: Float[Array, "B"]
    logit_bias: Float[Array, "N_V B"] | None  # 0 for tokens without a bias; None if no sequence has one

    @staticmethod
    def of(samplings: Sequence[Sampling], N_V: int) -> "SamplingArrays":
        """Return the settings of sequences as arrays; `DRAWN_FAITHFULLY` gives the defaults."""
        rows: list[dict[str, Any]] = [{**DRAWN_FAITHFULLY, **sampling} for sampling in samplings]

        def floats(name: str) -> Array:
            values = np.array([1 if row[name] is None else row[name] for row in rows], np.float64)  # None: top_p alone
            with np.errstate(over="ignore"):  # a temperature beyond the largest number is inf
                return jnp.asarray(values.astype(jax.dtypes.canonicalize_dtype(np.float64)))

        def integers(name: str) -> Array:
            return jnp.asarray(np.array([row[name] or 0 for row in rows], np.int32))

        return SamplingArrays(
            tau=floats("tau"),
            top_k=integers("top_k"),
            top_p=floats("top_p"),
            eos=jnp.asarray(_ends([row["eos"] for row in rows])),
            repetition_penalty=floats("repetition_penalty"),
            no_repeat_ngram_size=integers("no_repeat_ngram_size"),
            frequency_penalty=floats("frequency_penalty"),
            presence_penalty=floats("presence_penalty"),
            logit_bias=_biases([row["logit_bias"] for row in rows], N_V),
        )

    @property
    def uses_history(self) -> bool:
        """Whether the earlier tokens of any sequence change the scores of its next one."""
        names = ("repetition_penalty", "no_repeat_ngram_size", "frequency_penalty", "presence_penalty")
        return any(bool((np.asarray(getattr(self, name)) != DRAWN_FAITHFULLY.get(name)).any()) for name in names)

    def beside(self, other: "SamplingArrays", rows: Int[np.ndarray, "n"]) -> "SamplingArrays":
        """Return the chosen rows of these settings followed by the other ones."""

        def both(name: str) -> Array:
            of_rows = [*np.asarray(getattr(self, name)), *np.asarray(getattr(other, name))]
            return jnp.asarray((_ends(of_rows) if name == "eos" else np.array(of_rows))[rows])

        biases = [of.logit_bias for of in (self, other)]
        N_V = next((len(bias) for bias in biases if bias is not None), None)
        joined = None
        if N_V is not None:
            zeros = (np.zeros((N_V, len(of.tau)), np.float32) for of in (self, other))
            columns = [zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)]
            joined = jnp.asarray(np.concatenate(columns, axis=1)[:, rows])
        return SamplingArrays(**{name: both(name) for name in self._fields[:-1]}, logit_bias=joined)


def _ends(of_rows: Sequence[int | Sequence[int] | None]) -> Int[np.ndarray, "B E"]:
    """Return rows of end tokens, padded with −1."""
    ends = [np.atleast_1d(np.array([] if eos is None else eos, np.int32)) for eos in of_rows]
    width = max(1, *map(len, ends))
    return np.stack([np.pad(row, (0, width - len(row)), constant_values=-1) for row in ends])


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
    """Draw token i of each sequence from the distribution in its column, with the key ``fold_in(key, i)``. Each
    column of log P may be off by a constant.

    The draw is from ``q ∝ p^{1/τ}`` over the `permitted` tokens, in at least float32, as in Algorithm 14's `sample`;
    τ = 0 takes the likeliest token.
    """
    tau = jnp.asarray(sampling.tau, accumulation_dtype(log_P.dtype))

    def drawn(_):
        of_token = jax.vmap(by_own_key(jax.random.fold_in))(keys, i)
        return sample(permitted(log_P, sampling), tau, of_token)

    likeliest = jnp.argmax(log_P, axis=0)
    return jax.lax.cond(jnp.all(is_greedy(tau)), lambda _: likeliest, drawn, None).astype(jnp.int32)


def permitted(log_P: Float[Array, "N_V B"], sampling: SamplingArrays) -> Float[Array, "N_V B"]:
    """``log P``, up to a constant in each column, with −∞ for the tokens that may not be drawn.

    First the ``top_k`` likeliest tokens are kept, then among these the nucleus: the fewest likeliest tokens, at least
    one, whose total probability under q ∝ p^{1/τ} is ``top_p`` or more. Ties with the last one kept are kept, too.

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
    """Mark the tokens of each column that `top_k` and `top_p` keep: at least the likeliest."""
    N_V, (tau, top_k, top_p) = log_P.shape[0], sampling[:3]
    k = jnp.where((top_k > 0) & (top_k < N_V), top_k, N_V)
    left = jnp.take_along_axis(jnp.sort(log_P, axis=0, descending=True), k[None] - 1, axis=0) <= log_P
    Q = softmax(tempered(jnp.where(left, log_P, -jnp.inf), jnp.asarray(tau, log_P.dtype)))
    descending = jnp.sort(Q, axis=0, descending=True)
    before = jnp.cumsum(descending, axis=0) - descending
    in_nucleus = (before < top_p[None]) | (jnp.arange(N_V)[:, None] == 0)
    least = jnp.min(jnp.where(in_nucleus, descending, jnp.inf), axis=0)
    return left & ((least[None] <= Q) | (top_p[None] == 1))

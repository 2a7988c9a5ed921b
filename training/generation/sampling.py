"""Drawing the next token: as in Algorithms 14 and 15, from the k likeliest tokens, or from the nucleus.

Each sequence of a batch has its own settings. They are arrays, so one compiled program serves all settings.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key, Shaped

from algorithms.alg14_inference import sample, tempered
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.devices import platform_of
from algorithms.ops.dropout import by_own_key


class Sampling(TypedDict, total=False):
    """Settings of drawing the next token, all optional.

    Attributes:
        tau: temperature τ: 0 takes the likeliest token, 1 samples faithfully (the default), inf uniformly.
        top_k: draw only from the k likeliest tokens, and any as likely as the last of them; None: from all.
        top_p: draw only from the nucleus: the fewest likeliest tokens whose total probability, at temperature τ and
            after `top_k`, reaches this; None: from all.
        eos: the tokens that end a sequence, and the first the rest of its row; None: no token.
        repetition_penalty: divides positive scores of earlier tokens, multiplies others, before all else; 1: none.
        no_repeat_ngram_size: forbid repeating any n-gram of this size (eos if that rules out all); 0: allow all.
        frequency_penalty: subtracted from the score of a token for each time that it was generated; 0: no effect.
        presence_penalty: subtracted once from the score of every generated token; 0: no effect.
        logit_bias: added to tokens' scores, after the penalties, before the temperature; None: nothing.
    """

    tau: float
    top_k: int | None
    top_p: float | None
    eos: int | Sequence[int] | None
    repetition_penalty: float
    no_repeat_ngram_size: int
    frequency_penalty: float
    presence_penalty: float
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
"""Algorithm 14's own: temperature 1, all tokens."""
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


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
    all_greedy: Bool[Array, ""]  # whether each τ is 0, known beforehand so that no step computes it, as the next two
    any_top_k: Bool[Array, ""]
    any_top_p: Bool[Array, ""]

    @staticmethod
    def of(samplings: Sequence[Sampling], N_V: int) -> "SamplingArrays":
        """Return the settings of sequences as arrays; `DRAWN_FAITHFULLY` gives the defaults."""
        rows: list[dict[str, Any]] = [{**DRAWN_FAITHFULLY, **sampling} for sampling in samplings]

        def floats(name: str) -> Any:
            values = np.array([1 if row[name] is None else row[name] for row in rows], np.float64)  # None: top_p alone
            with np.errstate(over="ignore"):  # a temperature beyond the largest number is inf
                return values.astype(jax.dtypes.canonicalize_dtype(np.float64))

        def integers(name: str) -> Any:
            return np.array([row[name] or 0 for row in rows], np.int32)

        ends: Any = [np.atleast_1d(np.array([] if row["eos"] is None else row["eos"], np.int32)) for row in rows]
        width = max(1, *map(len, ends))
        ends = np.stack([np.pad(tokens, (0, width - len(tokens)), constant_values=-1) for tokens in ends])
        biases: Any = _biases([row["logit_bias"] for row in rows], N_V)
        of_floats = {name: floats(name) for name in ("tau", "top_p", *PENALTIES)}
        of_integers = {name: integers(name) for name in ("top_k", "no_repeat_ngram_size")}
        of_numpy: Any = SamplingArrays(
            **of_floats,
            **of_integers,
            eos=ends,
            logit_bias=biases,
            all_greedy=(of_floats["tau"] < np.finfo(of_floats["tau"].dtype).tiny).all(),
            any_top_k=(of_integers["top_k"] > 0).any(),
            any_top_p=(of_floats["top_p"] < 1).any(),
        )
        return jax.device_put(of_numpy)  # in one call, which compiles nothing

    @property
    def uses_history(self) -> bool:
        """Whether the earlier tokens of any sequence change the scores of its next one."""
        names = (*PENALTIES, "no_repeat_ngram_size")
        return any(bool((np.asarray(getattr(self, name)) != DRAWN_FAITHFULLY.get(name)).any()) for name in names)


def _biases(biases: list[dict[int, float] | None], N_V: int) -> Float[np.ndarray, "N_V B"] | None:
    if not any(biases):
        return None
    columns = np.zeros((N_V, len(biases)), np.float32)
    for column, bias in zip(columns.T, biases, strict=True):
        for token, value in (bias or {}).items():
            column[token] = value
    return columns


KEYS = 16  # tokens whose keys are derived together, since each derivation of one costs a part of a small model's step


def keys_of_tokens(keys: Key[Array, "B"], i: Int[Array, "B"], sampling: SamplingArrays) -> Key[Array, "n B"]:
    """Return the keys ``fold_in(key, i)`` of the next tokens of each sequence; arbitrary ones if none is drawn."""

    def folded(i):
        return jax.vmap(by_own_key(jax.random.fold_in))(keys, i)

    every = i[None] + jnp.arange(KEYS, dtype=i.dtype)[:, None]
    unused = jnp.broadcast_to(keys[None], every.shape)
    return jax.lax.cond(sampling.all_greedy, lambda: unused, lambda: jax.vmap(folded)(every))


def draw(
    scores: Float[Array, "N_V B"], keys: Callable[[], Key[Array, "B"]], sampling: SamplingArrays
) -> Int[Array, "B"]:
    """Draw a token of each sequence with its key from its column of log P, up to a constant: from ``q ∝ p^{1/τ}`` over
    the `permitted` tokens, in at least float32, as in Algorithm 14's `sample`; τ = 0 takes the likeliest token.
    """
    tau = jnp.asarray(sampling.tau, accumulation_dtype(scores.dtype))

    def drawn():
        return sample(permitted(scores, sampling), tau, keys())

    likeliest = jnp.argmax(scores, axis=0).astype(jnp.int32)
    return jax.lax.cond(sampling.all_greedy, lambda: likeliest, drawn)


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
    (N_V, _), (tau, top_k, top_p) = log_P.shape, sampling[:3]

    def among_likeliest(log_P):
        k = jnp.where(top_k > 0, top_k, N_V)
        return jnp.where(largest(log_P, jnp.ones((), jnp.int32), k), log_P, -jnp.inf)

    def in_nucleus(log_P):
        E = jnp.exp(tempered(log_P, tau.astype(log_P.dtype)))  # the largest is 1
        share = jnp.where(top_p == 1, jnp.inf, jnp.maximum(top_p, jnp.finfo(top_p.dtype).tiny))  # at least one token
        return jnp.where(largest(E, E, share * E.sum(axis=0)), log_P, -jnp.inf)

    log_P = jax.lax.cond(sampling.any_top_k, among_likeliest, lambda log_P: log_P, log_P)
    return jax.lax.cond(sampling.any_top_p, in_nucleus, lambda log_P: log_P, log_P)


DIGIT, PART = 5, 4096  # on a GPU, whose reductions are one kernel up to that length


def largest(A: Float[Array, "N B"], weights: Shaped[Array, "*#N_B"], limit: Shaped[Array, "B"]) -> Bool[Array, "N B"]:
    """Mark the largest entries of each column: those for which the weights of all greater entries sum to less than the
    limit.

    The least of them is found digit by digit, with one pass over A for each digit of the numbers' bits, which takes a
    small fraction of the time of a sort: a bit at a time, and `DIGIT` of them on a GPU, where a pass is two kernels.

    Example:
        >>> A = jnp.array([[0.5], [0.125], [0.375]])
        >>> largest(A, jnp.ones(()), jnp.array([2.0]))[:, 0].tolist()
        [True, False, True]
    """
    bits, (digit, parts) = jnp.finfo(A.dtype).bits, (DIGIT, -(-len(A) // PART)) if platform_of(A) == "gpu" else (1, 1)
    ends = jnp.iinfo(f"int{bits}")
    order = jax.lax.bitcast_convert_type(jnp.where(A == 0, 0, A), ends.dtype)  # of −0 and 0, only 0
    order = jnp.where(order < 0, order ^ ends.max, order)  # integers in the order of A
    digits = jnp.arange(1, 2**digit, dtype=ends.dtype)[:, None]

    def in_parts(of_rows, none):
        of_rows = jnp.pad(of_rows, ((0, -len(A) % parts), (0, 0)), constant_values=none)
        return of_rows.reshape(parts, -1, A.shape[1])

    pieces, weights = in_parts(order, ends.min), in_parts(weights, 0) if weights.ndim else weights

    def with_digit(i, least):
        """The least integer that belongs, up to its next digit; the others are 0."""
        shift = bits - digit * (i + 1)
        shift = jnp.maximum(shift, 0) if bits % digit else shift  # the last digit overlaps the one before it
        above = pieces[None] > (least[None] + (digits << shift) - 1)[:, None, None]
        of_parts = jnp.where(above, weights[None], 0).sum(axis=2)
        of_parts = jax.lax.optimization_barrier(of_parts) if parts > 1 else of_parts  # XLA would merge the two sums
        belong = of_parts.sum(axis=1) < limit[None]
        return least + (sum((~belong).astype(ends.dtype)) << shift)

    least = jnp.full(A.shape[1:], ends.min, ends.dtype)
    return order >= jax.lax.fori_loop(0, -(-bits // digit), with_digit, least, unroll=digit > 1)[None]


class History(NamedTuple):
    """All tokens of B sequences so far."""

    tokens: Int[Array, "B T"]  # each sequence's prompt, then its generated tokens
    lengths: Int[Array, "B"]  # tokens of each sequence
    given: Int[Array, "B"]  # tokens of each prompt

    def with_token(self, y: Int[Array, "B"]) -> "History":
        """Return the history with one more token per sequence."""
        rows = jnp.arange(len(y))
        return History(self.tokens.at[rows, self.lengths].set(y), self.lengths + 1, self.given)


def penalized(scores: Float[Array, "N_V B"], history: History, sampling: SamplingArrays) -> Float[Array, "N_V B"]:
    """Return scores after the penalties of `Sampling` (Keskar et al. 2019; the library transformers; OpenAI)."""
    rows = jnp.arange(scores.shape[1])[:, None]

    def marked(which: Bool[Array, "B T"]) -> Bool[Array, "N_V B"]:
        return jnp.zeros(scores.shape[::-1], bool).at[rows, history.tokens].max(which).T

    by = sampling.repetition_penalty.astype(scores.dtype)[None]
    seen = marked(jnp.arange(history.tokens.shape[1])[None] < history.lengths[:, None])
    scores = jnp.where(seen, jnp.where(scores < 0, scores * by, scores / by), scores)
    t = jnp.arange(history.tokens.shape[1])[None]
    generated = (history.given[:, None] <= t) & (t < history.lengths[:, None])
    counts = jnp.zeros(scores.shape[::-1], scores.dtype).at[rows, history.tokens].add(generated.astype(scores.dtype)).T
    scores = scores - sampling.frequency_penalty.astype(scores.dtype)[None] * counts
    scores = scores - sampling.presence_penalty.astype(scores.dtype)[None] * (counts > 0)
    return jnp.where(marked(_completes_again(history, sampling.no_repeat_ngram_size)), -jnp.inf, scores)


def _completes_again(history: History, n: Int[Array, "B"]) -> Bool[Array, "B T"]:
    """Mark the tokens that end an n-gram whose first n − 1 tokens are also the last n − 1 of the sequence."""
    tokens, lengths = history.tokens, history.lengths[:, None]
    t = jnp.arange(tokens.shape[1])[None]

    def undecided(found):
        k, again = found
        return jnp.any(again & (k < n[:, None]))

    def compare(found):
        """Compare the token k places before each with the k-th last of its sequence, for k < n."""
        k, again = found
        last = jnp.take_along_axis(tokens, jnp.maximum(lengths - k, 0), axis=1)
        return k + 1, again & ((k >= n[:, None]) | (jnp.roll(tokens, k, axis=1) == last))

    fits = (t < lengths) & (t >= n[:, None] - 1) & (n[:, None] > 0)
    return jax.lax.while_loop(undecided, compare, (jnp.asarray(1, jnp.int32), fits))[1]

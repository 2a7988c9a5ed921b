"""Checks of the values that callers give to generation: nothing is repaired, cut or skipped."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from algorithms.machinery.contract import Axes, check_key
from algorithms.model.sizes import TransformerConfig

Tokens = Int[Array, "B l"] | np.ndarray
Lengths = Int[Array, "B"] | np.ndarray

LEAST_PENALTY = 0.01  # the least repetition penalty; its inverse is the largest: beyond, scores overflow
LARGEST_BIAS = 100
LARGEST_PENALTY = 2  # the largest frequency and presence penalties, as in OpenAI's API


def check_model(theta: Any, config: Any, params_type: type, config_type: type) -> None:
    """Raise TypeError if the parameters or sizes are of another architecture, ValueError if they disagree."""
    if not isinstance(theta, params_type):
        raise TypeError(f"theta: expected {params_type.__name__}, got {type(theta).__name__}")
    if not isinstance(config, config_type):
        raise TypeError(f"config: expected {config_type.__name__}, got {type(config).__name__}")
    if theta.variant != config.variant:
        raise ValueError(
            f"config.variant: expected θ's own, {theta.variant!r}, got {config.variant!r}; give the configuration that "
            "θ was made for"
        )
    Axes().check("theta", theta, params_type)
    for name, axis, columns in (("W_e", "N_V", config.N_V), ("W_p", "l_max", config.sizes()["l_max"])):
        matrix = getattr(theta, name)
        if matrix is not None and matrix.shape != (config.d_e, columns):
            raise ValueError(
                f"theta.{name}: expected [d_e, {axis}] = [{config.d_e}, {columns}] from the configuration, got "
                f"{list(matrix.shape)}"
            )


def checked(
    name: str, x: Any, lengths: Any, config: TransformerConfig, *, N_V: int | None = None, sliding: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Check sequences and their lengths; return both in 32 bits, without padding columns. `sliding`: beyond l_max."""
    x, lengths = np.asarray(x), np.asarray(lengths)
    N_V = config.N_V if N_V is None else N_V
    for what, array, axes in ((name, x, ("B", "l")), ("lengths", lengths, ("B",))):
        if not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{what}: expected integers, got {array.dtype}{list(array.shape)}")
        if array.ndim != len(axes) or array.shape[0] != x.shape[0]:
            raise ValueError(
                f"{what}: expected shape [{', '.join(axes)}], one row for each request, got {list(array.shape)}"
            )
    if 0 in x.shape:
        raise ValueError(f"{name}: expected at least one sequence with at least one token, got {list(x.shape)}")
    for r, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"{name}: request {r} is empty (length {length}); begin it with bos_token")
        if length > x.shape[1]:
            raise ValueError(f"lengths: request {r} has length {length}, but {name} has {x.shape[1]} columns")
        if length > config.l_max and not sliding:
            raise ValueError(
                f"{name}: request {r} has {length} tokens, but the model reads at most l_max = {config.l_max}"
            )
        unknown = (x[r, :length] < 0) | (x[r, :length] >= N_V)
        if unknown.any():
            t = int(unknown.argmax())
            raise ValueError(
                f"{name}: token {x[r, t]} at position {t} of request {r} is unknown; "
                f"expected one in [0, N_V) = [0, {N_V})"
            )
    return x[:, : lengths.max()].astype(np.int32), lengths.astype(np.int32)


def check_room(lengths: np.ndarray, l_gen: int, l_max: int) -> None:
    """Raise ValueError unless every prompt has room for l_gen more tokens; the last one is not read back."""
    r = int(lengths.argmax())
    if lengths[r] + l_gen - 1 > l_max:
        raise ValueError(
            f"l_gen: request {r} of {lengths[r]} tokens and {l_gen} more need l_max >= {lengths[r] + l_gen - 1}, got "
            f"l_max = {l_max}; shorten the prompt, or generate at most {l_max - lengths[r] + 1} tokens"
        )


def check_count(name: str, value: Any, at_most: int | None = None, why: str = "") -> None:
    """Raise TypeError unless the value is an integer, and ValueError unless it is in [1, at_most]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < 1 or (at_most is not None and value > at_most):
        limit = "" if at_most is None else f" and at most {at_most}{why}"
        raise ValueError(f"{name}: expected at least 1{limit}, got {value}")


def check_sampling(sampling: Any, N_V: int) -> None:
    """Check a `sampling.Sampling` with all its entries. Raises TypeError or ValueError."""
    top_k, top_p, penalty = sampling["top_k"], sampling["top_p"], sampling["repetition_penalty"]
    check_temperature(sampling["tau"])
    if top_k is not None:
        check_count("top_k", top_k, N_V, ", the size of the vocabulary")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected a probability in (0, 1], got {top_p}")
    if not LEAST_PENALTY <= penalty <= 1 / LEAST_PENALTY:
        limits = f"from {LEAST_PENALTY} to {1 / LEAST_PENALTY:g}"
        raise ValueError(f"repetition_penalty: expected a positive number {limits} (1 changes nothing), got {penalty}")
    _check_biases(sampling, N_V)
    eos = sampling["eos"]
    for token in eos if isinstance(eos, tuple | list) else (eos,):
        check_token("eos", token, N_V)
    if sampling["no_repeat_ngram_size"] != 0:
        check_count("no_repeat_ngram_size", sampling["no_repeat_ngram_size"])
        if eos is None or eos == ():
            raise ValueError(
                "no_repeat_ngram_size: needs eos, which ends a sequence when every token is forbidden, got None"
            )


def _check_biases(sampling: Any, N_V: int) -> None:
    """Raise ValueError if a frequency penalty, presence penalty or logit bias is out of range."""
    for name in ("frequency_penalty", "presence_penalty"):
        if not abs(sampling[name]) <= LARGEST_PENALTY:
            raise ValueError(f"{name}: expected from {-LARGEST_PENALTY} to {LARGEST_PENALTY}, got {sampling[name]}")
    for token, bias in (sampling["logit_bias"] or {}).items():
        check_token("logit_bias", token, N_V)
        if not abs(bias) <= LARGEST_BIAS:
            raise ValueError(
                f"logit_bias: expected from {-LARGEST_BIAS} to {LARGEST_BIAS} for token {token}, got {bias}"
            )


def check_token(name: str, token: int | None, N_V: int) -> None:
    """Unless the token is None, raise TypeError if it is not an integer, and ValueError if it is not in [0, N_V)."""
    if token is None:
        return
    if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer token, got {token!r}")
    if not 0 <= token < N_V:
        raise ValueError(f"{name}: expected a token in [0, N_V) = [0, {N_V}), got {token}")


def check_temperature(tau: Any) -> None:
    """Raise ValueError if a temperature is negative or NaN."""
    if not tau >= 0:
        raise ValueError(f"tau: expected a temperature >= 0 (0 is greedy, inf is uniform), got {tau}")


def check_translation(
    l_max: Any, tau: Any, key: Any, config: TransformerConfig, *, beam_size: Any = 1, length_penalty: Any = 0.0
) -> None:
    """Check the options of a translation. Raises TypeError or ValueError."""
    check_count("l_max", l_max, config.l_max, ", the l_max of the model")
    check_count("beam_size", beam_size, config.N_V, ", the size of the vocabulary")
    if not jnp.isfinite(length_penalty) or length_penalty < 0:
        raise ValueError(f"length_penalty: expected a finite number >= 0, got {length_penalty}")
    check_temperature(tau)
    if key is not None:
        check_key("key", key)
    elif tau > 0:
        raise ValueError(f"key: drawing at temperature tau = {tau} needs a key, got None")
    if tau > 0 and beam_size > 1:
        raise ValueError(f"tau: a beam search of beam_size = {beam_size} draws nothing, so tau must be 0, got {tau}")

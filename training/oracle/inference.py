"""Algorithms 14 and 15: sampling from the decoder-only and the encoder-decoder transformer.

`tau`: temperature, 0 and infinity included; `sample`: sample(q, i) draws a token ID from the distribution q [N_V] at
step i = 0, 1, ...; may be None at temperature 0.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .components import Array, Tokens
from .transformers import d_transformer, e_transformer, ed_transformer

Sample = Callable[[Array, int], int]


def tempered(p: Array, tau: float) -> Array:
    """Return the distribution q [N_V] proportional to p^(1/tau), or its limit.

    tau = 0 puts all weight on the first maximum of p, infinity makes q uniform where p is not 0.
    """
    if tau == 0:
        return np.array([float(v == np.argmax(p)) for v in range(len(p))])
    if tau == math.inf:
        return (p > 0) / sum(p > 0)
    return p ** (1 / tau) / sum(p ** (1 / tau))


def draw(q: Array, i: int, tau: float, sample: Sample | None) -> int:
    """Draw a token ID from q at step i, from 0; at temperature 0 there is nothing to draw and sample is not called.

    Raises:
        ValueError: if there is something to draw and sample is None.
    """
    if tau == 0:
        return int(np.argmax(q))
    if sample is None:
        raise ValueError(f"sample may be None only at tau = 0, but tau is {tau}")
    return int(sample(q, i))


def d_inference(
    x: Tokens,
    theta: Any,
    l_gen: int,
    tau: float,
    sample: Sample | None,
    transformer: Callable[[Tokens, Any], Array] = d_transformer,
) -> list[int]:
    """Return Algorithm 14: the continuation of a prompt x, l_gen token IDs, without the prompt.

    `transformer`: Algorithm 10, or a model of today in its place.
    """
    x = list(x)
    l = len(x)  # line 1
    for i in range(l_gen):  # line 2
        P = transformer(x, theta)  # line 3
        p = P[:, l + i - 1]  # line 4
        q = tempered(p, tau)  # line 5
        y = draw(q, i, tau, sample)  # line 5
        x = [*x, y]  # line 6
    y: Any = x[l : l + l_gen]  # return
    return y


def e_inference(
    x: Tokens,
    theta: Any,
    steps: int,
    tau: float,
    sample: Sample | None,
    transformer: Callable[[Tokens, Any], Array] = e_transformer,
    mask_token: int | None = None,
) -> list[int]:
    """Return x with its masked tokens filled by Algorithm 9, those first whose drawn token is likeliest.

    `sample`: draws token t of step i as number i l + t. Nie et al. 2025 (LLaDA), low-confidence remasking.
    """
    x, l = list(x), len(x)
    mask_token = theta.W_e.shape[1] - 3 if mask_token is None else mask_token
    for i in range(steps):
        P = transformer(x, theta)
        P[mask_token] = 0
        P = P / P.sum(axis=0)
        y = {t: draw(tempered(P[:, t], tau), i * l + t, tau, sample) for t in range(l) if x[t] == mask_token}
        likeliest = sorted(y, key=lambda t: (-P[y[t], t], t))
        for t in likeliest[: math.ceil(len(y) / (steps - i))]:
            x[t] = y[t]
    return x


def ed_inference(z: Tokens, theta: Any, tau: float, sample: Sample | None, l_max: int) -> list[int]:
    """Return Algorithm 15: the transduction of z, from bos_token to eos_token, or to its l_max-th token.

    `l_max`: largest length of the result, bos_token included; the paper, which names no limit, would go on.
    """
    N_V = theta.W_e.shape[1]
    bos_token, eos_token = N_V - 2, N_V - 1
    x_hat = [bos_token]  # line 1
    y = 0  # line 2
    while y != eos_token and len(x_hat) < l_max:  # line 3
        P = ed_transformer(z, x_hat, theta)  # line 4
        p = P[:, len(x_hat) - 1]  # line 5
        q = tempered(p, tau)  # line 6
        y = draw(q, len(x_hat) - 1, tau, sample)  # line 6
        x_hat = [*x_hat, y]  # line 7
    return x_hat  # return

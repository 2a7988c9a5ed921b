"""The formulas of the catalogue: activations, positions, losses, updates and draws, of the paper and of those who depart."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf

from training.oracle.positions import rotary_frequencies

__all__ = [
    "EXPONENTS", "adam", "drawn", "gelu_tanh", "loss", "merged", "mixed", "of_masked", "phi", "sigmoid", "silu", "sinusoids",
    "softplus", "transposed", "turned", "where_positive",
]  # fmt: skip


def where_positive(x: Any, yes: Any, no: Any) -> Any:
    return np.where(np.real(x) > 0, yes, no)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def silu(x: Any) -> Any:
    return x * sigmoid(x)


def softplus(x: Any) -> Any:
    return np.log(1 + np.exp(x))


def phi(x: Any) -> Any:
    """The normal distribution; of a complex step to first order, since erf of complex numbers takes long."""
    a = np.real(x)
    step = 1j * np.imag(x) * np.exp(-a * a / 2) / math.sqrt(2 * math.pi) if np.iscomplexobj(x) else 0.0
    return (1 + erf(a / math.sqrt(2))) / 2 + step


def gelu_tanh(cube: float) -> Callable[[Any], Any]:
    return lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + cube * x**3)))


def transposed(W: Any) -> Any:
    return np.swapaxes(W, -1, -2) if W.shape[-1] == W.shape[-2] else W + np.nan


def merged(Y: Any) -> Any:
    """Heads one below the other: [..., H, d, l] → [..., H d, l]."""
    return Y.reshape(*Y.shape[:-3], -1, Y.shape[-1])


def mixed(Y: Any) -> Any:
    """[H, l, d] read as [l, H d]."""
    rows = np.swapaxes(Y, -1, -2)
    return np.swapaxes(rows.reshape(*rows.shape[:-3], rows.shape[-2], -1), -1, -2)


def sinusoids(base: float | str, rows: str, exponent: Any, swapped: bool) -> Callable[..., Any]:
    def table(d: int, t: Any, l_max: int) -> Any:
        P = np.zeros((d, len(t)))
        for j in range(d):
            i, is_cos = (j // 2, j % 2) if rows == "neighbours" else (j % (d // 2), j // (d // 2))
            e = j / d if exponent is None else exponent(i, d)
            P[j] = (np.cos if bool(is_cos) != swapped else np.sin)(t / (l_max if base == "ℓ_max" else float(base)) ** e)
        return P

    return table


# fmt: off
EXPONENTS: dict[str, Any] = {
    "2i/d": lambda i, d: 2 * i / d, "i/d": lambda i, d: i / d, "4i/d": lambda i, d: 4 * i / d, "2i/(d−2)": lambda i, d: 2 * i / (d - 2),
    "i/(d/2−1)": lambda i, d: i / (d / 2 - 1), "2(i+1)/d": lambda i, d: 2 * (i + 1) / d, "j/d, each row its own": None,
}
# fmt: on


def turned(pairs: str, base: float, exponent: str, way: str = "") -> Callable[..., Any]:
    """A rotation of the first d rows of Y at the positions t, its frequencies scaled; `way`: what is wrong."""

    def rotate(Y: Any, t: Any, d: int, scaling: Any) -> Any:
        frequencies = np.array([base ** -EXPONENTS[exponent](i, d) for i in range(d // 2)])
        times = 1.0
        if type(scaling).__name__ == "Proportional":
            frequencies[int(scaling.share * d // 2) :] = 0
        elif scaling is not None:
            frequencies, times = rotary_frequencies(d, base, scaling)
        i = np.arange(d // 2)
        a, b = (i, i + d // 2) if pairs == "halves" else (2 * i, 2 * i + 1)
        rows = np.concatenate([a, b])
        if way == "frequencies of other pairs":
            rows = rows // 2 if pairs == "halves" else rows % (d // 2)
        else:
            rows = np.concatenate([i, i])
        angle = np.asarray(frequencies)[rows, None] * t
        c, s = times * np.cos(angle), times * np.sin(angle) * (-1 if way == "backwards" else 1)
        (c_a, c_b), (s_a, s_b) = (np.split(of, 2) for of in ((s, c) if way == "sin for cos" else (c, s)))
        out = np.array(Y)
        out[..., a, :] = Y[..., a, :] * c_a - Y[..., b, :] * s_a
        out[..., b, :] = Y[..., b, :] * c_b + Y[..., a, :] * s_b
        return out

    return rotate


def loss(
    shift: int, per: Any = lambda l: 1, *, wrap: bool = False, factor: float = 1.0, drop: int = 0
) -> Callable[..., Any]:
    """−Σ log P[x[t + shift], t], divided by per(ℓ); `drop`: how many of the last t are left out."""

    def loss(log_P: Any, x: Any, _: Any) -> Any:
        l = len(x)
        last = (l if wrap else l - shift) - drop
        return -factor * sum(log_P[..., x[(t + shift) % l], t] for t in range(last)) / per(l)

    return loss


def of_masked(per: Any = lambda l, n: 1, *, every: bool = False, factor: float = 1.0) -> Callable[..., Any]:
    """−Σ log P[x[t], t] over the masked tokens (`masked`: their positions), divided by per(ℓ, |T̃|)."""

    def loss(log_P: Any, x: Any, masked: Any) -> Any:
        at = range(len(x)) if every else masked
        return -factor * sum(log_P[..., x[t], t] for t in at) / per(len(x), len(masked))

    return loss


def drawn(logits: Any, draw: Any, tau: float = 1.0, total: float | None = None) -> Any:
    """The first token whose cumulated p^{1/τ} / total is above the draw, which may be a function of the logits instead.

    `total`: None for their sum; None is returned where a function draws, which has its own.
    """
    if tau == 0:
        return int(np.argmax(logits))
    tau = min(tau, 1e300)
    if callable(draw):
        return draw(logits / tau) if total is None else None
    q = np.exp((logits - (logits.max() if total is None else 0.0)) / tau)
    return int(np.searchsorted(np.cumsum(q / (total or q.sum())), draw, side="right"))


def adam(
    decay: float = 0.01,
    *,
    coupled: bool = False,
    corrected: bool | None = True,
    root: bool = False,
) -> Callable[..., Any]:
    """The first step of AdamW, or of one that is not quite; `corrected`: None for the first moment only."""

    def step(W: Any, g: Any, eta: float, norm: float) -> Any:
        g = g + decay * W if coupled else g
        m, v = 0.1 * g, 0.001 * g * g
        m, v = m / (1.0 if corrected is False else 0.1), v / (0.001 if corrected else 1.0)
        below = np.sqrt(v + 1e-8) if root else np.sqrt(v) + 1e-8
        return W - (0.0 if coupled else eta * decay) * W - eta * m / below

    return step

"""The choices: for each place (a slot) of a formula what may stand there, the paper's choice first.

A choice has a name, a text, which completes "equal if ...", and what it does. Arrays have any axes in front, then rows,
then tokens. Named variants are expressed in the same words: `making.choices_of`.
"""

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf

from training.oracle.family import in_bfloat16
from training.oracle.lines import sigma
from training.oracle.positions import rotary_frequencies

__all__ = [
    "BACKWARD", "BIASES", "HARMLESS", "LOADED", "RARE", "SLOTS", "STRUCTURE", "Choice", "choice", "gelu_tanh", "merged", "paper",
    "related", "silu",
]  # fmt: skip


class Choice(NamedTuple):
    """An alternative at a place of a formula."""

    text: str  # completes "equal if ..."
    do: Any  # a number, an axis, or a function of what stands around


def where_positive(x: Any, yes: Any, no: Any) -> Any:
    return np.where(np.real(x) > 0, yes, no)


def silu(x: Any) -> Any:
    return x * sigma(x)


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
    decay: float = 0.01, *, coupled: bool = False, corrected: bool | None = True, root: bool = False
) -> Callable[..., Any]:
    """The first step of AdamW, or of one that is not quite; `corrected`: None for the first moment only."""

    def step(W: Any, g: Any, eta: float, norm: float) -> Any:
        g = g + decay * W if coupled else g
        m, v = 0.1 * g, 0.001 * g * g
        m, v = m / (1.0 if corrected is False else 0.1), v / (0.001 if corrected else 1.0)
        below = np.sqrt(v + 1e-8) if root else np.sqrt(v) + 1e-8
        return W - (0.0 if coupled else eta * decay) * W - eta * m / below

    return step


# fmt: off
EXPONENTS: dict[str, Any] = {
    "2i/d": lambda i, d: 2 * i / d, "i/d": lambda i, d: i / d, "4i/d": lambda i, d: 4 * i / d, "2i/(d−2)": lambda i, d: 2 * i / (d - 2),
    "i/(d/2−1)": lambda i, d: i / (d / 2 - 1), "2(i+1)/d": lambda i, d: 2 * (i + 1) / d, "j/d, each row its own": None,
}
# fmt: on


def _sinusoids(base: str, rows: str, exponent: Any, order: str, d: int, t: Any, l_max: int) -> Any:
    P, is_swapped = np.zeros((d, len(t))), order[0] == "c"
    for j in range(d):
        i, is_cos = (j // 2, j % 2) if rows == "neighbours" else (j % (d // 2), j // (d // 2))
        e = j / d if exponent is None else exponent(i, d)
        P[j] = (np.cos if bool(is_cos) != is_swapped else np.sin)(t / (l_max if base == "ℓ_max" else float(base)) ** e)
    return P


def _tables() -> Iterator[tuple[str, Choice]]:
    kinds = itertools.product(
        ("neighbours", "halves"), EXPONENTS.items(), ("sin before cos", "cos before sin"), ("10000", "ℓ_max", "100000")
    )
    for rows, (name, exponent), order, base in kinds:
        table = functools.partial(_sinusoids, base, rows, exponent, order)
        text = f"positions are sinusoids t/{base}^({name}), {rows}, {order}"
        yield f"sinusoids {base}, {rows}, {name}, {order}", Choice(text, table)


def _rotated(pairs: str, base: float, exponent: str, way: str, Y: Any, t: Any, d: int, scaling: Any) -> Any:
    """The first d rows of Y turned at the positions t, with scaled frequencies; `way`: what is wrong."""
    i, times = np.arange(d // 2), 1.0
    frequencies = np.array([base ** -EXPONENTS[exponent](j, d) for j in range(d // 2)])
    if type(scaling).__name__ == "Proportional":
        frequencies[int(scaling.share * d // 2) :] = 0
    elif scaling is not None:
        frequencies, times = rotary_frequencies(d, base, scaling)
    a, b = (i, i + d // 2) if pairs == "halves" else (2 * i, 2 * i + 1)
    rows = np.concatenate([i, i])
    if way == "frequencies of other pairs":
        rows = np.concatenate([a, b])
        rows = rows // 2 if pairs == "halves" else rows % (d // 2)
    angle = np.asarray(frequencies)[rows, None] * t
    c, s = times * np.cos(angle), times * np.sin(angle) * (-1 if way == "backwards" else 1)
    (c_a, c_b), (s_a, s_b) = (np.split(of, 2) for of in ((s, c) if way == "sin for cos" else (c, s)))
    out = np.array(Y)
    out[..., a, :] = Y[..., a, :] * c_a - Y[..., b, :] * s_a
    out[..., b, :] = Y[..., b, :] * c_b + Y[..., a, :] * s_b
    return out


def _rotation(name: str) -> Choice:
    """Such as "halves 10000 2i/d", "neighbours 500000 2i/d, backwards"."""
    said, _, way = name.partition(", ")
    pairs, base, exponent = said.split(" ")
    text = f"queries and keys are rotated, pairs: {pairs}, base {float(base):.17g}, exponent {exponent}{', ' * bool(way)}{way}"
    return Choice(text, functools.partial(_rotated, pairs, float(base), exponent, way))


ROTATED = ("2i/d", "i/d", "2(i+1)/d", "4i/d")
WAYS = ("", ", backwards", ", sin for cos", ", frequencies of other pairs")
BASES = 10_000, 500_000, 1_000_000, 100_000, 1_000, 100


def _rotations() -> Iterator[tuple[str, Choice]]:
    for way, pairs, base, exponent in itertools.product(WAYS, ("halves", "neighbours"), BASES, ROTATED):
        name = f"{pairs} {base} {exponent}{way}"
        yield name, _rotation(name)


EPSILONS = ("1e-12", "1e-10", "1e-09", "1e-08", "1e-07", "1e-06", "1e-05", "0.0001", "0.001", "0.01")


def _epsilon(name: str) -> Choice:
    way, _, e = name.partition("+")
    epsilon = float(e)
    texts = {"": f"ε = {e} is added to v", "√": f"ε = {e} is added to √v, not to v",
             "no root": f"it is divided by v + {e}, without the root", "max": f"v is at least {e}"}  # fmt: skip
    do = {"": lambda v: np.sqrt(v + epsilon), "√": lambda v: np.sqrt(v) + epsilon, "no root": lambda v: v + epsilon,
          "max": lambda v: np.sqrt(np.where(np.real(v) > epsilon, v, epsilon))}  # fmt: skip
    return Choice(texts[way], do[way])


def _window(name: str) -> Choice:
    """Such as "window 3" or "chunk 3"."""
    kind, width = name.split(" ")
    w = int(width)
    if kind == "chunk":
        return Choice(f"a token attends within its chunk of {w} only", lambda M, t_z, t_x: M & (t_x // w == t_z // w))
    return Choice(f"a token attends to the last {w} only", lambda M, t_z, t_x: M & (abs(t_x - t_z) < w))


def _temperature(name: str) -> Choice:
    """Such as "0.1 8192 1", whose last number is that of the first position."""
    c, n, first = map(float, name.split(" "))
    text = f"queries are multiplied by 1 + {c:g} ln(1 + ⌊(t + {first:g})/{n:g}⌋), t from 0"
    return Choice(text, lambda t: 1 + c * np.log1p(np.floor((t + first) / n)))


def _number(text: str) -> Callable[[str], Choice]:
    return lambda name: Choice(text.replace("VALUE", name), float(name))


def _numbers(text: str) -> Callable[[str], Choice]:
    return lambda name: Choice(text.replace("VALUE", name.replace(" ", ", ")), tuple(map(float, name.split())))


def _residual(name: str) -> Choice:
    """Such as "X + 0.5 A" or "0.9 X + A"."""
    if name.startswith("X"):
        factor = float(name.split(" ")[2])
        return Choice(f"the sublayer is multiplied by {factor:g}", lambda X, Xt, A: X + factor * A)
    kept = float(name.partition(" ")[0])
    return Choice(f"X is multiplied by {kept:g} in the residual", lambda X, Xt, A: kept * X + A)


def _distances(name: str) -> Choice:
    """Such as "T5 32 128", "ALiBi, reversed", "Transformer-XL 10000, no u"."""
    said, _, how = name.partition(", ")
    kind, *numbers = said.split(" ")
    texts = {"T5": "scores have a bias for each distance", "ALiBi": "scores have ALiBi's slopes",
             "Transformer-XL": "scores have Transformer-XL's distances"}  # fmt: skip
    return Choice(f"{texts[kind]}{f' ({how})' if how else ''}", (kind, [float(n) for n in numbers], how))


def _scale(name: str) -> Choice:
    """Such as "0.5", "×1.44", of 1/√d_attn, or "yarn 1 40": 1/√d_attn with the factor of YaRN."""
    if name.startswith("×"):
        factor = float(name[1:])
        text = f"scores are multiplied by {factor:.6g}/√d_attn, not by 1/√d_attn"
        return Choice(text, lambda d, d_e, H: factor * d**-0.5)
    if name.startswith("yarn"):
        times = (1 + 0.1 * float(name.split(" ")[1]) * math.log(float(name.split(" ")[2]))) ** 2
        return Choice("scores are divided by √d_attn, times YaRN's factor", lambda d, d_e, H: times * d**-0.5)
    s = float(name)
    return Choice(f"scores are multiplied by {name}, not by 1/√d_attn", lambda d, d_e, H: s)


def _scaling(name: str) -> Choice:
    said = json.loads(name)
    told = ", ".join(f"{key} {value}" for key, value in said.items())
    return Choice(f"frequencies of the rotation are scaled: {told}", type(said.pop("kind"), (), said)())


def _experts(name: str) -> Choice:
    """A choice of experts as the oracle has it, and in words."""
    how = json.loads(name)
    weights = "the softmax" if how["scores"] == "softmax" else "σ"
    parts = [f"a token's {how['k']} experts are those with the largest scores"]
    parts += [f"of the best {how['chosen_groups']} of {how['groups']} groups"] if how["groups"] > 1 else []
    parts += [f"weights are {weights} of the scores, {'' if how['renormalized'] else 'not '}divided by their sum"]
    parts += [f"times {how['factor']:g}"] if how["factor"] != 1 else []
    parts += ["which multiply what experts read"] if how["weighted"] == "inputs" else []
    return Choice(", ".join(parts), SimpleNamespace(**how))


def _mtp_loss(name: str) -> Choice:
    """Such as "0.3 sum" or "1 mean over ℓ − 1, x[t+1]"."""
    said, _, label = name.partition(", ")
    (weight, _, how), shift = said.partition(" "), 1 if label else 2
    text = f"the second head's loss is {weight} times the {how} of −log P[x[t+{shift}], t]"
    over = {"sum": lambda l: 1, "mean": lambda l: l - shift, "mean over ℓ − 1": lambda l: l - 1}[how]
    return Choice(text, lambda log_P, x: float(weight) * loss(shift, over)(log_P, x, ()))


def _rows(*rows: tuple[str, str, Any]) -> dict[str, Choice]:
    return {name: Choice(text, do) for name, text, do in rows}


def _anew(what: str) -> list[tuple[str, str, Any]]:
    """Positions of a second part that begin anew, as where a cache's length is not added, or that are not those given."""
    behind = range(2, 7)
    return [
        *((f"anew at {n}", f"{what} count from 0 again behind {n} tokens", lambda t, n=n: np.where(t < n, t, t - n)) for n in behind),
        ("through", f"{what} count from 0 to ℓ − 1, whatever is given", lambda t: np.arange(len(t))),
    ]  # fmt: skip


def _exchanged() -> Iterator[tuple[str, str, Any]]:
    """Heads whose queries, keys or values are another head's."""
    for i, what in enumerate(("queries", "keys", "values")):
        text = f"heads have {what} in reverse: head h those of H + 1 − h"
        yield f"{what} reversed", text, (i, lambda H: np.arange(H)[::-1])
        yield f"{what} first", f"all heads have the first head's {what}", (i, lambda H: 0 * np.arange(H))
        for by, told in ((-1, "+"), (1, "−")):
            text = f"heads have {what} in another order: head h those of h {told} 1, around"
            yield f"{what} {told}1", text, (i, lambda H, by=by: np.roll(np.arange(H), by))


def _sharing(what: str) -> dict[str, Choice]:
    """Which keys or values a head reads, where there are fewer of them."""
    return _rows(
        ("groups", f"head h reads {what} h·H_kv // H", lambda A, H: np.repeat(A, H // A.shape[-3], axis=-3)),
        ("modulo", f"head h reads {what} h mod H_kv",
         lambda A, H: np.concatenate([A] * (H // A.shape[-3]), axis=-3)),
        ("first", f"all heads read the first {what}", lambda A, H: np.repeat(A[..., :1, :, :], H, axis=-3)),
    )  # fmt: skip


BIASES = ("q", "k", "v", "o", "mlp1", "mlp2", "gate", "f", "in", "u", "router")
"""The biases b_q, b_k … of θ; each has a slot."""

# fmt: off
BIAS = _rows(("b", "the bias is added", 1.0), ("none", "the bias is not added", 0.0), ("-", "the bias is subtracted", -1.0), ("twice", "the bias is added twice", 2.0))
SQUARE = _rows(("W", "the matrix is as given", lambda W: W), ("Wᵀ", "the matrix is transposed", transposed), ("-W", "the matrix has the other sign", lambda W: -W))

SLOTS: dict[str, dict[str, Choice]] = {
    "token_index": _rows(
        ("x", "the tokens are x[t]", lambda x, N: x), ("x+1", "column x[t] + 1 of W_e is read", lambda x, N: (x + 1) % N),
        ("x-1", "column x[t] − 1 of W_e is read", lambda x, N: (x - 1) % N), ("next", "the token before is embedded", lambda x, N: np.roll(x, 1)),
        ("reversed", "the tokens are in reverse", lambda x, N: x[::-1])),
    "position_table": {**_rows(("W_p", "positions are learned: W_p", None), ("none", "no position is added", lambda d, t, l_max: np.zeros((d, len(t))))), **dict(_tables())},
    "position_index": _rows(
        ("t", "positions count t", lambda t: t), ("t+1", "positions are one too high", lambda t: t + 1), ("t+2", "positions are two too high", lambda t: t + 2),
        ("t-1", "positions are one too low", lambda t: t - 1), ("0", "every token gets the first position's embedding (the wrong axis is indexed)", lambda t: 0 * t),
        ("reversed", "positions are counted from the end", lambda t: t[-1] - t), *_anew("positions")),
    "padding": _rows(
        ("embedded", "padding is embedded as tokens are", lambda P, l: P), ("token", "padding has no position", lambda P, l: np.where(np.arange(P.shape[-1]) < l, P, 0 * P))),
    "embedding_scale": _rows(
        ("1", "embeddings are not scaled", lambda d: 1.0), ("√d_e", "token embeddings are multiplied by √d_e", math.sqrt),
        ("1/√d_e", "token embeddings are divided by √d_e", lambda d: d**-0.5), ("d_e", "token embeddings are multiplied by d_e", float),
        ("√d_e in bfloat16", "token embeddings are multiplied by √d_e, rounded to bfloat16", lambda d: in_bfloat16(math.sqrt(d)))),
    "position_scale": _rows(
        ("1", "positions are not scaled", lambda d: 1.0), ("1/√d_e", "positions are divided by √d_e", lambda d: d**-0.5),
        ("√d_e", "positions are multiplied by √d_e", math.sqrt), ("-", "positions are subtracted", lambda d: -1.0)),
    "embedded_scale": _rows(
        ("1", "the sum of token and position is not scaled", lambda d: 1.0), ("√d_e", "the sum of token and position is multiplied by √d_e", math.sqrt),
        ("1/√d_e", "the sum of token and position is divided by √d_e", lambda d: d**-0.5)),
    "context_parameters": _rows(("own", "the context has its own embedding", "context/"), ("sequence", "the context is embedded with the sequence's parameters", "")),
    "embedding_extra": _rows(("none", "nothing else is added", None)),
    "extra_norm": _rows(("none", "no norm is added", None), ("ones", "a norm with γ = 1, β = 0 is added", "layer"), ("rms", "an RMSnorm without γ is added", "rms")),
    "norm_over": _rows(
        ("features", "each token is normalized by itself", (-2,)), ("tokens", "each row is normalized over the tokens", (-1,)),
        ("everything", "mean and variance are of the whole array, not of each token", (-2, -1))),
    "norm_mean": _rows(("m", "m is of the features", None), ("tokens", "m is over the tokens, not the features", (-1,)), ("everything", "m is of the whole array", (-2, -1))),
    "norm_kind": _rows(("layer_norm", "the mean is subtracted", True), ("rms_norm", "RMSnorm: m = 0", False)),
    "norm_centre": _rows(
        ("m", "m is subtracted", lambda X, m: m), ("none", "m is not subtracted", lambda X, m: 0 * m), ("added", "m is added", lambda X, m: -m),
        ("tokens", "the mean over the tokens is subtracted, not m", lambda X, m: X.mean(-1, keepdims=True)),
        ("everything", "the mean of the whole array is subtracted, not m", lambda X, m: X.mean((-1, -2), keepdims=True))),
    "norm_variance": _rows(
        ("biased", "the variance is divided by d_e", lambda v, n, X: v), ("unbiased", "the variance is divided by d_e − 1, not by d_e", lambda v, n, X: v * n / (n - 1)),
        ("sum", "squares are summed, not averaged", lambda v, n, X: v * n),
        ("of e", "squares are of e, not of e − m", lambda v, n, X: (X * X).mean(-2, keepdims=True)),
        ("of e - m", "squares are of e − m, not of e", lambda v, n, X: ((X - X.mean(-2, keepdims=True)) ** 2).mean(-2, keepdims=True))),
    "norm_epsilon": {
        "0": Choice("nothing is added to v", np.sqrt), **{f"+{e}": _epsilon(f"+{e}") for e in EPSILONS}, **{f"√+{e}": _epsilon(f"√+{e}") for e in EPSILONS},
        "no root": Choice("it is divided by v, not by √v", lambda v: v), **{f"no root+{e}": _epsilon(f"no root+{e}") for e in EPSILONS},
        "one": Choice("it is not divided by √v", np.ones_like), "times": Choice("it is multiplied by √v, not divided", lambda v: 1 / np.sqrt(v)),
        **{f"max+{e}": _epsilon(f"max+{e}") for e in EPSILONS}},
    "norm_inverse": _rows(("1/√v", "it is divided by √v", 1), ("√v", "it is multiplied by √(v + ε), not divided", -1)),
    "norm_gamma": _rows(("γ", "γ is used", lambda g: g), ("γ+1", "γ + 1 stands for γ", lambda g: g + 1), ("none", "there is no γ", lambda g: 1 + 0 * g), ("-", "it is −γ", lambda g: -g), ("γ²", "it is multiplied by γ twice", lambda g: g * g)),
    "norm_beta": _rows(("β", "β is used", lambda b: b), ("none", "there is no β", lambda b: 0 * b), ("-", "β is subtracted", lambda b: -b)),
    "norm_which": _rows(("own", "it has its own γ, β", 0), ("previous", "it has the γ, β of the norm before", -1), ("next", "it has the γ, β of the norm after", 1), ("swapped", "γ and β are exchanged", "swapped")),
    "delta_rate": _rows(("σ", "β is σ(W_b x)", 1.0), ("2σ", "β is 2 σ(W_b x)", 2.0)),
    "norm_here": _rows(("there", "it is normalized here", True), ("missing", "there is no norm here", False)),
    **{f"{name}_bias": BIAS for name in BIASES},
    **{f"{name}_square": SQUARE for name in ("q", "k", "v", "mlp1", "mlp2", "f", "u")},
    "scale": _rows(
        ("1/√d", "scores are divided by √d_attn", lambda d, d_e, H: d**-0.5), ("1", "scores are not divided by √d_attn", lambda d, d_e, H: 1.0),
        ("1/d", "scores are divided by d_attn, without the root", lambda d, d_e, H: 1 / d), ("1/√d_e", "scores are divided by √d_e, not by √d_attn", lambda d, d_e, H: d_e**-0.5),
        ("1/d_e", "scores are divided by d_e", lambda d, d_e, H: 1 / d_e), ("1/√H", "scores are divided by √H", lambda d, d_e, H: H**-0.5),
        ("√d", "scores are multiplied by √d_attn", lambda d, d_e, H: d**0.5), ("1/d^¼", "scores are divided by the fourth root of d_attn", lambda d, d_e, H: d**-0.25),
        ("1/d²", "scores are divided by d_attn²", lambda d, d_e, H: d**-2.0), ("2/√d", "scores are doubled", lambda d, d_e, H: 2 * d**-0.5),
        ("-1/√d", "scores have the other sign", lambda d, d_e, H: -(d**-0.5)), ("1/√(d+1)", "scores are divided by √(d_attn + 1)", lambda d, d_e, H: (d + 1) ** -0.5),
        ("1/√(2d)", "scores are divided by √(2 d_attn)", lambda d, d_e, H: (2 * d) ** -0.5)),
    "mask": {**_rows(
        ("paper", "the mask is the paper's", lambda M, t_z, t_x: M), ("padding", "padding is attended to", lambda M, t_z, t_x: M | ~M.any(1, keepdims=True)), ("none", "there is no mask: every token attends to every other", lambda M, t_z, t_x: np.ones_like(M)),
        ("documents", "a token attends to the documents before its own, too", lambda M, t_z, t_x: M | (t_z <= t_x)),
        ("causal", "the mask is causal where the paper has none", lambda M, t_z, t_x: t_z <= t_x),
        ("strict", "the mask is strict: a token does not attend to itself (⟦t_z < t_x⟧)", lambda M, t_z, t_x: t_z < t_x),
        ("transposed", "the mask is transposed: a token attends to itself and what follows", lambda M, t_z, t_x: t_z >= t_x),
        ("future", "the mask is inverted: a token attends to what follows only", lambda M, t_z, t_x: t_z > t_x),
        ("one ahead", "a token attends to the next one, too (⟦t_z ≤ t_x + 1⟧)", lambda M, t_z, t_x: t_z <= t_x + 1),
        ("given, transposed", "the given mask is transposed", lambda M, t_z, t_x: M.T if M.shape[0] == M.shape[1] else M),
        ("given, inverted", "the given mask is inverted", lambda M, t_z, t_x: ~M), ("self only", "a token attends to itself only", lambda M, t_z, t_x: t_z == t_x)),
        **{f"window {w}": _window(f"window {w}") for w in range(1, 7)},
        **_rows(("last key", "the last key is masked", lambda M, t_z, t_x: M & (t_z < t_z.max())), ("first key", "the first key is masked", lambda M, t_z, t_x: M & (t_z > 0)))},
    "mask_fill": _rows(
        ("-inf", "masked scores are −∞", -np.inf), ("0", "masked scores are 0, not −∞", 0.0), ("1e-9", "masked scores are 1e-9, not −∞ (a sign is missing)", 1e-9),
        ("+large", "masked scores are +∞ in effect", 1e4), ("-1", "masked scores are −1", -1.0), ("-10", "masked scores are −10", -10.0), ("-100", "masked scores are −100", -100.0),
        *((f"add {n}", f"{n} is added to masked scores", float(n)) for n in ("-1", "-1e9", "-1e10", "1e4", "1e9", "1e10")), ("after", "weights are set to 0 after softmax, and not renormalized", "after"),
        ("0 after", "masked scores are 0, not −∞, and weights are set to 0 after softmax, and not renormalized", 0.0),
        ("exponentials", "the exponentials are masked, not the scores", "exponentials")),
    "empty": _rows(
        ("0", "a token with nothing to attend to gets 0", "0"),
        ("all alike", "a token with nothing to attend to attends to all tokens alike (masked scores are a large number, not −∞)", "alike"),
        ("unmasked", "a token with nothing to attend to attends as if nothing were masked (a large number is added to scores, not −∞)", "unmasked")),
    "softmax_axis": _rows(
        ("keys", "softmax is over the keys t_z", (-2,)), ("queries", "softmax is over the queries t_x, not the keys t_z", (-1,)), ("both", "softmax is over all pairs of a head", (-2, -1)),
        ("heads", "softmax is over the heads", (-3,)), ("heads, alike", "softmax is over the heads, and masked scores are a large number, not −∞", "heads"), ("none", "there is no softmax", ()), ("one", "softmax has 1 more in its denominator", "one"),
        ("one, stable", "softmax has 1 more in its denominator, after its maximum is subtracted", "one, stable"),
        ("numerator", "the softmax is not divided by its sum", "numerator"), ("numerator, stable", "the softmax is not divided by its sum, after its maximum is subtracted", "numerator, stable"),
        ("mean", "numerators are divided by their mean, not their sum", "mean"), ("divided by the sum of the queries", "numerators are divided by their sum over the queries t_x", "queries"),
        ("2", "softmax has 2 for e", "2"), ("constant", "the sum below the fraction is constant", "constant"), ("sigmoid", "σ stands for the softmax", "sigmoid")),
    "values": _rows(
        ("VA", "Ṽ = V·A", lambda V, A: V @ A), ("VAᵀ", "the weights are transposed: V·Aᵀ", lambda V, A: V @ transposed(A)),
        ("ΣV", "the weights are summed by themselves: every token gets Σ_t V[:, t], attention is without effect", lambda V, A: V.sum(-1, keepdims=True) * A.sum(-2, keepdims=True)),
        ("mean", "the weights are ignored: the mean of V", lambda V, A: V.mean(-1, keepdims=True) + 0 * A.sum(-2, keepdims=True)),
        ("V", "the weights are ignored: V itself", lambda V, A: V if V.shape[-1] == A.shape[-1] else V @ A + np.nan)),
    "concat": _rows(
        ("heads", "heads are one below the other", merged), ("reversed", "heads are in reverse", lambda Y: merged(Y[..., ::-1, :, :])),
        ("interleaved", "rows of the heads alternate: row i H + h", lambda Y: merged(np.swapaxes(Y, -3, -2))),
        ("not transposed", "[H, ℓ, d] is reshaped to [ℓ, H d] without transposing: tokens and heads are mixed", mixed),
        ("first", "only the first head is used, H times", lambda Y: merged(np.repeat(Y[..., :1, :, :], Y.shape[-3], axis=-3))),
        ("rolled", "heads are rolled by one", lambda Y: merged(np.roll(Y, 1, axis=-3)))),
    "split": _rows(
        ("heads", "rows h d … of the product are head h's", lambda W: W),
        ("interleaved", "rows are read as i H + h, so that heads are interleaved", lambda W: np.swapaxes(W.reshape(*W.shape[:-3], W.shape[-2], W.shape[-3], W.shape[-1]), -3, -2)),
        ("per head", "rows of W_q, W_k, W_v are read as [H, 3, d], each head with its queries, keys and values", "per head"),
        ("not transposed", "[ℓ, H d] is reshaped to [H, ℓ, d] without transposing: tokens and heads are mixed", "mixed")),
    "out": _rows(
        ("W_o", "Ṽ = W_o Y", lambda W: W), ("W_oᵀ", "W_o is transposed", transposed), ("identity", "W_o is not applied", lambda W: np.eye(W.shape[-2], W.shape[-1]) + 0 * W)),
    "weights": _rows(
        ("own", "the weights are the line's own", ("q", "k", "v")), ("q=k", "queries are made with W_k", ("k", "k", "v")), ("k=q", "keys are made with W_q", ("q", "q", "v")),
        ("v=k", "values are made with W_k", ("q", "k", "k")), ("k=v", "keys are made with W_v", ("q", "v", "v")), ("swap", "W_q and W_k are exchanged", ("k", "q", "v")), ("kv", "W_k and W_v are exchanged", ("q", "v", "k")),
        ("qv", "W_q and W_v are exchanged", ("v", "k", "q")), ("kvq", "queries, keys and values are made with W_k, W_v and W_q", ("k", "v", "q")), ("vqk", "queries, keys and values are made with W_v, W_q and W_k", ("v", "q", "k"))),
    "residual": _rows(
        ("X", "X + …", lambda X, Xt, A: X + A), ("X̃", "the residual is the normalized X̃, not X", lambda X, Xt, A: Xt + A), ("none", "there is no residual", lambda X, Xt, A: A + 0 * X),
        ("before", "the residual is X as it was before attention was added", lambda X, Xt, A: X + A),
        ("double", "the sublayer is added twice", lambda X, Xt, A: X + 2 * A), ("minus", "the sublayer is subtracted", lambda X, Xt, A: X - A), ("2X", "X is added twice", lambda X, Xt, A: 2 * X + A),
        ("half", "the sum is halved", lambda X, Xt, A: (X + A) / 2), ("√½", "the sum is multiplied by √½", lambda X, Xt, A: (X + A) * 0.5**0.5),
        ("skip", "the sublayer is left out", lambda X, Xt, A: X + 0 * A), ("half A", "the sublayer is halved", lambda X, Xt, A: X + A / 2)),
    "unnormalized": _rows(
        ("none", "queries, keys and values are of the normalized X̃", ""),
        *((letters, f"{what} are of X, not of the normalized X̃", letters)
          for letters, what in (("q", "queries"), ("k", "keys"), ("v", "values"), ("kv", "keys and values"), ("qk", "queries and keys"), ("qv", "queries and values")))),
    "reads": _rows(("X̃", "it reads what the paper says", 0), ("X", "it reads X, not the normalized X̃", 1), ("before", "it reads X as it was before attention was added", 2)),
    "kv_reads": _rows(
        ("Z", "keys and values are of Z", 0), ("X", "keys and values are of X, not of the context", 1),
        ("embedded", "keys and values are of the context's embedding, not of the encoder's output", 2),
        *((f"layer {l}", f"keys and values are of the output of the encoder's layer {l}, not of the last", l + 2) for l in range(1, 7))),
    "kv_layer": _rows(("own", "keys and values are the layer's own", False), ("before", "keys and values are those of the layer before", True)),
    "keys_of": {"own": Choice("keys and values are the layer's own", None)},
    "keys_as_values": _rows(("before", "values are the keys before their norm and positions", False), ("behind", "values are the keys behind their norm and positions", True)),
    "value_norm": _rows(("none", "values are not normalized", False), ("rms", "values are normalized without γ", True)),
    "layer_input": _rows(("P", "the layer's own input is added", True), ("none", "the layer's own input is left out", False)),
    "layer_scalar": _rows(("s", "the output of a layer is multiplied by its scalar", lambda s: s), ("1", "the scalar of a layer is left out", lambda s: 1 + 0 * s)),
    "input_scale": _rows(("√d", "embeddings of a layer are multiplied by √d", lambda d: d**0.5), ("1", "embeddings of a layer are not multiplied by √d", lambda d: 1.0)),
    "input_projection": _rows(("1/√d_e", "the projection of X for layers is divided by √d_e", lambda d: d**-0.5), ("1", "the projection of X for layers is not divided by √d_e", lambda d: 1.0)),
    "input_sum": _rows(("1/√2", "the input of a layer is divided by √2", 0.5**0.5), ("1", "the input of a layer is not divided by √2", 1.0)),
    "head": _rows(("there", "there is a head", True), ("missing", "there is no head: W_f and its activation are left out", False)),
    "q_reads": _rows(("X", "queries are of X", 0), ("Z", "queries are of the context, not of X", 1)),
    "order": _rows(
        ("paper", "norms are where the paper has them", None), ("norm_first", "the norm comes before the sublayer (pre-norm): X + f(norm(X))", "norm_first"),
        ("norm_last", "the norm comes after the sum (post-norm): norm(X + f(X))", "norm_last"), ("norm_out", "the norm is of the sublayer's output: X + norm(f(X))", "norm_out")),
    "post_norm": _rows(("output", "the post-norm is of the sublayer's output: X + norm(f(X))", False), ("sum", "the post-norm comes after the sum: norm(X + f(X))", True)),
    "parallel": _rows(("no", "one sublayer follows the other", False), ("yes", "attention and MLP read the same X, side by side", True),
        ("one norm", "attention and MLP read the same X̃, side by side", "one")),
    "layer": _rows(
        ("own", "each layer has its own parameters", lambda l, L: l), ("reversed", "the layers are in reverse", lambda l, L: L - 1 - l), ("first", "every layer has the first layer's parameters", lambda l, L: 0),
        ("last", "every layer has the last layer's parameters", lambda l, L: L - 1),
        ("next", "layer l has the parameters of layer l + 1", lambda l, L: (l + 1) % L), ("previous", "layer l has the parameters of layer l − 1", lambda l, L: max(l - 1, 0)),
        ("left out", "the layer is left out", lambda l, L: None)),
    "side_by_side": _rows(
        ("A+B", "attention and MLP are added", lambda A, B: A + B), ("2A+B", "attention is added twice", lambda A, B: 2 * A + B), ("A+2B", "the MLP is added twice", lambda A, B: A + 2 * B),
        ("A", "the MLP is left out", lambda A, B: A + 0 * B), ("B", "attention is left out", lambda A, B: B + 0 * A)),
    "turns": _rows(("own", "each layer has the attention of its turn", None), ("next", "each layer has the attention of the next turn", None)),
    "shared": _rows(("own", "cross-attention has its own parameters", "e_d/"), ("self", "cross-attention has the parameters of self-attention", "")),
    "unembed": _rows(("W_u", "logits are W_u X", False), ("W_eᵀ", "W_u is W_eᵀ (tied)", True)),
    "unembed_scale": _rows(
        ("1", "logits are not scaled", lambda d: 1.0), ("1/√d_e", "logits are multiplied by 1/√d_e", lambda d: d**-0.5), ("√d_e", "logits are multiplied by √d_e", lambda d: d**0.5),
        ("1/d_e", "logits are divided by d_e", lambda d: 1 / d)),
    "unembed_bias": _rows(("none", "logits have no bias", None)),
    "last_softmax": _rows(
        ("vocabulary", "P is a softmax over the vocabulary", (-2,)), ("tokens", "softmax is over the tokens t, not the vocabulary", (-1,)), ("both", "softmax is over all of the array", (-2, -1)),
        ("divided by the sum of the tokens", "numerators are divided by their sum over the tokens t, not over the vocabulary", "sum of tokens"),
        ("twice", "softmax is taken twice", "twice"), ("sigmoid", "P is σ of the logits", "sigmoid")),
    "cap": {"none": Choice("logits are not capped", None), **{c: _number("logits are VALUE·tanh(logits/VALUE)")(c) for c in ("15", "30", "50")}},
    "score_cap": {"none": Choice("scores are not capped", None), **{c: _number("scores are VALUE·tanh(scores/VALUE)")(c) for c in ("15", "30", "50")}},
    "clip": {"none": Choice("queries, keys and values are not clipped", None)},
    "mlp_clip": {"none": Choice("gate and MLP are not clipped", None)},
    "distances": {"none": Choice("scores do not depend on the distance", None), **{name: _distances(name) for name in ("ALiBi", "T5 32 128", "Transformer-XL 10000")}},
    "sinks": _rows(("s", "the softmax has the head's sink", True), ("none", "the sinks are left out", False)),
    "rotation": {"none": Choice("queries and keys are not rotated", None), **dict(_rotations())},
    "temperature": {"none": Choice("queries do not grow with the position", None)},
    "rotates": _rows(("both", "queries and keys are rotated", (1, 1, 0)), ("q", "only queries are rotated", (1, 0, 0)), ("k", "only keys are rotated", (0, 1, 0)),
        ("-q", "queries are rotated backwards, keys forwards", (-1, 1, 0)), ("-k", "keys are rotated backwards, queries forwards", (1, -1, 0)),
        ("values, too", "values are rotated, too", (1, 1, 1))),
    "rotation_first": _rows(("0", "rotations count from 0", lambda t: t), ("1", "rotations count from 1", lambda t: t + 1), *_anew("rotations")),
    "rotation_share": {"1": Choice("all rows are rotated", 1.0), **{s: _number("the first VALUE of the rows are rotated")(s) for s in ("0.5", "0.25")}},
    "rotation_scaling": {"none": Choice("frequencies are not scaled", None)},
    "qk_norm": _rows(("γ", "queries and keys are normalized if they have a γ", ""), ("none", "queries and keys are not normalized", "none"), ("q", "only queries are normalized", "q"), ("k", "only keys are normalized", "k"), ("rms", "queries and keys are RMS-normalized, without γ", "rms"),
        ("together", "queries and keys are normalized over all heads together, not head by head", "together"),
        ("each", "queries and keys are normalized head by head, not all heads together", "each"),
        ("late", "queries and keys are normalized after the rotation, not before", "late")),
    "qk_gamma": _rows(("own", "it has its own γ", "own"), ("other", "queries have the γ of keys, or keys that of queries", "other")),
    "gate": _rows(
        ("f(G)U", "the gate is f(W_gate X) ⊙ W_mlp1 X", lambda f, G, U: f(G) * U), ("f(U)G", "gate and MLP are exchanged", lambda f, G, U: f(U) * G),
        ("f(GU)", "the activation is of the product", lambda f, G, U: f(G * U)), ("f(G)+U", "gate and MLP are added", lambda f, G, U: f(G) + U), ("U", "there is no gate", lambda f, G, U: f(U) + 0 * G)),
    "heads": {"H": Choice("there are H heads", None), **{str(n): Choice(f"rows are in {n} heads, not in H", n) for n in (1, 2, 3, 4, 6, 8, 12, 16)}},
    "sharing": _sharing("keys"),
    "heads_exchanged": _rows(("none", "head h has the queries, keys and values h", (-1, None)), *_exchanged()),
    "value_sharing": {"as keys": Choice("values are shared as keys are", None), **_sharing("values")},
    "lru_gates": _rows(
        ("own", "i gates what comes in, r the decay", lambda i, r: (i, r)), ("exchanged", "the gates i and r are exchanged", lambda i, r: (r, i)),
        ("no i", "what comes in is not gated", lambda i, r: (1 + 0 * i, r)), ("no r", "the decay is not gated", lambda i, r: (i, 1 + 0 * r))),
    "lru_decay": _rows(
        ("8", "α is exp(−8 r softplus(a))", lambda r, a: 8 * r * softplus(a)), ("1", "the factor 8 of log α is left out", lambda r, a: r * softplus(a)),
        ("a", "a stands for softplus(a)", lambda r, a: 8 * r * a), ("exp", "exp(a) stands for softplus(a)", lambda r, a: 8 * r * np.exp(a))),
    "lru_new": _rows(
        ("√(1 − α²)", "new rows are scaled by √(1 − α²)", lambda a, t: (1 - a * a) ** 0.5 if t else 1.0), ("1", "new rows are not scaled by √(1 − α²)", lambda a, t: 1.0),
        ("1 − α²", "new rows are scaled by 1 − α², without the root", lambda a, t: 1 - a * a if t else 1.0), ("1 − α", "new rows are scaled by 1 − α", lambda a, t: 1 - a if t else 1.0),
        ("first", "the first token's new rows are scaled by √(1 − α²), too", lambda a, t: (1 - a * a) ** 0.5)),
    "state_decay": _rows(("α", "the state decays by α", lambda a: a), ("none", "the state does not decay", lambda a: 1 + 0 * a)),
    "state_gate": _rows(("silu", "the gate is SiLU(W_z X)", silu), ("sigmoid", "the gate is σ(W_z X)", sigma), ("none", "the gate is left out", lambda z: 1 + 0 * z)),
    "delta_lengths": _rows(
        ("1e-6", "queries and keys are divided by their lengths", lambda s: np.sqrt(s + 1e-6)), ("none", "queries and keys are not divided by their lengths", lambda s: 1 + 0 * s),
        ("0", "nothing is added to the squares of the lengths of queries and keys", np.sqrt)),
    "delta_scale": _rows(("1/√d", "queries are divided by √d", lambda d: d**-0.5), ("1", "queries are not divided by √d", lambda d: 1.0)),
    "delta_new": _rows(("β", "values are multiplied by β", lambda b: b), ("1", "values are not multiplied by β", lambda b: 1 + 0 * b)),
    "delta_corrected": _rows(
        ("β", "β Sᵀk is subtracted from what is written", lambda b: b), ("none", "Sᵀk is not subtracted from what is written", lambda b: 0 * b), ("1", "Sᵀk is subtracted without β", lambda b: 1 + 0 * b)),
    "mamba_skip": _rows(("D", "D times the values is added", lambda D: D), ("none", "D times the values is left out", lambda D: 0 * D)),
    "mamba_groups": _rows(("each", "each group of heads has a norm of its own", False), ("all", "one norm is of all heads, not one of each group", True)),
    "xielu": _rows(
        ("own", "xIELU has α_p above 0 and α_n below", lambda p, n: (p, n)), ("p", "xIELU has α_p below 0, too, not α_n", lambda p, n: (p, p)),
        ("n", "xIELU has α_n above 0, too, not α_p", lambda p, n: (n, n)), ("exchanged", "xIELU has α_n above 0 and α_p below", lambda p, n: (n, p))),
    **{f"gate_{where}": _rows(("gate", f"the gate {where} the convolution multiplies", lambda G: G), ("none", f"there is no gate {where} the convolution", lambda G: 1 + 0 * G)) for where in ("before", "behind")},
    "delta_min": {"0": Choice("Δ has no smallest value", 0.0)},
    "state_norm": _rows(("yes", "what the recurrence gives is normalized", True), ("none", "what the recurrence gives is not normalized", False)),
    "mamba_factors": {"1 1 1 1 1": Choice("the projections of Mamba-2 have no factors", (1.0,) * 5)},
    "mlp_factors": {"1 1": Choice("gate and MLP have no factors", (1.0, 1.0))},
    "mixer_sum": _rows(("1 1", "attention and recurrence are added without factors", (1.0, 1.0)), ("1 0", "the recurrence is left out", (1.0, 0.0)), ("0 1", "the attention is left out", (0.0, 1.0))),
    "index_k": {"all": Choice("a token reads all tokens", None)},
    "index_pairs": _rows(("halves", "the indexer rotates rows i and i + d/2", "halves"), ("neighbours", "the indexer rotates rows 2i and 2i + 1", "neighbours")),
    "experts": {"none": Choice("there is one MLP", None)},
    "shared_gate": _rows(("σ", "the shared expert is multiplied by σ(w_s X)", True), ("none", "the shared expert is not gated", False)),
    "router_reads": _rows(("X", "the router reads the residual stream", 0), ("X̃", "the router reads what the MLP reads, not the residual stream", 1)),
    "router_scale": _rows(("1/√d_e", "what the router reads is divided by √d_e", lambda d: d**-0.5), ("1", "what the router reads is not divided by √d_e", lambda d: 1.0)),
    "expert_scale": _rows(("s", "the weights of experts are multiplied by s", lambda s: s), ("1", "the weights of experts are not multiplied by s", lambda s: 1 + 0 * s)),
    "activation": _rows(
        ("gelu", "the activation is the exact GELU", lambda x: x * phi(x)), ("relu", "the activation is ReLU", lambda x: where_positive(x, x, 0 * x)),
        ("gelu_tanh", "GELU is its tanh approximation", gelu_tanh(0.044715)), ("gelu_sigmoid", "GELU is x·σ(1.702 x)", lambda x: x * sigma(1.702 * x)),
        ("silu", "the activation is SiLU, x·σ(x)", silu), ("relu_squared", "the activation is ReLU²", lambda x: where_positive(x, x * x, 0 * x)),
        ("leaky", "the activation is leaky ReLU (0.01)", lambda x: where_positive(x, x, 0.01 * x)), ("elu", "the activation is ELU", lambda x: where_positive(x, x, np.exp(where_positive(x, 0 * x, x)) - 1)),
        ("softplus", "the activation is softplus", softplus), ("tanh", "the activation is tanh", np.tanh), ("sigmoid", "the activation is σ", sigma), ("phi", "the activation is Φ(x), without the factor x", phi),
        ("gelu_tanh_no_cube", "GELU is x/2·(1 + tanh(√(2/π) x)), without the cube", gelu_tanh(0.0)), ("gelu_cube", "GELU's tanh approximation has 0.44715 for 0.044715", gelu_tanh(0.44715)),
        ("2gelu", "GELU lacks the factor ½", lambda x: 2 * x * phi(x)), ("identity", "there is no activation", lambda x: x)),
    "loss": {
        **_rows(
            ("sum", "the loss is −Σ_{t<ℓ} log P[x[t+1], t]", loss(1)), ("mean", "the loss is averaged over the ℓ − 1 predictions, not summed", loss(1, lambda l: l - 1)),
            ("mean over ℓ", "the sum of the loss is divided by ℓ", loss(1, lambda l: l)), ("not shifted", "labels are not shifted: x[t] is predicted at t (sum)", loss(0)),
            ("not shifted, mean", "labels are not shifted: x[t] is predicted at t (mean)", loss(0, lambda l: l)),
            ("not shifted, t < ℓ", "labels are not shifted: x[t] is predicted at t < ℓ (sum)", loss(0, drop=1)), ("not shifted, t < ℓ, mean", "labels are not shifted: x[t] is predicted at t < ℓ (mean)", loss(0, lambda l: l - 1, drop=1)),
            ("shifted twice", "labels are shifted twice: x[t+2] (mean)", loss(2, lambda l: l - 2)), ("shifted twice, sum", "labels are shifted twice: x[t+2] (sum)", loss(2)),
            ("bits", "the loss is in bits (mean)", loss(1, lambda l: l - 1, factor=1 / math.log(2))), ("bits, sum", "the loss is in bits (sum)", loss(1, factor=1 / math.log(2))),
            ("wrapped", "labels are rolled: the last token predicts the first (mean)", loss(1, lambda l: l, wrap=True)), ("wrapped, sum", "labels are rolled: the last token predicts the first (sum)", loss(1, wrap=True)),
            ("wrong sign", "the loss has the wrong sign", loss(1, factor=-1.0)), ("wrong sign, mean", "the loss has the wrong sign (mean)", loss(1, lambda l: l - 1, factor=-1.0)),
            ("probability", "the loss is −Σ P, without the logarithm", lambda lp, x, _: loss(1)(np.exp(lp), x, _)),
            ("log of a softmax of P", "cross entropy is given P, not logits: softmax is taken twice (mean)", lambda lp, x, _: loss(1, lambda l: l - 1)(np.exp(lp) - np.log(np.exp(np.exp(lp)).sum(-2, keepdims=True)), x, _)),
            ("log of a softmax of P, sum", "cross entropy is given P, not logits: softmax is taken twice (sum)", lambda lp, x, _: loss(1)(np.exp(lp) - np.log(np.exp(np.exp(lp)).sum(-2, keepdims=True)), x, _))),
    },
    "mtp_token": _rows(
        ("x[t+1]", "the second head embeds x[t+1]", lambda x: x[1:]), ("x[t]", "the second head embeds x[t], not x[t+1]", lambda x: x[:-1]),
        ("x[t+2]", "the second head embeds x[t+2], not x[t+1]", lambda x: x[2:])),
    "mtp_reads": _rows(("X", "the second head reads X of line 10", 0), ("before", "the second head reads X before the last norm", 1)),
    "mtp_order": _rows(("[e; X]", "W_m multiplies e above X", lambda e, X: (e, X)), ("[X; e]", "W_m multiplies X above e, not e above X", lambda e, X: (X, e))),
    "mtp_loss": {"0.3 sum": _mtp_loss("0.3 sum")},
    "update": _rows(
        ("descent", "θ ← θ − η·∇loss(θ)", lambda W, g, eta, norm: W - eta * g), ("uphill", "the step is uphill: θ + η·∇loss(θ)", lambda W, g, eta, norm: W + eta * g), ("none", "θ is not changed", lambda W, g, eta, norm: W),
        ("AdamW", "the step is AdamW's (β 0.9, 0.999; ε 1e-8; decay 0.01)", adam()), ("Adam", "the step is Adam's, without decay", adam(decay=0.0)), ("Adam, L2", "the step is Adam's, its decay added to the gradient", adam(coupled=True)),
        ("AdamW, not corrected", "AdamW's moments are not divided by 1 − β", adam(corrected=False)),
        ("AdamW, ε in the root", "AdamW's ε is added below the root", adam(root=True)), ("AdamW, v not corrected", "AdamW's second moment is not divided by 1 − β", adam(corrected=None)),
        ("sign", "only the signs of the gradient are used", lambda W, g, eta, norm: W - eta * np.sign(g))),
    "sampling": _rows(
        ("paper", "y is the first v with q[0] + … + q[v] above the draw", lambda lp, tau, u, i: drawn(lp[:, -1], u[i], tau)), ("τ is not used", "τ is not used", lambda lp, tau, u, i: drawn(lp[:, -1], u[i])),
        ("inverse", "logits are multiplied by τ, not divided", lambda lp, tau, u, i: drawn(lp[:, -1], u[i], 1 / tau if tau else np.inf)), ("greedy", "the likeliest token is taken", lambda lp, tau, u, i: drawn(lp[:, -1], u[i], 0.0)),
        ("column before", "the column before the last is read", lambda lp, tau, u, i: drawn(lp[:, -2], u[i], tau) if lp.shape[1] > 1 else None), ("one draw", "one draw is used for all tokens", lambda lp, tau, u, i: drawn(lp[:, -1], u[0], tau)),
        ("late", "a token is written one position too late, and none there", lambda lp, tau, u, i: drawn(lp[:, -2], u[i - 1], tau) if i else None),
        ("next draw", "the draw of the next token is used", lambda lp, tau, u, i: drawn(lp[:, -1], u[(i + 1) % len(u)], tau)), ("from the last", "the cumulated sum begins with the last token", lambda lp, tau, u, i: len(lp) - 1 - drawn(lp[::-1, -1], u[i], tau)),
        ("sorted", "tokens are cumulated in the order of their probability", lambda lp, tau, u, i: int(np.argsort(-lp[:, -1], kind="stable")[drawn(np.sort(lp[:, -1])[::-1], u[i], tau)])),
        ("one too far", "y is one token behind the draw", lambda lp, tau, u, i: drawn(lp[:, -1], u[i], tau) + 1), ("p, not renormalized", "p^{1/τ} is not divided by its sum", lambda lp, tau, u, i: drawn(lp[:, -1], u[i], tau, total=1.0)),
        *((f"top {k}", f"only the {k} likeliest tokens are drawn from", lambda lp, tau, u, i, k=k: drawn(np.where(lp[:, -1] >= np.sort(lp[:, -1])[-k], lp[:, -1], -np.inf), u[i], tau)) for k in (2, 3, 5, 10))),
    "masked_loss": {
        **_rows(
            ("sum", "the loss is −Σ_{t∈T̃} log P[x[t], t]", of_masked()), ("mean", "the loss is averaged over the masked tokens, not summed", of_masked(lambda l, n: n)),
            ("mean over ℓ", "the sum over the masked tokens is divided by ℓ", of_masked(lambda l, n: l)), ("every token", "the loss is of every token, not of the masked ones (sum)", of_masked(every=True)),
            ("every token, mean", "the loss is of every token, not of the masked ones (mean)", of_masked(lambda l, n: l, every=True)), ("wrong sign", "the loss has the wrong sign", of_masked(factor=-1.0)),
            ("shifted", "labels are shifted as a decoder's (sum)", lambda lp, x, T: -sum(lp[..., x[t + 1], t] for t in T if t + 1 < len(x))),
            ("shifted, mean", "labels are shifted as a decoder's (mean)", lambda lp, x, T: -sum(lp[..., x[t + 1], t] for t in T if t + 1 < len(x)) / max(1, sum(t + 1 < len(x) for t in T))),
            ("mask token", "the mask token itself is predicted, in place of the token that it hides (sum)", lambda lp, x, T: -sum(lp[..., -3, t] for t in T)),
            ("unmasked", "the loss is of the tokens that are not masked (sum)", lambda lp, x, T: -sum(lp[..., x[t], t] for t in range(len(x)) if t not in T)),
            ("next only", "the loss is Algorithm 13's, of the next token (mean)", loss(1, lambda l: l - 1)),
            ("bits", "the loss is in bits (mean)", of_masked(lambda l, n: n * math.log(2)))),
    },
}
# fmt: on


def _mask_fill(name: str) -> Choice:
    added, _, number = name.rpartition(" ")
    text = f"{number} is added to masked scores, not −∞" if added else f"masked scores are {number}, not −∞"
    return Choice(text.replace("-", "−"), float(number))


MADE: dict[str, Callable[[str], Choice]] = {
    "norm_epsilon": _epsilon, "mask": _window, "cap": _number("logits are VALUE·tanh(logits/VALUE)"), "rotation": _rotation,
    "temperature": _temperature,
    "score_cap": _number("scores are VALUE·tanh(scores/VALUE)"), "distances": _distances, "scale": _scale, "rotation_scaling": _scaling,
    "rotation_share": _number("the first VALUE of the rows are rotated"), "clip": _number("queries, keys and values are cut at VALUE"),
    "mamba_factors": _numbers("queries, keys, values, Δ and gate of Mamba-2 are multiplied by VALUE"),
    "mlp_factors": _numbers("gate and MLP are multiplied by VALUE"), "mixer_sum": _numbers("attention and recurrence are multiplied by VALUE"),
    "mlp_clip": _number("gate and MLP are cut at VALUE"), "delta_min": _number("Δ is at least VALUE"), "index_k": _number("a token reads the VALUE tokens that the indexer scores highest"), "unembed_scale": lambda name: Choice(f"logits are multiplied by {name}", lambda d: float(name)), "experts": _experts,
    "embedding_scale": lambda name: Choice(f"token embeddings are multiplied by {name}", lambda d: float(name)),
    "position_scale": lambda name: Choice(f"positions are multiplied by {name}", lambda d: float(name)),
    "embedded_scale": lambda name: Choice(f"the sum of token and position is multiplied by {name}", lambda d: float(name)),
    "residual": _residual, "mask_fill": _mask_fill, "mtp_loss": _mtp_loss, "keys_of": _number("keys and values are those of layer VALUE"),
    "position_index": lambda name: Choice(f"positions are {name.removeprefix('t')} too high", lambda t: t + int(name.removeprefix("t"))),
}  # fmt: skip
"""Slots with numbers: from a name that is not listed to its choice."""

HARMLESS = {"q_bias", "k_bias", "v_bias", "rotation_first"}  # slots that may change a line and nothing after it
STRUCTURE = {"embedded_scale", "order", "post_norm", "parallel", "norm_here", "extra_norm", "layer", "rotation", "qk_norm", "shared", "cap", "reads", "position_table", "unembed_bias", "unembed_scale", "distances", "turns", "head", "mtp_reads"}  # fmt: skip
"""Slots that decide which lines there are."""

RARE = {"parallel", "norm_which", "layer", "turns"}
"""Slots that are tried behind all others: of equally good deviations, the first is taken."""

LOADED = {"split", "weights", "out", "mtp_order", "norm_which", "qk_gamma", "layer", "shared"}
LOADED |= {slot for slot in SLOTS if slot.endswith("_square")}
"""Slots whose deviations may as well be a mistake in how θ was loaded."""

BACKWARD = (
    "norm_epsilon", "norm_gamma", "norm_variance", "scale", "activation", "mask", "softmax_axis", "residual", "gate",
    "out",
)  # fmt: skip
"""Slots whose deviation may be in the backward pass alone."""


def choice(slot: str, name: str) -> Choice:
    """The choice of a slot with a name."""
    return SLOTS[slot].get(name) or MADE[slot](name)


def related(slot: str, name: str) -> list[str]:
    """Choices beside one that has numbers, such as a window of one token more."""
    if slot == "mask" and name.startswith(("window", "chunk")):
        kind, w = name.split(" ")
        return [*(f"{kind} {int(w) + more}" for more in (-1, 1)), *([f"window {w}"] if kind == "chunk" else [])]
    if slot == "rotation" and name != "none":
        base = name.split(" ")[1]
        return [f"{pairs} {base} {e}{way}" for pairs in ("halves", "neighbours") for e in ROTATED for way in WAYS]
    if slot in ("mamba_factors", "mlp_factors", "mixer_sum"):
        factors = name.split(" ")
        return [" ".join([*factors[:i], "1", *factors[i + 1 :]]) for i, factor in enumerate(factors) if factor != "1"]
    if slot == "mtp_loss":
        ways = [f"{how}{label}" for how in ("sum", "mean", "mean over ℓ − 1") for label in ("", ", x[t+1]")]
        return [f"{weight} {way}" for weight in (name.partition(" ")[0], "1") for way in ways] + ["0 sum"]
    if slot == "keys_of" and name != "own":
        return [f"{max(1, int(name) + more)}" for more in (-1, 1)]
    if slot == "distances" and name != "none":
        kind = name.partition(" ")[0]
        hows = {"T5": ("one later",), "Transformer-XL": ("u for v", "no u")}.get(kind, ())
        return [f"{name}, {how}" for how in ("reversed", *hows)]
    if slot == "experts" and name != "none":
        said = json.loads(name)
        other = {"renormalized": not said["renormalized"], "k": said["k"] + 1, "factor": 1.0, "groups": 1,
                 "scores": "sigmoid" if said["scores"] == "softmax" else "softmax", "weighted": "outputs"}  # fmt: skip
        return [json.dumps({**said, key: value}) for key, value in other.items() if said.get(key, value) != value]
    return []


def paper(slot: str) -> str:
    """The name of the paper's choice."""
    return next(iter(SLOTS[slot]))

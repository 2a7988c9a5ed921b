"""Positions: the lines in which published models tell where a token stands.

Written from the cited publications, in loops, like the rest of the oracle: columns are tokens, indices start at 0, and
arithmetic is float64 or complex128. `theta`: frequencies, one for each pair of rows; `scaling`: a record with factor, by
which low frequencies are divided, and, where it counts, l_original, the length of the texts in pretraining;
`x_positions` [l_x], `z_positions` [l_z].
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .components import Array

Positions = Sequence[int] | Array

KINDS = ("Rotary", "TransformerXL", "Distances", "ALiBi", "Temperature")


def kind_of(positions: Any) -> str | None:
    """Return the name of the kind of positions; None: there are none.

    Raises:
        ValueError: if they are of another kind.
    """
    kind = None if positions is None else type(positions).__name__
    if kind not in (None, *KINDS):
        raise ValueError(f"expected positions of a kind {', '.join(KINDS)}, got {kind}")
    return kind


def sinusoid(t: float, d_e: int, base: float, rows: str) -> Array:
    """Return the sinusoidal embedding of one position or distance t, which may be negative, [d_e].

    "neighbors": e[2i] = sin(t / base^(2i/d_e)), e[2i + 1] = cos(same), as in Vaswani et al. 2017, section 3.5, and
    document 003, section 12.3.1; "halves": the same sines first, then the cosines, as in tensor2tensor, Transformer-XL
    (Dai et al. 2019) and Marian. The base is 10,000 in all these publications.
    """
    e = np.empty(d_e)
    for i in range(d_e // 2):
        angle = t / base ** (2 * i / d_e)
        row_sin, row_cos = (2 * i, 2 * i + 1) if rows == "neighbors" else (i, i + d_e // 2)
        e[row_sin] = math.sin(angle)
        e[row_cos] = math.cos(angle)
    return e


def llama3_frequencies(theta: list[float], scaling: Any) -> list[float]:
    """Return the rotary frequencies of Llama 3.1 (Meta 2024, `apply_scaling` in its published code).

    With the wavelength lambda_i = 2 pi / theta_i: short waves, lambda_i < l_original / high, stay; long waves, lambda_i >
    l_original / low, become theta_i / factor; between them theta_i ((1 - s) / factor + s), s = (l_original / lambda_i -
    low) / (high - low).
    """
    scaled, low, high = [], scaling.low, scaling.high
    for theta_i in theta:
        wavelength = 2 * math.pi / theta_i
        if wavelength < scaling.l_original / high:
            scaled.append(theta_i)
        elif wavelength > scaling.l_original / low:
            scaled.append(theta_i / scaling.factor)
        else:
            s = (scaling.l_original / wavelength - low) / (high - low)
            scaled.append((1 - s) * theta_i / scaling.factor + s * theta_i)
    return scaled


def yarn_frequencies(theta: list[float], base: float, scaling: Any) -> list[float]:
    """Return YaRN's rotary frequencies (Peng et al. 2023, section 3.2), as `transformers` computes them.

    The pair whose waves fit n times into l_original is i(n) = d ln(l_original / (2 pi n)) / (2 ln base), d being the
    number of rotated rows. Frequencies stay up to i(fast), are divided by the factor from i(slow) on, and in between
    theta_i (ramp / factor + 1 - ramp), ramp rising linearly from 0 to 1. With `scaling.truncate`, the two bounds are
    rounded, down and up, to whole pairs.
    """
    d = 2 * len(theta)
    low, high = (
        d * math.log(scaling.l_original / (2 * math.pi * n)) / (2 * math.log(base))
        for n in (scaling.fast, scaling.slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    scaled = []
    for i, theta_i in enumerate(theta):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        scaled.append(theta_i / scaling.factor * ramp + theta_i * (1 - ramp))
    return scaled


def yarn_attention_factor(scaling: Any) -> float:
    """Return what multiplies YaRN's cosines and sines: unless given, 0.1 ln(factor) + 1 (Peng et al. 2023, section 3.4)."""
    if scaling.attention_factor is not None:
        return float(scaling.attention_factor)
    return 1.0 if scaling.factor <= 1 else 0.1 * math.log(scaling.factor) + 1.0


def rotary_frequencies(d: int, base: float, scaling: Any) -> tuple[list[float], float]:
    """Return theta_i = base^(-2i/d) for every pair i of d rotated rows (Su et al. 2021, section 3.2.2), scaled.

    `d`: number of rotated rows, even; `scaling`: None, or a record of the kind Linear, Llama3 or Yarn. Result:
    Frequencies [d / 2], and what multiplies cosines and sines.

    Raises:
        ValueError: if d is odd, or the scaling unknown.
    """
    if d % 2:
        raise ValueError(f"rotated rows come in pairs, but there are {d}")
    theta = [base ** (-2 * i / d) for i in range(d // 2)]
    if scaling is None:
        return theta, 1.0
    kind = type(scaling).__name__
    if kind == "Linear":
        return [theta_i / scaling.factor for theta_i in theta], 1.0  # Chen et al. 2023, "position interpolation"
    if kind == "Llama3":
        return llama3_frequencies(theta, scaling), 1.0
    if kind == "Yarn":
        return yarn_frequencies(theta, base, scaling), yarn_attention_factor(scaling)
    raise ValueError(f"scaling must be Linear, Llama3 or Yarn, but is {kind}")


def rotate(Y: Array, positions: Positions, rotary: Any, pairs: str | None = None) -> Array:
    """Return every column of Y turned by its position: R_t Y[:, t] (Su et al. 2021, "RoFormer", equation 15).

    Pair i is rows (a, b) of the first d = floor(share d_attn) rows, with angle phi = t theta_i:
    Y[a] <- Y[a] cos phi - Y[b] sin phi, Y[b] <- Y[b] cos phi + Y[a] sin phi. The remaining rows stay.
    With of_all, all d_attn rows are pairs and set the angles, and only the first share of the pairs turns (Gemma 4).
    Pairs are (i, i + d/2) ("halves": GPT-NeoX, Llama in `transformers`), (2i, 2i + 1) ("neighbors": RoFormer, GPT-J) or
    (i + d/2, i) ("halves_swapped": nanochat).

    `Y`: queries or keys of one head [d_attn, l]; `positions`: [l]; `rotary`: base, scaling, share, pairs; `pairs`: in
    place of its own. Result: A new array [d_attn, l].
    """
    d_attn, l = Y.shape
    d = d_attn if rotary.of_all else int(d_attn * rotary.share)
    turning = int(rotary.share * d // 2) if rotary.of_all else d // 2
    frequencies, multiplier = rotary_frequencies(d, rotary.base, rotary.scaling)
    turned = np.array(Y)
    for t in range(l):
        for i in range(turning):
            rows = {"halves": (i, i + d // 2), "neighbors": (2 * i, 2 * i + 1), "halves_swapped": (i + d // 2, i)}
            a, b = rows[pairs or rotary.pairs]
            cos = math.cos(positions[t] * frequencies[i]) * multiplier
            sin = math.sin(positions[t] * frequencies[i]) * multiplier
            turned[a, t] = Y[a, t] * cos - Y[b, t] * sin
            turned[b, t] = Y[b, t] * cos + Y[a, t] * sin
    return turned


def transformer_xl_distances(
    Q: Array, W_r: Array, v: Array, x_positions: Positions, z_positions: Positions, base: float
) -> Array:
    """Return scores by distance (Dai et al. 2019, "Transformer-XL", section 3.3; Rae et al. 2021, Gopher).

    S[t_z, t_x] = k_{t_z}^T (q_{t_x} + u) + (W_r r_delta)^T (q_{t_x} + v), delta = t_x - t_z; r_delta is the sinusoid
    of the distance, the sines before the cosines. Biases of queries and keys are part of q and k. This is the second
    summand; the first is line 4 with queries to which u is added.

    `Q`: queries of one head [d_attn, l_x]; `W_r`: [d_attn, d_e]; `v`: [d_attn]; `x_positions`: [l_x];
    `z_positions`: [l_z]; `base`: of the sinusoid. Result: [l_z, l_x], not yet scaled.
    """
    l_x, l_z = len(x_positions), len(z_positions)
    rows = []
    for t_z in range(l_z):
        row = []
        for t_x in range(l_x):
            r = sinusoid(x_positions[t_x] - z_positions[t_z], W_r.shape[1], base, "halves")
            row.append((W_r @ r) @ (Q[:, t_x] + v))
        rows.append(row)
    return np.array(rows)


def t5_bucket(distance: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """Return the bucket of a distance t_z - t_x, from 0 (Raffel et al. 2020, "T5", section 2.1, and its code).

    With n buckets for each direction, the first n_0 = n // 2 hold one distance each; bucket n_0 + k holds those of at
    least n_0 (max_distance / n_0)^(k / (n - n_0)), and the last one all that are farther. Bidirectional: half of
    num_buckets for t_z <= t_x, the second half for t_z > t_x. Unidirectional: keys ahead count as distance 0.

    The published code takes the logarithm in float32 and rounds down; here whole numbers are compared, without
    rounding.
    """
    bucket, n = 0, num_buckets
    if bidirectional:
        n = num_buckets // 2
        if distance > 0:
            bucket = n
        away = abs(distance)
    else:
        away = max(-distance, 0)
    n_0 = n // 2
    if away < n_0:
        return bucket + away
    k = 0
    while k + 1 < n - n_0 and max_distance ** (k + 1) * n_0 ** (n - n_0 - k - 1) <= away ** (n - n_0):
        k = k + 1
    return bucket + n_0 + k


def distance_biases(
    table: Array,
    x_positions: Positions,
    z_positions: Positions,
    bidirectional: bool,
    num_buckets: int,
    max_distance: int,
) -> Array:
    """Return what T5 adds to one head's scores, table[bucket(t_z - t_x)] (Raffel et al. 2020, section 2.1), [l_z, l_x].

    `table`: of one head [num_buckets]; the rest is as in `t5_bucket`.
    """
    return np.array(
        [
            [table[t5_bucket(int(t_z - t_x), bidirectional, num_buckets, max_distance)] for t_x in x_positions]
            for t_z in z_positions
        ]
    )


def alibi_slopes(H: int) -> list[float]:
    """Return the slope of each of H heads (Press et al. 2022, "ALiBi", section 3, and its published code).

    For H a power of two, head h = 1..H has 2^(-8h/H). Otherwise, with P the largest power of two below H, the first P
    heads have the slopes of P heads, the others the first, third, fifth... slope of 2P heads.
    """
    P = 2 ** int(math.log2(H))
    slopes = [2 ** (-8 * h / P) for h in range(1, P + 1)]
    return slopes + [2 ** (-8 * h / (2 * P)) for h in range(1, 2 * (H - P), 2)]


def alibi_biases(slope: float, x_positions: Positions, z_positions: Positions) -> Array:
    """Return what ALiBi adds to one head's scaled scores [l_z, l_x], -slope |t_x - t_z|.

    Sources: Press et al. 2022, for t_z <= t_x; Portes et al. 2023, "MosaicBERT", and Günther et al. 2023, "Jina
    Embeddings 2", for both sides.
    """
    return np.array([[-slope * abs(t_x - t_z) for t_x in x_positions] for t_z in z_positions])

"""Numbers that no list has, fitted to what foreign code computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

__all__ = ["FITTED", "MOST_FITS", "numbers"]

MOST_FITS = 16
"""Number of foreign tensors tried for a line: the first that the code computes behind the lines before."""

FITTED = {
    "scale": (("×{}",), 1e-3, 1e3), "mask_fill": (("-{}", "add -{}"), 0.1, 1e3), "norm_epsilon": (("+{}",), 1e-13, 10.0), "cap": (("{}",), 0.1, 1e3),
    **{f"{of}_scale": (("{}",), 1e-3, 1e3) for of in ("embedding", "position", "embedded", "unembed")},
    "residual": (("X + {} A", "{} X + A"), 1e-3, 1e3),
    "score_cap": (("{}",), 0.1, 1e3), "rotation": (("", "halves {} 2i/d", "neighbours {} 2i/d"), 10.0, 1e8),
}  # fmt: skip
"""Slots with a number that is fitted where no listed one explains: its names, and where it is looked for."""


def numbers(off: Callable[[float], np.ndarray], low: float, high: float, spread: float) -> list[str]:
    """The number, rounded less and less, at which an array is nearest to another; none if it is nowhere near.

    `off`: how far it is at a power of ten; `spread`: of the other's numbers.
    """

    def apart(exponent: float) -> float:
        return float(np.minimum(np.abs(off(exponent)), 1e6).mean())

    grid = np.linspace(np.log10(low), np.log10(high), 9)
    found = np.array([apart(x) for x in grid])
    best = int(found.argmin())
    if found[best] > 0.5 * spread or np.ptp(found) < 1e-9 * spread:
        return []
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found_at: Any = minimize_scalar(apart, bounds=around, method="bounded", options={"xatol": 1e-4})
    x = float(found_at.x)
    for _ in range(4):  # Newton's method, with a slope that is near
        r = off(x)
        slope = (r - off(x + 1e-4)) / 1e-4
        if not np.isfinite(r).all() or not slope @ slope > 0:
            return []
        x += float(slope @ r / (slope @ slope))
        if not grid[0] <= x <= grid[-1]:
            return []
    return list(dict.fromkeys(f"{10**x:.{digits}g}" for digits in (2, 3, 4, 6, 9, 15)))

"""A picture of Algorithm 10's residual stream in a run: what each line computed from X, and what it added to X."""

import dataclasses
from collections.abc import Callable

import numpy as np
from markupsafe import Markup, escape
from scipy.special import softmax

from training.crosscheck.records import CodeRecord
from training.crosscheck.values import plain

CELL, SMALL_CELL = 10, 7
TOP, STREAM, BOTTOM = 80, 225, 350  # heights of the attentions, the stream, and the MLPs
LEFT = 60


@dataclasses.dataclass(frozen=True)
class _Addition:
    """A sublayer, drawn from x on: what it reads, its attention, what it adds, and the stream after it."""

    x: float
    name: str
    read: np.ndarray
    heads: tuple[np.ndarray, ...]
    added: np.ndarray
    after: np.ndarray

    @property
    def width(self) -> float:
        """Distance from the stream that it reads to the stream after it."""
        return 215 + SMALL_CELL * self.read.shape[1] if self.heads else 165


def residual_stream(code: CodeRecord) -> Markup | None:
    """Return the picture as SVG; None if the run did not show all lines, as with a fused implementation.

    Args:
        code: the values observed in a run of Algorithm 10 on one sequence.
    """
    start, final, P = (_values(code, 10, *key) for key in (("3", "X"), ("10", "X"), ("return", "P")))
    additions = _additions(code)
    if not (start and final and P and additions):
        return None
    end = additions[-1].x + additions[-1].width
    width = end + 140 + CELL * P[0].shape[1] + 40
    everything = [start[0], *(a.added for a in additions), *(a.after for a in additions)]
    scale = max(float(np.abs(X).max()) for X in everything)
    parts = [*_river(start[0], additions), _matrix(start[0], LEFT, STREAM, scale, "X, line 3")]
    for addition in additions:
        parts += _sublayer(addition, scale)
    parts += _ending(final[0], P[0], end)
    title = f"The residual stream of a decoder of {len(additions) // 2} layers"
    return Markup(
        f'<svg class="stream" viewBox="0 0 {width:.0f} 425" role="img" '
        f'aria-labelledby="stream-title stream-description"><title id="stream-title">{escape(title)}</title>'
        f'<desc id="stream-description">{escape(_description(start[0], additions))}</desc>{"".join(parts)}</svg>'
    )


def _values(code: CodeRecord, algorithm: int, line: str, variable: str) -> list[np.ndarray]:
    sites = [site for site in code.sites.get((algorithm, line, variable), {}).values() if site.visits]
    if not sites:
        return []
    best = min(sites, key=lambda site: len(site.group))
    return [plain(visit.value) for visit in best.visits]


def _additions(code: CodeRecord) -> list[_Addition]:
    """Return the attention and the MLP of every layer, in order."""
    X = _values(code, 10, "3", "X")
    reads = [_values(code, 10, line, "X_tilde") for line in ("5", "7")]
    after = [_values(code, 10, line, "X") for line in ("6", "8")]
    scores = _values(code, 4, "5", "S")
    layers = len(after[0])
    if not X or not scores or not layers:
        return []
    H, d_attn = len(scores) // layers, _values(code, 4, "1", "Q")[0].shape[0]
    found, before = [], X[0]
    for l in range(layers):
        heads = tuple(softmax(S / np.sqrt(d_attn), axis=0) for S in scores[l * H : (l + 1) * H])
        for name, read, stream, maps in (
            (f"attention {l + 1}", reads[0][l], after[0][l], heads),
            (f"MLP {l + 1}", reads[1][l], after[1][l], ()),
        ):
            x = found[-1].x + found[-1].width if found else float(LEFT)
            found.append(_Addition(x, name, read, maps, stream - before, stream))
            before = stream
    return found


def _size(X: np.ndarray) -> float:
    """The root mean square."""
    return float(np.sqrt(np.mean(X**2)))


def _description(X: np.ndarray, additions: list[_Addition]) -> str:
    sizes = [f"embedding {_size(X):.2f}"]
    sizes += [f"{a.name} adds {_size(a.added):.2f}, giving {_size(a.after):.2f}" for a in additions]
    return "Root mean square of the stream X from left to right: " + "; ".join(sizes) + "."


def _thickness(X: np.ndarray) -> float:
    return 7.0 * _size(X)


def _river(X: np.ndarray, additions: list[_Addition]) -> list[str]:
    """The stream and its tributaries, as wide as the root mean square of X and of what they add."""
    parts, x, width = [], float(LEFT - 40), _thickness(X)
    for addition in additions:
        at, new = addition.x + addition.width - 62, _thickness(addition.after)
        parts += [_band(x, at, width, width), _band(at, at + 24, width, new)]
        middle, sign = (TOP, -1) if addition.heads else (BOTTOM, 1)
        source, end = at - 8, STREAM + sign * new / 4
        curve = f"M{source} {middle}C{source} {(middle + STREAM) / 2} {at + 12} {(middle + STREAM) / 2} {at + 12} {end}"
        width_of_added = max(1.5, _thickness(addition.added))
        parts.append(f'<path class="tributary" d="{curve}" style="stroke-width:{width_of_added:.1f}"/>')
        x, width = at + 24, new
    parts.append(_band(x, x + 90, width, width))
    return parts


def _band(x0: float, x1: float, w0: float, w1: float) -> str:
    m = (x0 + x1) / 2
    top = f"M{x0} {STREAM - w0 / 2:.1f}C{m} {STREAM - w0 / 2:.1f} {m} {STREAM - w1 / 2:.1f} {x1} {STREAM - w1 / 2:.1f}"
    back = (
        f"L{x1} {STREAM + w1 / 2:.1f}C{m} {STREAM + w1 / 2:.1f} {m} {STREAM + w0 / 2:.1f} {x0} {STREAM + w0 / 2:.1f}Z"
    )
    return f'<path class="river" d="{top}{back}"/>'


def _sublayer(addition: _Addition, scale: float) -> list[str]:
    """A branch above or below the stream: its input, the attention of each head, and what it adds."""
    x, end = addition.x, addition.x + addition.width
    middle, line, sign = (TOP, 6, -1) if addition.heads else (BOTTOM, 8, 1)
    l = addition.read.shape[1]
    read_at = x + 18 + l * CELL * 0.4
    out = f"M{x + 6} {STREAM + sign * 36}C{x + 6} {middle} {x + 6} {middle} {x + 18} {middle}"
    parts = [f'<path class="branch" d="{out}"/>', _matrix(addition.read, read_at, middle, 3.0, f"line {line - 1}", 0.8)]
    side = l * SMALL_CELL
    for h, A in enumerate(addition.heads):
        y = middle + (h - len(addition.heads) / 2) * (side + 8) + 4
        parts.append(_attention(A, read_at + l * CELL * 0.4 + 14, y, h))
    label = middle - 50 if addition.heads else middle + 66
    return [
        *parts,
        _matrix(addition.added, end - 70, middle, scale, f"line {line}", 0.8, label_above=bool(addition.heads)),
        _matrix(addition.after, end, STREAM, scale, "X"),
        f'<text class="name" x="{(x + end) / 2 - 22}" y="{label}">{addition.name}</text>',
        f'<text class="plus" x="{end - 50}" y="{STREAM + 5}">+</text>',
    ]


def _ending(final: np.ndarray, P: np.ndarray, x: float) -> list[str]:
    """The final X and the distributions P, with square roots as opacities so that small probabilities are visible."""
    height, width = (CELL * n for n in P.shape)
    left, top = x + 125, STREAM - height / 2
    frame, cells = _cells(P, left, top, CELL, lambda p: f'fill-opacity="{p**0.5:.2f}"')
    label = f'<text class="small" x="{left + width / 2}" y="{top + height + 14}">P, return</text>'
    return [_matrix(final, x + 75, STREAM, 3.0, "line 10"), frame, f'<g class="share">{cells}</g>', label]


def _matrix(
    X: np.ndarray, x: float, y: float, scale: float, label: str, zoom: float = 1.0, *, label_above: bool = False
) -> str:
    """A matrix as cells, tokens as columns, centered at (x, y): blue below 0, orange above."""

    def color(value: float) -> str:
        share = float(np.clip(value / scale, -1, 1))
        return f'class="{"above" if share > 0 else "below"}" fill-opacity="{abs(share) ** 0.7:.2f}"'

    size = CELL * zoom
    height, width = (size * n for n in X.shape)
    top = y - height / 2
    frame, cells = _cells(X, x - width / 2, top, size, color)
    label_y = top - 6 if label_above else top + height + 14
    return f'<g>{frame}{cells}<text class="small" x="{x:.1f}" y="{label_y:.1f}">{escape(label)}</text></g>'


def _attention(A: np.ndarray, x: float, y: float, h: int) -> str:
    height, width = (SMALL_CELL * n for n in A.shape)
    frame, cells = _cells(A, x, y, SMALL_CELL, lambda a: f'fill-opacity="{a:.2f}"')
    label = f'<text class="head" x="{x + width + 5:.1f}" y="{y + height / 2 + 4:.1f}">head {h + 1}</text>'
    return f'<g>{frame}<g class="share">{cells}</g>{label}</g>'


def _cells(X: np.ndarray, left: float, top: float, size: float, style: Callable[[float], str]) -> tuple[str, str]:
    """A matrix as a frame and a square per entry, whose attributes `style` returns."""

    def rect(x: float, y: float, width: float, height: float, attributes: str) -> str:
        return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {attributes}/>'

    rows, columns = X.shape
    frame = rect(left, top, columns * size, rows * size, 'class="ground"')
    squares = (rect(left + j * size, top + i * size, size, size, style(x)) for (i, j), x in np.ndenumerate(X))
    return frame, "".join(squares)

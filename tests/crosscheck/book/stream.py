"""The residual stream of Algorithm 10 as one picture, drawn from a run: what each line made of X, and what it added."""

import dataclasses

import numpy as np
from markupsafe import Markup, escape

from ..records import CodeRecord
from ..values import plain

__all__ = ["residual_stream"]

CELL = 10
TOP, STREAM, BOTTOM = 95, 265, 430  # the middles of the attentions, of the stream, and of the MLPs
STEP = 178  # from one addition to the next
LEFT = 105


@dataclasses.dataclass(frozen=True)
class _Addition:
    """A sublayer: what it reads, how it attends, what it adds, and the stream behind it."""

    name: str
    read: np.ndarray
    heads: tuple[np.ndarray, ...]
    added: np.ndarray
    after: np.ndarray


def residual_stream(code: CodeRecord) -> Markup | None:
    """The picture as SVG; None where the run did not show all lines, as with a fused implementation.

    Args:
        code: what was observed in a run of Algorithm 10 on one sequence.
    """
    start, final, P = (_values(code, 10, *key) for key in (("3", "X"), ("10", "X"), ("return", "P")))
    additions = _additions(code)
    if not (start and final and P and additions):
        return None
    width = LEFT + STEP * len(additions) + 250
    everything = [start[0], *(a.added for a in additions), *(a.after for a in additions)]
    scale = max(float(np.abs(X).max()) for X in everything)
    parts = [*_river(start[0], additions), _matrix(start[0], LEFT, STREAM, scale, "X, line 3")]
    for i, addition in enumerate(additions):
        parts += _sublayer(addition, LEFT + STEP * i, i, scale)
    parts += _ending(final[0], P[0], LEFT + STEP * len(additions), scale)
    title = f"The residual stream of a decoder of {len(additions) // 2} layers"
    return Markup(
        f'<svg class="stream" viewBox="0 0 {width} 520" width="{width}" height="520" role="img" '
        f'aria-labelledby="stream-title stream-description"><title id="stream-title">{escape(title)}</title>'
        f'<desc id="stream-description">{escape(_description(start[0], additions))}</desc>{"".join(parts)}</svg>'
    )


def _values(code: CodeRecord, algorithm: int, line: str, variable: str) -> list[np.ndarray]:
    sites = [site for site in code.sites.get((algorithm, line, variable), {}).values() if site.visits]
    if not sites:
        return []
    best = min(sites, key=lambda site: (not (site.statement and site.statement.tags), len(site.group)))
    return [plain(visit.value) for visit in best.visits]


def _additions(code: CodeRecord) -> list[_Addition]:
    """Attention and MLP of every layer, in turn."""
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
        heads = tuple(_softmax(S / np.sqrt(d_attn)) for S in scores[l * H : (l + 1) * H])
        for name, read, stream, maps in (
            (f"attention {l + 1}", reads[0][l], after[0][l], heads),
            (f"MLP {l + 1}", reads[1][l], after[1][l], ()),
        ):
            found.append(_Addition(name, read, maps, stream - before, stream))
            before = stream
    return found


def _softmax(S: np.ndarray) -> np.ndarray:
    numerator = np.exp(S - S.max(axis=0))
    return numerator / numerator.sum(axis=0)


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
    """The stream itself, as wide as X is large, and the tributaries, as wide as what they add."""
    parts, x, width = [], float(LEFT - 30), _thickness(X)
    for i, addition in enumerate(additions):
        at, new = LEFT + STEP * (i + 1) - 48, _thickness(addition.after)
        middle = TOP if addition.heads else BOTTOM
        parts.append(_band(x, at, width, width))
        parts.append(_band(at, at + 18, width, new))
        toward = STREAM + (-1 if addition.heads else 1) * new / 2
        curve = f"M{at - 40} {middle}C{at - 5} {middle} {at} {(middle + toward) / 2} {at + 10} {toward}"
        parts.append(
            f'<path class="tributary" d="{curve}" style="stroke-width:{max(1.5, _thickness(addition.added)):.1f}"/>'
        )
        x, width = at + 18, new
    parts.append(_band(x, x + 120, width, width))
    return parts


def _band(x0: float, x1: float, w0: float, w1: float) -> str:
    m = (x0 + x1) / 2
    top = f"M{x0} {STREAM - w0 / 2:.1f}C{m} {STREAM - w0 / 2:.1f} {m} {STREAM - w1 / 2:.1f} {x1} {STREAM - w1 / 2:.1f}"
    back = (
        f"L{x1} {STREAM + w1 / 2:.1f}C{m} {STREAM + w1 / 2:.1f} {m} {STREAM + w0 / 2:.1f} {x0} {STREAM + w0 / 2:.1f}Z"
    )
    return f'<path class="river" d="{top}{back}"/>'


def _sublayer(addition: _Addition, x: float, i: int, scale: float) -> list[str]:
    """A branch above or below the stream: what it reads, the attention of each head, and what it adds."""
    middle, line = (TOP, 6) if addition.heads else (BOTTOM, 8)
    sign = -1 if addition.heads else 1
    l = addition.read.shape[1]
    out = f"M{x + 5} {STREAM + sign * 30}C{x + 5} {middle} {x + 5} {middle} {x + 22} {middle}"
    parts = [f'<path class="branch" d="{out}"/>']
    parts.append(_matrix(addition.read, x + 22 + l * CELL / 2 * 0.8, middle, 3.0, f"X̃, line {line - 1}", 0.8))
    if addition.heads:
        side = l * 7 + 4
        for h, A in enumerate(addition.heads):
            y = middle + (h - (len(addition.heads) - 1) / 2) * (side + 12)
            parts.append(_attention(A, x + 22 + l * CELL * 0.8 + 12, y - l * 3.5, h))
    added = _matrix(addition.added, x + STEP - 62, middle, scale, f"added, line {line}", 0.8)
    stream = _matrix(addition.after, x + STEP + 4, STREAM, scale, "X")
    label = middle + sign * 66 + (0 if sign < 0 else 14)
    parts += [
        added,
        stream,
        f'<text class="name" x="{x + STEP / 2 - 10}" y="{label}">{addition.name}</text>',
        f'<text class="small" x="{x + STEP - 39}" y="{STREAM + 4}">+</text>',
    ]
    return parts


def _ending(final: np.ndarray, P: np.ndarray, x: float, scale: float) -> list[str]:
    matrix = _matrix(final, x + 95, STREAM, 3.0, "X, line 10")
    N_V, l = P.shape
    cells = []
    for v in range(N_V):
        for t in range(l):
            cells.append(
                f'<rect x="{x + 160 + t * CELL}" y="{STREAM - N_V * CELL / 2 + v * CELL}" width="{CELL}" '
                f'height="{CELL}" fill-opacity="{P[v, t] ** 0.5:.2f}"/>'
            )
    label = f'<text class="small" x="{x + 160 + l * CELL / 2}" y="{STREAM + N_V * CELL / 2 + 16}">P, return</text>'
    return [matrix, f'<g class="share">{"".join(cells)}</g>', label]


def _matrix(X: np.ndarray, x: float, y: float, scale: float, label: str, zoom: float = 1.0) -> str:
    """A matrix as cells, tokens as columns, centred at (x, y): blue below 0, orange above."""
    rows, columns = X.shape
    size = CELL * zoom
    left, top = x - columns * size / 2, y - rows * size / 2
    cells = []
    for i in range(rows):
        for t in range(columns):
            share = float(np.clip(X[i, t] / scale, -1, 1))
            kind = "above" if share > 0 else "below"
            cells.append(
                f'<rect class="{kind}" x="{left + t * size:.1f}" y="{top + i * size:.1f}" width="{size:.1f}" '
                f'height="{size:.1f}" fill-opacity="{abs(share) ** 0.7:.2f}"/>'
            )
    frame = (
        f'<rect class="ground" x="{left:.1f}" y="{top:.1f}" width="{columns * size:.1f}" height="{rows * size:.1f}"/>'
    )
    text = f'<text class="small" x="{x:.1f}" y="{top + rows * size + 14:.1f}">{escape(label)}</text>'
    return f"<g>{frame}{''.join(cells)}{text}</g>"


def _attention(A: np.ndarray, x: float, y: float, h: int) -> str:
    l_z, l_x = A.shape
    cells = "".join(
        f'<rect x="{x + t_x * 7:.1f}" y="{y + t_z * 7:.1f}" width="7" height="7" fill-opacity="{A[t_z, t_x]:.2f}"/>'
        for t_z in range(l_z)
        for t_x in range(l_x)
    )
    frame = f'<rect class="ground" x="{x:.1f}" y="{y:.1f}" width="{l_x * 7}" height="{l_z * 7}"/>'
    label = f'<text class="small" x="{x + l_x * 3.5:.1f}" y="{y + l_z * 7 + 11:.1f}">head {h + 1}</text>'
    return f'<g>{frame}<g class="share">{cells}</g>{label}</g>'

"""The residual stream of Algorithm 10 as one picture, drawn from a run: what each line made of X, and what it added."""

import dataclasses

import numpy as np
from markupsafe import Markup, escape

from tests.crosscheck.records import CodeRecord
from tests.crosscheck.values import plain

CELL = 10
TOP, STREAM, BOTTOM = 80, 225, 350  # the middles of the attentions, of the stream, and of the MLPs
LEFT = 60


@dataclasses.dataclass(frozen=True)
class _Addition:
    """A sublayer: what it reads, how it attends, what it adds, and the stream after it; drawn from x on."""

    x: float
    name: str
    read: np.ndarray
    heads: tuple[np.ndarray, ...]
    added: np.ndarray
    after: np.ndarray

    @property
    def width(self) -> float:
        """From the stream that it reads to the one after it."""
        return 215 + 7 * self.read.shape[1] if self.heads else 165


def residual_stream(code: CodeRecord) -> Markup | None:
    """The picture as SVG; None where the run did not show all lines, as with a fused implementation.

    Args:
        code: what was observed in a run of Algorithm 10 on one sequence.
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
            x = found[-1].x + found[-1].width if found else float(LEFT)
            found.append(_Addition(x, name, read, maps, stream - before, stream))
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
    """A branch above or below the stream: what it reads, the attention of each head, and what it adds."""
    x, end = addition.x, addition.x + addition.width
    middle, line, sign = (TOP, 6, -1) if addition.heads else (BOTTOM, 8, 1)
    l = addition.read.shape[1]
    read_at = x + 18 + l * CELL * 0.4
    out = f"M{x + 6} {STREAM + sign * 36}C{x + 6} {middle} {x + 6} {middle} {x + 18} {middle}"
    parts = [f'<path class="branch" d="{out}"/>', _matrix(addition.read, read_at, middle, 3.0, f"line {line - 1}", 0.8)]
    side = l * 7
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
    matrix = _matrix(final, x + 75, STREAM, 3.0, "line 10")
    N_V, l = P.shape
    left, top = x + 125, STREAM - N_V * CELL / 2
    cells = "".join(
        f'<rect x="{left + t * CELL}" y="{top + v * CELL}" width="{CELL}" height="{CELL}" '
        f'fill-opacity="{P[v, t] ** 0.5:.2f}"/>'
        for v in range(N_V)
        for t in range(l)
    )
    frame = f'<rect class="ground" x="{left}" y="{top}" width="{l * CELL}" height="{N_V * CELL}"/>'
    label = f'<text class="small" x="{left + l * CELL / 2}" y="{top + N_V * CELL + 14}">P, return</text>'
    return [matrix, frame, f'<g class="share">{cells}</g>', label]


def _matrix(
    X: np.ndarray, x: float, y: float, scale: float, label: str, zoom: float = 1.0, *, label_above: bool = False
) -> str:
    """A matrix as cells, tokens as columns, centered at (x, y): blue below 0, orange above."""
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
    label_y = top - 6 if label_above else top + rows * size + 14
    text = f'<text class="small" x="{x:.1f}" y="{label_y:.1f}">{escape(label)}</text>'
    return f"<g>{frame}{''.join(cells)}{text}</g>"


def _attention(A: np.ndarray, x: float, y: float, h: int) -> str:
    l_z, l_x = A.shape
    cells = "".join(
        f'<rect x="{x + t_x * 7:.1f}" y="{y + t_z * 7:.1f}" width="7" height="7" fill-opacity="{A[t_z, t_x]:.2f}"/>'
        for t_z in range(l_z)
        for t_x in range(l_x)
    )
    frame = f'<rect class="ground" x="{x:.1f}" y="{y:.1f}" width="{l_x * 7}" height="{l_z * 7}"/>'
    label = f'<text class="head" x="{x + l_x * 7 + 5:.1f}" y="{y + l_z * 3.5 + 4:.1f}">head {h + 1}</text>'
    return f'<g>{frame}<g class="share">{cells}</g>{label}</g>'

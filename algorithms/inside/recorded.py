"""The results of the transformations: a dictionary and a list that notebooks show as tables."""

import html
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array


class Recorded(dict[str, Array]):
    """Recorded values by name: a dictionary, and a pytree whose leaves are the values, sorted by name.

    Its tree structure differs from a plain dictionary's; convert one with ``Recorded(…)``.

    Example:
        >>> seen = Recorded({"X@6": np.ones((2, 3)), "A": np.ones((2, 2))})
        >>> jax.tree.map(np.sum, seen)
        {'A': np.float64(4.0), 'X@6': np.float64(6.0)}
    """

    def _repr_html_(self) -> str:
        """A table for notebooks: name, type and shape of each value."""
        return _table(("name", "value"), ((name, _described(value)) for name, value in self.items()))


def _names(seen: Any) -> tuple[str, ...]:
    return tuple(sorted(seen))


jax.tree_util.register_pytree_with_keys(
    Recorded,
    lambda seen: ([(jax.tree_util.DictKey(name), seen[name]) for name in _names(seen)], _names(seen)),
    lambda names, values: Recorded(zip(names, values, strict=True)),
)


class Intermediate(NamedTuple):
    """A value that can be recorded."""

    name: str  # its shortest unambiguous name
    shape: tuple[int, ...]  # with the axes of loops in front, ``[layers, H, rows, *batch, columns]``
    dtype: np.dtype  # of its entries
    lines: str  # the line that computes it, and the lines of the calls that lead to it
    place: str  # file and line of the source

    def __repr__(self) -> str:
        return f"{self.name:20} {_described(self)}  {self.lines}, {self.place}"


class Intermediates(list[Intermediate]):
    """All values that can be recorded, in the order of their computation."""

    def _repr_html_(self) -> str:
        """A table for notebooks: a row for each value."""
        rows = ((i.name, _described(i), i.lines, i.place) for i in self)
        return _table(("name", "value", "computed by", "source"), rows)


def _described(value: Any) -> str:
    """Type and shape of an array; the repr of any other leaf, which ``jax.tree.map`` may have put in its place."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return repr(value)
    return f"{value.dtype}{list(value.shape)}"


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """An HTML table without colors, so that it follows the notebook's theme."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', titles)}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, texts: Iterable[str]) -> str:
    cells = (f'<{tag} style="text-align:left">{html.escape(text)}</{tag}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>"

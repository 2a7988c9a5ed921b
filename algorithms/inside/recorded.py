"""What the transformations return: dictionaries and lists that show themselves as a table in a notebook."""

import html
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array


class Recorded(dict[str, Array]):
    """Recorded values by name: a dictionary, also to JAX, whose values are its leaves in the order of the names.

    To JAX, a plain dictionary is of another structure; ``Recorded(…)`` of it is of the same.

    Example:
        >>> seen = Recorded({"X@6": np.ones((2, 3)), "A": np.ones((2, 2))})
        >>> jax.tree.map(np.sum, seen)
        {'A': np.float64(4.0), 'X@6': np.float64(6.0)}
    """

    def _repr_html_(self) -> str:
        """In a notebook: name, type and shape of each."""
        return _table(("name", "value"), ((name, _described(value)) for name, value in self.items()))


def _names(seen: Any) -> tuple[str, ...]:
    return tuple(sorted(seen))


jax.tree_util.register_pytree_with_keys(
    Recorded,
    lambda seen: ([(jax.tree_util.DictKey(name), seen[name]) for name in _names(seen)], _names(seen)),
    lambda names, values: Recorded(zip(names, values, strict=True)),
    lambda seen: ([seen[name] for name in _names(seen)], _names(seen)),
)


class Intermediate(NamedTuple):
    """What `intermediates` tells of a value."""

    name: str  # the shortest that fits no other
    shape: tuple[int, ...]  # with the axes of loops in front, ``[layers, H, rows, *batch, columns]``
    dtype: np.dtype  # of its entries
    lines: str  # the line that computes it, and those that lead to it
    place: str  # file and line of the source

    def __repr__(self) -> str:
        return f"{self.name:20} {_described(self)}  {self.lines}, {self.place}"


class Intermediates(list[Intermediate]):
    """All that can be recorded, in the order in which it is computed."""

    def _repr_html_(self) -> str:
        """In a notebook: a row for each."""
        rows = ((i.name, _described(i), i.lines, i.place) for i in self)
        return _table(("name", "value", "computed by", "source"), rows)


def _described(value: Any) -> str:
    """Type and shape of what has them; anything else, as a tree of other leaves may have, as it is."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return repr(value)
    return f"{value.dtype}{list(value.shape)}"


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """HTML without colors, which follows the notebook's own."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', titles)}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, texts: Iterable[str]) -> str:
    cells = (f'<{tag} style="text-align:left">{html.escape(text)}</{tag}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>"

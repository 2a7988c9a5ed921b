"""Names of intermediates: parsing them, matching them to statements, and finding the shortest name of each."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from algorithms.machinery.naming import Line, Site

Index = Any
"""An integer, which may be traced, a slice, or an array of several integers."""


class At(str):
    """A name and a part of its value, made by `at`; the string describes both, such as ``"A[layer=3, head=5]"``.

    It is a pytree, whose leaves are its traced indices.
    """

    name: str
    layer: Index
    head: Index
    token: Index
    context: Index
    within: int | None


def at(
    name: str,
    *unnamed: Any,
    layer: Index = None,
    head: Index = None,
    token: Index = None,
    context: Index = None,
    within: int | None = None,
) -> At:
    """A part of an intermediate; by default all of it.

    Each index is an integer, which drops its axis, a slice, or an array of several integers. Integers may be traced;
    one that is out of range then gives NaN, in value and in gradient.

    Args:
        name: see `algorithms.inside`.
        unnamed: none; indices are given by name.
        layer: the layers, counted from 0.
        head: the heads of an attention.
        token: the columns.
        context: the rows of S and A; their columns are the tokens that attend.
        within: the number of an algorithm that computes the value, directly or through the algorithms that it calls.

    Example:
        >>> at("A", layer=3, head=5)
        'A[layer=3, head=5]'
    """
    if unnamed:
        raise TypeError(f"at({name!r}, …): expected indices by name, such as layer=0 and head=1, got {unnamed}")
    given = {"layer": layer, "head": head, "token": token, "context": context}
    return _made(name, {word: _concrete(word, part) for word, part in given.items()} | {"within": within})


def _made(name: str, parts: dict[str, Any]) -> At:
    said = [f"{word}={_text(part)}" for word, part in parts.items() if part is not None]
    where = At(f"{name}[{', '.join(said)}]" if said else name)
    vars(where).update(parts, name=name)
    return where


def _flattened(where: At) -> tuple[list[Tracer], At]:
    """The traced indices, and the name with ``_TRACED`` in their places."""
    parts = {word: part for word, part in vars(where).items() if word != "name"}
    traced = [part for part in parts.values() if isinstance(part, Tracer)]
    static = {word: _TRACED if isinstance(part, Tracer) else part for word, part in parts.items()}
    return traced, _made(where.name, static)


def _unflattened(static: At, traced: Iterable[Any]) -> At:
    rest = iter(traced)
    parts = {word: next(rest) if part is _TRACED else part for word, part in vars(static).items() if word != "name"}
    return _made(static.name, parts)


_TRACED = "traced"

jax.tree_util.register_pytree_node(At, _flattened, _unflattened)


def _concrete(word: str, part: Index) -> Index:
    """The index, with concrete numbers converted to integers or NumPy arrays."""
    if part is None or isinstance(part, slice):
        return part
    index = part if isinstance(part, Tracer) else np.asarray(part)
    if not np.issubdtype(index.dtype, np.integer):
        raise TypeError(f"{word}: expected an integer, several or a slice, got {part!r}")
    return index if isinstance(index, Tracer) or index.ndim else int(index)


def _text(part: Index) -> str:
    if isinstance(part, slice):
        return ":".join("" if n is None else str(n) for n in (part.start, part.stop, part.step))
    if isinstance(part, Tracer):
        return f"traced-{id(part)}"  # two traced indices count as different
    return str(part.tolist() if isinstance(part, np.ndarray) else part)


def as_at(name: str) -> At:
    """A name as `at` returns it."""
    return name if isinstance(name, At) else at(name)


def find(where: At, sites: Sequence[Site], function: str) -> Site:
    """The only site that a name matches; ``sites`` are those that the function of this name computes.

    Raises ValueError if no site matches, or several do.
    """
    symbol, *callers = where.name.split("/")
    symbol, _, own = symbol.partition("@")
    of_symbol = [site for site in sites if site.symbol == symbol]
    matching = [s for s in of_symbol if _matches(s, own, callers)]
    matching = [s for s in matching if where.within is None or where.within in {line.algorithm for line in s.path}]
    exact = [s for s in matching if _outwards(s.path) == [own, *callers]]  # no caller left out
    if len(matching) == 1 or len(exact) == 1:
        return (exact or matching)[0]
    names = shortest_names(sites)
    expected = ", ".join(names[site] for site in matching or of_symbol or sites)
    other = f"{function} computes no other" + " of this symbol" * bool(of_symbol)
    got = "it matches all of them; add the line of the caller, as in these" if matching else other
    raise ValueError(f"{where}: expected one of {expected or 'no names at all'}; {got}")


def _matches(site: Site, own: str, callers: list[str]) -> bool:
    """Whether the site is on this line, or any if that is "", with these lines of callers, from the inside out."""
    lines = _outwards(site.path)
    rest = iter(lines[1:])
    return (not own or own == lines[0]) and all(line in rest for line in callers)


def _outwards(path: tuple[Line, ...]) -> list[str]:
    return [line.number for line in reversed(path)] or [""]


def shortest_names(sites: Sequence[Site]) -> dict[Site, str]:
    """For each site, the shortest name that matches no other of them."""
    names = {}
    for site in sites:
        own, *callers = _outwards(site.path)
        others = [other for other in sites if other.symbol == site.symbol and other is not site]
        forms = [
            ("", []),
            (own, []),
            *(("", [line]) for line in reversed(callers)),
            (own, callers[-1:]),
            (own, callers),
        ]
        form = next((f for f in forms if not any(_matches(other, *f) for other in others)), forms[-1])
        names[site] = "/".join([site.symbol + f"@{form[0]}" * bool(form[0]), *form[1]])
    return names

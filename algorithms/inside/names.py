"""Names of intermediates: parsing them, matching them to statements, and the shortest name of each."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jax.core import Tracer

from algorithms.machinery.naming import Line, Site

Index = Any
"""An integer, which may be traced, a slice, or an array of several integers."""


class At(str):
    """A name and a part of it, see `at`; as a key it is its text, such as ``"A[layer=3, head=5]"``."""

    __slots__ = ("context", "head", "layer", "name", "token", "within")

    name: str
    layer: Index
    head: Index
    token: Index
    context: Index
    within: int | None


def at(
    name: str,
    *,
    layer: Index = None,
    head: Index = None,
    token: Index = None,
    context: Index = None,
    within: int | None = None,
) -> At:
    """A part of an intermediate; by default all of it.

    Each part is an integer, which may be traced and takes its axis away, a slice, or an array of several integers.

    Args:
        name: see `algorithms.inside`.
        layer: the turn of the loop over the layers, from 0.
        head: of an attention.
        token: the column.
        context: the row of S and A, whose columns are the tokens that attend.
        within: the number of an algorithm that computes it, itself or by those that it calls.

    Example:
        >>> at("A", layer=3, head=5)
        'A[layer=3, head=5]'
    """
    parts = {"layer": layer, "head": head, "token": token, "context": context}
    parts = {word: _concrete(part) for word, part in parts.items()}
    said = [f"{word}={_text(part)}" for word, part in (parts | {"within": within}).items() if part is not None]
    where = At(f"{name}[{', '.join(said)}]" if said else name)
    where.name, where.within = name, within
    for word, part in parts.items():
        setattr(where, word, part)
    return where


def _concrete(part: Index) -> Index:
    """Concrete numbers, as integers or NumPy arrays."""
    if part is None or isinstance(part, (int, slice, Tracer)):
        return part
    return int(part) if np.ndim(part) == 0 else np.asarray(part)


def _text(part: Index) -> str:
    if isinstance(part, slice):
        return ":".join("" if n is None else str(n) for n in (part.start, part.stop, part.step))
    if isinstance(part, Tracer):
        return f"traced-{id(part)}"  # two that are traced are not the same
    return str(part.tolist() if isinstance(part, np.ndarray) else part)


def as_at(name: str) -> At:
    """A name as `at` returns it."""
    return name if isinstance(name, At) else at(name)


def find(where: At, sites: Iterable[Site], function: str) -> Site:
    """The only one of the sites that a name fits.

    Raises:
        ValueError: if none does, or several.
    """
    symbol, own, callers = _parsed(where.name)
    names = shortest_names({site.key: site for site in sites})
    of_symbol = [site for site in sites if site.symbol == symbol]
    fitting = [s for s in of_symbol if _fits(s, own, callers)]
    fitting = [s for s in fitting if where.within is None or where.within in {line.algorithm for line in s.path}]
    whole = [s for s in fitting if _outwards(s.path) == [own, *callers]]  # of one caller, and not of a caller's caller
    if len(fitting) == 1 or len(whole) == 1:
        return (whole or fitting)[0]
    expected = ", ".join(names[site.key] for site in fitting or of_symbol or sites)
    got = "it fits all of them" if fitting else f"{function} computes no other" + " of this symbol" * bool(of_symbol)
    raise ValueError(f"{where}: expected one of {expected or 'no names at all'}; {got}")


def _parsed(name: str) -> tuple[str, str, list[str]]:
    """Symbol, own line and callers' lines, from the inside, of ``symbol@line/line/…``."""
    symbol, *callers = name.split("/")
    symbol, _, own = symbol.partition("@")
    return symbol, own, callers


def _fits(site: Site, own: str, callers: list[str]) -> bool:
    lines = _outwards(site.path)
    rest = iter(lines[1:])
    return (not own or own == lines[0]) and all(line in rest for line in callers)


def _outwards(path: tuple[Line, ...]) -> list[str]:
    """The numbers of a path's lines, its own first."""
    return [line.number for line in reversed(path)] or [""]


def shortest_names(sites: Mapping[Any, Site]) -> dict[Any, str]:
    """For each site the shortest name that fits no other."""
    names = {}
    for key, site in sites.items():
        own, *callers = _outwards(site.path)
        others = [other for k, other in sites.items() if other.symbol == site.symbol and k != key]
        forms = [
            ("", []),
            (own, []),
            *(("", [line]) for line in reversed(callers)),
            (own, callers[-1:]),
            (own, callers),
        ]
        form = next((f for f in forms if not any(_fits(other, *f) for other in others)), forms[-1])
        names[key] = "/".join([site.symbol + f"@{form[0]}" * bool(form[0]), *form[1]])
    return names

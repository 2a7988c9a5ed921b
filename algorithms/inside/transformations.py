"""`record`, `intervene`, `gradients` and `intermediates`: function transformations in the style of `jax.grad`.

They trace the form of the function that names its values, and evaluate the resulting program.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms.inside.compilation import Call, compiled_for_each_function
from algorithms.inside.evaluation import Evaluator, Found, found_in
from algorithms.inside.names import At, as_at, find, shortest_names
from algorithms.inside.parts import Added, Part
from algorithms.machinery.naming import Look, looking


class Recorded(dict[str, Array]):
    """Recorded values by name: a dictionary, and a pytree whose leaves are the values, sorted by name.

    Its tree structure differs from a plain dictionary's; convert one with ``Recorded(…)``.

    Example:
        >>> seen = Recorded({"X@6": np.ones((2, 3)), "A": np.ones((2, 2))})
        >>> jax.tree.map(np.sum, seen)
        {'A': np.float64(4.0), 'X@6': np.float64(6.0)}
    """


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
        return f"{self.name:20} {self.dtype}{list(self.shape)}  {self.lines}, {self.place}"


P = ParamSpec("P")
R = TypeVar("R")

_SHOWING_SCORES = ("kernel", "beside", "printed")
"""The ways in which attention shows S and A, see `Look`: each shows everything that the ones before it show."""


def record(f: Callable[P, R], *names: str) -> Callable[P, tuple[R, Recorded]]:
    """``f``, which also returns the intermediates of these names: ``out, seen = record(f, "A", "X@6")(x, theta)``.

    Only the requested part of each requested value is stored. If the attention kernel does not form S and A,
    they are computed in addition; the rest of the program is the same. The returned function is compiled,
    once for each f and names.

    Args:
        f: any function that calls the algorithms.
        names: see `algorithms.inside`.

    Example:
        >>> from algorithms.inside import at
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> P, seen = record(d_transformer, "A", at("X@8", layer=-1))(jnp.array([3, 0, 1]), theta)
        >>> seen["A"].shape, seen[at("X@8", layer=-1)].shape
        ((2, 3, 3, 3), (6, 3))
    """
    places = [as_at(name) for name in names]
    if len(set(places)) < len(places):
        raise ValueError(f"names: expected each once, got {', '.join(places)}")

    return _Transformed(_recorded, f, places)


@compiled_for_each_function
def _recorded(f: Callable[..., Any], places: list[At], args: Any, kwargs: Any) -> tuple[Any, list[Array]]:
    program = _program_with(places, f, args, kwargs, "beside")
    return program.run([program.part(where) for where in places], [])


def intervene(f: Callable[P, R], changes: Mapping[str, Any] | Mapping[At, Any]) -> Callable[P, R]:
    """``f`` with values replaced as it runs: ``intervene(f, {at("Y@2", layer=3, head=5): 0.0, "X@8": function})``.

    If S or A is replaced, attention runs by the lines as printed. The returned function is compiled, once for each
    f, names and functions among the changes.

    Args:
        f: any function that calls the algorithms.
        changes: a replacement for each name, or part of one: a number, an array as `record` returns it, or a function
            of the value in one layer, ``[H, rows, *batch, columns]``. Changes are applied in their order.

    Example:
        >>> from algorithms.inside import at
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> without = intervene(d_transformer, {at("Y@2", layer=1, head=0): 0.0})
        >>> without(jnp.array([3, 0, 1]), theta).shape
        (5, 3)
    """
    places = [as_at(name) for name in changes]
    return _Transformed(_changed, f, places, [_as_arrays(new) for new in changes.values()])


@compiled_for_each_function
def _changed(f: Callable[..., Any], places: list[At], args: Any, kwargs: Any, news: list[Any]) -> Any:
    program = _program_with(places, f, args, kwargs, "printed")
    edits = [(program.part(where, to_replace=True), new) for where, new in zip(places, news, strict=True)]
    return program.run([], edits)[0]


def _as_arrays(new: Any) -> Any:
    if callable(new) or isinstance(new, (Added, Array, np.ndarray)):
        return new
    return np.asarray(new) if np.isscalar(new) else jnp.asarray(new)


def gradients(f: Callable[P, R], *names: str) -> Callable[P, tuple[R, Recorded, Recorded]]:
    """The value of a scalar function, the intermediates of these names, and the gradient with respect to each of them.

    ``value, seen, gradient = gradients(loss, "A", "X@6")(*args)``.

    Args:
        f: any function that calls the algorithms and returns a number.
        names: see `algorithms.inside`.

    Example:
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> def loss(x):
        ...     return -jnp.log(d_transformer(x, theta)[2, -1])
        >>> value, seen, gradient = gradients(loss, "A")(jnp.array([3, 0]))
        >>> gradient["A"].shape
        (2, 3, 2, 2)
    """
    return _Transformed(_differentiated, f, [as_at(name) for name in names])


@compiled_for_each_function
def _differentiated(
    f: Callable[..., Any], places: list[At], args: Any, kwargs: Any
) -> tuple[Array, list[Array], list[Array]]:
    _, shapes = jax.eval_shape(lambda: _recorded(f, places, args, kwargs))

    def of_sums(added):
        moved = intervene(f, {where: Added(value) for where, value in zip(places, added, strict=True)})
        return _recorded(moved, places, args, kwargs)

    zeros = [jnp.zeros(of_place.shape, of_place.dtype) for of_place in shapes]
    (value, seen), gradient = jax.value_and_grad(of_sums, has_aux=True)(zeros)
    return value, seen, gradient


def intermediates(f: Callable[..., Any]) -> Callable[..., list[Intermediate]]:
    """A function of f's arguments, or of their shapes, that lists all values of f that `record` can record."""

    @functools.wraps(f, updated=())  # without f's attributes, such as `lower`, which would be wrong here
    def listed(*args: Any, **kwargs: Any) -> list[Intermediate]:
        program = _Program(f, args, kwargs, "beside")
        names = shortest_names(program.sites)
        return [_described(names[site], program.found[site]) for site in program.sites]

    return listed


def _described(name: str, found: Found) -> Intermediate:
    path = [f"{n if n == 'return' else f'line {n}'} of Algorithm {a}" for a, n in reversed(found.site.path)]
    shape, lines = (*found.loops, *found.shape), " in ".join(path)
    return Intermediate(name, shape, found.value.dtype, lines, found.site.place)


class _Transformed:
    """A function with requests or changes: a pytree of the function, traced indices and replacements.

    Functions that differ only in these share a program, also if they are transformed again.
    """

    def __init__(self, run: Callable[..., Any], f: Callable[..., Any], places: list[At], *changes: Any) -> None:
        functools.update_wrapper(self, f, updated=())  # without f's attributes, such as `lower`
        self._run, self._f, self._places, self._changes = run, f, places, changes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = self._run(self._f, self._places, args, kwargs, *self._changes)
        if self._run is _changed:
            return results
        value, *lists = results
        names = [str(where) for where in self._places]
        order = sorted(range(len(names)), key=names.__getitem__)  # as under `jax.jit`, see `Recorded`
        return value, *(Recorded((names[i], values[i]) for i in order) for values in lists)


jax.tree_util.register_pytree_node(
    _Transformed,
    lambda f: ((f._f, f._places, *f._changes), f._run),
    lambda run, children: _Transformed(run, *children),
)


class _Program:
    """A call of a function, traced in the form that names its values."""

    def __init__(self, f: Callable[..., Any], args: Any, kwargs: Any, scores: str) -> None:
        call, arrays = Call.of(f, *args, **kwargs)

        def of_arrays(*arrays):
            (f, *args), kwargs = call.arguments(arrays)
            return f(*args, **kwargs)

        around = looking.value
        if around is not None:  # within another observer: show enough for both
            scores = max(scores, around.scores, key=_SHOWING_SCORES.index)
        with looking(Look(scores)):
            self._jaxpr, out = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        self._out = jax.tree.structure(out)
        self._name = getattr(f, "__name__", "the function")
        self._arrays = arrays
        self.found = found_in(self._jaxpr.jaxpr)
        self.sites = list({site.key: site for site in self.found}.values())  # the last of those with one key

    def has(self, where: At) -> bool:
        try:
            find(where, self.sites, self._name)
        except ValueError:
            return False
        return True

    def part(self, where: At, *, to_replace: bool = False) -> Part:
        """The part of a value by its name, to be recorded or replaced.

        Raises ValueError if there is none, or it is inaccessible.
        """
        part = Part(where, find(where, self.sites, self._name))
        found = self.found[part.site]
        part.check(found.shape, found.loops)
        if found.within is not None and not (to_replace and found.within == "while"):
            otherwise = f"expected a value outside of {found.within}, got one inside of it; leave that out"
            raise ValueError(f"{where}: {_UNREACHABLE.get(found.within, otherwise)}")
        if to_replace and found.differentiated:
            raise ValueError(
                f"{where}: expected a function that does not differentiate the replaced value, got one that does; "
                "write jax.grad(intervene(loss, …)) in place of intervene(jax.grad(loss), …)"
            )
        return part

    def run(self, requests: list[Part], edits: list[tuple[Part, Any]]) -> tuple[Any, list[Array]]:
        out, seen = Evaluator(requests, edits).run(self._jaxpr, list(self._arrays))
        return jax.tree.unflatten(self._out, out), seen


def _program_with(places: Iterable[At], f: Callable[..., Any], args: Any, kwargs: Any, scores: str) -> _Program:
    """The call's program; attention shows S and A in this way only if its kernel alone does not show all the places."""
    program = _Program(f, args, kwargs, "kernel")
    return program if all(map(program.has, places)) else _Program(f, args, kwargs, scores)


_UNREACHABLE = {
    "while": "expected a loop with a known number of iterations, got a while loop, whose values cannot be stacked; "
    "record one pass over the finished sequence",
    "shard_map": "expected a function outside of shard_map; write shard_map(record(f, …), …)",
}
"""Primitive → why values inside it are inaccessible."""

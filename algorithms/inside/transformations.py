"""`record`, `intervene`, `gradients` and `intermediates`: transformations of functions, as `jax.grad` is one.

They trace the function in its form with names, and evaluate the program that comes out.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms.inside.evaluation import Evaluator, Found, found_in
from algorithms.inside.names import At, as_at, find, shortest_names
from algorithms.inside.parts import Added, Part
from algorithms.inside.recorded import Intermediate, Intermediates, Recorded
from algorithms.machinery.naming import Look, Site, looking

SCORES = ("kernel", "beside", "printed")
"""How attention shows S and A, see `Look`: each shows what those before it do."""


def record(f: Callable[..., Any], *names: str) -> Callable[..., tuple[Any, Recorded]]:
    """``f``, which also returns the intermediates of these names: ``out, seen = record(f, "A", "X@6")(x, theta)``.

    Only requested values are kept, and only the requested part of each. S and A are computed in addition where the
    attention kernel does not form them; the rest of the program is the same. The returned function is compiled.

    Args:
        f: any function that calls the algorithms.
        names: see `algorithms.inside`.

    Example:
        >>> import jax
        >>> from algorithms import DTransformerConfig, d_transformer, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> from algorithms.inside import at
        >>> P, seen = record(d_transformer, "A", at("X@8", layer=-1))(jnp.array([3, 0, 1]), theta)
        >>> seen["A"].shape, seen[at("X@8", layer=-1)].shape
        ((2, 3, 3, 3), (6, 3))
    """
    places = [as_at(name) for name in names]
    if len(set(places)) < len(places):
        raise ValueError(f"names: expected each once, got {', '.join(places)}")

    def recorded(call: "_Call", arrays: list[Array]) -> tuple[Any, Recorded]:
        program = _Program(call, arrays, "kernel")
        if not all(program.has(where) for where in places):
            program = _Program(call, arrays, "beside")
        out, seen = program.run([program.part(where) for where in places], [])
        return out, Recorded(zip(map(str, places), seen, strict=True))

    return _compiled(f, recorded)


def intervene(f: Callable[..., Any], changes: Mapping[str, Any] | Mapping[At, Any]) -> Callable[..., Any]:
    """``f`` computing on with other values: ``intervene(f, {at("Y@2", layer=3, head=5): 0.0, "X@8": function})``.

    Where S or A is replaced, attention runs by the lines as printed. The returned function is compiled.

    Args:
        f: any function that calls the algorithms.
        changes: for each name, or part of one, what takes its place: a number, an array as `record` gives it, or a
            function of the value in one layer, ``[H, rows, *batch, columns]``. The first change is made first.

    Example:
        >>> import jax
        >>> from algorithms import DTransformerConfig, d_transformer, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> from algorithms.inside import at
        >>> without = intervene(d_transformer, {at("Y@2", layer=1, head=0): 0.0})
        >>> without(jnp.array([3, 0, 1]), theta).shape
        (5, 3)
    """
    places = {as_at(name): new for name, new in changes.items()}

    def changed(call: "_Call", arrays: list[Array]) -> Any:
        program = _Program(call, arrays, "kernel")
        if not all(program.has(where) for where in places):
            program = _Program(call, arrays, "printed")
        edits = [(program.part(where, to_replace=True), new) for where, new in places.items()]
        return program.run([], edits)[0]

    return _compiled(f, changed)


def gradients(f: Callable[..., Array], *names: str) -> Callable[..., tuple[Array, Recorded, Recorded]]:
    """The value of a scalar function, intermediates of these names, and the gradient by each of them.

    ``value, seen, gradient = gradients(loss, "A", "X@6")(*args)``.

    Args:
        f: any function that calls the algorithms and returns a number.
        names: see `algorithms.inside`.

    Example:
        >>> import jax
        >>> from algorithms import DTransformerConfig, d_transformer, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=3, d_e=6, d_mlp=8))
        >>> def loss(x):
        ...     return -jnp.log(d_transformer(x, theta)[2, -1])
        >>> value, seen, gradient = gradients(loss, "A")(jnp.array([3, 0]))
        >>> gradient["A"].shape
        (2, 3, 2, 2)
    """

    def differentiated(call: "_Call", arrays: list[Array]):
        def of_arrays(f):
            return f(*call.arguments(arrays)[0], **call.arguments(arrays)[1])

        shapes = jax.eval_shape(lambda: of_arrays(record(f, *names)))[1]
        zeros = {where: jnp.zeros(shapes[where].shape, shapes[where].dtype) for where in map(as_at, names)}

        def of_sums(added):
            moved = intervene(f, {where: Added(value) for where, value in zip(zeros, added, strict=True)})
            return of_arrays(record(moved, *names))

        (value, seen), gradient = jax.value_and_grad(of_sums, has_aux=True)(list(zeros.values()))
        return value, seen, Recorded(zip(map(str, zeros), gradient, strict=True))

    return _compiled(f, differentiated)


def intermediates(f: Callable[..., Any]) -> Callable[..., Intermediates]:
    """What `record` can record of f: call the result with f's arguments, or with their shapes."""

    @functools.wraps(f, updated=())  # its `lower` and `eval_shape` would be those of f
    def listed(*args: Any, **kwargs: Any) -> Intermediates:
        call, arrays = _Call.of(f, args, kwargs)
        program = _Program(call, arrays, "beside")
        names = shortest_names(program.by_key())
        return Intermediates(_described(names[site.key], program.found[site]) for site in program.sites)

    return listed


def _described(name: str, found: Found) -> Intermediate:
    path = [f"{n if n == 'return' else f'line {n}'} of Algorithm {a}" for a, n in reversed(found.site.path)]
    shape, lines = (*found.loops, *found.shape), " in ".join(path)
    return Intermediate(name, shape, found.value.dtype, lines, found.site.place)


class _Call(NamedTuple):
    """A call of a function: all but the arrays."""

    f: Callable[..., Any]  # the function
    tree: Any  # the structure of the arguments
    leaves: tuple[Any, ...]  # those that are not arrays; of the others, `_ARRAY`

    @classmethod
    def of(cls, f: Callable[..., Any], args: Any, kwargs: Any) -> tuple["_Call", list[Any]]:
        """The call, and the arrays."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [isinstance(leaf, (Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)) for leaf in leaves]
        arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
        rest = tuple(_ARRAY if array else leaf for leaf, array in zip(leaves, is_array, strict=True))
        return cls(f, tree, rest), arrays

    def arguments(self, arrays: list[Any]) -> tuple[Any, Any]:
        """Arguments by position and by name."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if leaf is _ARRAY else leaf for leaf in self.leaves])


_ARRAY = "an array"


def _compiled(f: Callable[..., Any], of_call: Callable[[_Call, list[Array]], Any]) -> Callable[..., Any]:
    """A function of f's arguments, compiled."""
    jitted = jax.jit(of_call, static_argnums=0)

    @functools.wraps(f, updated=())  # its `lower` and `eval_shape` would be those of f
    def transformed(*args: Any, **kwargs: Any) -> Any:
        return jitted(*_Call.of(f, args, kwargs))

    return transformed


class _Program:
    """A function traced in its form with names, for given arguments."""

    def __init__(self, call: _Call, arrays: list[Any], scores: str) -> None:
        def of_arrays(*arrays):
            args, kwargs = call.arguments(list(arrays))
            flat, structure = jax.tree.flatten(call.f(*args, **kwargs))
            structures.append(structure)
            return flat

        structures: list[Any] = []
        around = looking.value
        if around is not None:  # of two that look, one inside the other, both see what they want
            scores = max(scores, around.scores, key=SCORES.index)
        with looking(Look(scores)):
            self._jaxpr = jax.make_jaxpr(of_arrays)(*arrays)
        self._out = structures[-1]
        self._name = getattr(call.f, "__name__", "the function")
        self._arrays = arrays
        self.found = found_in(self._jaxpr.jaxpr)

    def by_key(self) -> dict[Any, Site]:
        """The sites by what tells them apart; of those that say the same, the last."""
        return {site.key: site for site in self.found}

    @property
    def sites(self) -> list[Site]:
        """The same, in the program's order."""
        return list(self.by_key().values())

    def has(self, where: At) -> bool:
        """Whether a name fits one."""
        try:
            find(where, self.sites, self._name)
        except ValueError:
            return False
        return True

    def part(self, where: At, *, to_replace: bool = False) -> Part:
        """The part that a name asks for, or, ``to_replace``, is to change.

        Raises:
            ValueError: if there is none, or it cannot be reached.
        """
        part = Part(where, find(where, self.sites, self._name))
        found = self.found[part.site]
        part.check(found.shape, found.loops)
        if found.within is not None and not (to_replace and found.within == "while"):
            raise ValueError(f"{where}: {_unreachable(found.within)}")
        if to_replace and found.differentiated:
            raise ValueError(
                f"{where}: expected a function that does not differentiate what is replaced, got one that does; "
                "write jax.grad(intervene(loss, …)) in place of intervene(jax.grad(loss), …)"
            )
        return part

    def run(self, requests: list[Part], edits: list[tuple[Part, Any]]) -> tuple[Any, list[Array]]:
        """The function's results, and the requested values."""
        out, seen = Evaluator(requests, edits).run(self._jaxpr, list(self._arrays))
        return jax.tree.unflatten(self._out, out), seen


def _unreachable(primitive: str) -> str:
    if primitive == "while":
        return (
            "expected a loop of a known number of turns, got a while loop, whose values cannot be stacked; "
            "record one pass over the finished sequence"
        )
    if primitive == "shard_map":
        return "expected a function outside of shard_map; write shard_map(record(f, …), …)"
    return f"expected a value that JAX computes where it stands, got one inside of {primitive}; leave that out"

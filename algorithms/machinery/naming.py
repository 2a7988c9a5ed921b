"""Names for the values of the numbered lines, taken from the source's own tags.

Normally a `numbered` function runs as written. While it is observed, it runs in a second form made from the same
source: a tagged statement ``X = …  # line 6`` is wrapped in a ``with``, which records that the program is on
line 6 of this algorithm, and is followed by ``X = name(X)``. That binds the primitive `named_p`: the identity, with the
name and the lines as parameters, and nothing in a compiled program. ``algorithms.inside`` traces a function in this
form, and finds the primitive in its jaxpr.

The second form has the file name and the line numbers of the source, so debuggers and coverage see no difference. The
observer and the current line are a user context of JAX's: each thread has its own, and it is part of the keys of all
caches, so a trace for one is never used for another.
"""

import ast
import contextlib
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from algorithms.machinery.tags import Tag, algorithm_of, of_algorithm, tags_in, tags_of, target_of

F = TypeVar("F", bound=Callable[..., Any])


class Line(NamedTuple):
    """A line of an algorithm: both numbers are the paper's; an unnumbered return is "return"."""

    algorithm: int | None
    number: str


LAYERS = frozenset({Line(8, "4"), Line(8, "13"), Line(9, "4"), Line(10, "4")})
"""The loops over the layers."""

HEADS = Line(5, "2")
"""The line of the heads, whose axis comes first."""


class Site(NamedTuple):
    """A statement that names a value."""

    symbol: str  # the name that it assigns
    path: tuple[Line, ...]  # the line it does, preceded by those of the calls that led to it, the outermost first
    place: str  # file and line of the source
    layered: bool  # whether it is in a loop over the layers
    each: int  # how many axes, of heads and sequences, `jax.vmap` maps over around it

    @property
    def key(self) -> tuple[str, tuple[Line, ...]]:
        """What tells it from others: a statement that hands on what its callee has named is the same."""
        return self.symbol, self.path

    @property
    def heads(self) -> bool:
        """Whether the value has an axis of heads."""
        return HEADS in self.path


class Look(NamedTuple):
    """How a function is looked at, and where the program is."""

    # how attention shows S and A: not at all where its kernel forms none ("kernel"), computed "beside" the kernel, or
    # by the lines as printed instead of the kernel ("printed")
    scores: str
    path: tuple[Line, ...] = ()  # the line that is executed, preceded by those of the calls that led to it
    layered: bool = False  # whether that is in a loop over the layers
    each: int = 0  # how many axes `jax.vmap` maps over, for the lines that are written for one head of one sequence


looking = jax.make_user_context(default_value=None)
"""The `Look` under which functions are traced; None while they are not observed."""


def numbered(function: F) -> F:
    """Let the tagged statements of a function, and of functions inside it, name their values while it is observed."""
    plain = inspect.unwrap(function)
    text = _source(plain.__module__)

    @functools.wraps(function)
    def as_written_or_named(*args, **kwargs):
        if looking.value is None:
            return function(*args, **kwargs)
        return _with_names(plain, text)(*args, **kwargs)

    return as_written_or_named  # pyright: ignore[reportReturnType]


def shows(scores: str) -> bool:
    """Whether the observer wants attention to show its scores in this way."""
    return looking.value is not None and looking.value.scores == scores


@contextlib.contextmanager
def for_each(axes: int) -> Iterator[None]:
    """Around `jax.vmap` over the axes of heads and sequences, of lines that are written for one."""
    look = looking.value
    with contextlib.nullcontext() if look is None else looking(look._replace(each=axes)):
        yield


def beside(value: jax.Array, others: Callable[[], Any]) -> jax.Array:
    """The value; if the observer wants it, the results of ``others`` are computed, too."""
    if not shows("beside"):
        return value
    from algorithms.machinery.named import beside_p

    return beside_p.bind(value, *jax.tree.leaves(others()))


# The second form of a function.

_SEPARATOR = re.compile(r"[/\\]")


@functools.cache
def _source(module: str) -> str | None:
    """A module's source, of when it was imported; its loader reads that of a zipped package, too."""
    spec = sys.modules[module].__spec__
    loader: Any = spec and spec.loader
    return loader.get_source(module) if hasattr(loader, "get_source") else None


@functools.cache
def _with_names(function: types.FunctionType, text: str | None) -> types.FunctionType:
    """The function, with tagged statements that name their values."""
    if text is None:
        raise ValueError(
            f"{function.__name__}: expected its source, which names what it computes, got compiled code alone"
        )
    node: Any = ast.parse(text)
    for name in function.__qualname__.split("."):
        node = next(n for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name)
    _name_targets(node, algorithm_of(node), tags_in(text), function.__code__.co_filename)
    node.decorator_list = []
    factory: Any = ast.parse("def factory(__line__): pass")  # whose argument is a free variable of the function
    factory.body[0].body = [node]
    code = compile(factory, function.__code__.co_filename, "exec", dont_inherit=True)
    for name in ("factory", node.name):
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells.get(name) or types.CellType(_line) for name in code.co_freevars)
    code = code.replace(co_qualname=function.__qualname__)
    named = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    named.__kwdefaults__ = function.__kwdefaults__
    return named


def _name_targets(node: Any, algorithm: int | None, tags: dict[int, tuple[Tag, ...]], file: str) -> None:
    """Put each tagged statement of a function, and the body of a loop that is one, in a ``with``."""
    for field in ("body", "orelse"):
        for i, statement in enumerate(getattr(node, field, [])):
            is_function = isinstance(statement, ast.FunctionDef)
            inner = algorithm_of(statement) or algorithm if is_function else algorithm
            _name_targets(statement, inner, tags, file)
            found = tags_of(statement, tags)
            if found is None or isinstance(statement, (ast.If, ast.With)):
                continue
            if hasattr(statement, "body"):
                statement.body = [_tagged(statement.body, statement, None, algorithm, found, file)]
            else:
                getattr(node, field)[i] = _tagged([statement], statement, target_of(statement), algorithm, found, file)


def _tagged(
    body: list[ast.stmt], statement: Any, target: str | None, algorithm: int | None, tags: tuple[Tag, ...], file: str
) -> ast.stmt:
    """``with __line__(algorithm, tags, place) as __see__: …``, and in it ``target = __see__(target, "target")``."""
    place = f"{re.split(_SEPARATOR, file)[-1]}:{statement.lineno}"
    naming = f"; {target} = __see__({target}, {target!r})" if target else ""
    plain = tuple(map(tuple, tags))
    made: Any = ast.parse(f"with __line__({algorithm}, {plain}, {place!r}) as __see__: pass{naming}").body[0]
    part: Any
    for part in ast.walk(made):
        if hasattr(part, "lineno"):
            part.lineno = part.end_lineno = statement.end_lineno if target else statement.lineno
    made.lineno = statement.lineno
    made.body[:1] = body
    return made


@contextlib.contextmanager
def _line(
    algorithm: int | None, tags: tuple[tuple[int | None, str, str], ...], place: str
) -> Iterator[Callable[[Any, str], Any]]:
    """The ``with`` around a tagged statement: while it runs, the program is on its line."""
    look = looking.value
    if look is None:
        yield lambda value, symbol: value
        return
    path = look.path
    if algorithm is None and path:
        algorithm = path[-1].algorithm
    own = of_algorithm(tuple(Tag(*tag) for tag in tags), algorithm)
    if own:
        caller = path[:-1] if path and path[-1].algorithm == algorithm else path  # of several lines, this is one
        path = (*caller, Line(algorithm, own[-1].last))

    from algorithms.machinery.named import named_p

    def name(value: Any, symbol: str) -> Any:
        if not (isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)):
            return value
        site = Site(symbol, path, place, look.layered, look.each)
        return named_p.bind(value, site=site, mapped=0, differentiated=False)

    with looking(look._replace(path=path, layered=look.layered or not LAYERS.isdisjoint(path[-1:]))):
        yield name

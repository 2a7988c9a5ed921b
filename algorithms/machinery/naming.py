"""Names for the values of the numbered lines, taken from the tags in the source.

Normally a `numbered` function runs as written. While it is observed, a second form runs, compiled from the same source:
each tagged statement ``X = …  # line 6`` is wrapped in a ``with``, which records that the program is on line 6 of this
algorithm, and is followed by ``X = name(X)``. That binds the primitive `named_p`: the identity, with the name and the
lines as parameters; compilation removes it. ``algorithms.inside`` traces this form and finds the primitive in the
jaxpr.

The second form keeps the file name and line numbers of the source, so debuggers and coverage see no difference. The
observer and the current line are stored in a JAX user context: each thread has its own, and it is part of every cache
key, so a trace for one observer is never reused for another.
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
    """A line of an algorithm, with the paper's numbers; the number of an unnumbered return is "return"."""

    algorithm: int | None
    number: str


HEADS = frozenset({Line(5, "1"), Line(5, "2")})
"""The lines that compute the heads; their axis comes first."""


class Site(NamedTuple):
    """A statement that names a value."""

    symbol: str  # the name that it assigns
    path: tuple[Line, ...]  # its line, preceded by the lines of the calls that led to it, the outermost first
    place: str  # file and line of the source
    layers: "Site | None"  # the beginning of the pass through the layers that it is in, see `through_layers`
    each: int = 0  # the number of axes, of heads and sequences, that `jax.vmap` maps over around it

    @property
    def key(self) -> tuple[str, tuple[Line, ...]]:
        """Its identity: a statement that passes on a value that its callee named has the callee's key."""
        return self.symbol, self.path

    @property
    def heads(self) -> bool:
        """Whether the value has an axis of heads."""
        return not HEADS.isdisjoint(self.path)


class Look(NamedTuple):
    """An observer's request, and the current place in the program."""

    # how attention exposes S and A: if its kernel forms them ("kernel"), computed in addition to the kernel's output
    # ("beside"), or by the lines as printed in place of the kernel ("printed")
    scores: str
    path: tuple[Line, ...] = ()  # the current line, preceded by the lines of the calls that led to it
    layers: Site | None = None  # the beginning of the pass through the layers that it is in
    each: int = 0  # the number of axes that `jax.vmap` maps over, for lines written for one head of one sequence


looking = jax.make_user_context(default_value=None)
"""The `Look` under which functions are traced; None without an observer."""


def numbered(function: F) -> F:
    """Make the tagged statements of a function, and of functions inside it, name their values while it is observed."""
    plain = inspect.unwrap(function)
    text = _source(plain.__module__)

    @functools.wraps(function)
    def as_written_or_named(*args, **kwargs):
        if looking.value is None:
            return function(*args, **kwargs)
        return _with_names(plain, text)(*args, **kwargs)

    return as_written_or_named  # pyright: ignore[reportReturnType]


def shows(scores: str) -> bool:
    """Whether an observer requests the scores of attention in this way."""
    return looking.value is not None and looking.value.scores == scores


@contextlib.contextmanager
def through_layers(X: Any) -> Iterator[Any]:
    """A context for one pass through all layers, however many loops that takes, and X, which it begins with.

    While observed, the beginning is a value without a name: values inside have an axis of layers, as long as there are
    visits of them for each beginning.
    """
    look = looking.value
    if look is None:
        yield X
        return
    from algorithms.machinery.primitives import named_p

    site = Site("", look.path, "", None, look.each)
    with looking(look._replace(layers=site)):
        yield named_p.bind(X, site=site, mapped=0, differentiated=False)


@contextlib.contextmanager
def for_each(axes: int) -> Iterator[None]:
    """A context for `jax.vmap` over axes of heads and sequences, around lines written for one head of one sequence."""
    look = looking.value
    with contextlib.nullcontext() if look is None else looking(look._replace(each=axes)):
        yield


def beside(value: jax.Array, others: Callable[[], Any]) -> jax.Array:
    """The value; if the observer requests scores beside it, ``others`` is computed, too."""
    if not shows("beside"):
        return value
    from algorithms.machinery.primitives import beside_p

    return beside_p.bind(value, *jax.tree.leaves(others()))


def is_tagged(method: types.FunctionType) -> bool:
    """Whether a method has tagged statements, and `numbered` can find them: in a class of a module with a source."""
    from_exec = method.__code__.co_filename.startswith("<") or method.__module__ not in sys.modules
    is_found = "<locals>" not in method.__qualname__ and not from_exec
    text = _source(method.__module__) if is_found else None
    first, last = method.__code__.co_firstlineno, _last_line(method.__code__)
    return text is not None and any(first <= line <= last for line in tags_in(text))


def _last_line(code: types.CodeType) -> int:
    inside = [_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return max([*inside, *(line for _, _, line in code.co_lines() if line is not None)])


_SOURCES: dict[str, tuple[Any, str | None]] = {}
"""Name of a module → its specification, which is another one after a reload, and its source."""


def _source(module: str) -> str | None:
    """A module's source at the time of its import, also in a zipped package or of a script; None if it has none."""
    spec = sys.modules[module].__spec__
    if module not in _SOURCES or _SOURCES[module][0] is not spec:
        _SOURCES[module] = spec, _read(sys.modules[module], spec)
    return _SOURCES[module][1]


def _read(module: types.ModuleType, spec: Any) -> str | None:
    if hasattr(spec and spec.loader, "get_source"):
        return spec.loader.get_source(spec.name)  # of a script that `python -m` runs, not __main__
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return None


@functools.cache
def _with_names(function: types.FunctionType, text: str | None) -> types.FunctionType:
    """The second form of a function: its tagged statements name their values."""
    if text is None:
        raise ValueError(f"{function.__name__}: expected its source, whose tags name values, got only compiled code")
    node: Any = ast.parse(text)
    for name in function.__qualname__.split("."):
        node = next(n for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name)
    _name_targets(node, algorithm_of(node), tags_in(text), function.__code__.co_filename)
    node.decorator_list = []
    factory: Any = ast.parse("def factory(__line__, __class__): pass")  # these are free variables of the function
    factory.body[0].body = [node]
    code = compile(factory, function.__code__.co_filename, "exec", dont_inherit=True)
    for name in ("factory", node.name):
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells.get(name) or types.CellType(_line) for name in code.co_freevars)
    code = _moved_out(code, "factory.<locals>.")
    named = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    named.__kwdefaults__ = function.__kwdefaults__
    return named


def _moved_out(code: types.CodeType, of: str) -> types.CodeType:
    """The code of a function and of those in it, with names as if it were not inside another one."""
    inside = tuple(_moved_out(c, of) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_qualname=code.co_qualname.removeprefix(of), co_consts=inside)


def _name_targets(node: Any, algorithm: int | None, tags: dict[int, tuple[Tag, ...]], file: str) -> None:
    """Wrap each tagged statement of a function in a ``with``; of a tagged loop or function, the body."""
    for field in ("body", "orelse"):
        for i, statement in enumerate(getattr(node, field, [])):
            is_function = isinstance(statement, ast.FunctionDef)
            inner = algorithm_of(statement) or algorithm if is_function else algorithm
            _name_targets(statement, inner, tags, file)
            found = tags_of(statement, tags)
            if found is None or isinstance(statement, (ast.If, ast.With)):
                continue
            if is_function and statement.decorator_list:  # its decorator runs it here, and binds its name to the result
                getattr(node, field)[i] = _tagged([statement], statement, statement.name, algorithm, found, file)
            elif hasattr(statement, "body"):
                statement.body = [_tagged(statement.body, statement, None, algorithm, found, file)]
            else:
                getattr(node, field)[i] = _tagged([statement], statement, target_of(statement), algorithm, found, file)


def _tagged(
    body: list[ast.stmt], statement: Any, target: str | None, algorithm: int | None, tags: tuple[Tag, ...], file: str
) -> ast.stmt:
    """``with __line__(algorithm, tags, place) as __see__: …``, and in it ``target = __see__(target, "target")``."""
    file_name = re.split(r"[/\\]", file)[-1]
    first = min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])
    last = first if first < statement.lineno else statement.end_lineno  # a decorated function ends where it begins
    place = f"{file_name}:{first}"
    naming = f"; {target} = __see__({target}, {target!r})" if target else ""
    plain = tuple(map(tuple, tags))
    made: Any = ast.parse(f"with __line__({algorithm}, {plain}, {place!r}) as __see__: pass{naming}").body[0]
    part: Any
    for part in ast.walk(made):
        if hasattr(part, "lineno"):
            part.lineno = part.end_lineno = last if target else first
    made.lineno = first
    made.body[:1] = body
    return made


@contextlib.contextmanager
def _line(
    algorithm: int | None, tags: tuple[tuple[int | None, str, str], ...], place: str
) -> Iterator[Callable[[Any, str], Any]]:
    """The context around a tagged statement, which makes its line the current one; gives the function that names."""
    look = looking.value
    if look is None:
        yield lambda value, symbol: value
        return
    path: tuple[Line, ...] = look.path
    if algorithm is None and path:
        algorithm = path[-1].algorithm
    own = of_algorithm(tuple(Tag(*tag) for tag in tags), algorithm)
    if own:
        caller = path[:-1] if path and path[-1].algorithm == algorithm else path  # the same algorithm: replace its line
        path = (*caller, Line(algorithm, own[-1].last))

    from algorithms.machinery.primitives import named_p

    def name(value: Any, symbol: str) -> Any:
        if hasattr(value, "named"):  # scores that are not computed yet
            return value.named(lambda array: name(array, symbol))
        if not (isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)):
            return value
        site = Site(symbol, path, place, look.layers, look.each)
        return named_p.bind(value, site=site, mapped=0, differentiated=False)

    with looking(look._replace(path=path)):
        yield name

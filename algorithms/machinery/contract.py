"""The contract of a function, read from its signature: what is static, what is checked, and what an error says.

===================================  ===========================================================================
an annotation                        says
===================================  ===========================================================================
``Float[Array, "d_x *batch l_x"]``   kind and shape; a name that is used twice is one size
``Integer[Array, "*#batch l"]``          the batch axes may be left out
``AttentionParams``                  each field by its own annotation
``Annotated[P, "H"]``                the arrays of P have the axis H in front
``Annotated[P, "d_x=d_e"]``          what P calls d_x is d_e here, and its other names are its own
``Literal["auto", "paper"]``         a choice
``Annotated[float, Range(…)]``       values that are allowed, checked where the value is at hand
``Annotated[int, UpTo("l")]``        a number of tokens, or several, of a sequence with the axis l
``Annotated[Any, A, B]``             A or B, where a type checker must not ask
``Annotated[T, Relation(…)]``        a function of all arguments that raises where they do not go together
no array anywhere                    a static argument
===================================  ===========================================================================

A class may have ``__expected__``, the words for it in a message, and ``__relation__``, a `Relation` of each argument of
that class. All but values of arrays is checked when a function is traced, so it costs nothing afterwards.
"""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer


class Range(NamedTuple):
    """The values that an argument may take.

    Attributes:
        says: what they are, in words.
        holds: whether a value, or each of an array, is one of them.
    """

    says: str
    holds: Callable[[Any], Any]


class UpTo(NamedTuple):
    """At least 0, and at most as many as the sequences have tokens, whose axis this names."""

    axis: str


class Relation(NamedTuple):
    """What must hold between arguments: a function of all of them by name, which raises where it does not."""

    check: Callable[[Mapping[str, Any]], None]


class Contract(NamedTuple):
    """What a signature says.

    Attributes:
        static: names of the arguments that are compiled in.
        check: takes the function's arguments, and raises TypeError or ValueError where they break the contract.
        check_values: the same for what can only be seen in the values of arrays; None where there is no such thing.
    """

    static: tuple[str, ...]
    check: Callable[..., None]
    check_values: Callable[..., None] | None


def contract_of(function: Callable[..., Any]) -> Contract:
    """Read the contract of a function from its signature."""
    signature = inspect.signature(function)
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}

    def check(*args, **kwargs):
        arguments = _bound(function, signature, args, kwargs)
        sizes = _Sizes()
        for name, value in arguments.items():
            sizes.check(name, value, annotations[name])
        sizes.check_lengths()
        for name, value in arguments.items():
            for relation in _relations(annotations[name], value):
                relation.check(arguments)

    valued = {name: notes for name, a in annotations.items() if (notes := _valued(a))}

    def check_values(*args, **kwargs):
        arguments = _bound(function, signature, args, kwargs)
        for name, notes in valued.items():
            value = arguments[name]
            if value is not None and not isinstance(value, Tracer):
                for note in notes:
                    _check_value(name, value, note, arguments, annotations)

    static = tuple(name for name, annotation in annotations.items() if _is_static(annotation))
    return Contract(static, check, check_values if valued else None)


def _bound(function: Callable[..., Any], signature: inspect.Signature, args, kwargs) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None
    bound.apply_defaults()
    return bound.arguments


# Reading an annotation.


def _bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without ``Annotated``, and what that said besides."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, ()
    inner, notes = annotation.__origin__, annotation.__metadata__
    return (notes, ()) if inner is Any else (inner, notes)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    if isinstance(annotation, tuple):
        return tuple(type(None) if kind is None else kind for kind in annotation)
    return typing.get_args(annotation) if is_union else (annotation,)


def _is_array(kind: Any) -> bool:
    return hasattr(kind, "dim_str")


def _fields(kind: Any) -> dict[str, Any]:
    """The annotations of a pytree's fields; none for a class that holds no arrays."""
    if not (hasattr(kind, "_fields") or dataclasses.is_dataclass(kind)):
        return {}
    fields = dict(kind.__annotations__)
    return {} if all(_is_static(annotation) for annotation in fields.values()) else fields


def _is_static(annotation: Any) -> bool:
    return not any(_is_array(kind) or _fields(_bare(kind)[0]) for kind in _alternatives(_bare(annotation)[0]))


def _relations(annotation: Any, value: Any) -> Iterable[Relation]:
    yield from (note for note in _bare(annotation)[1] if isinstance(note, Relation))
    if hasattr(type(value), "__relation__"):
        yield type(value).__relation__


def _valued(annotation: Any) -> list[Range | UpTo]:
    """What an annotation says of values that a trace does not show."""
    return [] if _is_static(annotation) else [n for n in _bare(annotation)[1] if isinstance(n, (Range, UpTo))]


# Checking a value.


def _check_value(name: str, value: Any, note: Range | UpTo, arguments: dict, annotations: dict) -> None:
    values = np.asarray(value)
    if values.dtype.kind in "OSU":
        raise TypeError(f"{name}: expected a number, got {_described(value)}")
    if isinstance(note, Range):
        if not np.all(note.holds(values)):
            raise ValueError(f"{name}: expected {note.says}, got {value}")
        return
    of = next(other for other, a in annotations.items() if _ends_with(a, note.axis))
    l = np.shape(arguments[of])[-1:]
    if l and isinstance(l[0], int) and (np.any(values < 0) or np.any(values > l[0])):
        raise ValueError(f"{name}: expected at least 0 and at most {note.axis} = {l[0]} tokens, got {value}")


def _ends_with(annotation: Any, axis: str) -> bool:
    return any(_is_array(kind) and kind.dim_str.split()[-1:] == [axis] for kind in _alternatives(_bare(annotation)[0]))


_KINDS: dict[str, Any] = {
    "floating-point numbers": jnp.floating,
    "integers": jnp.integer,
    "booleans": jnp.bool_,
    "a typed key": jax.dtypes.prng_key,
}
_HINTS = {
    "floating-point numbers": "tokens are columns, weights are [d_out, d_in], and a batch is [d, *batch, l]",
    "booleans": "rows are context tokens, columns the tokens that attend to them",
}


def _kind_of(declared: Any) -> str:
    first = str(declared.dtypes[0])
    words = {
        "float": "floating-point numbers",
        "bfloat": "floating-point numbers",
        "bool": "booleans",
        "prng": "a typed key",
    }
    return next((kind for prefix, kind in words.items() if first.startswith(prefix)), "integers")


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__ if hasattr(value, "_fields") else f"{type(value).__name__} {value!r}"[:80]


def check_key(name: str, key: Any) -> None:
    """Check that an argument is a typed key, or several.

    Raises:
        TypeError: if it is not.
    """
    if not (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"{name}: expected a typed key, jax.random.key(seed), got {_described(key)}")


class _Sizes:
    """The sizes of the named axes met so far, and where each was first seen; ``*batch`` is a tuple of sizes."""

    def __init__(self, stack: tuple[str, ...] = ()) -> None:
        self.size: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        self.stack = stack

    def bind(self, axis: str, size: Any, origin: str) -> None:
        self.size.setdefault(axis, size)
        self.origin.setdefault(axis, origin)

    def check(self, name: str, value: Any, annotation: Any) -> None:
        """Check one argument, or one field of one."""
        bare, notes = _bare(annotation)
        kinds = _alternatives(bare)
        if value is None and type(None) in kinds:
            return
        for kind in map(_bare, kinds):
            if _fields(kind[0]) and isinstance(value, kind[0]):
                self._check_fields(name, value, kind[0], [n for n in (*notes, *kind[1]) if isinstance(n, str)])
                return
        arrays = [kind for kind in kinds if _is_array(kind)]
        if arrays:
            if not _is_plain_number(value, kinds):
                self._check_array(name, value, arrays[0], _words_for(kinds))
        else:
            kind, inner_notes = _bare(kinds[0])
            _check_static(name, value, kind, (*notes, *inner_notes))

    def _check_array(self, name: str, value: Any, declared: Any, instead: str) -> None:
        kind, axes = _kind_of(declared), self._axes(declared)
        shown = f"[{', '.join(a.replace('#', '') for a in axes)}]"
        if kind == "a typed key":
            check_key(name, value)
        elif not (hasattr(value, "shape") and hasattr(value, "dtype")):
            hint = "" if instead else "; make it an array with jnp.asarray"
            raise TypeError(f"{name}: expected {instead}{kind} {shown}, got {_described(value)}{hint}")
        elif not jnp.issubdtype(value.dtype, _KINDS[kind]):
            raise TypeError(f"{name}: expected {instead}{kind} {shown}, got {_described(value)}")
        found = self._matched(axes, value.shape)
        if found is None:
            named = dict.fromkeys(factor.replace("#", "") for axis in axes for factor in axis.lstrip("*").split("*"))
            known = [a if a in self.size else f"*{a}" for a in named]
            known = [f"{a.lstrip('*')} = {_shown(self.size[a])} from {self.origin[a]}" for a in known if a in self.size]
            told = f" with {', '.join(known)}" if known else ""
            hint = f"; {self._hint(kind)}" if kind in (*_HINTS, "a typed key") else ""
            raise ValueError(f"{name}: expected {kind} {shown}{told}, got {_described(value)}{hint}")
        for axis, size in found.items():
            self.bind(axis, size, name)
        is_sequence = kind == "integers" and axes and axes[-1].startswith("l") and self.origin.get(axes[-1]) == name
        if is_sequence and value.shape[-1] == 0:
            raise ValueError(f"{name}: expected at least one token, got {_described(value)}; begin with bos_token")

    def _hint(self, kind: str) -> str:
        if kind != "a typed key":
            return _HINTS[kind]
        batch = self.size.get("*batch")
        shape = batch[0] if batch and len(batch) == 1 else batch
        return f"give one for each sequence: jax.random.split(key, {shape})" if batch else "give a single one"

    def _axes(self, declared: Any) -> list[str]:
        """The names of an array's axes, those of the stack filled in; ``*stack_kv`` has H_kv for its H."""
        shared = tuple("H_kv" if axis == "H" else axis for axis in self.stack)
        stacks = {"*stack": self.stack, "*stack_kv": shared}
        return [a for axis in declared.dim_str.split() for a in stacks.get(axis, (axis,))]

    def _matched(self, axes: list[str], shape: tuple[Any, ...]) -> dict[str, Any] | None:
        """The sizes that a shape gives to axes, or None where it contradicts them or those known before."""
        at = next((i for i, axis in enumerate(axes) if "batch" in axis), None)
        named = axes if at is None else [*axes[:at], *axes[at + 1 :]]
        n = len(shape) - len(named)
        if n < 0 or (n and at is None):
            return None
        found: dict[str, Any] = {}
        if at is not None:
            batch, shape = shape[at : at + n], (*shape[:at], *shape[at + n :])
            left_out = "#" in axes[at] and not n
            if not left_out and self.size.get("*batch", batch) != batch:
                return None
            found = {} if left_out else {"*batch": batch}
        for axis, size in zip(named, shape, strict=True):
            known = {**self.size, **found}
            factors = axis.split("*")
            if all(f in known for f in factors) and math.prod(known[f] for f in factors) != size:
                return None
            if "*" not in axis:
                found[axis] = size
        return found

    def _check_fields(self, name: str, value: Any, kind: Any, notes: list[str]) -> None:
        words = [word for note in notes for word in note.split()]
        renamed = dict(word.split("=") for word in words if "=" in word)
        stack = (*self.stack, *(word for word in words if "=" not in word))
        inner = _Sizes(stack)
        if not renamed:  # one scope with what is around it
            inner.size, inner.origin = self.size, self.origin
        for theirs, ours in [*renamed.items(), *((a, a) for a in stack)]:
            if ours in self.size:
                inner.bind(theirs, self.size[ours], self.origin[ours])
        for field, annotation in _fields(kind).items():
            inner.check(f"{name}.{field}", getattr(value, field), annotation)
        for axis in inner.size.keys() & set(stack):
            self.bind(axis, inner.size[axis], inner.origin[axis])

    def check_lengths(self) -> None:
        """Check that no sequence is longer than the positions allow."""
        longest = self.size.get("l_max")
        for axis in ("l", "l_x", "l_z"):
            l = self.size.get(axis)
            if isinstance(longest, int) and isinstance(l, int) and l > longest:
                raise ValueError(
                    f"{self.origin[axis]}: expected at most l_max = {longest} tokens, got {l}; cut it into chunks, "
                    "or make the parameters with a larger l_max"
                )


def _shown(size: Any) -> Any:
    return list(size) if isinstance(size, tuple) else size


def _is_plain_number(value: Any, kinds: tuple[Any, ...]) -> bool:
    allowed = tuple(kind for kind in kinds if kind in (int, float))
    allowed = (*allowed, int) if float in allowed else allowed
    return bool(allowed) and isinstance(value, allowed) and not isinstance(value, bool)


def _words_for(kinds: Iterable[Any]) -> str:
    """How a message begins to say what was expected, where that may be something else than an array."""
    classes = (_bare(kind)[0] for kind in kinds if _fields(_bare(kind)[0]))
    return "".join(f"{getattr(kind, '__expected__', kind.__name__)}, or " for kind in classes)


def _check_static(name: str, value: Any, kind: Any, notes: tuple[Any, ...]) -> None:
    """Check an argument that is compiled in, or one of a class of parameters that it is not an instance of."""
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            choices = ", ".join(map(repr, typing.get_args(kind)))
            raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
        return
    numbers = {int: (int, np.integer), float: (int, float, np.number)}.get(kind, kind)
    if not isinstance(value, numbers) or (isinstance(value, bool) and kind is not bool):
        article = {int: "an integer", float: "a number"}.get(kind) or getattr(kind, "__expected__", kind.__name__)
        raise TypeError(f"{name}: expected {article}, got {_described(value)}")
    for note in notes:
        if isinstance(note, Range) and not note.holds(value):
            raise ValueError(f"{name}: expected {note.says}, got {value}")

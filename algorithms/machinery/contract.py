"""The contract of a public function is its signature: what is compiled in, what is checked, and what the errors say.

======================================  ======================================================================
an annotation                           means
======================================  ======================================================================
``Float[Array, "d_x *batch l_x"]``      kind and shape; axes with the same name have the same size, and that
                                        of H_kv divides that of H
``Integer[Array, "*#batch l"]``         the batch axes may be left out
``DTransformerParams``                  parameters; their method ``__shapes__`` has the `Shape` of each array, and
                                        the ``sizes`` of their variant, if they have one, are known sizes of axes
``Annotated[AttentionParams, shapes]``  parameters of these shapes
``StructuralMask``                      another pytree, each field checked against its own annotation
``Literal["auto", "paper"]``            a choice
``Annotated[float, Range(…)]``          allowed values, checked if they are concrete
``Annotated[int, UpTo("l")]``           one or several numbers of tokens, at most the size of the axis l
``Annotated[Any, A, B]``                A or B, hidden from type checkers
``**options: Unpack[Options]``          options by name, the fields of a record that several functions share
``Annotated[bool, Default(False)]``     of such a field: an option of all functions called, and its default
no array anywhere                       a static argument
======================================  ======================================================================

A class may define ``__expected__``, its description in messages, and ``__internal__``, so that `help` leaves out
arguments of this class. Everything except the values of arrays is checked when a function is traced, so compiled calls
pay nothing for it. Relations between arguments are in `algorithms.relations`.
"""

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from algorithms.machinery.devices import explicit_mesh, spec_of, with_auto_axes
from algorithms.machinery.naming import numbered
from algorithms.machinery.options import inside, using
from algorithms.machinery.record import Allowed, Range, alternatives, as_number, refusal, words_for

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class UpTo(NamedTuple):
    """At least 0, and at most the number of tokens of the sequences with this axis."""

    axis: str


class Default(NamedTuple):
    """The default of an option of `machinery.options`."""

    value: Any


Role = Literal["matrix", "embedding", "unembedding", "kernel", "vector"]
"""The role of an array of parameters for initializers, optimizers and adapters: a matrix ``[d_out, d_in]``, perhaps of
each head, expert or layer; the columns that tokens or positions look up; the rows of the logits of tokens or classes; a
convolution's kernel; or anything else, such as a bias."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of a parameter: the names of its axes, as in ``"H d_attn d_e"``; ``H*d_mid`` is a product."""

    axes: str
    start: float = 0.0  # initial value of a vector's entries; others are drawn
    deviation: float | None = None  # the standard deviation of initial entries that are normal around ``start``
    may_lack: bool = False  # whether parameters may have None instead, which initializers do not make
    role: Role | None = None  # None: ``"matrix"`` if the name begins with W_, else ``"vector"``

    def of(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for these sizes."""
        return tuple(math.prod(sizes[factor] for factor in axis.split("*")) for axis in self.axes.split())

    def role_of(self, name: str) -> Role:
        """The role of a parameter with this name and shape."""
        return self.role or ("matrix" if name.startswith("W_") else "vector")


def array(
    axes: str,
    given: Any = True,
    *,
    start: float = 0.0,
    deviation: float | None = None,
    may_lack: bool = False,
    role: Role | None = None,
) -> Any:
    """The `Shape` of a parameter, or None if it is not given."""
    return Shape(axes, start, deviation, may_lack, role) if given else None


def arrays_of(kind: Any, **roles: Role) -> Any:
    """The shapes of a NamedTuple's arrays by their annotations; other fields are None."""
    kinds = kind.__annotations__.items()
    return kind(**{name: array(of.dim_str, role=roles.get(name)) if is_array(of) else None for name, of in kinds})


def is_array(kind: Any) -> bool:
    """Whether a type is one of jaxtyping's arrays."""
    return hasattr(kind, "dim_str")


class _Kinds(NamedTuple):
    """The types that an annotation allows, by what is checked of them."""

    trees: tuple[Allowed, ...] = ()
    arrays: tuple[Any, ...] = ()
    numbers: tuple[type, ...] = ()  # in place of arrays; that of None, too, and with float that of integers

    @property
    def is_static(self) -> bool:
        """Whether the argument holds no array and is therefore compiled in."""
        return not (self.trees or self.arrays)


@functools.cache
def _kinds(annotation: Any) -> _Kinds:
    kinds = alternatives(annotation)
    trees = tuple(kind for kind in kinds if hasattr(kind.type, "__shapes__") or _fields_of(kind.type))
    numbers = {kind.type for kind in kinds} & {int, float, type(None)}
    numbers |= {int} if float in numbers else set()
    return _Kinds(trees, tuple(kind.type for kind in kinds if is_array(kind.type)), tuple(numbers))


@functools.cache
def _fields_of(kind: Any) -> dict[str, Any]:
    fields = kind.__annotations__ if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind) else {}
    return {} if all(_kinds(field).is_static for field in fields.values()) else dict(fields)


def described(value: Any) -> str:
    """A value in a message: an array by dtype and shape, a pytree of arrays by its type, anything else in full."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    holds_arrays = any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(value))
    return type(value).__name__ if holds_arrays else f"{type(value).__name__} {value!r}"[:80]


def has_dtype(value: Any, dtype: Any) -> bool:
    """Whether a value is an array of JAX or NumPy, of this dtype."""
    try:
        return hasattr(value, "shape") and hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, dtype))
    except TypeError:  # a dtype of another library
        return False


def check_key(name: str, key: Any) -> None:
    """Check that an argument is a typed key or an array of them. Raises TypeError if it is not."""
    if not (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"{name}: expected a typed key, jax.random.key(seed), got {described(key)}")


def check_value(name: str, value: Any, allowed: Range) -> None:
    """Check the values of an argument, if they are concrete and on a CPU.

    Nothing is copied from an accelerator: pass ``jax.device_get(array)`` to have such values checked. Raises TypeError
    if the value is not a number, ValueError if it is out of range.
    """
    if isinstance(value, Array) and not _on_a_cpu(value):
        return
    values = np.asarray(value)
    if values.dtype.kind in "OSU":
        raise TypeError(f"{name}: expected a number, got {described(value)}")
    if not np.all(allowed.holds(values)):
        raise ValueError(f"{name}: expected {allowed.says}, got {value}")


def _on_a_cpu(array: Any) -> bool:
    """Whether an array can be read without a copy: one that is traced, or of other processes, cannot."""
    if isinstance(array, Tracer) or not array.is_fully_addressable:
        return False
    return all(device.platform == "cpu" for device in array.devices())


KINDS: dict[str, tuple[str, Any, str]] = {
    "Float": (
        "floating-point numbers",
        jnp.floating,
        "; tokens are columns, weights are [d_out, d_in], and a batch is [d, *batch, l]",
    ),
    "Integer": ("integers", jnp.integer, ""),
    "Bool": ("booleans", jnp.bool_, "; rows are context tokens, columns the tokens that attend to them"),
    "Key": ("a typed key", jax.dtypes.prng_key, "; give a single one"),
}
"""jaxtyping's name of a kind of array → its description in error messages, its dtypes, and a hint about its shape."""


@dataclasses.dataclass
class Axes:
    """The sizes of the named axes seen so far, and the argument that gave each; that of ``*batch`` is a tuple."""

    size: dict[str, Any] = dataclasses.field(default_factory=dict)
    origin: dict[str, str] = dataclasses.field(default_factory=dict)

    def check(self, name: str, value: Any, annotation: Any) -> None:
        """Check an argument, or a field of one, that may hold arrays.

        Raises TypeError if the value is of another kind, ValueError if its shape or its value is not allowed.
        """
        kinds = _kinds(annotation)
        for tree in kinds.trees:
            if isinstance(value, tree.type):
                self._check_tree(name, value, tree)
                return
        if not kinds.arrays:
            refused = refusal(as_number(value), annotation)
            if refused is not None:
                got = described(value) if refused[0] is TypeError else repr(value)
                raise refused[0](f"{name}: expected {refused[1]}, got {got}")
        elif isinstance(value, bool) or not isinstance(value, kinds.numbers):
            of = kinds.arrays[0]
            if len(kinds.arrays) > 1:
                of = next(filter(functools.partial(_may_be, value), kinds.arrays), of)
            self._check_array(name, value, of.dtype.__name__, of.dim_str, kinds)

    def _check_tree(self, name: str, value: Any, tree: Allowed) -> None:
        if not hasattr(value, "__shapes__"):
            for field, of_field in _fields_of(tree.type).items():
                if getattr(value, field) is not getattr(type(value), field, None):  # a default
                    self.check(f"{name}.{field}", getattr(value, field), of_field)
            return
        (shapes,), variant = tree.notes or (value.__shapes__(),), getattr(value, "variant", None)
        sizes = {} if variant is None else variant.sizes
        self.size, self.origin = self.size | sizes, self.origin | dict.fromkeys(sizes, "the variant")
        self._check_parameters(name, value, shapes, variant)

    def _check_parameters(self, name: str, value: Any, shapes: Any, variant: Any) -> None:
        """Check parameters against their `Shape`. Without a variant, extra ones are allowed, and biases may be None."""
        may_lack = variant is None and name.rpartition(".")[2].startswith("b_")
        if (value is None and (may_lack or getattr(shapes, "may_lack", False))) or (shapes is None and variant is None):
            return
        if variant is not None and (value is None) != (shapes is None):
            kind, axes = type(shapes).__name__, getattr(shapes, "axes", "")
            array = f"an array [{', '.join(axes.split())}]" if isinstance(shapes, Shape) else kind
            expected, found = (array, "None") if value is None else ("None", "parameters")
            raise ValueError(f"{name}: expected {expected} in {variant!r}, got {found}; {MADE_FOR_ANOTHER}")
        if isinstance(shapes, Shape):
            self._check_array(name, value, "Float", shapes.axes, _Kinds())
        elif tuple in (type(shapes), type(value)):
            expected, found = (str(len(a)) if type(a) is tuple else "one" for a in (shapes, value))
            if expected != found:
                raise ValueError(
                    f"{name}: expected {expected} of the stacks that layers with equal parameters form in {variant!r}, "
                    f"got {found}; {MADE_FOR_ANOTHER}"
                )
            for i, of_stack in enumerate(shapes or ()):
                self._check_parameters(f"{name}[{i}]", (value or ())[i], of_stack, variant)
        elif not isinstance(value, type(shapes)):
            raise TypeError(f"{name}: expected {type(shapes).__name__}, got {described(value)}")
        else:
            for field in getattr(shapes, "_fields", ()):
                self._check_parameters(f"{name}.{field}", getattr(value, field), getattr(shapes, field), variant)

    def _check_array(self, name: str, value: Any, of: str, dims: str, kinds: _Kinds) -> None:
        """Check an array; ``kinds`` are all that the annotation allows."""
        (_, dtype, hint), axes = KINDS[of], dims.split()
        if of == "Key":
            check_key(name, value)
        elif not has_dtype(value, dtype):
            instead = "".join(f"{words_for(kind.type)}, or " for kind in kinds.trees)
            words = [_words_for_array(kind.dtype.__name__, kind.dim_str) for kind in kinds.arrays]
            expected = _words_for_array(of, dims)
            others = "".join(f" or {other}" for other in words if other != expected)
            is_other = hasattr(value, "dtype") and not has_dtype(value, np.generic)
            is_list = type(value) in (list, tuple) and not instead
            hint = "; make it an array with jnp.asarray" if is_other or is_list else ""
            if hasattr(value, "__shapes__"):
                hint = "; give the arguments in their order, or by name"
            raise TypeError(f"{name}: expected {instead}{expected}{others}, got {described(value)}{hint}")
        found = self._sizes_in(axes, value.shape)
        if found is None:
            batch = self.size.get("*batch")
            if of == "Key" and batch:
                hint = f"; give one for each sequence: jax.random.split(key, {batch if batch[1:] else batch[0]})"
            if any(self.origin.get(factor) == "the variant" for axis in axes for factor in axis.split("*")):
                hint = f"; {MADE_FOR_ANOTHER}"
            expected = f"{_words_for_array(of, dims)}{self._known(axes)}"
            raise ValueError(f"{name}: expected {expected}, got {described(value)}{hint}")
        self.size = found | self.size
        self.origin = dict.fromkeys(found, name) | self.origin
        is_sequence = of == "Integer" and axes and axes[-1].startswith("l") and self.origin.get(axes[-1]) == name
        if is_sequence and value.shape[-1] == 0:
            raise ValueError(f"{name}: expected at least one token, got {described(value)}; begin with bos_token")

    def _sizes_in(self, axes: list[str], shape: tuple[Any, ...]) -> dict[str, Any] | None:
        """The size of each axis by this shape, or None if the shape contradicts the axes or a known size."""
        sizes = _by_name(axes, shape)
        if sizes is None:
            return None
        batch = sizes.pop("*batch", None)
        found: dict[str, Any] = {} if batch is None else {"*batch": batch}
        if batch is not None and self.size.get("*batch", batch) != batch:
            return None
        for axis, size in sizes.items():
            known, factors = self.size | found, axis.split("*")
            whole = known.get("H") if axis == "H_kv" else None
            if known.keys() >= set(factors):
                if math.prod(map(known.__getitem__, factors)) != size:
                    return None
            elif isinstance(size, int) and isinstance(whole, int) and (size == 0 or whole % size):
                return None
            if factors == [axis]:
                found[axis] = size
        return found

    def _known(self, axes: list[str]) -> str:
        """The known sizes of these axes and the arguments that gave them, for an error message."""
        found = []
        for name in dict.fromkeys(factor for axis in axes for factor in axis.replace("#", "").lstrip("*").split("*")):
            axis = f"*{name}" if f"*{name}" in self.size else name
            if axis in self.size:
                size = self.size[axis]
                found.append(f"{name} = {list(size) if isinstance(size, tuple) else size} from {self.origin[axis]}")
            elif name == "H_kv" and "H" in self.size:
                found.append(f"H_kv a divisor of H = {self.size['H']} from {self.origin['H']}")
        return f" with {', '.join(found)}" if found else ""


MADE_FOR_ANOTHER = "use the variant that these parameters were made for"


def _by_name(axes: list[str], values: tuple[Any, ...]) -> dict[str, Any] | None:
    """The value, of those of an array's axes, that belongs to each name; to ``*batch``, if it is there, a tuple.

    None if the array has fewer axes than names, or too many.
    """
    at = len(axes)
    for i, axis in enumerate(axes):
        at = i if "batch" in axis else at
    n = len(values) - len(axes) + (at < len(axes))
    if n < 0 or (n and at == len(axes)):
        return None
    batch = {"*batch": values[at : at + n]} if axes[at:] and (n or "#" not in axes[at]) else {}
    others = zip([*axes[:at], *axes[at + 1 :]], (*values[:at], *values[at + n :]), strict=True)
    return {**batch, **dict(others)}


def _spec_by_name(axes: list[str], n: int, known: dict[str, Any]) -> PartitionSpec:
    """The sharding of an array of n axes with these names; what "..." stands for ends with the axes of the batch."""
    spec: list[Any] = []
    for name in axes:
        of_name = known.get("*batch" if "batch" in name or name == "..." else name)
        entries = list(of_name or ()) if "batch" in name or name == "..." else [of_name]
        if name == "...":
            entries = [None] * (n - len(axes) + 1 - len(entries)) + entries
        spec += entries
    return PartitionSpec(*spec)


def _words_for_array(of: str, dims: str) -> str:
    return f"{KINDS[of][0]} [{', '.join(axis.replace('#', '') for axis in dims.split())}]"


def _may_be(array: Any, kind: Any) -> bool:
    axes = kind.dim_str.split()
    return has_dtype(array, KINDS[kind.dtype.__name__][1]) and array.ndim >= len(axes) - ("batch" in kind.dim_str)


RELATIONS: list[tuple[tuple[str, ...], tuple[str, ...], Callable[..., None]]] = []
"""Names of functions, or none for all, names of arguments, and a check of these."""


def relation(*functions: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Check the arguments of these names in the functions, or in each public function that has all of them."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        arguments = inspect.signature(check).parameters.values()
        RELATIONS.append((functions, tuple(p.name for p in arguments if p.kind is not p.KEYWORD_ONLY), check))
        return check

    return register


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """A function's signature; the fields of the record of its ``**options`` are the first of its options."""
    signature, by_name = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
    arguments = list(signature.parameters.values())
    if arguments[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    (record,) = typing.get_args(arguments.pop().annotation)
    at = next((i for i, p in enumerate(arguments) if p.kind is by_name), len(arguments))
    for name, annotation in reversed(record.__annotations__.items()):
        default = _default(annotation).value
        arguments.insert(at, inspect.Parameter(name, by_name, default=default, annotation=annotation))
    return signature.replace(parameters=arguments)


def _default(annotation: Any) -> Any:
    """The default of an option, by its annotation; None if it is not an option."""
    notes = (note for kind in alternatives(annotation) for note in kind.notes)
    return next((note for note in notes if isinstance(note, Default)), None)


def takes_what(other: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """``@takes_what(f)``: the signature of a function that passes its arguments on to the public function f."""

    def declare(function: Any) -> Any:
        returns = inspect.signature(function).return_annotation
        function.__signature__ = signature_of(plain(other)).replace(return_annotation=returns)
        return function

    return declare


class Contract:
    """A function's signature as a contract.

    Attributes:
        static: names of static arguments.
        options: names and defaults of the options that apply to all functions it calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name, self.signature = function.__name__, signature_of(function)
        self.annotations = {name: p.annotation for name, p in self.signature.parameters.items()}
        self.defaults = {name: p.default for name, p in self.signature.parameters.items()}
        self.static = tuple(name for name, annotation in self.annotations.items() if _kinds(annotation).is_static)
        defaults = {name: _default(annotation) for name, annotation in self.annotations.items()}
        options = {name: default.value for name, default in defaults.items() if default is not None}
        self.options = options or {"implementation": "paper"}
        parameters = self.signature.parameters.values()
        self._in_order = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        kinds = [(name, k) for name, a in self.annotations.items() if name not in self.static for k in alternatives(a)]
        self._ends = [(name, kind.type.dim_str.split()[-1:]) for name, kind in kinds if is_array(kind.type)]
        limits = [(name, n) for name, kind in kinds for n in kind.notes if isinstance(n, (Range, UpTo))]
        self._limits = list(dict.fromkeys(limits))

    def bound(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The value of each argument. Raises TypeError if they do not match the signature."""
        in_order = self._in_order
        if len(args) > len(in_order):
            by_name = ", ".join(f"{name}=" for name in self.annotations if name not in in_order)
            raise TypeError(
                f"{self.name}: expected {len(in_order)} arguments without names ({', '.join(in_order)}), got "
                f"{len(args)}; give the others by name: {by_name}"
            )
        try:
            found = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        found.apply_defaults()
        return found.arguments

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Check the arguments, except the values of arrays.

        Raises TypeError if an argument is of another kind, ValueError if a shape or a value is not allowed.
        """
        arguments, axes, given = self.bound(args, kwargs), Axes(), set()
        for name in dict.fromkeys((*self.static, *arguments)):
            if arguments[name] is not self.defaults[name]:  # these are allowed
                given.add(name)
                axes.check(name, arguments[name], self.annotations[name])
        for functions, names, relate in RELATIONS:
            applies = arguments.keys() >= set(names) and self.name in (functions or (self.name,))
            if applies and not given.isdisjoint(names):
                relate(*map(arguments.get, names))

    def check_values(self, *args: Any, **kwargs: Any) -> None:
        """Check the values of arrays on a CPU; the errors are those of `check`."""
        arguments = self.bound(args, kwargs) if self._limits else {}
        for name, limit in self._limits:
            if arguments[name] is not None and arguments[name] is not self.defaults[name]:
                allowed = limit if isinstance(limit, Range) else self._numbers_of_tokens(limit.axis, arguments)
                check_value(name, arguments[name], allowed)

    def specs(self, arguments: dict[str, Any], results: Any) -> Any:
        """The shardings of results: of parameters those of the argument, else those of the axes with the same names."""
        known: dict[str, Any] = {}
        for name, value in arguments.items():
            kind = next((kind for kind in _kinds(self.annotations[name]).arrays if _may_be(value, kind)), None)
            known = (_by_name(kind.dim_str.split(), spec_of(value)) or {} if kind else {}) | known

        def of_result(annotation, result):
            if typing.get_origin(annotation) is tuple:
                return tuple(map(of_result, typing.get_args(annotation), result))
            if is_array(annotation):
                return _spec_by_name(annotation.dim_str.split(), result.ndim, known)
            of_argument = next(value for value in arguments.values() if isinstance(value, annotation))
            return jax.tree.map(lambda array: PartitionSpec(*spec_of(array)), of_argument)

        return of_result(self.signature.return_annotation, results)

    def _numbers_of_tokens(self, axis: str, arguments: dict[str, Any]) -> Range:
        sequence = next(name for name, end in self._ends if end == [axis])
        l = (math.inf, *getattr(arguments[sequence], "shape", ()))[-1]
        l = l if isinstance(l, int) else math.inf  # a symbolic size, or of an argument that is refused later
        return Range(f"at least 0 and at most {axis} = {l} tokens", lambda n: (n >= 0) & (n <= l))


def _on_auto_axes(function: Callable[..., Any], contract: Contract, mesh: Any, arguments: dict[str, Any]) -> Any:
    """``function(**arguments)`` on a mesh with Explicit axes, its results sharded as `Contract.specs` says."""
    static = {name: arguments.pop(name) for name in contract.static}

    def of_arrays(arrays):
        return function(**arrays, **static)

    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        shapes = jax.eval_shape(of_arrays, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments))
    return with_auto_axes(of_arrays, arguments, mesh, contract.specs(arguments, shapes))


@runtime_checkable
class Public(Protocol[P, R_co]):
    """A public function, called as its signature says. The rest is that of ``jax.jit``."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...  # noqa: D102
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered: ...  # noqa: D102
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced: ...  # noqa: D102
    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...  # noqa: D102
    def clear_cache(self) -> None: ...  # noqa: D102


def compiled(function: Callable[P, R_co]) -> Public[P, R_co]:
    """Make a function public: check its arguments against its signature, name its lines, and compile it.

    Called from the body of another public function, it runs as the plain function, without checks or compilation.
    """
    contract, named = Contract(function), numbered(function)

    @functools.wraps(named)
    def run(*args, **kwargs):
        names = contract.options.keys() & kwargs.keys()
        if inside.get() and not names:
            return named(*args, **kwargs)
        given = dict(zip(names, map(kwargs.pop, names), strict=True))
        with using(**given if inside.get() else contract.options | given):
            return named(*args, **kwargs)

    @functools.wraps(run)
    def checked(*args, **kwargs):
        contract.check(*args, **kwargs)
        mesh = explicit_mesh((args, kwargs))
        if mesh is None:
            return run(*args, **kwargs)
        return _on_auto_axes(run, contract, mesh, contract.bound(args, kwargs))

    jitted: Any = jax.jit(checked, static_argnames=contract.static)

    @functools.wraps(run)
    def public(*args, **kwargs):
        if inside.get():
            return run(*args, **kwargs)
        kwargs = {name: as_number(v) if name in contract.static else v for name, v in kwargs.items()}
        contract.check_values(*args, **kwargs)
        try:
            return jitted(*args, **kwargs)
        except (TypeError, ValueError):
            # inside jax.jit all values are tracers: check again, so that the message shows the caller's values
            try:
                contract.check(*args, **kwargs)
            except (TypeError, ValueError) as problem:
                raise problem from None
            raise

    for method in ("lower", "trace", "eval_shape", "clear_cache", "_cache_size"):
        setattr(public, method, getattr(jitted, method))
    shown: Any = public
    shown.__signature__ = _readable(contract.signature)
    return shown


def plain(function: Any) -> Callable[..., Any]:
    """A public function without checks and compilation, for programs around it that have their own."""
    return function.__wrapped__


class Algorithm(NamedTuple):
    """An entry of the registry."""

    number: int  # its number in the paper
    name: str  # its name in the paper
    function: Callable[..., Any]  # the public, compiled function
    lines: Callable[..., Any]  # the plain function, whose body has the ``# line n`` tags


REGISTRY: dict[int, Algorithm] = {}
"""Number of an algorithm → its entry; filled by ``@algorithm``."""


def algorithm(number: int, name: str) -> Callable[[Callable[P, R_co]], Public[P, R_co]]:
    """Make one of the fifteen algorithms public, and register it under the paper's number and name."""

    def register(lines: Callable[P, R_co]) -> Public[P, R_co]:
        function = compiled(lines)
        REGISTRY[number] = Algorithm(number, name, function, lines)
        return function

    return register


class _Shown(str):
    __repr__ = str.__str__


def _readable(signature: inspect.Signature) -> inspect.Signature:
    """A signature whose annotations are the types alone, without modules and notes, and without internal arguments."""

    def of_type(kind):
        if is_array(kind):
            return f"{kind.dtype.__name__}[{kind.dim_str}]"
        if typing.get_origin(kind) is tuple:
            return f"tuple[{', '.join(map(shown, typing.get_args(kind)))}]"
        return (
            "None" if kind is type(None) else kind.__name__ if isinstance(kind, type) else str(kind)[len("typing.") :]
        )

    def shown(annotation):
        return _Shown(" | ".join(of_type(kind.type) for kind in alternatives(annotation)))

    parameters = [
        p.replace(annotation=shown(p.annotation))
        for p in signature.parameters.values()
        if not hasattr(p.annotation, "__internal__")
    ]
    return signature.replace(parameters=parameters, return_annotation=shown(signature.return_annotation))

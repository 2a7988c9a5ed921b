"""The base class of the lines of a variant, ours and custom ones: attentions, MLPs and norms."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ClassVar

from algorithms.machinery.naming import is_tagged, numbered
from algorithms.machinery.record import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line(Record):
    """A line of Algorithms 8 to 10: its parameters, and its formula, whose tagged statements have names for `record`.

    A custom line is a frozen, keyword-only dataclass in a module that can be imported, a subclass of `Attention`,
    `Mixer`, `MLP` or `LayerNorm`. Its parameters are any NamedTuple of arrays and of other such tuples.
    ``docs/research.md`` has examples.

    Raises:
        TypeError: where a class is defined that has one of the methods in ``final``, or no ``shapes``.
    """

    divided: ClassVar[tuple[str, ...]] = ()
    """Its custom axes that the mesh axis ``model`` divides, such as an axis of experts."""

    heads: ClassVar[tuple[str, ...]] = ()
    """Its custom axes of heads, whose rows optimizers of matrices join."""

    loops: ClassVar[str] = ""
    """``PACKAGE.MODULE:NAME`` of its formula as NumPy loops, for the cross-check. The function gets the line, X, Z, the
    parameters of one layer and the mask of one sequence; for an MLP, the line, X and the parameters."""

    final: ClassVar[tuple[str, ...]] = ()
    """Methods that subclasses must not override, since cached generation would not call them."""

    shapes: ClassVar[Callable[..., Any]]
    """The shapes of its parameters: a NamedTuple of what `array` returns, or None for what it does not have."""

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        if not abstract and not hasattr(cls, "shapes"):
            raise TypeError(f"{cls.__qualname__}.shapes: expected a method, got none; return its parameters' shapes")
        of = next(base for base in cls.__mro__ if "final" in vars(base))
        for name in of.final:
            if getattr(cls, name) is not getattr(of, name):
                methods = ", ".join(name for name in vars(of) if inspect.isfunction(vars(of)[name]) and name[0] != "_")
                others = ", ".join(name for name in methods.split(", ") if name not in of.final)
                raise TypeError(
                    f"{cls.__qualname__}.{name}: expected {of.__name__}'s own, since generation from a cache does not "
                    f"call another; put your formula into one or several of {others}"
                )
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not hasattr(method, "__wrapped__") and is_tagged(method):
                setattr(cls, name, numbered(method))

    def share_read(self, name: str) -> Fraction:
        """The share of the parameters in its field of this name that each token's column is multiplied by."""
        return Fraction(1)

    def sizes(self) -> Mapping[str, int]:
        """The sizes of its custom axes, by name."""
        return {}

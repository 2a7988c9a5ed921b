"""The cross-check of a model with custom lines: PACKAGE.MODULE:NAME of a decoder; an encoder with :e, both with :ed.

In the place of such a line, the oracle runs its author's NumPy loops, `Line.loops`, and the results of the lines of
Algorithm 8, 9 or 10 that have it are compared. Without loops, the oracle runs the code of the line itself, so that all other lines
are compared, and the line is left out and named.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.lines import Attention
from algorithms.machinery.options import using
from algorithms.model.mixer import MixerMetadata
from training.tasks.own_lines import modules_of, variant_named

from .algorithms import PSEUDOCODE
from .changes import ChangedLine, changed_lines, with_unchecked
from .models import family_parameters
from .variants import WITHOUT_ATTENTION, VariantScenarios

__all__ = ["OwnScenarios"]

FORMULAS = {"attention": "MHAttention", "mlp": "W_mlp"}
"""Parameters of an attention, or an MLP, in the printed formula."""
ARCHITECTURE = {"d": 10, "e": 9, "ed": 8}


def is_own(line: Any) -> bool:
    """Whether a line is of a custom class."""
    return line is not None and not type(line).__module__.startswith("algorithms.")


class OwnScenarios(VariantScenarios):
    """The runs of a model with custom lines; the arguments are those of `VariantScenarios`."""

    def __init__(self, package: ModuleType, name: str, **settings: Any):
        *path, last = name.split(":")
        is_said = len(path) == 2 and last in ARCHITECTURE
        self.path = ":".join(path) if is_said else name
        super().__init__(package, name, algorithm=ARCHITECTURE[last] if is_said else 10, **settings)
        lines = {"attention": self.variant.attentions, "mlp": self.variant.mlps}
        own = {name: tuple(filter(is_own, dict.fromkeys(every))) for name, every in lines.items()}
        self.own = {name: every for name, every in own.items() if every}
        self.hidden |= {type(line) for every in self.own.values() for line in every}
        if "attention" in self.own:
            self.called = WITHOUT_ATTENTION

    def _record(self, package: ModuleType) -> Any:
        return variant_named(self.path, modules_of(self.path))

    def _model(self) -> Any:
        """The variant with a function of arrays in the place of each custom line."""
        attentions = tuple(_for_oracle(line, _attention) for line in self.variant.attentions)
        mlps = tuple(_for_oracle(line, _mlp) for line in self.variant.mlps_in_turn)
        return with_unchecked(self.variant, attention=attentions, mlp=mlps)

    def _unstacked(self, theta: Any) -> Any:
        """The parameters as the oracle has them, and those of custom lines with their own names."""

        def is_whole(l: int, name: str) -> bool:
            of = name.rpartition("_")[2]
            return of in self.own and (of == "mlp" or is_own(self.variant.attention_of(l)))

        return family_parameters(theta, is_whole)

    def changed(self) -> dict[tuple[int, str], ChangedLine]:
        """The lines that the variant changes; custom ones have the first line of their documentation."""
        lines = {name: self.variant.attentions if name == "attention" else own for name, own in self.own.items()}
        kinds = {name: {_kind(line): line for line in every} for name, every in lines.items()}
        names = {name: " or ".join(of) for name, of in kinds.items()}
        found = changed_lines(self.variant, self.algorithm, self.sharing, names)
        for name, of in kinds.items():
            own = {kind: line for kind, line in of.items() if is_own(line)}
            says = tuple(f"{kind}: {(inspect.getdoc(type(a)) or '').partition(chr(10))[0]}" for kind, a in own.items())
            for key in ((self.algorithm, number) for number in self.numbers(name)):
                found[key] = dataclasses.replace(found[key], fields=(name,), notes=says)
        return found

    def numbers(self, name: str) -> list[str]:
        """The lines of the algorithm that have an attention, or an MLP."""
        return [line.number for line in PSEUDOCODE[self.algorithm].lines if FORMULAS[name] in line.text]

    def left_out(self) -> dict[str, list[tuple[int, str]]]:
        found: dict[str, list[tuple[int, str]]] = {}
        for name, line in ((name, line) for name, own in self.own.items() for line in own):
            kind, numbers, n = type(line).__name__, self.numbers(name), self.algorithm
            if not line.loops:
                of = " and ".join(f"line {number}" for number in numbers)
                found[f"{of} of Algorithm {n}, since {kind}.loops names no NumPy loops"] = [(n, i) for i in numbers]
            if name == "attention":
                found[f"Algorithms 4 and 5, in whose place {kind} has its own lines"] = []
        return found


def _kind(line: Any) -> str:
    return type(line).__name__ if is_own(line) else "MHAttention"


def _for_oracle(line: Any, run: Callable[..., Any]) -> Any:
    """A line as the oracle has it: a custom one is a function of arrays."""
    if not is_own(line):
        return line
    fields = {name: getattr(line, name, None) for name in ("normalize_output", "window", "activation")}
    return SimpleNamespace(own=functools.partial(run, line), **fields)


def _loops(line: Any) -> Any:
    module, _, name = line.loops.partition(":")
    return functools.partial(getattr(importlib.import_module(module), name), line)


def _attention(line: Any, X: Any, Z: Any, W: Any, mask: Any) -> np.ndarray:
    """An attention by its author's loops, or else by its own code; to a context, whose tokens have no distances."""
    line = line.but(positions=None, window=None) if Z is not X and isinstance(line, Attention) else line
    if line.loops:
        return _loops(line)(X, Z, W, mask)
    t = np.arange(X.shape[1])
    arrays = jnp.asarray(X), jax.tree.map(jnp.asarray, W), jnp.asarray(mask)
    with using(implementation="paper"):
        Y, _ = line.whole(*arrays, MixerMetadata(t), None if Z is X else jnp.asarray(Z))
    return np.asarray(Y)


def _mlp(line: Any, X: Any, W: Any) -> np.ndarray:
    """An MLP by its author's loops, or else by its own code."""
    if line.loops:
        return _loops(line)(X, W)
    f = line.activation or "gelu"
    with using(implementation="paper"):
        return np.asarray(line(jnp.asarray(X), jax.tree.map(jnp.asarray, W), activation=f))

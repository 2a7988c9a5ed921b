"""The cross-check of a decoder with lines of one's own, named PACKAGE.MODULE:NAME.

In the place of such a line, the oracle runs its author's NumPy loops, `Line.loops`, and the result of the line of
Algorithm 10 that has it is compared. Without loops, the oracle runs the code of the line itself, so that all other lines
are compared, and the line is left out and named.
"""

import dataclasses
import functools
import importlib
import inspect
import pathlib
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.lines import MLP, Attention, Experts, Latent
from algorithms.model.attention import Memory
from algorithms.model.distances import Table
from tests.family_cases import family_parameters, options_of
from training.tasks.own_lines import variant_named

from .algorithms import PSEUDOCODE
from .changes import ChangedLine, changed_lines
from .comparison import OracleCache, Results
from .variants import WITHOUT_ATTENTION, VariantScenarios, compare_variant

__all__ = ["OwnScenarios", "compare_own"]

LINES = {"attention": "6", "mlp": "8"}
"""The line of Algorithm 10 that has an attention, or an MLP."""


def is_own(line: Any) -> bool:
    """Whether a line is of a class of one's own."""
    return line is not None and type(line) not in (Attention, Latent, MLP, Experts)


class OwnScenarios(VariantScenarios):
    """The runs of a decoder with lines of one's own; the arguments are those of `VariantScenarios`."""

    def __init__(self, package: ModuleType, name: str, **settings: Any):
        super().__init__(package, name, **settings)
        self.own = {"attention": self.variant.attentions[0], "mlp": self.variant.mlp}
        self.own = {name: line for name, line in self.own.items() if is_own(line)}
        self.hidden = {type(line) for line in (*self.variant.attentions, self.variant.mlp) if is_own(line)}
        if "attention" in self.own:
            self.called = WITHOUT_ATTENTION

    def _record(self, package: ModuleType) -> Any:
        return variant_named(self.name)

    def _model(self) -> dict[str, Any]:
        variant, model = self.variant, options_of(self.variant, self.sizes.L)
        own = [functools.partial(_attention, line) if is_own(line) else None for line in variant.attentions]
        model["attention"] = [
            line if of is None else {**line, "own": of} for line, of in zip(model["attention"], own, strict=True)
        ]
        return model | ({"own_mlp": functools.partial(_mlp, variant.mlp)} if is_own(variant.mlp) else {})

    def _unstacked(self, theta: Any) -> Any:
        """The parameters as the oracle has them, and those of lines of one's own with their own names."""
        layers = theta.layers
        unstacked = family_parameters(theta._replace(layers=layers._replace(**dict.fromkeys(self.own))))
        for l, layer in enumerate(unstacked.layers):
            for name in self.own:
                own = jax.tree.map(lambda a, l=l: np.asarray(a[l], np.float64), getattr(layers, name))
                setattr(layer, name, own)
        return unstacked

    def changed(self) -> dict[tuple[int, str], ChangedLine]:
        """The lines that the variant changes; those of one's own have the first line of their documentation."""
        of_fields = changed_lines(self.variant, 10, self.sharing)
        return of_fields | {(10, LINES[name]): _changed(name, line) for name, line in self.own.items()}

    def left_out(self) -> list[str]:
        """What is not compared, in words."""
        found = []
        for name, line in self.own.items():
            kind, number = type(line).__name__, LINES[name]
            if not line.loops:
                found.append(f"line {number} of Algorithm 10, since {kind}.loops names no NumPy loops")
            if name == "attention":
                found.append(f"Algorithms 4 and 5, in whose place {kind} has its own lines")
        return found


def compare_own(scenarios: OwnScenarios, root: pathlib.Path, cache: OracleCache | None = None) -> Results:
    """Run a decoder with lines of one's own, and compare every line but those that it says are left out.

    `scenarios`: what to run; `root`: the root of the repository; `cache`: as in `compare_variant`.
    """
    results = compare_variant(scenarios, root, cache)
    for name, line in scenarios.own.items():
        if not line.loops:
            del results.lines[10, LINES[name]]
    results.settings["left_out"] = scenarios.left_out()
    return results


def _changed(name: str, line: Any) -> ChangedLine:
    kind = type(line).__name__
    printed = PSEUDOCODE[10].line(LINES[name])
    reads = "X̃ | 𝓦_l, Mask" if name == "attention" else "X̃ | 𝓦_l"
    latex = r"\tilde X \mid \mathcal{W}_l" + (r", \text{Mask}" if name == "attention" else "")
    text, as_latex = f"X ← X + {kind}({reads})", rf"X \leftarrow X + \text{{{kind}}}({latex})"
    says = (inspect.getdoc(type(line)) or "").split("\n")[0]
    return ChangedLine(dataclasses.replace(printed, text=text, latex=as_latex), (name,), (f"{kind}: {says}",), False)


def _loops(line: Any) -> Any:
    module, _, name = line.loops.partition(":")
    return functools.partial(getattr(importlib.import_module(module), name), line)


def _attention(line: Any, X: Any, Z: Any, W: Any, mask: Any) -> np.ndarray:
    """An attention by its author's loops, or else by its own code."""
    if line.loops:
        return _loops(line)(X, Z, W, mask)
    t = np.arange(X.shape[1])
    arrays = jnp.asarray(X), jnp.asarray(Z), jax.tree.map(jnp.asarray, W), jnp.asarray(mask)
    Y, _ = line(*arrays, Memory(), t_x=t, t_z=t, table=Table(), implementation="paper")
    return np.asarray(Y)


def _mlp(line: Any, X: Any, W: Any) -> np.ndarray:
    """An MLP by its author's loops, or else by its own code."""
    if line.loops:
        return _loops(line)(X, W)
    f = line.activation or "gelu"
    return np.asarray(line(jnp.asarray(X), jax.tree.map(jnp.asarray, W), f=f, implementation="paper"))

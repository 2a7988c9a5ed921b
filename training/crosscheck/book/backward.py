"""The backward rules that were derived by hand: derivation, code, and a check of each in this run."""

import ast
import dataclasses
import functools
import importlib
import inspect
import pathlib
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from training.crosscheck.values import difference

from .listing import CodeLine, listing, page_of


@dataclasses.dataclass(frozen=True)
class BackwardRule:
    """A backward rule that was derived by hand."""

    title: str  # the operation
    algorithms: tuple[int, ...]  # the algorithms that use it
    derivation: tuple[tuple[bool, str], ...]  # its paragraphs, each `(is a formula, text)`
    file: str  # the source file
    page: str  # the book's page of that file
    lines: tuple[CodeLine, ...]  # its code
    gradients: dict[str, float]  # for each input, the largest difference from the gradient that JAX derives


def backward_rules(package: ModuleType, root: pathlib.Path, seed: int) -> list[BackwardRule]:
    """Return all rules, each compared with JAX's own derivative of the lines as printed."""

    def operation(name: str) -> Any:
        return importlib.import_module(f"{package.__name__}.ops.{name}")

    def attention(Q: Any, K: Any, V: Any, implementation: str) -> Any:
        mask = package.UNIDIRECTIONAL
        return package.scaled_dot_product_attention(Q, K, V, mask, implementation=implementation)

    def norm(X: Any, gamma: Any, beta: Any, implementation: str) -> Any:
        return package.layer_norm(X, gamma, beta, implementation=implementation)

    def loss(X: Any, W_u: Any, implementation: str) -> Any:
        return package.log_loss(X, W_u, jnp.array([2, 0, 6, 2, 1]), implementation=implementation)

    def lookup(W: Any, implementation: str) -> Any:
        return operation("lookup").columns(W, implementation)[:, jnp.array([3, 1, 3, 0])]

    def activation(name: str) -> Callable[..., Any]:
        return lambda X, implementation: operation("activation").activate(name, X, implementation)

    rule = functools.partial(_checked, package, root, np.random.default_rng(seed))
    scores = {"Q": (3, 5), "K": (3, 7), "V": (2, 7)}
    affine = {"W": (3, 4), "X": (4, 5), "b": (3,)}
    return [
        rule("the embedding, W[:, v]", (1, 2), "lookup", lookup, {"W": (4, 6)}),
        rule("W X + b 1ᵀ", (4, 5, 8, 9, 10), "linear", operation("linear").linear, affine),
        rule("attention, keeping the softmax", (4,), "attention.dense", attention, scores),
        rule("attention, block by block", (4,), "attention.blockwise", attention, scores),
        rule("attention in strips", (4,), "attention.strips", attention, scores),
        rule("layer norm", (6,), "normalization", norm, {"X": (6, 5), "gamma": (6,), "beta": (6,)}),
        rule("ReLU", (8,), "activation", activation("relu"), {"X": (4, 5)}),
        rule("GELU", (9, 10), "activation", activation("gelu"), {"X": (4, 5)}),
        rule("−log P[x[t], t]", (11, 12, 13), "chunked_log_loss", loss, {"X": (4, 5), "W_u": (7, 4)}),
    ]


def _checked(
    package: ModuleType,
    root: pathlib.Path,
    rng: np.random.Generator,
    title: str,
    algorithms: tuple[int, ...],
    operation: str,
    function: Callable[..., Any],
    shapes: dict[str, tuple[int, ...]],
) -> BackwardRule:
    """Return the rule in a module of `ops`, checked on random inputs of these shapes."""
    kind, _, variant = operation.partition(".")
    name = "_backward_of_tile" if kind == "attention" else "_backward"
    module = importlib.import_module(f"{package.__name__}.ops.{operation}")
    file = pathlib.Path(str(module.__file__)).resolve()
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    node = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name)
    relative = file.relative_to(root).as_posix()
    return BackwardRule(
        title=title,
        algorithms=algorithms,
        derivation=_paragraphs(ast.get_docstring(node) or ""),
        file=relative,
        page=page_of(relative),
        lines=listing(file, node.body[1].lineno, node.end_lineno),
        gradients=_differences(function, variant or "dense", shapes, rng),
    )


def _differences(
    function: Callable[..., Any], implementation: str, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, float]:
    """Return how far an implementation's gradient is from that of the lines as printed, for each input."""
    inputs = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}

    def gradients(implementation: str) -> dict[str, jax.Array]:
        def of_inputs(inputs: dict[str, jax.Array]) -> jax.Array:
            Y = function(*(inputs[name] for name in shapes), implementation)
            return (Y * jnp.cos(jnp.arange(Y.size).reshape(Y.shape))).sum()

        return jax.grad(of_inputs)(inputs)

    by_hand, by_jax = gradients(implementation), gradients("paper")
    return {name: difference(np.asarray(by_hand[name]), np.asarray(by_jax[name])) for name in inputs}


def _paragraphs(docstring: str) -> tuple[tuple[bool, str], ...]:
    """Return the paragraphs of a docstring; indented ones are formulas."""
    found = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        is_formula = paragraph.startswith("    ")
        found.append((is_formula, textwrap.dedent(paragraph) if is_formula else paragraph.replace("::", ":")))
    return tuple(found)

"""The backward rules that were derived by hand: their derivation, their code, and a check of each in this run."""

import ast
import dataclasses
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

from tests.crosscheck.values import difference

from .listing import CodeLine, listing, page_of


@dataclasses.dataclass(frozen=True)
class BackwardRule:
    """A hand-derived rule."""

    title: str  # what it differentiates
    algorithms: tuple[int, ...]  # the algorithms that have it
    says: tuple[tuple[bool, str], ...]  # the derivation's prose and formulas, each `(is a formula, text)`
    file: str  # the file that it is in
    page: str  # the book's page of that file
    lines: tuple[CodeLine, ...]  # its code
    gradients: dict[str, float]  # for each input, the largest difference to the derivative that JAX finds itself


@dataclasses.dataclass(frozen=True)
class _Rule:
    title: str
    algorithms: tuple[int, ...]
    module: str
    backward: str
    implementation: str
    shapes: dict[str, tuple[int, ...]]
    function: Callable[..., Any]


def _rules(package: ModuleType) -> list[_Rule]:
    def module(name: str) -> Any:
        return importlib.import_module(f"{package.__name__}.{name}")

    def attention(Q: Any, K: Any, V: Any, implementation: str) -> Any:
        mask = package.UNIDIRECTIONAL
        return package.scaled_dot_product_attention(Q, K, V, mask, implementation=implementation)

    def loss(X: Any, W_u: Any, implementation: str) -> Any:
        return package.log_loss(X, W_u, jnp.array([2, 0, 6, 2, 1]), implementation=implementation)

    def lookup(W: Any, implementation: str) -> Any:
        return module("ops.lookup").lookup(W, jnp.array([3, 1, 3, 0]), implementation)

    def norm(X: Any, gamma: Any, beta: Any, implementation: str) -> Any:
        return package.layer_norm(X, gamma, beta, implementation=implementation)

    def activation(name: str) -> Callable[..., Any]:
        return lambda X, implementation: module("ops.activation").activate(name, X, implementation)

    scores = {"Q": (3, 5), "K": (3, 7), "V": (2, 7)}
    return [
        _Rule("the embedding, W[:, v]", (1, 2), "ops.lookup", "_backward", "dense", {"W": (4, 6)}, lookup),
        _Rule("W X + b 1ᵀ", (4, 5, 8, 9, 10), "ops.linear", "_backward", "dense", {"W": (3, 4), "X": (4, 5), "b": (3,)},
              module("ops.linear").linear),
        _Rule("attention, keeping the softmax", (4,), "ops.attention.dense", "_backward_of_tile", "dense", scores,
              attention),
        _Rule("attention, block by block", (4,), "ops.attention.blockwise", "_backward_of_tile", "blockwise", scores,
              attention),
        _Rule("attention in strips", (4,), "ops.attention.strips", "_backward_of_tile", "strips", scores, attention),
        _Rule("layer norm", (6,), "ops.normalization", "_backward", "dense", {"X": (6, 5), "gamma": (6,), "beta": (6,)},
              norm),
        _Rule("ReLU", (8,), "ops.activation", "_backward", "dense", {"X": (4, 5)}, activation("relu")),
        _Rule("GELU", (9, 10), "ops.activation", "_backward", "dense", {"X": (4, 5)}, activation("gelu")),
        _Rule("−log P[x[t], t]", (11, 12, 13), "ops.chunked_log_loss", "_backward", "dense",
              {"X": (4, 5), "W_u": (7, 4)}, loss),
    ]  # fmt: skip


def backward_rules(package: ModuleType, root: pathlib.Path, seed: int) -> list[BackwardRule]:
    """All hand-derived rules, each checked against JAX's own derivative of the lines as printed."""
    rng = np.random.default_rng(seed)
    return [_checked(rule, package, root, rng) for rule in _rules(package)]


def _checked(rule: _Rule, package: ModuleType, root: pathlib.Path, rng: np.random.Generator) -> BackwardRule:
    module = importlib.import_module(f"{package.__name__}.{rule.module}")
    file = pathlib.Path(str(module.__file__)).resolve()
    node = next(
        n for n in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(n, ast.FunctionDef) and n.name == rule.backward
    )  # fmt: skip
    body = node.body[1:]
    relative = file.relative_to(root).as_posix()
    return BackwardRule(
        title=rule.title,
        algorithms=rule.algorithms,
        says=_says(ast.get_docstring(node) or ""),
        file=relative,
        page=page_of(relative),
        lines=listing(file, body[0].lineno, body[-1].end_lineno),
        gradients=_gradients(rule, rng),
    )


def _gradients(rule: _Rule, rng: np.random.Generator) -> dict[str, float]:
    """For each input, how far the rule's gradient is from that of the lines as printed."""
    inputs = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in rule.shapes.items()}

    def gradients(implementation: str) -> dict[str, jax.Array]:
        def of_inputs(inputs: dict[str, jax.Array]) -> jax.Array:
            Y = rule.function(*(inputs[name] for name in rule.shapes), implementation)
            return (Y * jnp.cos(jnp.arange(Y.size).reshape(Y.shape))).sum()

        return jax.grad(of_inputs)(inputs)

    by_hand, by_jax = gradients(rule.implementation), gradients("paper")
    return {name: difference(np.asarray(by_hand[name]), np.asarray(by_jax[name])) for name in inputs}


def _says(docstring: str) -> tuple[tuple[bool, str], ...]:
    """The paragraphs of a docstring; what is indented is a formula."""
    said = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        is_formula = paragraph.startswith("    ")
        said.append((is_formula, textwrap.dedent(paragraph) if is_formula else paragraph.replace("::", ":")))
    return tuple(said)

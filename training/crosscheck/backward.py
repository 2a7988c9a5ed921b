"""The hand-derived backward rules, each compared with the gradient that JAX derives from the lines as printed."""

import ast
import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .values import TOLERANCE, difference

__all__ = ["Rule", "check_rules"]

COMPILED_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""For programs that run once."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A backward rule that was derived by hand, and its check."""

    title: str  # the operation
    algorithms: tuple[int, ...]  # the algorithms that use it
    path: pathlib.Path  # the source file
    node: ast.FunctionDef  # the rule in it
    gradients: dict[str, float]  # for each input, the largest difference from the gradient that JAX derives
    error: str = ""  # what it raised

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max(self.gradients.values())

    @property
    def ok(self) -> bool:
        """Whether all gradients agree."""
        return self.worst <= TOLERANCE

    def __str__(self) -> str:
        """Which gradients it gets wrong."""
        apart = (f"∂F/∂{name} by {x:.1e}" for name, x in self.gradients.items() if x > TOLERANCE)
        of = f"Algorithm{'s' if len(self.algorithms) > 1 else ''} {', '.join(map(str, self.algorithms))}"
        wrong = self.error or f"differs from JAX's derivative of the lines as printed: {', '.join(apart)}"
        return f"{of}: the backward rule of {self.title} ({self.path.as_posix()}:{self.node.lineno}) {wrong}"


class _Trial(NamedTuple):
    """A function of arrays, and their names and shapes; the implementation of its rule."""

    function: Callable[..., Any]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    implementation: str = "dense"


def _trial(function: Callable[..., Any], implementation: str = "dense", **shapes: tuple[int, ...]) -> _Trial:
    return _Trial(function, tuple(shapes.items()), implementation)


class _Row(NamedTuple):
    title: str
    algorithms: tuple[int, ...]
    operation: str  # a module of `ops`
    trials: tuple[_Trial, ...]
    rule: str = "_backward"


def check_rules(package: ModuleType, root: pathlib.Path, seed: int, algorithms: Iterable[int]) -> list[Rule]:
    """Check the rules that these algorithms use.

    `package`: the package `algorithms`, or a mutated copy of it; `root`: the root of the repository that it lies in;
    `seed`: of the inputs.
    """
    asked = set(algorithms)
    return [_checked(package, root, seed, i) for i, row in enumerate(_rows(package)) if asked & {*row.algorithms}]


@functools.lru_cache(maxsize=64)
def _checked(package: ModuleType, root: pathlib.Path, seed: int, i: int) -> Rule:
    row = _rows(package)[i]
    module = importlib.import_module(f"{package.__name__}.ops.{row.operation}")
    path = pathlib.Path(str(module.__file__)).resolve()
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    node = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == row.rule)
    apart: dict[str, float] = {}
    found = Rule(row.title, row.algorithms, path.relative_to(root), node, apart)
    for trial in row.trials:
        by_jax = _gradients(package, trial._replace(implementation="paper"), seed)
        try:
            by_hand = _gradients(package, trial, seed)
        except Exception as error:
            wrong = {name: np.inf for name, _ in trial.shapes}
            return dataclasses.replace(found, gradients=wrong, error=f"raised {type(error).__name__}: {error}")
        for name, _ in trial.shapes:
            apart[name] = max(difference(by_hand[name], by_jax[name]), apart.get(name, 0.0))
    return found


@functools.lru_cache(maxsize=64)
def _gradients(package: ModuleType, trial: _Trial, seed: int) -> dict[str, np.ndarray]:
    """The gradient for each input of a sum of the function's values, each with a weight of its own."""
    rng = np.random.default_rng(seed)
    inputs = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in trial.shapes}

    def of_inputs(inputs: dict[str, jax.Array]) -> jax.Array:
        with _options(package).using(implementation=trial.implementation):
            Y = trial.function(*(inputs[name] for name, _ in trial.shapes))
        return (Y * jnp.cos(jnp.arange(Y.size).reshape(Y.shape))).sum()

    found = jax.jit(jax.grad(of_inputs), compiler_options=COMPILED_FAST)(inputs)
    return {name: np.asarray(array) for name, array in found.items()}


def _options(package: ModuleType) -> Any:
    return importlib.import_module(f"{package.__name__}.machinery.options")


@functools.lru_cache(maxsize=2)
def _rows(package: ModuleType) -> list[_Row]:
    """Every rule, with what it is tried on: every term of its gradients occurs."""

    def operation(name: str) -> Any:
        return importlib.import_module(f"{package.__name__}.ops.{name}")

    def embedding(n: int) -> _Trial:
        v = jnp.array([[3, 1, 3], [n - 1, 0, 3]])
        return _trial(lambda W: operation("linear").columns(W)[:, v], W=(2, n))

    def activations(*names: str) -> tuple[_Trial, ...]:
        activate = operation("activation").activate
        return tuple(_trial(functools.partial(activate, name), X=(4, 5)) for name in names)

    def norm(X: Any, gamma: Any, beta: Any) -> Any:
        return package.layer_norm(X, gamma, beta, epsilon=0.1)

    def rms_norm(X: Any, gamma: Any) -> Any:
        return package.rms_norm(X, gamma, epsilon=0.1)

    def rotated(X: Any) -> Any:
        angles = jnp.arange(6.0).reshape(2, 3)
        rotate, cos, sin = operation("rotation").rotate, jnp.cos(angles), jnp.sin(angles)
        return jnp.stack([rotate(pairs, X, cos, sin) for pairs in ("halves", "neighbors")])

    def losses(X: Any, W_u: Any, b_u: Any, weights: Any = None) -> Any:
        targets = jnp.array([[2, 0, 5], [2, 1, 4]])
        options = {"b_u": b_u, "label_smoothing": 0.1, "cap": 2.0, "N_V": 6}
        if weights is None:
            return package.token_losses(X, W_u, targets, **options)
        return package.log_loss(X, W_u, targets, weights=weights, **options)

    affine = _trial(operation("linear").linear, W=(2, 3, 4), X=(4, 5, 3), b=(2, 3))
    unweighted = _trial(losses, X=(4, 2, 3), W_u=(7, 4), b_u=(7,))
    of_losses = unweighted, unweighted._replace(shapes=(*unweighted.shapes, ("weights", (2, 3))))
    return [
        _Row("the embedding, W[:, v]", (1, 2), "linear", (embedding(6), embedding(1031)), "_backward_of_lookup"),
        _Row("W X + b 1ᵀ", (4, 5, 8, 9, 10), "linear", (affine,)),
        *_attentions(package),
        _Row("rotary positions", (4,), "rotation", (_trial(rotated, X=(2, 4, 3)),)),
        _Row("layer norm", (6,), "normalization", (_trial(norm, X=(6, 5, 2), gamma=(6,), beta=(6,)),)),
        _Row("RMSnorm", (6,), "normalization", (_trial(rms_norm, X=(6, 5, 2), gamma=(6,)),)),
        _Row("ReLU", (8,), "activation", activations("relu")),
        _Row("GELU", (9, 10), "activation", activations("gelu")),
        _Row("GELU by tanh and σ, SiLU", (10,), "activation", activations("gelu_tanh", "gelu_sigmoid", "silu")),
        *_experts(operation("grouped"), _options(package).as_printed),
        *_recurrences(operation("delta_rule").delta_rule),
        _Row("−log P[x[t], t]", (11, 12, 13), "chunked_log_loss", of_losses),
    ]


def _attentions(package: ModuleType) -> Iterator[_Row]:
    """Attention by each rule: of heads that share keys and values, with dropout, distances, a cap and sinks."""
    dispatch = importlib.import_module(f"{package.__name__}.ops.attention.dispatch")
    t_z, t_x = jnp.arange(7)[:, None], jnp.arange(5)[None]
    mask = (t_z <= t_x + 1) & (t_x != 2)  # the column 2 may attend to nothing

    def plain(Q: Any, K: Any, V: Any) -> Any:
        return package.scaled_dot_product_attention(Q, K, V, mask)

    def with_sink(S: Any, sink: Any) -> Any:
        numerator = jnp.exp(S)
        return numerator / (numerator.sum(axis=0, keepdims=True) + jnp.exp(sink))

    def whole(Q: Any, K: Any, V: Any, U: Any, P: Any, sinks: Any) -> Any:
        weights = dispatch.Weights(with_sink, sinks, "sinks", sinks)
        S = dispatch.scores(K, Q, heads=True, cap=2.0, by_distance=(U, P), weights=weights).where(mask)
        with _options(package).using(dropout=0.3, key=jax.random.split(jax.random.key(0), 2)):
            return V @ (S / Q.shape[1] ** 0.5).softmax()

    of_head = {"Q": (3, 5), "K": (3, 7), "V": (2, 7)}
    of_heads = {
        "Q": (4, 3, 2, 5),
        "K": (2, 3, 2, 7),
        "V": (2, 2, 2, 7),
        "U": (4, 6, 2, 5),
        "P": (4, 6, 12),
        "sinks": (4,),
    }
    for title, name, file in (
        ("keeping the softmax", "dense", "tiles"),
        ("block by block", "blockwise", "blockwise"),
        ("in strips", "strips", "strips"),
    ):
        trials = _trial(plain, name, **of_head), _trial(whole, name, **of_heads)
        yield _Row(f"attention, {title}", (4,), f"attention.{file}", trials, "_backward_of_tile")


def _experts(grouped: Any, as_printed: Callable[[], bool]) -> Iterator[_Row]:
    """The products of experts, whose lines as printed are those of every row by itself."""
    group, n, T = jnp.array([2, 0, 2, 1, 0, 2, 0, 1]), 3, 4
    blocks = grouped.Blocks.of(group, n)

    def moved(X: Any) -> Any:
        if as_printed():
            return jnp.where((blocks.row < len(group))[:, None], X[blocks.row % T], 0)
        return grouped.spread(X, blocks)

    def product(W: Any, X: Any) -> Any:
        if as_printed():
            return jnp.einsum("roi,ri->ro", W[group], X)
        return grouped.collect(grouped.grouped_product(W, grouped.spread(X, blocks), blocks), blocks)

    def of_rows(Y: Any, X: Any) -> Any:
        """The sum that the rule of `product` itself is."""
        if as_printed():
            return jnp.zeros((n, 5, 4)).at[group].add(Y[:, :, None] * X[:, None])
        Y, X = (grouped.spread(rows, blocks) for rows in (Y, X))
        return grouped._sum_of_rows(n, Y, X, blocks.group)

    for title, trial, rule in (
        ("columns to experts", _trial(moved, X=(T, 4)), "_gather_backward"),
        ("W X of experts", _trial(product, W=(n, 5, 4), X=(8, 4)), "_backward"),
        ("∂F/∂W of experts", _trial(of_rows, Y=(8, 5), X=(8, 4)), "_backward_of_rows"),
    ):
        yield _Row(title, (10,), "grouped", (trial,), rule)


def _recurrences(delta_rule: Any) -> Iterator[_Row]:
    """The gated delta rule in three chunks: with a decay for each head or each row, and without corrections."""
    H, d_k, d_v, B, l = 2, 3, 4, 2, 11
    document = jnp.array([[0] * 5 + [1] * 2 + [2] * 4, [0] * l])

    def rule(Q: Any, K: Any, V: Any, log_alpha: Any, beta: Any) -> Any:
        decay = -0.3 * jnp.square(log_alpha)
        found = delta_rule(Q, K, V, decay, beta, document, 4)
        return jnp.concatenate([a.ravel() for a in found])

    def uncorrected(Q: Any, K: Any, V: Any, log_alpha: Any) -> Any:
        return rule(Q, K, V, log_alpha, None)

    rows: Any = {"Q": (H, d_k, B, l), "K": (H, d_k, B, l), "V": (H, d_v, B, l)}
    of_head, of_rows = rows | {"log_alpha": (H, 1, B, l)}, rows | {"log_alpha": (H, d_k, B, l)}
    trials = *(_trial(rule, **shapes, beta=(H, B, l)) for shapes in (of_head, of_rows)), _trial(uncorrected, **of_head)
    yield _Row("the gated delta rule, by chunks", (10,), "delta_rule", trials)

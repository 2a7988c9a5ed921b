"""Detects whether a custom line mixes columns, by running it on random ones."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms.machinery.options import outside_trace, shapes_of_leaves
from algorithms.machinery.record import Record
from algorithms.masks import UNIDIRECTIONAL, documents
from algorithms.model.attention import At, Attention, axes_of_own
from algorithms.model.mixer import Mixer, MixerMetadata
from algorithms.model.mlp import MLP
from algorithms.model.theta import of_each_layer

COLUMNS = 300  # more than generation ever reads at once in one program
SAME, ROUNDED = 1e-9, 1e-5  # differences, as shares of a column's largest entry: of one program, and of two


class Mixed(NamedTuple):
    """A method whose columns depend on other columns."""

    line: Any
    method: str
    result: str  # the name of the result, if it has several

    @property
    def name(self) -> str:
        """The class and the method."""
        return f"{type(self.line).__name__}.{self.method}"


def mixed(theta: Any, *, in_documents: bool = False) -> Mixed | None:
    """The first method of θ's custom lines that mixes columns; None if each column depends on itself alone.

    A mixer other than an attention may mix columns, but not those of other documents if ``in_documents``. Of Algorithm
    8, only the decoder counts.
    """
    variant, layers = theta.variant, theta.layers if hasattr(theta, "layers") else theta.decoder
    if all(map(_is_ours, (*variant.attentions, *variant.mlps, variant.norm))):
        return None
    each = of_each_layer(layers, variant)
    norms = [getattr(each[0], name) for name in each[0]._fields if "norm" in name]
    norms += [getattr(theta, name, None) for name in ("norm", "decoder_norm", "embedding_norm")]
    of_layers = [(variant.lines(l), layer) for l, layer in enumerate(each)]
    cases = [part for line, layer in of_layers for part in line.attention.parts(layer[0])]
    cases += [(line.mlp, layer.mlp) for line, layer in of_layers]
    cases += [(variant.norm, norm) for norm in norms if norm is not None][:1]
    for line, *W in dict.fromkeys((line, *shapes_of_leaves(W)) for line, W in cases if W is not None):
        is_other_mixer = isinstance(line, Mixer) and not isinstance(line, Attention)  # which is to mix columns
        if not _is_ours(line) and not (is_other_mixer and not in_documents):
            found = _in_float64(_leaking if is_other_mixer else _first_mixed, line, *W, len(theta.W_e))
            if found is not None:
                return Mixed(line, *found)
    return None


def check_columns(theta: Any, layers: Any) -> None:
    """Raise ValueError if cached generation, which computes one column at a time, does not support a line."""
    instead = "use algorithms.d_inference or ed_inference, which read all tokens for each new one"
    found = mixed(theta)
    if found is not None:
        raise ValueError(
            f"{found.name}: expected a column{found.result and f' of {found.result}'} that depends on that column of "
            f"its input alone, got one that changes with the other columns, which a step of generation does not read; "
            f"{instead}"
        )
    each = enumerate(of_each_layer(layers, theta.variant))
    mixers = [part for l, W in each for part in theta.variant.attention_of(l).parts(W[0])]
    for line, *W in dict.fromkeys((line, *shapes_of_leaves(W)) for line, W in mixers):
        reads = isinstance(line, Attention) and type(line).read is not Attention.read and line.replaces_softmax
        for axes in axes_of_own(line, *W, len(theta.W_e)) if reads else ():
            if axes.sequences is not None or axes.columns:
                raise ValueError(
                    f"{type(line).__name__}.read: expected arrays in `own` without axes of sequences and columns, "
                    f"since a cache keeps only keys and values, got one that has them; make it rows of Q, K or V, or "
                    f"{instead}"
                )


def _is_ours(record: Any) -> bool:
    if not isinstance(record, Record):
        return True
    return type(record).__module__.startswith("algorithms.") and all(map(_is_ours, vars(record).values()))


@outside_trace
def _in_float64(find: Callable[..., Any], line: Any, tree: Any, shapes: Any, d_e: int) -> tuple[str, str] | None:
    """The result of ``find``: a method and the name of its result; in float64, if the line supports it."""
    for x64 in (True, False):
        with jax.enable_x64(x64):
            rng = np.random.default_rng(0)
            W = tree.unflatten([_drawn(rng, *shape) for shape in shapes])
            try:
                return find(line, W, rng, d_e)
            except (TypeError, ValueError):
                if not x64:
                    raise
    return None


def _drawn(rng: Any, *shape: int) -> Array:
    a = rng.standard_normal(shape) / shape[-1] ** 0.5 if len(shape) > 1 else rng.uniform(0.25, 0.75, shape)
    return jnp.asarray(a, float)


def _leaking(line: Mixer, W: Any, rng: Any, d_e: int) -> tuple[str, str] | None:
    """The method of a mixer that computes whole sequences, if a document changes the columns of the next one."""
    t, first = np.arange(COLUMNS), COLUMNS // 2
    mask = UNIDIRECTIONAL & documents(jnp.asarray(t >= first, int))
    X, others = rng.standard_normal((2, d_e, COLUMNS))
    whole = jax.jit(lambda X: line.whole(X, W, mask, MixerMetadata(t))[0][:, first:])
    one, other = (np.asarray(whole(jnp.asarray(X)), float) for X in (X, np.where(t < first, others, X)))
    same = np.allclose(one, other, rtol=0, atol=SAME * np.abs(one).max(initial=0), equal_nan=True)
    return None if same else ("whole", "")


def _first_mixed(line: Any, W: Any, rng: Any, d_e: int) -> tuple[str, str] | None:
    dtype = jnp.result_type(float)
    for method, rows, f in _methods(line, W, d_e):
        X, others = (jnp.asarray(rng.standard_normal((*rows, COLUMNS)), dtype) for _ in range(2))
        for name in _results_that_mix(jax.jit(f), X, others, W):
            return method, name
    return None


def _methods(line: Any, W: Any, d_e: int) -> Iterator[tuple[str, tuple[int, ...], Callable[..., dict[str, Any]]]]:
    if isinstance(line, Attention):
        yield "read", (d_e,), lambda X, W, t: _arrays(line.reading(X, W, MixerMetadata(t)))
        read = jax.eval_shape(
            lambda X, W: _arrays(line.reading(X, W, MixerMetadata(np.arange(1)))), jnp.zeros((d_e, 1)), W
        )
        Q, K, V = (read.get(f"uncached.{name}", read[name]) for name in "QKV")
        rows = Q.shape[0], (V if V.shape[1] else K).shape[1]

        def result(Y, W, t):
            X = jnp.resize(Y.reshape(-1, Y.shape[-1]), (d_e, Y.shape[-1]))
            return {"": line.result(Y, At(X, X, W, t, t))}

        yield "result", rows, result
    elif isinstance(line, MLP):
        yield "__call__", (d_e,), lambda X, W, t: {"": line(X, W, activation=line.activation or "gelu")}
    else:
        yield "__call__", (d_e,), lambda X, W, t: {"": line(X, W)}


def _arrays(read: Any) -> dict[str, Any]:
    whole = (
        {} if read.uncached is None else {f"uncached.{name}": array for name, array in _arrays(read.uncached).items()}
    )
    arrays = {name: getattr(read, name) for name in ("Q", "K", "V", "U")}
    return {name: array for name, array in arrays.items() if array is not None} | whole


def _results_that_mix(f: Callable[..., dict[str, Any]], X: Any, others: Any, W: Any) -> Iterator[str]:
    """The names of results whose columns depend on the other columns, or on their presence."""
    t = np.arange(COLUMNS)
    whole = f(X, W, t)
    for i in (0, COLUMNS // 2, COLUMNS - 1):
        among, alone = f(jnp.where(t == i, X, others), W, t), f(X[..., i : i + 1], W, t[i : i + 1])
        for name, array in whole.items():
            column = np.asarray(array[..., i], np.float64)
            for found, share in ((among[name][..., i], SAME), (alone[name][..., 0], ROUNDED)):
                least = share * np.abs(column).max(initial=0)
                if not np.allclose(column, np.asarray(found, np.float64), rtol=0, atol=least, equal_nan=True):
                    yield name

"""Which lines of a variant's run are not the paper's, found from what the run computed and not from the record.

Each printed formula is evaluated on the values that the lines before it had in the oracle's run: a line has changed if
that is another value, or if θ lacks a parameter that the formula names. A line that calls another algorithm is given what
the model's own version of it returns, so that a change is charged to the line that has it and to no other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.crosscheck import oracle
from training.crosscheck.oracle.components import softmax
from training.crosscheck.oracle.lines import before, mh_attention, normalize, part
from training.crosscheck.oracle.transformers import causal_mask, ones_mask

from .records import OracleRecord
from .values import difference

__all__ = ["lines_not_printed"]

TOLERANCE = 1e-10


class _MissingError(Exception):
    """The printed formula names a parameter that is not there."""


def lines_not_printed(
    record: OracleRecord, algorithm: int, tokens: Sequence[Any], theta: Any, model: Mapping[str, Any]
) -> set[tuple[int, str]]:
    """The lines of Algorithms 4 to 7 and of 8, 9 or 10 that are not as printed.

    `record`: a run of the oracle on one sequence, or one pair; `algorithm`: 8, 9 or 10; `tokens`: what was run: x,
    or z and x; `theta`: the parameters, unstacked; `model`: the options of `training.crosscheck.oracle.family`.
    """
    walk = _Walk(record, theta, model)
    X = {8: _ed, 9: _e, 10: _d}[algorithm](walk, *tokens)
    W_u = part(theta, "W_u")
    s = X.shape[0] ** -0.5 if model["logit_scale"] == "rsqrt_d_e" else model["logit_scale"]
    matrix = s * (theta.W_e.T if W_u is None else W_u)
    walk.see(7, "1", lambda _: softmax(matrix @ X))
    walk.see(algorithm, "return", lambda _: softmax(_given(W_u) @ X))
    return walk.found


class _Reads(NamedTuple):
    """What an attention reads, and what it would read by the printed line."""

    X: np.ndarray
    Z: np.ndarray
    X_printed: np.ndarray
    Z_printed: np.ndarray


class _Walk:
    """Goes through a run line by line, evaluating what is printed there."""

    def __init__(self, record: OracleRecord, theta: Any, model: Mapping[str, Any]):
        self.theta, self.model, self.record = theta, model, record
        self.values: dict[tuple[int, str], Iterator[np.ndarray]] = {}
        self.found: set[tuple[int, str]] = set()

    def see(self, n: int, number: str, printed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Compare the next value of a line with its printed formula; returns the value."""
        if (n, number) not in self.values:
            visits = next(v for key, v in self.record.visits.items() if key[:2] == (n, number))
            self.values[n, number] = iter([visit.value for visit in visits])
        value = next(self.values[n, number])
        try:
            if difference(printed(value), value) > TOLERANCE:
                self.found.add((n, number))
        except _MissingError:
            self.found.add((n, number))
        return value

    def embed(self, n: int, first: int, x: Sequence[int]) -> np.ndarray:
        """Lines 1 to 3."""
        W_e, W_p = self.theta.W_e, part(self.theta, "W_p")
        columns = range(len(x))
        e = self.see(n, str(first + 1), lambda _: np.stack([W_e[:, x[t]] + _given(W_p)[:, t] for t in columns], axis=1))
        return self.see(n, str(first + 2), lambda _: e)

    def norm(self, n: int, number: str, X: np.ndarray, norm: Any) -> np.ndarray:
        """A line that normalizes every column: by γ and β, as this model's Algorithm 6 does."""

        def printed(_: np.ndarray) -> np.ndarray:
            for parameter in (norm, part(norm, "gamma"), part(norm, "beta")):
                _given(parameter)
            return normalize(X, norm, self.model)

        Y = self.see(n, number, printed)
        if norm is not None:
            self.layer_norm(X, norm)
        return Y

    def layer_norm(self, X: np.ndarray, norm: Any) -> None:
        """Algorithm 6, on columns that a norm is given."""
        if self.model["norm"] == "rms_norm":
            self.found |= {(6, "1"), (6, "2"), (6, "return")}
            return
        actual = normalize(X, norm, self.model)
        for t in range(X.shape[1]):
            if difference(oracle.layer_norm(X[:, t], norm.gamma, norm.beta), actual[:, t]) > TOLERANCE:
                self.found.add((6, "return"))

    def attention(
        self,
        n: int,
        number: str,
        X: np.ndarray,
        reads: _Reads,
        W: Any,
        mask: np.ndarray,
        line: Any,
        distances: Any = None,
    ) -> np.ndarray:
        """A line X + MHAttention(X_in, Z | W, mask), and Algorithms 4 and 5 within it."""
        if "own" in line:
            return self.see(n, number, _is_own)
        X_in, Z, X_printed, Z_printed = reads
        groups = W.heads if part(W, "groups") is None else W.groups
        heads = []
        for h in range(len(W.heads)):
            W_q, W_kv = W.heads[h], groups[h * len(groups) // len(W.heads)]
            Q = self.see(4, "1", lambda _, W=W_q: _linear(W.W_q, part(W, "b_q"), X_in))
            K = self.see(4, "2", lambda _, W=W_kv: _linear(W.W_k, part(W, "b_k"), Z))
            V = self.see(4, "3", lambda _, W=W_kv: _linear(W.W_v, part(W, "b_v"), Z))
            S = self.see(4, "4", lambda _, K=K, Q=Q: K.T @ Q)
            S = self.see(4, "5", lambda masked, S=S: np.where(masked == -np.inf, -np.inf, S))
            weights = [softmax(column / np.sqrt(len(Q))) for column in S.T]
            A = np.stack(weights, axis=1)
            V_tilde = self.see(4, "return", lambda _, V=V, A=A: V @ A)
            shared = None if len(groups) < len(W.heads) else V_tilde
            heads.append(self.see(5, "2", lambda _, Y=shared: _given(Y)))
        Y = self.see(5, "3", lambda _: np.concatenate(heads))
        self.see(5, "return", lambda _: _linear(W.W_o, part(W, "b_o"), Y))
        where = {"x_positions": range(X.shape[1]), "z_positions": range(Z.shape[1]), "distances": distances}
        where["bidirectional"] = number == "5"
        options = {**line, "window": None}
        return self.see(
            n, number, lambda _: X + mh_attention(X_printed, Z_printed, W, mask, options, self.model, **where)
        )

    def mlp(self, n: int, number: str, X: np.ndarray, X_tilde: np.ndarray, W: Any, f: Any) -> np.ndarray:
        """A line X + W_mlp2 f(W_mlp1 X̃ + b_mlp1 1ᵀ) + b_mlp2 1ᵀ."""

        if "own_mlp" in self.model or self.model["experts"] is not None:
            return self.see(n, number, _is_own)

        def printed(_: np.ndarray) -> np.ndarray:
            hidden = f(_linear(_given(W).W_mlp1, part(W, "b_mlp1"), X_tilde))
            return X + _linear(W.W_mlp2, part(W, "b_mlp2"), hidden)

        return self.see(n, number, printed)


def _given(parameter: Any) -> Any:
    if parameter is None:
        raise _MissingError
    return parameter


def _is_own(_: np.ndarray) -> np.ndarray:
    """The printed formula of a line in whose place a model has one of its own."""
    raise _MissingError


def _linear(W: Any, b: Any, X: np.ndarray) -> np.ndarray:
    return W @ X + _given(b)[:, None]


def _layers(walk: _Walk, n: int, own: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Line 4: the layers; neighbors may share their parameters."""
    L = walk.model["L"] or len(own)
    if len(own) < L:
        walk.found.add((n, "4"))
    return ((l, own[l * len(own) // L]) for l in range(L))


def _d(walk: _Walk, x: Sequence[int]) -> np.ndarray:
    model, theta = walk.model, walk.theta
    X, mask = walk.embed(10, 1, x), causal_mask(len(x))
    for l, W in _layers(walk, 10, theta.layers):
        line = model["attention"][l % len(model["attention"])]
        X_tilde = walk.norm(10, "5", X, part(W, "norm1"))
        after = walk.attention(10, "6", X, _Reads(*[X_tilde] * 4), W.attention, mask, line, part(theta, "distances"))
        X = X if model["order"] == "side_by_side" else after  # where line 6 assigns Y
        X_tilde = walk.norm(10, "7", X, part(W, "norm2"))
        X = walk.mlp(10, "8", X, X_tilde, part(W, "mlp"), oracle.gelu)
    return walk.norm(10, "10", X, part(theta, "norm"))


def _encoder(walk: _Walk, n: int, X: np.ndarray, layers: Sequence[Any], f: Any, distances: Any) -> np.ndarray:
    model, order = walk.model, walk.model["order"] or "norm_last"
    mask = ones_mask(X.shape[1], X.shape[1])
    for l, W in _layers(walk, n, layers):
        line = model["attention"][l % len(model["attention"])]
        X_in = before(X, part(W, "norm1"), order, model)
        X = walk.attention(n, "5", X, _Reads(X_in, X_in, X, X), W.attention, mask, line, distances)
        X = walk.norm(n, "6", X, part(W, "norm1"))
        X = walk.mlp(n, "7", X, X, W.mlp, f)
        X = walk.norm(n, "8", X, part(W, "norm2"))
    return X


def _e(walk: _Walk, x: Sequence[int]) -> np.ndarray:
    theta = walk.theta
    X = _encoder(walk, 9, walk.embed(9, 1, x), theta.layers, oracle.gelu, part(theta, "distances"))
    X = walk.see(9, "10", lambda _, X=X: oracle.gelu(_linear(_given(theta.W_f), part(theta, "b_f"), X)))
    return walk.norm(9, "11", X, part(theta, "norm"))


def _ed(walk: _Walk, z: Sequence[int], x: Sequence[int]) -> np.ndarray:
    model, theta = walk.model, walk.theta
    order = model["order"] or "norm_last"
    Z = _encoder(walk, 8, walk.embed(8, 1, z), theta.encoder, oracle.relu, part(theta, "encoder_distances"))
    Z = walk.see(8, "9", lambda _, Z=Z: Z)
    X, mask, cross_mask = walk.embed(8, 10, x), causal_mask(len(x)), ones_mask(len(z), len(x))
    for l, W in enumerate(theta.decoder):
        line = model["attention"][l % len(model["attention"])]
        X_in = before(X, part(W, "norm3"), order, model)
        reads = _Reads(X_in, X_in, X, X)
        X = walk.attention(8, "14", X, reads, W.self_attention, mask, line, part(theta, "decoder_distances"))
        X = walk.norm(8, "15", X, part(W, "norm3"))
        X_in = before(X, part(W, "norm4"), order, model)
        reads = _Reads(X_in, Z, X, Z)
        X = walk.attention(8, "16", X, reads, W.cross_attention, cross_mask, {**line, "positions": None})
        X = walk.norm(8, "17", X, part(W, "norm4"))
        X = walk.mlp(8, "18", X, X, W.mlp, oracle.relu)
        X = walk.norm(8, "19", X, part(W, "norm5"))
    return walk.see(8, "20", lambda _: X)

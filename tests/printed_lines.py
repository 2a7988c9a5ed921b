"""Which lines of a variant's run are not the paper's, found from what the run computed and not from the record.

Each printed formula is evaluated on the values that the lines before it had in the oracle's run: a line has changed if
that is another value, or if θ lacks a parameter that the formula names. A line that calls another algorithm is given
what the model's own version of it returns, so that a change is charged to the line that has it and to no other.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from training import oracle
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.pseudocode import Line
from training.crosscheck.records import OracleRecord
from training.crosscheck.values import difference
from training.oracle.components import softmax
from training.oracle.family import in_turn
from training.oracle.lines import across, before, mh_attention, normalize, part
from training.oracle.transformers import causal_mask, ones_mask

__all__ = ["lines_not_printed"]

Formula = Callable[[np.ndarray], np.ndarray]

TOLERANCE = 1e-10
LAYERS = {"encoder layer": "encoder", "decoder layer": "decoder", "layer": "layers"}
ATTENTIONS = {"enc": "attention", "dec": "self_attention", "e/d": "cross_attention", "": "attention"}
DISTANCES = {(8, "enc"): "encoder_distances", (8, "dec"): "decoder_distances", (8, "e/d"): ""}


class _MissingError(Exception):
    """The printed formula names a parameter that is not there."""


def lines_not_printed(
    record: OracleRecord, algorithm: int, tokens: Sequence[Any], theta: Any, variant: Any
) -> set[tuple[int, str]]:
    """The lines of Algorithms 4 to 7 and of 8, 9 or 10 that are not as printed.

    `record`: a run of the oracle on one sequence, or one pair; `algorithm`: 8, 9 or 10; `tokens`: what was run: x,
    or z and x; `theta`: the parameters, unstacked; `variant`: what the oracle ran.
    """
    walk = _Walk(record, algorithm, tokens, theta, variant)
    lines = PSEUDOCODE[algorithm].lines
    for i, line in enumerate(lines):
        if line.kind == "loop":
            own = getattr(theta, LAYERS[line.label])
            if variant.shared_layers > 1:
                walk.found.add((algorithm, line.number))
            end = next(j for j, other in enumerate(lines) if other.loop == line.number)
            for l in range(variant.shared_layers * len(own)):
                walk.in_layer(l)
                for each in lines[i + 1 : end]:
                    walk.line(each, own[l // variant.shared_layers], in_turn(variant.attention, l))
        elif line.depth == 0 and line.kind != "length":
            walk.line(line, theta)
    return walk.found


class _Walk:
    """Goes through a run line by line, evaluating what is printed there on the latest value of each variable."""

    def __init__(self, record: OracleRecord, n: int, tokens: Sequence[Any], theta: Any, variant: Any) -> None:
        self.n, self.theta, self.variant, self.record = n, theta, variant, record
        self.tokens = iter(tokens)
        self.in_layer(0)
        self.values: dict[tuple[int, str], Iterator[np.ndarray]] = {}
        self.latest: dict[str, np.ndarray] = {}
        self.found: set[tuple[int, str]] = set()

    def in_layer(self, l: int) -> None:
        """Begin with layer l, from 0."""
        self.of_mlp = in_turn(self.variant.mlp, l)
        self.order = in_turn(self.variant.order, l) or ("norm_first" if self.n == 10 else "norm_last")

    def see(self, n: int, number: str, printed: Formula) -> np.ndarray:
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

    def line(self, line: Line, W: Any, attention: Any = None) -> None:
        """A line of Algorithm 8, 9 or 10, with the parameters W, in a layer with this attention."""
        value = self.see(self.n, line.number, self.formula(line, W, attention))
        if not (self.order in ("side_by_side", "one_norm") and "MHAttention" in line.text):  # where the line assigns Y
            self.latest[line.variable] = value

    def formula(self, line: Line, W: Any, attention: Any) -> Formula:
        """What is printed, as a function of the value that the run has."""
        text, latest = line.text, self.latest
        if "W_e[" in text:
            x, W_p = next(self.tokens), part(self.theta, "W_p")
            columns = range(len(x))
            return lambda _: np.stack([self.theta.W_e[:, x[t]] + _given(W_p)[:, t] for t in columns], axis=1)
        if "layer_norm" in text:
            read, index = re.findall(r"layer_norm\((\w).* \| γ(?:_l\^)?(\d?)", text)[0]
            return self.norm(read, index, W)
        if "MHAttention" in text:
            return self.attention(line, W, attention)
        if "mlp" in text:
            return self.mlp(line, W)
        if "W_f" in text:
            return lambda _: oracle.gelu(_linear(_given(W.W_f), part(W, "b_f"), latest["X"]))
        if line.number == "return":
            self.unembedding(latest["X"])
            return lambda _: softmax(_given(part(W, "W_u")) @ latest["X"])
        return lambda _: latest["e" if "e_1" in text else line.variable]

    def norm(self, read: str, index: str, W: Any) -> Formula:
        """A line that normalizes every column: by γ and β, as this model's Algorithm 6 does; and that itself."""
        X, norm = self.latest[read], part(W, f"norm{index}")

        def printed(_: np.ndarray) -> np.ndarray:
            for parameter in (norm, part(norm, "gamma"), part(norm, "beta")):
                _given(parameter)
            return normalize(X, norm, self.variant.norm)

        if norm is not None and type(self.variant.norm).__name__ == "RMSNorm":
            self.found |= {(6, "1"), (6, "2"), (6, "return")}
        elif norm is not None and (norm.gamma is None or part(norm, "beta") is None):
            self.found.add((6, "return"))
        elif norm is not None:
            actual = normalize(X, norm, self.variant.norm)
            each = [oracle.layer_norm(column, norm.gamma, norm.beta) for column in X.T]
            if difference(np.stack(each, axis=1), actual) > TOLERANCE:
                self.found.add((6, "return"))
        return printed

    def attention(self, line: Line, layer: Any, options: Any) -> Formula:
        """A line X + MHAttention(X_in, Z | W, mask), and Algorithms 4 and 5 within it."""
        if type(options).__name__ != "Attention":
            return _is_own
        reads, context, kind = re.findall(r"MHAttention\((X̃|\w)(, Z)? \| 𝓦_l\^?([\w/]*)", line.text)[0]
        W, X = getattr(layer, ATTENTIONS[kind]), self.latest[line.variable]
        X_in = X_printed = self.latest["X_tilde" if reads == "X̃" else reads]
        if self.n != 10:
            norm = {"dec": "norm3", "e/d": "norm4"}.get(kind, "norm1")
            X_in = before(X_printed, part(layer, norm), self.order, self.variant.norm)
        Z, Z_printed = (self.latest["Z"],) * 2 if context else (X_in, X_printed)
        mask = ones_mask(Z.shape[1], X.shape[1]) if "≡ 1" in line.text else causal_mask(X.shape[1])
        options = across(options) if context else options
        self.heads(W, X_in, Z)
        where = {
            "x_positions": range(X.shape[1]),
            "z_positions": range(Z.shape[1]),
            "bidirectional": line.number == "5",
        }
        where["distances"] = part(self.theta, DISTANCES.get((self.n, kind), "distances"))
        return lambda _: X + mh_attention(X_printed, Z_printed, W, mask, options, **where)

    def heads(self, W: Any, X: np.ndarray, Z: np.ndarray) -> None:
        """Algorithms 4 and 5 on what this model's attention reads."""
        groups = W.heads if part(W, "groups") is None else W.groups
        heads = []
        for h in range(len(W.heads)):
            W_q, W_kv = W.heads[h], groups[h * len(groups) // len(W.heads)]
            Q = self.see(4, "1", lambda _, W=W_q: _linear(W.W_q, part(W, "b_q"), X))
            K = self.see(4, "2", lambda _, W=W_kv: _linear(W.W_k, part(W, "b_k"), Z))
            V = self.see(4, "3", lambda _, W=W_kv: _linear(W.W_v, part(W, "b_v"), Z))
            S = self.see(4, "4", lambda _, K=K, Q=Q: K.T @ Q)
            S = self.see(4, "5", lambda masked, S=S: np.where(masked == -np.inf, -np.inf, S))
            A = softmax(S / np.sqrt(len(Q)))
            V_tilde = self.see(4, "return", lambda _, V=V, A=A: V @ A)
            shared = None if len(groups) < len(W.heads) else V_tilde
            heads.append(self.see(5, "2", lambda _, Y=shared: _given(Y)))
        Y = self.see(5, "3", lambda _: np.concatenate(heads))
        self.see(5, "return", lambda _: _linear(W.W_o, part(W, "b_o"), Y))

    def mlp(self, line: Line, layer: Any) -> Formula:
        """A line X + W_mlp2 f(W_mlp1 X̃ + b_mlp1 1ᵀ) + b_mlp2 1ᵀ."""
        if type(self.of_mlp).__name__ not in ("MLP", "NoneType"):
            return _is_own
        X, W, f = self.latest[line.variable], part(layer, "mlp"), oracle.relu if self.n == 8 else oracle.gelu
        X_tilde = self.latest["X_tilde"] if "X̃" in line.text else X

        def printed(_: np.ndarray) -> np.ndarray:
            hidden = f(_linear(_given(W).W_mlp1, part(W, "b_mlp1"), X_tilde))
            return X + _linear(W.W_mlp2, part(W, "b_mlp2"), hidden)

        return printed

    def unembedding(self, X: np.ndarray) -> None:
        """Algorithm 7 on the columns of X, with the model's W_u."""
        W_u, u = part(self.theta, "W_u"), self.variant.unembedding
        matrix = (X.shape[0] ** -0.5 if u.tied and u.scaled else u.factor) * (self.theta.W_e.T if W_u is None else W_u)
        self.see(7, "1", lambda _: softmax(matrix @ X))


def _given(parameter: Any) -> Any:
    if parameter is None:
        raise _MissingError
    return parameter


def _is_own(_: np.ndarray) -> np.ndarray:
    """The printed formula of a line in whose place a model has one of its own."""
    raise _MissingError


def _linear(W: Any, b: Any, X: np.ndarray) -> np.ndarray:
    return W @ X + _given(b)[:, None]

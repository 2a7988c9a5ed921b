"""Which lines of a variant are not the paper's, found from what they compute and not from the record.

The reference runs the paper's lines with the model's parameters, and others in place of those that it lacks. Each line
is given what the model's own lines before it computed, and each of Algorithms 4 to 7 what the model gives it, so that a
change is charged to the line that has it and to no other: a line has changed if it computes or reads another value.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from training.crosscheck.algorithms import PSEUDOCODE
from training.foreign.cases import Case
from training.foreign.making import make_case
from training.foreign.reference import Reference
from training.foreign.run import Key, Named

__all__ = ["lines_not_printed"]

EMBEDDING = {"": "2", "encoder": "2", "decoder": "11"}
HEAD = {"W_u X + b_u", "capped"}
"""Values of line 1 of Algorithm 7 that the paper does not have."""


def lines_not_printed(case: Case) -> dict[tuple[int, str], bool]:
    """Whether a line is not as printed, for the lines of the algorithms that the model runs."""
    sizes: dict[str, Any] = {name: size for name, size in case.sizes.items() if name != "d_in"}
    paper, model = make_case(case.algorithm, **sizes), case.theta
    layers = {name.partition("/")[0] for name in model if "/" in name}
    theta = {n: W for n, W in paper.theta.items() if "/" not in n or n.partition("/")[0] in layers}
    own = {n for n, W in theta.items() if n in model and (n in ("W_e", "W_p") or W.shape == model[n].shape)}
    given = dataclasses.replace(paper, theta=theta | {n: model[n] for n in own}, inputs=case.inputs)
    return _Printed(given, Reference(case).go(), theta.keys() - own).found()


class _Printed(Reference):
    """The paper's lines on the values of a model's; `lacking`: parameters that it does not have."""

    def __init__(self, case: Case, model: Reference, lacking: Any) -> None:
        super().__init__(case)
        self.own, self.model, self.lacking = model.lines, model.case, lacking
        self.changed: set[tuple[int, str]] = set()

    def found(self) -> dict[tuple[int, str], bool]:
        """Run the paper's lines, and see which are others."""
        visits, n = self.go().lines, self.case.algorithm
        self.changed |= {(6, "1")} if not any(visit.endswith(":6.1") for visit in self.own) else set()
        self.changed |= {(5, "2")} if self.model.sizes["H_kv"] < self.model.sizes["H"] else set()
        self.changed |= {(n, "9")} if any(visit.endswith(":10.9 behind the layer") for visit in self.own) else set()
        self.changed |= {(n, "4")} if self.model.record.shared_layers > 1 else set()
        for visit, seen in {**visits, **self.own}.items():
            if visit.endswith(":6.return") and (visit in self.own) != (visit in visits):
                self.differs(seen.key.place)
            self.changed |= {(7, "1")} if seen.key.what in HEAD and seen.key.line == "return" else set()
        kinds = {type(a).__name__ for a in self.model.record.attentions}
        called = {seen.key.algorithm for seen in self.own.values()} | {7}
        called -= {2} if kinds & {"Attention", "Parallel"} else {2, 4, 5}
        return {(m, line.number): (m, line.number) in self.changed for m in called for line in PSEUDOCODE[m].lines}

    def differs(self, place: str) -> None:
        """Note a line of the model itself by its place."""
        self.changed.add((self.case.algorithm, EMBEDDING.get(place, place.rpartition("/")[2])))

    def read(self, place: str, what: str, i: int, X: Named, *, is_line: bool = True) -> Named:
        """What the model gives an algorithm at a place; `is_line`: whether another one than the paper's is a change."""
        seen = self.own.get(f"{place}:{what}")
        of = self.own[seen.inputs[i]] if seen is not None and seen.inputs[i] in self.own else X
        if is_line and (of.key.algorithm, of.key.line) != (X.key.algorithm, X.key.line):
            self.differs(place)
        return Named(of.value, of.key)

    def embed(self, tokens: Sequence[int], algorithm: int, line: str, place: str = "", prefix: str = "") -> Named:
        X = super().embed(tokens, algorithm, line, place, prefix)
        normed = self.own.get(f"{place}/embedding:6.return".strip("/"))
        return X if normed is None or X.key.id in self.own else Named(normed.value, normed.key)

    def attention(self, place: str, X: Named, Z: Named, *rest: Any, **options: Any) -> Named:
        if f"{place}:4.2 c" in self.own:  # latent attention
            self.differs(place)
        else:
            own = self.read(place, "4.1", 0, X)
            X, Z = own, own if X is Z else self.read(place, "4.2", 0, Z)
        return super().attention(place, X, Z, *rest, **options)

    def norm(self, place: str, X: Named, names: Any, *rest: Any, **options: Any) -> Named:
        if self.p(names[0]) is None:
            return X
        if self.lacking & {*names}:
            self.differs(place)
        is_line = self.model.base.get("parallel") != "yes"  # side by side, what line 7 reads is still called X
        return super().norm(place, self.read(place, "6.2", -1, X, is_line=is_line), names, *rest, **options)

    def unembed(self, X: Named, algorithm: int) -> None:
        super().unembed(self.read("", f"{algorithm}.return W_u X", 0, X), algorithm)

    def line(self, key: Key, *rest: Any, **options: Any) -> Named:
        mine, seen = super().line(key, *rest, **options), self.own.get(key.id)
        if key.what:
            return mine
        if seen is None:
            self.changed |= {(key.algorithm, key.line)} if key.algorithm == self.case.algorithm else set()
            return mine
        a, b = mine.value, seen.value
        if key.id.endswith(":4.5"):
            if (np.isneginf(a) != np.isneginf(b)).any():  # the mask is the model's line's
                self.differs(key.place)
            a, b = (np.where(np.isneginf(a + b), 0, S) for S in (a, b))
        is_gated = key.id.endswith(":5.3") and f"{key.place}:5.2" in self.own
        if is_gated or a.shape != b.shape or not np.allclose(a, b, rtol=1e-11, atol=1e-11):
            self.changed.add((5, "2") if is_gated else (key.algorithm, key.line))
            if key.algorithm == 2:
                self.differs(key.place)
        return Named(seen.value, key)

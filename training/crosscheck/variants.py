"""The cross-check of a variant: Algorithm 8, 9 or 10 and those that it calls, with the lines that the variant changes.

Of a decoder, Algorithm 14 runs with it, too.

The shipped function runs with the variant, the oracle is `training.oracle.family`, and each line that differs from the
paper's is marked. Windows, caps, scales, ε and the wavelengths of rotations are small in the run, so that they matter at
its sizes; the formulas have the published ones.
"""

import dataclasses
import functools
import importlib
import inspect
import pathlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import jax

from algorithms.model.variants import VARIANTS
from training.oracle import family

from .changes import ARCHITECTURES, SHARING, ChangedLine, changed_lines
from .comparison import OracleCache, compare
from .models import family_parameters, small
from .results import Results
from .scenarios import Run, Scenarios

__all__ = ["NAMES", "VariantScenarios", "compare_variant", "with_numbers_that_matter"]

NAMES = tuple(name for name in VARIANTS if name != "PAPER")
SIZES = {"l_x": 7, "l_z": 5, "l_max": 11, "B": 2}
CALLED = (1, 2, 4, 5, 6, 7)
WITHOUT_ATTENTION = tuple(n for n in CALLED if n not in (4, 5))
CALLERS = {10: (14,)}
EPSILON = 1e-2
METHODS = {"inputs", "read", "weights", "result", "__call__", "whole", "step"}
"""Of a line, those with its formula."""


def with_numbers_that_matter(variant: Any) -> Any:
    """A variant whose numbers change what is computed at the sizes of the run."""
    variant = small(variant)

    def normed(line: Any) -> Any:
        norms = ("normalize_heads", "normalize_values", "normalize_output")
        given = {name: getattr(line, name) for name in norms if getattr(line, name, None) is not None}
        return line.but(**{name: norm.but(epsilon=EPSILON) for name, norm in given.items()})

    end = variant.layer_end
    return variant.but(
        layer_end=end and end.but(norm=end.norm.but(epsilon=EPSILON)),
        norm=variant.norm.but(epsilon=EPSILON) if variant.norm.epsilon else variant.norm,
        attention=tuple(map(normed, variant.attentions)),
        mlp=tuple(m and normed(m) for m in variant.mlps_in_turn),
    )


class VariantScenarios(Scenarios):
    """The runs of a variant, of one version of the code.

    `name`: of the variant; `algorithm`: 8, 9 or 10; None: that of a published variant; the rest is as in `Scenarios`.
    """

    called = CALLED

    def __init__(
        self, package: ModuleType, name: str, *, sizes: dict[str, int], algorithm: int | None = None, **settings: Any
    ):
        self.name, self.algorithm = name, algorithm or ARCHITECTURES.get(name, 10)
        self.sharing = 2 if name in SHARING else 1
        self.record = self._record(package)
        L = max(3, len(small(self.record).attentions))
        super().__init__(package, sizes={**SIZES, "H": 2 * self.sharing, "L": L, **sizes}, **settings)
        self.variant = with_numbers_that_matter(self.record)
        self.hidden = {
            type(line)
            for line in self.variant.attentions
            if hasattr(line, "d_q") or not hasattr(line, "normalize_heads")
        }
        self.hidden |= {type(self.variant.layer_end)} - {type(None)}
        if self.hidden == set(map(type, self.variant.attentions)):  # none calls Algorithm 5
            self.called = WITHOUT_ATTENTION
        self.model = self._model()

    def _record(self, package: ModuleType) -> Any:
        """The variant of this version of the code."""
        return importlib.import_module(f"{package.__name__}.model.variants").VARIANTS[self.name]

    def _model(self) -> Any:
        """The variant that the oracle runs: this repository's, not that of the code."""
        return with_numbers_that_matter(VARIANTS[self.name])

    def changed(self) -> dict[tuple[int, str], ChangedLine]:
        """The lines that the variant changes."""
        return changed_lines(VARIANTS[self.name], self.algorithm, self.sharing)

    def left_out(self) -> dict[str, list[tuple[int, str]]]:
        """What is not compared, in words, and the algorithm and number of each of its lines that would be."""
        return {}

    def _unstacked(self, theta: Any) -> Any:
        return family_parameters(theta)

    def _runs_of_model(self) -> Iterator[Run]:
        kind, paper = {8: "ED", 9: "E", 10: "D"}[self.algorithm], family.TRANSFORMERS[self.algorithm]
        lengths = (self.sizes.l_z, self.sizes.l_x)[-len(kind) :]
        own = {"d_in": self.sizes.d_in} if self.variant.embedding.factored else {}
        sizes = SimpleNamespace(**vars(self.sizes) | {"d_f": own.get("d_in", self.sizes.d_e)})  # W_u can be tied
        self.theta = self._theta(kind, sizes, variant=self.variant, H_kv=self.sizes.H // self.sharing, **own)
        yield from self._transformer(self.algorithm, functools.partial(paper, variant=self.model), self.theta, lengths)

    _runs_8 = _runs_9 = _runs_10 = _runs_of_model

    def _runs_14(self) -> Iterator[Run]:
        """Generation by the model that ran before."""
        x, key = self._tokens(self.sizes.l_x), jax.random.key(self.seed)
        model = functools.partial(family.d_transformer, variant=self.model)
        yield self._generation(14, x, self.theta, 0.7, key, {"transformer": model}, l_gen=self.sizes.l_gen)

    def runs(self, algorithm: int) -> Iterator[Run]:
        """One sequence (or pair), and a batch; they show the lines of the algorithms that they call, too.

        What a line calls that stands in place of these algorithms is not observed: it is not a line of the model.
        """
        shows = frozenset() if algorithm == 14 else frozenset(self.called)
        methods = (vars(kind)[name] for kind in self.hidden for name in METHODS & vars(kind).keys())
        hidden = frozenset(inspect.unwrap(method).__code__ for method in methods)
        for run in super().runs(algorithm):
            yield dataclasses.replace(run, shows=shows, sharing=self.sharing, hidden=hidden)


def compare_variant(
    scenarios: VariantScenarios, root: pathlib.Path, cache: OracleCache | None = None, *, until_first: bool = False
) -> Results:
    """Run a variant, compare every line but those that it leaves out, and mark those that its record changes.

    The arguments are those of `compare`.
    """
    cache, n, callers = {} if cache is None else cache, scenarios.algorithm, CALLERS.get(scenarios.algorithm, ())
    results = compare(scenarios, root, (n, *callers), cache, until_first=until_first)
    changed, left_out = scenarios.changed(), scenarios.left_out()
    results.settings |= {"variant": scenarios.name, "left_out": [*left_out]}
    called = {key[0] for key in cache[n, 0].visits} | {*callers}
    others = {key for keys in left_out.values() for key in keys}
    results.lines = {key: line for key, line in results.lines.items() if key[0] in called and key not in others}
    for key, line in results.lines.items():
        line.change = changed.get(key)
    return results

"""Matching what the code computed with what the oracle computed: the verdicts."""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

from training import oracle

from .algorithms import PSEUDOCODE
from .pseudocode import Line
from .records import CodeRecord, Key, OracleRecord, Site, Visit, seen_in
from .results import Cell, LineResult, Results
from .scenarios import Run, Scenarios
from .tags import read
from .tracing import traced
from .values import TOLERANCE, difference, plain, prefix

__all__ = ["OracleCache", "compare", "run_paper"]

SETS = {"T_tilde"}
"""Variables that have no room for more, even where sequences are padded."""

SHARED = {(4, "2", "K"), (4, "3", "V")}
"""Arrays that several heads may share."""

OracleCache = dict[tuple[int, int], OracleRecord]
"""The oracle's results, by algorithm and run: they do not depend on the version of the code that is checked."""


def compare(
    scenarios: Scenarios,
    root: pathlib.Path,
    algorithms: Iterable[int],
    cache: OracleCache | None = None,
    *,
    until_first: bool = False,
    earlier: Results | None = None,
    after: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Run algorithms and compare every line.

    `scenarios`: what to run; `root`: the root of the repository that the code under check lies in; `algorithms`:
    their numbers; `cache`: what the oracle computed in an earlier comparison of the same scenarios; filled;
    `until_first`: whether to stop behind the first run that differs; `earlier`: what a comparison that was stopped
    had found; `after`: called after each algorithm.
    """
    cache, (first, *others) = {} if cache is None else cache, algorithms
    shown = (first, *scenarios.called, *others)
    lines = {(n, line.number): LineResult(n, line.number) for n in shown for line in PSEUDOCODE[n].lines}
    results = earlier or Results(lines, {}, {"seed": scenarios.seed, "implementation": scenarios.implementation})
    for n in (n for n in (first, *others) if n not in results.done):
        differences: list[_Difference] = []
        for i, run in enumerate(scenarios.runs(n)):
            differences += _check_run(results, run, i, scenarios, root, cache)
            if differences and until_first:
                break
        if differences and results.first is None:
            results.first = min(differences).name
        if results.first is not None and until_first:
            break
        results.done.append(n)
        after(results)
    return results


class _Difference(NamedTuple):
    """Place of a difference; the smallest is the likely cause of the others.

    What differs in an algorithm that a run only calls, while it is right by itself, is wrong by what it was given: so a
    run's own lines come first, and among these the first to be executed.
    """

    called: bool
    run: int
    order: int
    algorithm: int
    line: str
    where: str

    @property
    def name(self) -> tuple[int, str, str]:
        return self.algorithm, self.line, self.where


def _check_run(
    results: Results, run: Run, index: int, scenarios: Scenarios, root: pathlib.Path, cache: OracleCache
) -> list[_Difference]:
    n = run.algorithm
    paper = cache.get((n, index)) or cache.setdefault((n, index), run_paper(run.paper))
    code = CodeRecord(run.batched)
    try:
        with (
            jax.disable_jit(),  # each statement is executed as it is reached: loops over layers and steps become Python's
            _compiled(scenarios.package),
            _chosen(scenarios.package) as taken,
            traced(root / "algorithms", root, code, run.hidden),
        ):
            run.code()
            results.taken |= taken
    except Exception as error:
        number, line = _raised_in(error, root, n)
        message = f"{type(error).__name__}: {error}"
        results.errors[n] = (line, f"{run.what}: {message}")
        return [_Difference(False, index, 0, number, line, f"raised {message}")]
    return _match(results, run, index, paper, code)


@contextlib.contextmanager
def _compiled(package: ModuleType) -> Iterator[None]:
    """The recurrences of mixers, which have no lines to observe and take minutes one operation at a time, compiled."""
    module = importlib.import_module(f"{package.__name__}.ops.delta_rule")
    by_chunks, by_tokens = jax.jit(module._in_chunks, static_argnums=0), jax.jit(module._by_tokens)

    def call(jitted: Callable[..., Any], *arguments: Any) -> Any:
        with jax.disable_jit(False):
            return jitted(*arguments)

    calls: Any = {"_in_chunks": functools.partial(call, by_chunks), "_by_tokens": functools.partial(call, by_tokens)}
    with mock.patch.multiple(module, **calls):
        yield


@contextlib.contextmanager
def _chosen(package: ModuleType) -> Iterator[set[str]]:
    """The implementations that "auto" takes while the context lasts, filled as they are taken."""
    dispatch, taken = importlib.import_module(f"{package.__name__}.ops.attention.dispatch"), set()
    automatic = dispatch.automatic

    @functools.wraps(automatic)
    def noted(*args: Any, **kwargs: Any) -> str:
        name = automatic(*args, **kwargs)
        taken.add(name)
        return name

    with mock.patch.object(dispatch, "automatic", noted):
        yield taken


def run_paper(paper: Callable[[OracleRecord], Any]) -> OracleRecord:
    """Return the oracle's record of what calls it: see `Run.paper`."""
    record = OracleRecord()
    folder = pathlib.Path(oracle.__file__).resolve().parent
    with traced(folder, folder.parents[1], record, {oracle.complex_step_gradient.__code__}):
        paper(record)
    return record


def _raised_in(error: BaseException, root: pathlib.Path, algorithm: int) -> tuple[int, str]:
    """The innermost tagged statement that an exception passed through."""
    found = (algorithm, "?")
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = pathlib.Path(frame.f_code.co_filename)
        if path.is_relative_to(root / "algorithms"):
            function = read(path, root).get(frame.f_code.co_firstlineno)
            if function is not None:
                algorithm = function.algorithm or algorithm
                statement = function.statements.get(line)
                if statement is not None:
                    found = (algorithm, statement.tags[0].first)
    return found


def _match(results: Results, run: Run, index: int, paper: OracleRecord, code: CodeRecord) -> list[_Difference]:
    """Compare one run's records, line by line; returns the first difference of each line that has one."""
    found = []
    for key in sorted(set(paper.visits) | set(code.sites), key=str):
        n, number, variable = key
        result, line, own = results.lines.get((n, number)), PSEUDOCODE[n].line(number), n in (run.algorithm, *run.shows)
        site, also = _site(code, key, line), line.also if variable != line.variable else None
        if site is None and own and also is not None:
            site = Site(None, (number,), [])  # so that its absence is a difference
        if result is None or site is None:
            continue
        if own and also is None:
            _place(result, code, key, site)
        is_other = (line.kind == "length" and run.padded) or (also is not None and run.greedy and not also.greedy)
        if is_other or (own and result.within) or not seen_in(line, site.group):
            continue
        cell = result.cells.setdefault(variable, Cell(variable)) if own else Cell(variable, run.algorithm)
        first = _compare(cell, paper.visits.get(key, []), _of_every_head(site.visits, key, run), run)
        if not own:
            result.elsewhere.append(cell)
        if first is not None:
            found.append(_Difference(not own, index, first[0], n, number, first[1]))
    return found


def _of_every_head(visits: list[Visit], key: Key, run: Run) -> list[Visit]:
    """The keys and values of every head, where several heads read the same ones."""
    if run.sharing == 1 or key not in SHARED:
        return visits
    heads = range(run.sharing)
    return [dataclasses.replace(v, head=(v.head or 0) * run.sharing + h) for v in visits for h in heads]


def _site(code: CodeRecord, key: Key, line: Line) -> Site | None:
    """The best place to see a line: the last statement with the fewest other lines that assigns its variable."""

    def rank(site: Site) -> tuple[int, bool]:
        statement = site.statement
        return len(site.group), statement is not None and statement.target != line.variable

    return min(reversed(code.sites.get(key, {}).values()), key=rank, default=None)


def _place(result: LineResult, code: CodeRecord, key: Key, site: Site) -> None:
    """Note the statements that do a line: all with the same group as the best one."""
    result.group = site.group
    result.within = not seen_in(result.line, site.group)
    for other in code.sites[key].values():
        if other.statement is not None and other.group == site.group and other.statement.place not in result.places:
            result.places.append(other.statement.place)
    result.places.sort(key=lambda place: (place.file, place.line))


def _compare(cell: Cell, paper: list[Visit], code: list[Visit], run: Run) -> tuple[int, str] | None:
    """Add the values of one run to a cell; returns the order and the place of the first that differs."""
    groups: dict[Any, tuple[list[Visit], list[Visit]]] = defaultdict(lambda: ([], []))
    for visit in paper:
        groups[visit.sequence, visit.head][0].append(visit)
    sequences = {sequence for sequence, _ in groups}
    for visit in code:
        for sequence in sequences if visit.sequence is None else (visit.sequence,):
            groups[sequence, visit.head][1].append(visit)
    found: list[tuple[int, str]] = []
    for (sequence, head), (expected, actual) in groups.items():
        for want, have in zip(expected, actual, strict=False):
            apart = _difference(want.value, have.value, run.padded and cell.variable not in SETS)
            of = "" if sequence is None else f"sequence {sequence + 1}"
            where = ", ".join(filter(None, [run.what, want.where, of]))
            cell.values += 1
            cell.shape = cell.shape if cell.shape is not None else _shape(want.value)
            if apart > cell.largest_difference:
                cell.largest_difference, cell.where = apart, where
            if apart > TOLERANCE:
                found.append((have.order, where))
        if len(expected) != len(actual):
            of = f" of head {head + 1}" if head is not None else ""
            cell.problem = f"{run.what}: the paper computes it{of} {len(expected)} times, the code {len(actual)} times"
            rest = actual[len(expected) :] or actual[-1:]
            found.append((rest[0].order if rest else 0, cell.problem))
    return min(found, default=None)


def _difference(want: Any, have: Any, padded: bool) -> float:
    if isinstance(want, dict):
        if not isinstance(have, dict) or want.keys() != have.keys():
            return np.inf
        return max(difference(want[path], have[path]) for path in want)
    want, have = plain(want), plain(have)
    return difference(want, prefix(have, want.shape) if padded else have)


def _shape(value: Any) -> tuple[int, ...]:
    return (sum(array.size for array in value.values()),) if isinstance(value, dict) else plain(value).shape

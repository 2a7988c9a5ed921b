"""The wrong edits that the cross-check must locate: it must be able to fail, at the right line."""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from algorithms.model.variants import VARIANTS

from .algorithms import PSEUDOCODE
from .changes import ARCHITECTURES
from .comparison import OracleCache, Results, compare
from .edits import Planted
from .foreign.cases import Case
from .foreign.checking import diagnose, merged
from .foreign.making import make_case, of_library
from .foreign.recording import Recording, record_jax
from .planted import PLANTED
from .scenarios import Scenarios, masked_tokens
from .variants import VariantScenarios, compare_variant, with_numbers_that_matter

__all__ = ["Caches", "check_mutations", "locate", "named"]

Caches = defaultdict[str | None, OracleCache]
"""What the oracle computed, by variant; None for the paper."""


@contextlib.contextmanager
def imported(root: pathlib.Path) -> Iterator[ModuleType]:
    """Import the package `algorithms` of another root, as long as the context lasts.

    The tests' checks of signatures remember the classes that they saw first, and so stay with the own package.
    """
    finders = list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in finders if not type(finder).__module__.startswith("jaxtyping")]
    own = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "algorithms"}
    for name in own:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        yield importlib.import_module("algorithms")
    finally:
        sys.path.remove(str(root))
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name.split(".")[0] == "algorithms"]:
            del sys.modules[name]
        sys.modules.update(own)


@contextlib.contextmanager
def edited(mutation: Planted, root: pathlib.Path) -> Iterator[ModuleType]:
    """Import a copy of the package `algorithms` with an edit made, as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder).resolve()
        shutil.copytree(root / "algorithms", copy / "algorithms", ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutation.edit.file).write_text(mutation.edit.made(root), "utf-8")
        with imported(copy) as package:
            yield package


def locate(
    mutation: Planted,
    root: pathlib.Path,
    seed: int,
    caches: Caches,
    numbers: Sequence[int] = tuple(sorted(PSEUDOCODE)),
) -> Results:
    """Make an edit in a copy, and cross-check the copy: a variant, or the paper until the first algorithm that differs.

    What the lines as printed do not show is looked for in what a caller gets.

    `mutation`: the edit; `root`: the root of the repository; `seed`: of the inputs; `caches`: what the oracle
    computed for earlier mutations; filled; `numbers`: the algorithms to check, in order.
    """
    with edited(mutation, root) as package:
        copy = pathlib.Path(package.__file__ or "").parents[1]
        settings = {"seed": seed, "sizes": {}}
        of_this = caches[mutation.variant]
        if mutation.variant is not None:
            scenarios = VariantScenarios(package, mutation.variant, **settings, implementation="paper")
            return compare_variant(scenarios, copy, of_this)
        for implementation in ("paper", "auto"):
            scenarios = Scenarios(package, **settings, implementation=implementation)
            results = compare(scenarios, copy, numbers, of_this, until_first=True)
            if results.first is not None:
                break
        return results


FOREIGN = {1: 10, 2: 10, 3: 10, 4: 10, 5: 10, 6: 10, 7: 10, 8: 8, 9: 9, 10: 10, 11: 8, 12: 9, 13: 10, 14: 10, 15: 8}
"""An algorithm → the one whose case shows its lines."""


def named(mutation: Planted, root: pathlib.Path, seed: int) -> list[str]:
    """What an edit computes instead, in words, found as in foreign code: from the numbers of the compiled functions.

    The arguments are those of `locate`. Result: the departures of the first case that has any.
    """
    n = ARCHITECTURES.get(mutation.variant, 10) if mutation.variant else FOREIGN[mutation.algorithm]
    tried = [(n, mutation.variant)] if mutation.variant else [(n, "PAPER"), (8, "PAPER"), (9, "PAPER"), (10, "GPT2")]
    tried = [(4, "PAPER")] if mutation.algorithm == 3 else tried  # whose lines those of Algorithm 3 are
    with edited(mutation, root) as package:
        for algorithm, variant in tried:
            if algorithm == 4:
                case, recording = _one_by_one(package, seed)
            else:
                case = make_case(algorithm, variant, seed, record=with_numbers_that_matter(VARIANTS[variant]))
                case, recording = _observed(package, case, mutation.algorithm, jax.random.key(seed))
            report = diagnose(case, recording)
            if not report.ok:
                found = [d for d in merged(report.departures) if d.kind == "named"]
                return [f"Algorithm {d.algorithm}, line {d.line}: {d.text}" for d in found]
    return []


def _observed(package: ModuleType, case: Case, algorithm: int, key: jax.Array) -> tuple[Case, Recording]:
    """What the functions of a copy compute from a case: the transformer, and if asked for training or inference.

    Result: the case, with what the functions draw by themselves; the recording.
    """
    variants = importlib.import_module(f"{package.__name__}.model.variants").VARIANTS
    theta = of_library(case, package, with_numbers_that_matter(variants[case.variant]))
    theta = jax.tree.map(lambda W: jnp.asarray(W, jnp.float64), theta)
    if case.algorithm == 9:
        masked, mask_token = np.flatnonzero(masked_tokens(key, 0, 0, 0.5, case.sizes["l_x"])), case.sizes["N_V"] - 3
        x = [mask_token if t in masked else v for t, v in enumerate(case.inputs["labels"])]
        case = dataclasses.replace(case, inputs={**case.inputs, "x": x, "masked": masked.tolist()})
    given = [jnp.asarray(case.inputs[name]) for name in ("z", "x") if name in case.inputs]
    functions = {n: entry.function for n, entry in package.REGISTRY.items()}
    transformer = functools.partial(functions[case.algorithm], *given, implementation="paper")
    recording = record_jax(lambda theta: transformer(theta=theta), theta, parameters=theta)
    if algorithm in (11, 12, 13):
        data = [jnp.asarray(case.inputs["labels"])] if algorithm == 12 else given
        options = {"p_mask": 0.5, "key": key} if algorithm == 12 else {}
        after = functions[algorithm](*(a[None] for a in data), theta, N_epochs=1, eta=case.eta, **options)
        steps = jax.tree_util.tree_flatten_with_path(jax.tree.map(lambda a, b: (a - b) / case.eta, theta, after))[0]
        recording.gradients = {jax.tree_util.keystr(path): np.asarray(g) for path, g in steps}
    if algorithm == 14:
        draws = [functools.partial(_categorical, jax.random.fold_in(key, i)) for i in range(len(case.sampling["y"]))]
        case = dataclasses.replace(case, sampling={**case.sampling, "draws": draws})
        x, tau = jnp.asarray(case.sampling["x"]), case.sampling["tau"]
        recording.sampled = functions[14](x, theta, l_gen=len(draws), tau=tau, key=key).tolist()
    return case, recording


def _one_by_one(package: ModuleType, seed: int) -> tuple[Case, Recording]:
    """Algorithm 4 without a mask, and what Algorithm 3 of a copy computes of each of its tokens."""
    case = make_case(4, seed=seed, d_x=8, d_z=8)
    case = dataclasses.replace(case, inputs={**case.inputs, "Mask": np.ones_like(case.inputs["Mask"])})
    X, Z = (jnp.asarray(case.inputs[name], jnp.float64) for name in "XZ")
    theta = package.AttentionParams(**{name: jnp.asarray(W[0], jnp.float64) for name, W in case.theta.items()})
    context = jnp.repeat(Z[:, None], X.shape[1], axis=1)
    query = functools.partial(package.REGISTRY[3].function, X, context)
    return case, record_jax(query, theta, parameters=theta)


def _categorical(key: jax.Array, logits: np.ndarray) -> int:
    return int(jax.random.categorical(key, jnp.asarray(logits)))


def check_mutations(names: Sequence[str], root: pathlib.Path, seed: int, console: Console) -> int:
    """Check that each mutation is located at its line; print that and its name, and return the exit status.

    Raises:
        ValueError: for a name that is none.
    """
    caches: Caches = defaultdict(dict)
    missed = count = told = 0
    unknown = sorted(set(names) - set(PLANTED))
    if unknown:
        raise ValueError(f"--mutations: expected names among {', '.join(PLANTED)}; got {', '.join(unknown)}")
    for name in names:
        PLANTED[name].edit.made(root)
    for count, name in enumerate(names, 1):
        mutation = PLANTED[name]
        first = locate(mutation, root, seed, caches).first
        wanted = (mutation.algorithm, mutation.line)
        found = first is not None and first[:2] == wanted
        missed += not found
        of = f"{mutation.variant}: " if mutation.variant else ""
        where = "nothing differs" if first is None else f"{of}Algorithm {first[0]}, line {first[1]} ({first[2]})"
        verdict = "located" if found else f"EXPECTED Algorithm {wanted[0]}, line {wanted[1]}"
        console.print(f"{count:3} {name} [{mutation.edit.file}]: {where}: {verdict}", markup=False, highlight=False)
        says = named(mutation, root, seed)
        told += bool(says)
        console.print(f"    {'; '.join(says) or 'without a name'}", markup=False, highlight=False)
    console.print(f"{count - missed} of {count} mutations located, {told} named", highlight=False)
    return 1 if missed else 0

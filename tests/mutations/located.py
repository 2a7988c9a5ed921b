"""The wrong edits that the cross-check must locate: it must be able to fail, at the right line."""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.lines import MTP
from algorithms.model.variants import VARIANTS
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.changes import ARCHITECTURES
from training.crosscheck.comparison import OracleCache, compare
from training.crosscheck.models import family_parameters
from training.crosscheck.results import Results
from training.crosscheck.scenarios import Scenarios, masked_tokens
from training.crosscheck.variants import VariantScenarios, compare_variant, with_numbers_that_matter
from training.foreign.cases import Case
from training.foreign.checking import diagnose
from training.foreign.making import make_case, of_library, paper_names
from training.foreign.recording import Recording, record_jax

from .edits import Copy, Edit, Planted, Verdict, try_all
from .planted import PLANTED

__all__ = ["Caches", "check_planted", "locate", "named", "parameters", "recorded"]

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
def edited(edit: Edit, root: pathlib.Path) -> Iterator[ModuleType]:
    """Import a copy of the package `algorithms` with an edit made, as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(root, pathlib.Path(folder).resolve(), "algorithms")
        with copy.edited(edit), imported(copy.folder) as package:
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
    with edited(mutation.edit, root) as package:
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

    The arguments are those of `locate`. Result: the departures of the first case that has any; none if one of them has no
    name.
    """
    with edited(mutation.edit, root) as package:
        for case, recording in _observations(package, mutation, seed):
            report = diagnose(case, recording)
            if not report.ok:
                found = [d for d in report.departures if d.kind != "harmless"]
                told = [f"Algorithm {d.algorithm}, line {d.line}: {d.text}" for d in found]
                return told if all(d.kind == "named" for d in found) else []
    return []


def _observations(package: ModuleType, mutation: Planted, seed: int) -> Iterator[tuple[Case, Recording]]:
    """Cases that may show an edit, and what the functions of a copy compute of them."""
    algorithm, key = mutation.algorithm, jax.random.key(seed)
    n = ARCHITECTURES.get(mutation.variant, 10) if mutation.variant else FOREIGN[algorithm]
    if algorithm == 3:
        yield _one_by_one(package, seed)
        return
    edge = {11: "padding", 12: "padding", 13: "second head"}.get(algorithm, "")
    others = [] if mutation.variant else [(8, "PAPER"), (9, "PAPER"), (10, "GPT2")]
    for number, variant in dict.fromkeys([(n, mutation.variant or "PAPER"), *others]):
        record = with_numbers_that_matter(VARIANTS[variant])
        record = record.but(mtp=MTP()) if edge == "second head" and number == n else record
        case = make_case(number, variant, seed, edge=edge if number == n else "", record=record)
        theta = parameters(package, case)
        if number == 9:
            case = _drawn(case, key)
        if number == n and algorithm in (11, 12, 13):
            for implementation in ("paper", "auto"):
                yield _trained(package, case, theta, algorithm, key, implementation)
            if algorithm == 11:
                yield case, _weighed(package, case, theta)
        elif number == n and algorithm in (14, 15):
            for tau in (0.7, 0.0, np.inf):
                yield _sampled(package, case, theta, algorithm, tau, key)
        else:
            yield case, recorded(package, case, theta)
    if algorithm == 4 and not mutation.variant:
        yield _of_heads(package, seed)


def parameters(package: ModuleType, case: Case) -> Any:
    """θ of a case as a package has it, in float64."""
    variants = importlib.import_module(f"{package.__name__}.model.variants").VARIANTS
    record = with_numbers_that_matter(variants[case.variant])
    if case.record.mtp:
        record = record.but(mtp=importlib.import_module(f"{package.__name__}.lines").MTP())
    theta = of_library(case, package, record)
    return jax.tree.map(lambda W: jnp.asarray(W, jnp.float64), theta)


def _drawn(case: Case, key: jax.Array) -> Case:
    """A case of Algorithm 9 with the tokens masked that Algorithm 12 draws."""
    labels, mask_token = case.inputs["labels"], case.sizes["N_V"] - 3
    l, drawn = case.inputs.get("length", len(labels)), masked_tokens(key, 0, 0, 0.5, len(labels))
    x = [mask_token if drawn[t] else v for t, v in enumerate(labels[:l])] + case.inputs["x"][l:]
    return dataclasses.replace(case, inputs={**case.inputs, "x": x, "masked": np.flatnonzero(drawn[:l]).tolist()})


def recorded(package: ModuleType, case: Case, theta: Any, options: Mapping[str, Any] | None = None) -> Recording:
    """What the transformer of a package computes; `options`: in place of the lengths of what is padded."""
    given = [jnp.asarray(case.inputs[name]) for name in ("z", "x") if name in case.inputs]
    padded = {name: jnp.asarray(case.inputs[name]) for name in ("z_length", "length") if name in case.inputs}
    how = {"implementation": "paper", **(padded if options is None else options)}
    function = functools.partial(package.REGISTRY[case.algorithm].function, *given, **how)

    def of_heads(theta: Any) -> Any:
        if case.algorithm != 10 or theta.mtp is None:
            return function(theta=theta)
        X = package.mtp_hidden_state(package.d_hidden_state(*given, theta), jnp.roll(given[0], -1), theta)
        return function(theta=theta), theta.variant.unembedding(X, theta)

    return record_jax(of_heads, theta, parameters=theta)


def _weighed(package: ModuleType, case: Case, theta: Any) -> Recording:
    """What the transformer of a copy computes, and the loss of Algorithm 11 as a caller gets it, who weighs the tokens."""
    recording = recorded(package, case, theta)
    z, x = (jnp.asarray(case.inputs[name]) for name in "zx")
    X = package.alg08_ed_transformer.ed_hidden_state(z, x, theta, z_length=jnp.asarray(case.inputs["z_length"]))
    weights = jnp.arange(len(x)) < len(x) - 1
    recording.loss = float(package.log_loss(X, theta.W_u, jnp.roll(x, -1), weights=weights))
    return recording


def _trained(
    package: ModuleType, case: Case, theta: Any, algorithm: int, key: jax.Array, implementation: str
) -> tuple[Case, Recording]:
    """A case, and the gradient of the last step of training: of Algorithm 11 the second, from the θ of the first."""
    of = {11: ("z", "x"), 12: ("labels",), 13: ("x",)}[algorithm]
    data = [jnp.asarray(case.inputs[name])[None] for name in of]
    options: dict[str, Any] = {"p_mask": 0.5, "key": key} if algorithm == 12 else {}
    options |= {"length": jnp.asarray([case.inputs["length"]])} if algorithm == 12 else {}
    options["implementation"] = implementation
    if algorithm == 11:
        data = [jnp.concatenate([a[:, ::-1], a]) for a in data]
        options["z_length"] = jnp.asarray([data[0].shape[1], case.inputs["z_length"]])

    def train(theta: Any, n: int) -> Any:
        some = {name: a[:n] if name.endswith("length") else a for name, a in options.items()}
        function = package.REGISTRY[algorithm].function
        return function(*(a[:n] for a in data), theta, N_epochs=1, eta=case.eta, **some)

    before, after = train(theta, 1) if algorithm == 11 else theta, train(theta, len(data[0]))
    if algorithm == 11:
        case = dataclasses.replace(case, theta=paper_names(family_parameters(before)))
    recording = recorded(package, case, before)
    steps = jax.tree_util.tree_leaves_with_path(jax.tree.map(lambda a, b: (a - b) / case.eta, before, after))
    recording.gradients = {jax.tree_util.keystr(path): np.asarray(g) for path, g in steps}
    return case, recording


def _sampled(
    package: ModuleType, case: Case, theta: Any, algorithm: int, tau: float, key: jax.Array
) -> tuple[Case, Recording]:
    """A case with the draws of the functions themselves, and the tokens that Algorithm 14 or 15 samples."""
    function, recording = package.REGISTRY[algorithm].function, recorded(package, case, theta)
    draws = [functools.partial(_categorical, jax.random.fold_in(key, i)) for i in range(case.sizes["l_max"])]
    said = {name: jnp.asarray(case.sampling[name]) for name in ("x", "z") if name in case.sampling}
    if algorithm == 14:
        recording.sampled = function(said["x"], theta, l_gen=len(case.sampling["y"]), tau=tau, key=key).tolist()
    else:
        tokens = function(said["z"], theta, tau=tau, key=key, l_max=case.sizes["l_max"])[0].tolist()
        eos = case.sizes["N_V"] - 1
        recording.sampled = tokens[: 2 + max(t for t, token in enumerate(tokens) if token != eos)]
    return dataclasses.replace(case, sampling={**case.sampling, "tau": tau, "draws": draws}), recording


def _one_by_one(package: ModuleType, seed: int) -> tuple[Case, Recording]:
    """Algorithm 4 without a mask, and what Algorithm 3 of a copy computes of each of its tokens."""
    case = make_case(4, seed=seed, d_x=8, d_z=8)
    case = dataclasses.replace(case, inputs={**case.inputs, "Mask": np.ones_like(case.inputs["Mask"])})
    X, Z = (jnp.asarray(case.inputs[name], jnp.float64) for name in "XZ")
    theta = package.AttentionParams(**{name: jnp.asarray(W[0], jnp.float64) for name, W in case.theta.items()})
    context = jnp.repeat(Z[:, None], X.shape[1], axis=1)
    query = functools.partial(package.REGISTRY[3].function, X, context)
    return case, record_jax(query, theta, parameters=theta)


def _of_heads(package: ModuleType, seed: int) -> tuple[Case, Recording]:
    """Algorithm 5, where a token has nothing to attend to, and what that of a copy computes."""
    case = make_case(5, seed=seed)
    W = {name: jnp.asarray(a, jnp.float64) for name, a in case.theta.items()}
    out = {name: W.pop(name) for name in ("W_o", "b_o")}
    theta = package.MHAttentionParams(package.AttentionParams(**W), **out)
    X, Z = (jnp.asarray(case.inputs[name], jnp.float64) for name in "XZ")
    function = functools.partial(package.REGISTRY[5].function, X, Z, mask=jnp.asarray(case.inputs["Mask"]))
    return case, record_jax(lambda W: function(W=W, implementation="paper"), theta, parameters=theta)


def _categorical(key: jax.Array, logits: np.ndarray) -> int:
    return int(jax.random.categorical(key, jnp.asarray(logits)))


def check_planted(names: Sequence[str], root: pathlib.Path, seed: int) -> int:
    """Check that each planted bug is located at its line and named; print both, and return the exit status."""
    caches: Caches = defaultdict(dict)

    def judge(name: str) -> Verdict:
        mutation = PLANTED[name]
        first, wanted = locate(mutation, root, seed, caches).first, (mutation.algorithm, mutation.line)
        found = first is not None and first[:2] == wanted
        of = f"{mutation.variant}: " if mutation.variant else ""
        where = "nothing differs" if first is None else f"{of}Algorithm {first[0]}, line {first[1]} ({first[2]})"
        where += ": located" if found else f": EXPECTED Algorithm {wanted[0]}, line {wanted[1]}"
        told = named(mutation, root, seed)
        return Verdict((found, bool(told)), f"{mutation.edit.file}: {where}: {'; '.join(told) or 'without a name'}")

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    return try_all(names, judge, "mutations located", "named", say=functools.partial(print, flush=True))

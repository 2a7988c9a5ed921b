"""The wrong edits that the cross-check must locate: it must be able to fail, at the right line."""

import contextlib
import importlib
import pathlib
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import ModuleType

from rich.console import Console

from .algorithms import PSEUDOCODE
from .comparison import OracleCache, Results, compare
from .edits import Planted
from .planted import PLANTED
from .scenarios import Scenarios
from .variants import VariantScenarios, compare_variant

__all__ = ["Caches", "check_mutations", "locate"]

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
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder).resolve()
        shutil.copytree(root / "algorithms", copy / "algorithms", ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutation.edit.file).write_text(mutation.edit.made(root), "utf-8")
        with imported(copy) as package:
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


def check_mutations(names: Sequence[str], root: pathlib.Path, seed: int, console: Console) -> int:
    """Check that each mutation is located at its line; print one line for each, and return the exit status.

    Raises:
        ValueError: for a name that is none.
    """
    caches: Caches = defaultdict(dict)
    missed = count = 0
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
    console.print(f"{count - missed} of {count} mutations located", highlight=False)
    return 1 if missed else 0

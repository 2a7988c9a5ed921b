"""Compare every line of the paper's fifteen algorithms with this project's code, or with anybody's, in float64.

    scripts/crosscheck.py                                 # all fifteen, two minutes
    scripts/crosscheck.py --algorithm 4
    scripts/crosscheck.py --variant LLAMA                 # a published model
    scripts/crosscheck.py --of my_glue:observe --algorithm 10     # your code: docs/check-your-own.md
    scripts/crosscheck.py --of transformers:gpt2

Exit status: 0 all lines agree; 1 a line differs or has no counterpart; 2 invalid usage.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import pathlib
import shutil
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
from rich.console import Console

from training.command_line.arguments import Parser, local
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.backward import check_rules
from training.crosscheck.book import page_of_model, write_book
from training.crosscheck.comparison import OracleCache, compare
from training.crosscheck.own import OwnScenarios
from training.crosscheck.report import as_junit, print_report
from training.crosscheck.results import Results
from training.crosscheck.scenarios import Scenarios
from training.crosscheck.stored import StoredResults
from training.crosscheck.variants import NAMES, VariantScenarios, compare_variant
from training.foreign import from_transformers
from training.foreign.cases import Case
from training.foreign.checking import beside, case_of, diagnose, observed, recorded, variant_of
from training.foreign.making import EDGES, config_of, make_case, of_library, write_case
from training.foreign.recording import Recording
from training.foreign.report import write_report

DEFAULT = ("paper", "auto")
"""The implementations that are compared: the lines as printed, and what a caller gets."""

SUMS = "SHA256SUMS"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _sizes(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not size.isdecimal():
        raise argparse.ArgumentTypeError(f"expected NAME=SIZE such as H=3, got {text!r}")
    return name, int(size)


def _variant(name: str) -> str:
    if name not in (*NAMES, "all") and ":" not in name:
        known = ", ".join((*NAMES, "all"))
        raise argparse.ArgumentTypeError(f"expected one of {known}, or PACKAGE.MODULE:NAME[:e|:ed], got {name!r}")
    return name


def parser() -> Parser:
    """Return the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("--algorithm", type=int, action="append", choices=sorted(PSEUDOCODE), metavar="N",
                        help="check this algorithm only; may be repeated")  # fmt: skip
    parser.add_argument("--variant", action="append", default=[], type=_variant, metavar="NAME",
                        help="check a published model (such as LLAMA; all: every one), its changed lines marked, or a "
                        "model with custom lines: PACKAGE.MODULE:NAME, a decoder (with :e appended an encoder, with "
                        ":ed both); may be repeated; a book also has the paper's algorithms")  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of inputs and parameters (default: %(default)s)"
    )
    parser.add_argument("--sizes", type=_sizes, nargs="+", default=[], metavar="NAME=SIZE",
                        help="sizes by the paper's names, such as H=3 L=4 d_e=10")  # fmt: skip
    parser.add_argument("--implementation",
                        help="check this one only; lines that it fuses are shown as one step (default: paper, which "
                        "shows every line, and auto, the default of the functions)")  # fmt: skip
    parser.add_argument("--json", type=local, metavar="FILE", help="write the result to FILE as well")
    parser.add_argument("--html", type=local, metavar="DIR",
                        help="write the result to DIR as a book of pages; with --of, as a page")  # fmt: skip
    parser.add_argument("--of", metavar="MODULE:FUNCTION|transformers:KIND|DIR",
                        help="check foreign code: a function MODULE:FUNCTION(case, dtype) that runs and records it, "
                        "the code of transformers for a KIND of model, such as transformers:gpt2, or the tensors in "
                        "DIR, a case's directory or a folder in it")  # fmt: skip
    parser.add_argument("--beside", metavar="MODULE:FUNCTION|transformers:KIND|DIR",
                        help="with --of: run another program on the same case, and report the first line that differs "
                        "and how much of the difference of log-probabilities each line adds")  # fmt: skip
    parser.add_argument("--expect", metavar="ITEMS",
                        help="with --of: known departures, such as GPT2 or GPT2,loss=mean or FILE.json")  # fmt: skip
    parser.add_argument("--dtype", choices=("float64", "float32", "bfloat16", "float16"),
                        help="with --of: dtype of the code (default: float64, or that of the files)")  # fmt: skip
    parser.add_argument("--write-case", type=local, metavar="DIR",
                        help="write random parameters, inputs and the value of every line to DIR; with "
                        "--variant all, a case of every algorithm and model")  # fmt: skip
    parser.add_argument("--edge", choices=EDGES, default="", metavar="NAME",
                        help="with --of and --write-case: an edge case, of any variant that has it: "
                        f"{', '.join(EDGES)}")  # fmt: skip
    parser.add_argument(
        "--junit", type=local, metavar="FILE", help="with --of: write the result as JUnit's XML to FILE"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (None: the process's own), and return the exit status."""
    options = parser().parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    package = importlib.import_module("algorithms")
    if options.implementation not in (None, *package.IMPLEMENTATIONS):
        known = ", ".join(package.IMPLEMENTATIONS)
        parser().error(f"--implementation: expected one of {known}, got {options.implementation!r}")
    width = None if sys.stdout.isatty() else 100 if options.of else max(shutil.get_terminal_size().columns, 170)
    console = Console(width=width)
    try:
        if options.write_case is not None or options.of is not None:
            return _foreign(options, console)
        every = _compared(options, package, console)
        _write(every, options, console)
    except ValueError as error:
        parser().error(str(error))
    return 0 if all(results.ok for results in every) else 1


def _compared(options: argparse.Namespace, package: ModuleType, console: Console) -> list[Results]:
    """The results of what was asked for, by every implementation; a book's pages are written as theirs are there."""
    every, names = [], NAMES if "all" in options.variant else dict.fromkeys(options.variant)
    kinds = [None] if options.algorithm or options.html is not None or not options.variant else []
    implementations = (options.implementation,) if options.implementation else DEFAULT
    for name in [*kinds, *names]:
        cache: OracleCache = {}
        wrong: set[int] = set()
        for implementation in implementations:
            shown = [results for results in every if results.settings["implementation"] == implementations[0]]
            is_shown = options.html is not None and implementation == implementations[0]
            results, is_new = _results(options, package, name, implementation, cache, shown if is_shown else None)
            wrong |= {line.algorithm for line in results.failures}
            if implementation != "paper":
                right = {n for n, _ in results.lines} - wrong  # a rule can only be compared with lines that are right
                results.rules = check_rules(package, ROOT, options.seed, right)
            every.append(results)
            tables = is_new and (implementation != "auto" or options.implementation == "auto")
            print_report(results, console, tables=tables)
    return every


def _results(
    options: argparse.Namespace,
    package: ModuleType,
    name: str | None,
    implementation: str,
    cache: OracleCache,
    shown: list[Results] | None,
) -> tuple[Results, bool]:
    """The results of the paper's algorithms (name None) or a variant, and whether anything was run for them; `shown`:
    those on earlier pages of the book, None where these are on no page.
    """
    settings = {"seed": options.seed, "sizes": dict(options.sizes), "implementation": implementation}
    numbers = options.algorithm or sorted(PSEUDOCODE)
    scenarios: Any = Scenarios(package, **settings)
    if name is not None:
        scenarios = (OwnScenarios if ":" in name else VariantScenarios)(package, name, **settings)
    key, stored, found = f"{name or 'PAPER'}-{implementation}", None, None
    if options.html is not None and ":" not in key:  # the source of custom lines may be anywhere
        stored = StoredResults(options.html / "found", ROOT, {**settings, "algorithms": numbers})
        found = stored.read(key, None if name is None else scenarios.changed())
    before = len(found.done) if found else 0

    def after(results: Results) -> None:
        page = f"algorithm-{results.done[-1]}.html" if name is None else page_of_model(name)
        if shown is not None:
            write_book([*shown, results], options.html, ROOT, only=page)
        if stored is not None:
            stored.write(key, results)

    if name is None:
        found = compare(scenarios, ROOT, numbers, cache, earlier=found, after=after)
        return found, len(found.done) > before
    if found is None:
        found = compare_variant(scenarios, ROOT, cache)
        after(found)
    return found, before == 0


def _foreign(options: argparse.Namespace, console: Console) -> int:
    """Write cases, or check foreign code against one."""
    if options.write_case is not None and "all" in options.variant:
        return _write_all(options, console)
    if len(options.algorithm or ()) > 1 or len(options.variant) > 1:
        raise ValueError("--algorithm, --variant: expected one of them, once, with --of and --write-case")
    module, _, function = (options.of or "").partition(":")
    is_library = module == "transformers" and bool(function)
    own = variant_of(function) if is_library else "PAPER"
    variant = options.variant[0] if options.variant else own
    algorithm = options.algorithm[0] if options.algorithm else None
    _are_programs(options)
    case = make_case(algorithm, variant, options.seed, edge=options.edge, **dict(options.sizes))
    if options.write_case is not None:
        console.print(f"case: {', '.join(map(str, _written(case, options.write_case)))}", markup=False)
        arrays = ", ".join(f"{name} {list(W.shape)}" for name, W in case.theta.items())
        console.print(f"θ: {arrays}", markup=False, highlight=False)
        return 0
    folders = [pathlib.Path(of) for of in (options.of, options.beside) if of and ":" not in of]
    case = case_of(folders[0]) if folders else case
    with console.status("recording") as status:
        one = _recorded(options.of, case, options.dtype)
        if options.beside:
            other = _recorded(options.beside, case, options.dtype)
            found = beside(case, one, other, options.expect, status.update)
            console.print(str(found), markup=False, highlight=False, style="green" if found.ok else "bold red")
            return 0 if found.ok else 1
        report = diagnose(case, one, options.expect, status.update)
    print_report(report, console)
    if options.html is not None:
        console.print(f"page: {write_report(report, options.html)}", markup=False)
    if options.json is not None:
        _write_json(options.json, report.as_data())
    if options.junit is not None:
        options.junit.write_text(as_junit(report), "utf-8")
    return 0 if report.ok else 1


def _are_programs(options: argparse.Namespace) -> None:
    """Raise ValueError if --of or --beside is neither code nor a directory, or --beside is without --of."""
    for name, of in (("--of", options.of), ("--beside", options.beside)):
        if of and ":" not in of and not pathlib.Path(of).is_dir():
            raise ValueError(f"{name}: expected MODULE:FUNCTION, transformers:KIND or a directory, got {of!r}")


def _recorded(of: str, case: Case, dtype: str | None) -> Recording:
    """Return the recording of a case by MODULE:FUNCTION, by the model transformers:KIND, or in a directory."""
    if ":" not in of:
        return recorded(pathlib.Path(of), dtype)
    module, _, function = of.partition(":")
    dtype = dtype or "float64"
    sys.path.insert(0, "")
    try:
        if module == "transformers":
            return from_transformers(function)(case, dtype)
        observe = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"--of {of}: expected modules that are installed, got none named {error.name!r}") from error
    if observe is None:
        raise ValueError(f"--of: expected a function that {module} has, got {function!r}")
    return observed(observe, case, dtype)


def _written(case: Case, directory: pathlib.Path) -> list[pathlib.Path]:
    """Write a case, and the same θ as checkpoints that others open, where such a model exists; returns their paths."""
    from training.interchange import save_pretrained
    from training.interchange.errors import InterchangeError

    write_case(case, directory)
    found = [directory]
    if case.algorithm >= 8:
        for path in (directory / "huggingface", directory / "model.gguf"):
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
            with contextlib.suppress(InterchangeError):  # no model of that kind has these lines
                save_pretrained(path, of_library(case), config_of(case))
                found.append(path)
    return found


def _write_all(options: argparse.Namespace, console: Console) -> int:
    """Write a case of every algorithm, edge and named variant, each into a folder, and the hashes of all files."""
    cases: list[tuple[str, dict[str, Any]]]
    cases = [(f"algorithm-{n}", {"algorithm": n}) for n in range(4, 11)]
    of = {"far positions": {"variant": "LLAMA"}}  # the paper's model has learned positions
    cases += [(edge.replace(" ", "-"), {"edge": edge} | of.get(edge, {})) for edge in EDGES]
    cases += [(name.lower(), {"variant": name}) for name in NAMES]
    for done, (name, options_of_case) in enumerate(cases, 1):
        folder = options.write_case / name
        _written(make_case(seed=options.seed, **options_of_case), folder)
        console.print(f"{done}/{len(cases)} {folder}", markup=False, highlight=False)
    files = sorted(path for path in options.write_case.rglob("*") if path.is_file() and path.name != SUMS)
    sums = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(options.write_case)}" for path in files
    )
    (options.write_case / SUMS).write_text("\n".join(sums) + "\n", "utf-8")
    return 0


def _write(every: list[Results], options: argparse.Namespace, console: Console) -> None:
    if options.json is not None:
        data, *others = [results.as_data() for results in every]
        _write_json(options.json, {"ok": all(r.ok for r in every), "runs": [data, *others]} if others else data)
    if options.html is not None:
        shown = [r for r in every if r.settings["implementation"] == every[0].settings["implementation"]]
        console.print(f"book: {write_book(shown, options.html, ROOT)}", markup=False)


def _write_json(path: pathlib.Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")

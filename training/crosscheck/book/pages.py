"""Contents of the book's pages, and `write_book`."""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
from typing import Any

import jinja2
from markupsafe import Markup, escape

from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.backward import check_rules
from training.crosscheck.pseudocode import Algorithm
from training.crosscheck.results import LineResult, Results
from training.crosscheck.values import TOLERANCE
from training.disk import write_atomically
from training.extras import unsafe

from .backward import BackwardRule, shown
from .listing import CodeLine, Excerpt, excerpts, listing, page_of
from .mathml import mathml, sentence

PARTS = (
    ("Components", range(1, 8)),
    ("Transformers", range(8, 11)),
    ("Training", range(11, 14)),
    ("Inference", range(14, 16)),
)
VERDICTS = {"within": "seen in its step", "missing": "no counterpart"}
VARIANTS = "algorithms/model/variants.py"
HIGHLIGHTING = ".c1,.sd,.s2,.s1{color:var(--quiet)}.k,.kn,.ow{color:var(--keyword)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """An algorithm beside its code."""

    algorithm: Algorithm  # as the paper prints it
    results: list[LineResult]  # the comparison of its lines
    excerpts: list[Excerpt]  # the code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chapter(Section):
    """A page about an algorithm."""

    page: str  # file name of the page
    summary: Markup  # the first sentence of the function's docstring
    departures: Markup  # the departures that the docstring declares
    rules: list[BackwardRule]  # the hand-derived backward rules of its parts
    error: tuple[str, str] | None  # the line in which its runs raised an error, and the error

    @property
    def worst(self) -> float:
        """The largest difference among its lines."""
        return max(found.worst for found in (*self.results, *(rule.rule for rule in self.rules)))

    @property
    def ok(self) -> bool:
        """Whether all lines agree."""
        right = all(result.verdict in ("equal", "within") for result in self.results)
        return self.error is None and right and all(rule.rule.ok for rule in self.rules)


@dataclasses.dataclass(frozen=True)
class Model:
    """A page about a published model."""

    name: str  # name of the variant
    page: str  # file name of the page
    summary: Markup  # the record's docstring
    results: Results  # the comparison of its lines
    record: tuple[CodeLine, ...]  # the code of its record
    record_page: str  # the book's page of the file with the record
    sections: list[Section]  # its algorithm, followed by the algorithms that it calls

    @property
    def changed(self) -> list[LineResult]:
        """The changed lines."""
        return [result for section in self.sections for result in section.results if result.change is not None]


def write_book(every: list[Results], folder: pathlib.Path, root: pathlib.Path, only: str | None = None) -> pathlib.Path:
    """Write the book, and return the path of its index. Raises ValueError if the installed jinja2 is unsafe.

    `every`: the results of a cross-check of the paper's algorithms, as far as it has come, followed by those of published
    models; `folder`: where to write the pages; created if it does not exist; `root`: the root of the repository; `only`:
    the name of a page to write, besides the index, while others are to come; None: all, and the source files.
    """
    _check_installed()
    results, *variants = every
    numbers = sorted(results.done)
    results = dataclasses.replace(results, lines={key: r for key, r in results.lines.items() if key[0] in numbers})
    package = importlib.import_module("algorithms")
    rules = [shown(rule, root) for rule in check_rules(package, root, results.settings["seed"], numbers)]
    chapters = [_chapter(n, results, rules, package, root) for n in numbers]
    models = [_model(results, root) for results in variants]
    pages: dict[str, tuple[str, dict[str, Any]]] = {}
    for previous, chapter, following in zip([None, *chapters[:-1]], chapters, [*chapters[1:], None], strict=True):
        pages[chapter.page] = "algorithm.html", {"chapter": chapter, "previous": previous, "following": following}
    for model in models:
        pages[model.page] = "model.html", {"model": model}
    for path in sorted((root / "algorithms").rglob("*.py")) if only is None else ():
        relative = path.relative_to(root).as_posix()
        pages[page_of(relative)] = "source.html", {"file": relative, "lines": listing(path)}
    parts = [(name, [c for c in chapters if c.algorithm.number in range_]) for name, range_ in PARTS]
    index = {"parts": parts, "rules": rules, "numbers": numbers, "unfinished": only is not None}
    pages["index.html"] = "index.html", index
    pages = {name: page for name, page in pages.items() if only in (None, name) or name == "index.html"}
    return write_pages(folder, pages, chapters=chapters, models=models, results=results, tolerance=TOLERANCE)


def write_pages(folder: pathlib.Path, pages: dict[str, tuple[str, dict[str, Any]]], **shared: Any) -> pathlib.Path:
    """Write pages and their style, and return the path of the index; `pages`: file name → template and variables.

    Raises ValueError if the installed jinja2 is unsafe.
    """
    _check_installed()
    environment = _environment()
    folder.mkdir(parents=True, exist_ok=True)
    for name, (template, variables) in {"book.css": ("book.css", {"highlighting": HIGHLIGHTING}), **pages}.items():
        text = environment.get_template(template).render(**variables, **shared)
        write_atomically(folder / name, lambda unfinished, text=text: unfinished.write_text(text, "utf-8"))
    return folder / "index.html"


def _check_installed() -> None:
    if problem := unsafe("jinja2", least="3.1.6", because="from whose sandbox a template can escape"):
        raise ValueError(f"--html: {problem}")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"mathml": mathml, "sentence": sentence, "scientific": scientific, "prose": prose}
    environment.globals |= {"VERDICTS": VERDICTS, "page_of": page_of, "VARIANTS": VARIANTS}
    return environment


def _chapter(n: int, results: Results, rules: list[BackwardRule], package: Any, root: pathlib.Path) -> Chapter:
    docstring = inspect.getdoc(inspect.unwrap(package.REGISTRY[n].lines)) or ""
    summary = docstring.split("\n\n")[0].partition(": ")[2]
    departures = re.search(r"^Departures: (.*?)(?:\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    declared = departures[1] if departures else "none."
    return Chapter(
        **_section(n, results, root),
        page=f"algorithm-{n}.html",
        summary=prose(summary.partition(". ")[2] or summary),
        departures=prose(declared[:1].upper() + declared[1:]),
        rules=[rule for rule in rules if n in rule.rule.algorithms],
        error=results.errors.get(n),
    )


def _section(n: int, results: Results, root: pathlib.Path) -> dict[str, Any]:
    """Return the fields of a `Section`."""
    lines = [result for (number, _), result in results.lines.items() if number == n]
    return {"algorithm": PSEUDOCODE[n], "results": lines, "excerpts": excerpts(lines, root)}


def page_of_model(name: str) -> str:
    """Return the name of the page about a variant."""
    return f"model-{name.lower().replace('_', '-')}.html"


def _model(results: Results, root: pathlib.Path) -> Model:
    name = results.variant
    body = ast.parse((root / VARIANTS).read_text("utf-8")).body
    at = next(i for i, node in enumerate(body) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    documented = body[at + 1]
    summary = ast.literal_eval(documented.value) if isinstance(documented, ast.Expr) else ""
    numbers = sorted({n for n, _ in results.lines}, key=lambda n: (n < 8, n))
    return Model(
        name=name,
        page=page_of_model(name),
        summary=prose(summary),
        results=results,
        record=listing(root / VARIANTS, body[at].lineno, body[at].end_lineno),
        record_page=page_of(VARIANTS),
        sections=[Section(**_section(n, results, root)) for n in numbers],
    )


def scientific(value: float) -> Markup:
    """Return a number in the form 1.8 × 10⁻¹⁵, or 0."""
    if value == 0:
        return Markup("0")
    if value == float("inf"):
        return Markup("∞")
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return Markup(f"{mantissa} × 10<sup>{str(int(exponent)).replace('-', '−')}</sup>")


def prose(text: str) -> Markup:
    """Return a docstring's text as HTML, with backticks turned into code."""
    joined = escape(" ".join(text.split()))
    return Markup(re.sub(r"`{1,2}([^`]+)`{1,2}", r"<code>\1</code>", str(joined)))

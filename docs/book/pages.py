"""What each page of the book says, and writing them."""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tests.crosscheck.algorithms import PSEUDOCODE
from tests.crosscheck.comparison import TOLERANCE, LineResult, Results
from tests.crosscheck.pseudocode import Algorithm
from tests.crosscheck.report import shape_text

from .backward import BackwardRule, backward_rules
from .listing import CodeLine, Excerpt, excerpts, listing, page_of, style_sheet
from .mathml import mathml, sentence
from .stream import residual_stream

PARTS = (
    ("Components", range(1, 8)),
    ("Transformers", range(8, 11)),
    ("Training", range(11, 14)),
    ("Inference", range(14, 16)),
)
VERDICTS = {
    "equal": "equal",
    "within": "seen in its step",
    "left out": "left out",
    "different": "different",
    "missing": "no counterpart",
}
VARIANTS = "algorithms/model/variants.py"


@dataclasses.dataclass(frozen=True)
class Chapter:
    """A page about an algorithm."""

    algorithm: Algorithm  # what the paper prints
    page: str  # the name of its file
    summary: Markup  # the first sentence of the function's docstring
    departures: Markup  # what the docstring declares
    results: list[LineResult]  # what came out for its lines
    excerpts: list[Excerpt]  # the code
    rules: list[BackwardRule]  # the hand-derived backward rules of its parts
    error: tuple[str, str] | None  # what its runs raised, if anything

    @property
    def worst(self) -> float:
        """The largest difference of its lines."""
        return max(result.worst for result in self.results)

    @property
    def ok(self) -> bool:
        """Whether all lines agree."""
        return self.error is None and all(result.verdict in ("equal", "within") for result in self.results)


@dataclasses.dataclass(frozen=True)
class Section:
    """An algorithm within a model's page."""

    algorithm: Algorithm  # what the paper prints
    results: list[LineResult]  # what came out for its lines
    excerpts: list[Excerpt]  # the code


@dataclasses.dataclass(frozen=True)
class Model:
    """A page about a published model."""

    name: str  # of the variant
    page: str  # the name of its file
    summary: Markup  # what the code says about it
    results: Results  # what came out
    record: tuple[CodeLine, ...]  # its record, as code
    record_page: str  # the book's page of the file that has the record
    sections: list[Section]  # its algorithm first, then those that it calls

    @property
    def changed(self) -> list[LineResult]:
        """The changed lines."""
        return [result for section in self.sections for result in section.results if result.change is not None]


def write_book(every: list[Results], folder: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    """Write the book.

    Args:
        every: what came out of a cross-check of the paper's algorithms, and after it of published models.
        folder: where the pages are put; it is made if it does not exist.
        root: the root of the repository.

    Returns:
        the index.
    """
    results, *variants = every
    package = importlib.import_module("algorithms")
    rules = backward_rules(package, root, results.settings["seed"])
    numbers = sorted({algorithm for algorithm, _ in results.lines})
    chapters = [_chapter(n, results, rules, package, root) for n in numbers]
    models = [_model(results, root) for results in variants]
    environment = _environment()
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"chapters": chapters, "models": models, "results": results, "tolerance": TOLERANCE}
    style = environment.get_template("book.css").render(highlighting=style_sheet())
    (folder / "book.css").write_text(style, "utf-8")
    for i, chapter in enumerate(chapters):
        neighbours = {
            "previous": chapters[i - 1] if i else None,
            "following": chapters[i + 1] if i + 1 < len(chapters) else None,
        }
        html = environment.get_template("algorithm.html").render(chapter=chapter, **neighbours, **shared)
        (folder / chapter.page).write_text(html, "utf-8")
    for model in models:
        html = environment.get_template("model.html").render(model=model, **shared)
        (folder / model.page).write_text(html, "utf-8")
    for path in sorted((root / "algorithms").rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        html = environment.get_template("source.html").render(file=relative, lines=listing(path), **shared)
        (folder / page_of(relative)).write_text(html, "utf-8")
    run = results.observed.get((10, 0))
    parts = [(name, [c for c in chapters if c.algorithm.number in range_]) for name, range_ in PARTS]
    index = folder / "index.html"
    picture = residual_stream(run) if run is not None else None
    index.write_text(
        environment.get_template("index.html").render(parts=parts, picture=picture, rules=rules, **shared), "utf-8"
    )
    return index


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"mathml": mathml, "sentence": sentence, "scientific": scientific, "prose": prose}
    environment.globals |= {"shape_text": shape_text, "VERDICTS": VERDICTS, "page_of": page_of, "VARIANTS": VARIANTS}
    return environment


def _chapter(n: int, results: Results, rules: list[BackwardRule], package: Any, root: pathlib.Path) -> Chapter:
    lines = [result for (number, _), result in results.lines.items() if number == n]
    docstring = inspect.getdoc(inspect.unwrap(package.REGISTRY[n].lines)) or ""
    summary = docstring.split("\n\n")[0].partition(": ")[2]
    departures = re.search(r"^Departures: (.*?)(?:\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    return Chapter(
        algorithm=PSEUDOCODE[n],
        page=f"algorithm-{n}.html",
        summary=prose(summary.partition(". ")[2] or summary),
        departures=prose(_capitalised(departures[1] if departures else "none.")),
        results=lines,
        excerpts=excerpts(lines, root),
        rules=[rule for rule in rules if n in rule.algorithms],
        error=results.errors.get(n),
    )


def _model(results: Results, root: pathlib.Path) -> Model:
    name = results.variant
    body = ast.parse((root / VARIANTS).read_text("utf-8")).body
    at = next(i for i, node in enumerate(body) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    documented = body[at + 1]
    summary = ast.literal_eval(documented.value) if isinstance(documented, ast.Expr) else ""
    numbers = sorted({n for n, _ in results.lines}, key=lambda n: (n < 8, n))
    sections = []
    for n in numbers:
        lines = [result for (number, _), result in results.lines.items() if number == n]
        sections.append(Section(PSEUDOCODE[n], lines, excerpts(lines, root)))
    return Model(
        name=name,
        page=f"model-{name.lower().replace('_', '-')}.html",
        summary=prose(summary),
        results=results,
        record=listing(root / VARIANTS, body[at].lineno, body[at].end_lineno),
        record_page=page_of(VARIANTS),
        sections=sections,
    )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def scientific(value: float) -> Markup:
    """A difference, as 1.8 × 10⁻¹⁵; 0 where there is none."""
    if value == 0:
        return Markup("0")
    if value == float("inf"):
        return Markup("∞")
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return Markup(f"{mantissa} × 10<sup>{str(int(exponent)).replace('-', '−')}</sup>")


def prose(text: str) -> Markup:
    """A docstring's text, with what is in backticks set as code."""
    joined = escape(" ".join(text.split()))
    return Markup(re.sub(r"`{1,2}([^`]+)`{1,2}", r"<code>\1</code>", str(joined)))

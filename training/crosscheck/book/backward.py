"""The backward rules that were derived by hand: derivation, code, and their check in this run."""

import ast
import dataclasses
import inspect
import pathlib
import textwrap

from training.crosscheck.backward import Rule

from .listing import CodeLine, listing, page_of


@dataclasses.dataclass(frozen=True)
class BackwardRule:
    """A backward rule as the book shows it."""

    rule: Rule  # the rule and its check
    derivation: tuple[tuple[bool, str], ...]  # its paragraphs, each `(is a formula, text)`
    file: str  # the source file
    page: str  # the book's page of that file
    lines: tuple[CodeLine, ...]  # its code


def shown(rule: Rule, root: pathlib.Path) -> BackwardRule:
    """Return a rule with its derivation and code."""
    node, file = rule.node, rule.path.as_posix()
    lines = listing(root / rule.path, node.body[1].lineno, node.end_lineno)
    return BackwardRule(rule, _paragraphs(ast.get_docstring(node) or ""), file, page_of(file), lines)


def _paragraphs(docstring: str) -> tuple[tuple[bool, str], ...]:
    """Return the paragraphs of a docstring; indented ones are formulas."""
    found = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        is_formula = paragraph.startswith("    ")
        found.append((is_formula, textwrap.dedent(paragraph) if is_formula else paragraph.replace("::", ":")))
    return tuple(found)

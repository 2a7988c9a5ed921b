"""Conversion of the pseudocode's LaTeX to MathML, which browsers display and screen readers speak without scripts."""

import functools
import re

from latex2mathml.converter import convert
from markupsafe import Markup, escape

PROSE = re.compile(r"\\text\{([^{}]* [^{}]*)\}|(?<=[,;:])\\ ")
BRACKETS = re.compile(r"<mi>(&#x027E6;|&#x027E7;|&#x000AC;)</mi>")


@functools.cache
def mathml(latex: str, text: str = "") -> Markup:
    """Return a formula as an inline MathML element; `text` is its plain-text alternative."""
    element = convert(latex).replace(r"\_", "_")
    element = BRACKETS.sub(r'<mo stretchy="false">\1</mo>', element)
    if text:
        element = element.replace("<math ", f'<math alttext="{escape(text)}" ', 1)
    return Markup(element)


@functools.cache
def sentence(latex: str) -> Markup:
    """Return a formula with its prose (text with a space) outside of MathML, so that lines can break there."""
    parts, end = [], 0
    for match in PROSE.finditer(latex):
        parts.append(_formula(latex[end : match.start()]))
        words = match[1]
        parts.append(escape(words.replace(r"\_", "_")) if words else Markup(" "))
        end = match.end()
    parts.append(_formula(latex[end:]))
    return Markup("").join(parts)


def _formula(latex: str) -> Markup:
    return mathml(latex.strip()) if latex.strip() else Markup("")

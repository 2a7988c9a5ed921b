"""The lines that a variant changes: those for which its record gives another formula than the paper.

A field changes a line if the line is another with the paper's value of that field. The tests find the changed lines a
second time, from what a run computes.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from .algorithms import PSEUDOCODE
from .formulas import formulas
from .pseudocode import Line

__all__ = ["ARCHITECTURES", "SHARING", "ChangedLine", "changed_lines", "with_unchecked"]

ARCHITECTURES: Mapping[str, int] = {
    **dict.fromkeys(("VASWANI", "BART", "MARIAN", "T5"), 8),
    **dict.fromkeys(("BERT", "ROBERTA", "ALBERT", "MODERNBERT", "LLADA"), 9),
}
"""Name of a variant → its algorithm, where that is not Algorithm 10."""

SHARING = ("LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3", "GEMMA4", "GEMMA4_E")
SHARING += ("GRANITE", "GRANITE_HYBRID", "RECURRENT_GEMMA", "NEMOTRON_H", "NEMOTRON3", "LFM2", "LFM2_MOE", "FALCON_H1")
SHARING += ("MIXTRAL", "QWEN3_MOE", "QWEN3_NEXT", "QWEN3_5", "OLMO3", "GLM4", "OLMOE", "MINIMAX_M2", "GPT_OSS")
"""Variants with models whose heads share keys and values, which the sizes of the parameters say and not the record."""


@dataclasses.dataclass(frozen=True)
class ChangedLine:
    """A line as a variant has it."""

    line: Line  # the line with the changed formula
    fields: tuple[str, ...]  # of the record, those that change it
    notes: tuple[str, ...]  # what new symbols mean
    left_out: bool  # whether nothing computes it any more


def changed_lines(
    variant: Any, algorithm: int, sharing: int = 1, own: Mapping[str, str] | None = None
) -> dict[tuple[int, str], ChangedLine]:
    """The lines of an algorithm, and of Algorithms 4 to 7, that a variant changes.

    `variant`: the record; `algorithm`: 8, 9 or 10; `sharing`: how many heads share keys and values; `own`: names of
    custom lines in the place of "attention", or of "mlp".
    """
    found = formulas(variant, algorithm, sharing, own or {})
    others = {field: formulas(_with_papers(variant, field), algorithm, sharing, {}) for field in _fields(variant)}
    others |= {"H_kv": formulas(variant, algorithm, 1, {})} if sharing > 1 else {}
    changed = {}
    for (n, number), (text, *notes) in found.items():
        line = PSEUDOCODE[n].line(number)
        if text != line.text:
            fields = tuple(field for field, lines in others.items() if lines[n, number][0] != text)
            left_out = text == "m ← 0"
            changed[n, number] = ChangedLine(dataclasses.replace(line, text=text), fields, tuple(notes), left_out)
    return changed


def _fields(variant: Any) -> list[str]:
    """The fields that are not the paper's, and those of parts, such as "attention.cap" for the cap of its attentions."""
    found = []
    for field in dataclasses.fields(variant):
        records, paper = _in_turn(variant, field.name), field.default
        if not dataclasses.is_dataclass(paper):
            found += [field.name] if getattr(variant, field.name) != paper else []
            continue
        for record in filter(None, records):
            others = [of for of in dataclasses.fields(record) if of.default is not dataclasses.MISSING]
            of = {of.name: getattr(paper, of.name, of.default) for of in others}
            found += [f"{field.name}.{name}" for name, default in of.items() if getattr(record, name) != default]
        found += [field.name] if {type(paper)} != set(map(type, records)) else []
    return list(dict.fromkeys(found))


def _in_turn(variant: Any, part: str) -> tuple[Any, ...]:
    lines = getattr(variant, part)
    return lines if isinstance(lines, tuple) else (lines,)


def _with_papers(variant: Any, field: str) -> Any:
    """The variant with the paper's value of a field, which the other fields may not allow."""
    (part, _, name), lines = field.partition("."), _in_turn(variant, field.partition(".")[0])
    paper = getattr(type(variant)(), part)
    if name:
        new = [_with_default(line, name, paper) for line in lines]
    elif dataclasses.is_dataclass(paper):
        like = next((line for line in lines if isinstance(line, type(paper))), paper)
        new = [_plain(line if isinstance(line, type(paper)) else like, paper) for line in lines]
    else:
        return with_unchecked(variant, part, paper)
    return with_unchecked(variant, part, tuple(new) if isinstance(getattr(variant, part), tuple) else new[0])


def _with_default(record: Any, name: str, paper: Any) -> Any:
    """A record with the paper's value of a field, or else its default; the same record if it has no such field."""
    fields = {field.name: field.default for field in dataclasses.fields(record)} if record is not None else {}
    return with_unchecked(record, name, getattr(paper, name, fields[name])) if name in fields else record


def with_unchecked(record: Any, name: str, value: Any) -> Any:
    """A record with another value of a field, which is not checked."""
    other = copy.copy(record)
    object.__setattr__(other, name, value)
    return other


def _plain(record: Any, paper: Any) -> Any:
    """The paper's kind of line with the fields that another kind shares with it."""
    for field in dataclasses.fields(paper):
        paper = with_unchecked(paper, field.name, getattr(record, field.name))
    return paper

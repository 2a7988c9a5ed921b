"""The lines that a variant changes: those for which its record gives another formula than the paper.

A field changes a line if the line is another with the paper's value of that field. The tests find the changed lines a
second time, from what a run computes.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
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

SHARING = ("LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3", "GEMMA4")
SHARING += ("GEMMA4_E", "GEMMA4_MOE")
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
    others = {field: formulas(other, algorithm, sharing, {}) for field, other in _with_papers(variant)}
    others |= {"H_kv": formulas(variant, algorithm, 1, {})} if sharing > 1 else {}
    changed = {}
    for (n, number), (text, *notes) in found.items():
        line = PSEUDOCODE[n].line(number)
        if text != line.text:
            fields = tuple(field for field, lines in others.items() if lines[n, number][0] != text)
            left_out = text == "m ← 0"
            changed[n, number] = ChangedLine(dataclasses.replace(line, text=text), fields, tuple(notes), left_out)
    return changed


def _with_papers(variant: Any) -> Iterator[tuple[str, Any]]:
    """Each field that is not the paper's, also of parts, such as "attention.cap" for the cap of its attentions, and the
    variant with the paper's value of it, which the other fields may not allow.
    """
    for field in dataclasses.fields(variant):
        paper, value = field.default, getattr(variant, field.name)
        records = value if isinstance(value, tuple) else (value,)
        if dataclasses.is_dataclass(paper):
            for name, change in _of_parts(records, paper):
                new = tuple(map(change, records))
                yield field.name + name, with_unchecked(variant, **{field.name: new if records is value else new[0]})
        elif value != paper:
            yield field.name, with_unchecked(variant, **{field.name: paper})


def _of_parts(records: tuple[Any, ...], paper: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The same of the fields of records in turn, and of their kind; with what it does to each record."""
    of_each = [of for record in filter(None, records) for of in dataclasses.fields(record)]
    fields = {of.name: getattr(paper, of.name, of.default) for of in of_each if of.default is not dataclasses.MISSING}

    def default(record: Any, name: str) -> Any:
        return with_unchecked(record, **{name: fields[name]}) if record and name in vars(record) else record

    def plain(record: Any) -> Any:
        of = next(r for r in (record, *records, paper) if isinstance(r, type(paper)))
        return with_unchecked(paper, **{field.name: getattr(of, field.name) for field in dataclasses.fields(paper)})

    for name, value in fields.items():
        if any(getattr(record, name, value) != value for record in filter(None, records)):
            yield f".{name}", functools.partial(default, name=name)
    if {type(paper)} != set(map(type, records)):
        yield "", plain


def with_unchecked(record: Any, **fields: Any) -> Any:
    """A record with other values of fields, which are not checked."""
    other = copy.copy(record)
    vars(other).update(fields)
    return other

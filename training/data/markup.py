"""Control tokens in rendered conversations: those that a chat template writes, and not those that a message spells."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers as library

from training.data.records import DataError

PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))  # code points that Unicode gives no meaning


def unused(text: str) -> str:
    """Return a character that a text lacks, also as the escape that JSON has for it. Raises DataError if it has all."""
    for code in (code for codes in PRIVATE for code in codes):
        if chr(code) not in text and _escaped(chr(code)) not in text.lower():
            return chr(code)
    raise DataError("the text uses every private character of Unicode, and one is needed to mark control tokens")


def _escaped(mark: str) -> str:
    return json.dumps(mark)[1:-1].lower()


def marked(value: Any, names: Sequence[str], mark: str) -> Any:
    """Return JSON with a mark in every text where the name of a control token may begin or end, but not in roles: after
    the first character of a name, after a beginning of one at the end of a text, and before an end of one at its start.
    """
    if isinstance(value, str):
        return _marked(value, names, mark)
    if isinstance(value, Mapping):
        return {
            _marked_inside(key, names, mark): each if key == "role" else marked(each, names, mark)
            for key, each in value.items()
        }
    return [marked(each, names, mark) for each in value] if isinstance(value, list | tuple) else value


def _marked_inside(text: str, names: Sequence[str], mark: str) -> str:
    return re.sub(f"(?s)(?={'|'.join(map(re.escape, names))})(.)", lambda match: match[0] + mark, text)


def _marked(text: str, names: Sequence[str], mark: str) -> str:
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())  # templates strip texts
    inner, lengths = text[begin:end], range(1, min(end - begin + 1, max(map(len, names))))
    first = any(name.endswith(inner[:n]) and name != inner[:n] for n in lengths for name in names)
    last = any(name.startswith(inner[-n:]) and name != inner[-n:] for n in lengths for name in names)
    return text[:begin] + mark * first + _marked_inside(inner, names, mark) + mark * last + text[end:]


def unmarked(text: str, mark: str) -> tuple[str, tuple[int, ...]]:
    """Return a text without its marks, also those that a template has escaped for JSON, and where they were."""
    parts = re.split(f"{re.escape(mark)}|(?i:{re.escape(_escaped(mark))})", text)
    places, length = [], 0
    for part in parts[:-1]:
        length += len(part)
        places.append(length)
    return "".join(parts), tuple(places)


class Markup:
    """Encodes text in which the names of control tokens stand for these tokens, except where it is said to be plain."""

    def __init__(self, inner: library.Tokenizer, others: Sequence[int]) -> None:
        self._inner = library.Tokenizer.from_str(inner.to_str())
        self._inner.encode_special_tokens = False
        added = self._inner.get_added_tokens_decoder().items()
        self.names = {i: token.content for i, token in added if token.special or i in others}
        self._renamed: tuple[str, library.Tokenizer, dict[int, int]] = "", self._inner, {}

    def encode(self, text: str, plain: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return token IDs and their spans; a name with an index of `plain` inside is text. Raises DataError."""
        whole = self._inner.encode(text, add_special_tokens=False)
        if not plain:
            return whole.ids, whole.offsets
        mark = unused(text)
        true = [*self._spans(_with(text, plain, mark), mark)]
        if len(true) == len([*self._spans(text, mark)]):
            return whole.ids, whole.offsets
        wrapped, origin = _wrapped(text, true, mark)
        renamed, ids = self._renamed_with(mark)
        encoding = renamed.encode(wrapped, add_special_tokens=False)
        for i, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if i not in ids and i in self.names and self.names[i] in wrapped[begin:end]:
                raise DataError(f"a message has {self.names[i]!r}, which this tokenizer cannot encode as text")
        spans = [(origin[a], origin[b - 1] + 1 if b > a else origin[a]) for a, b in encoding.offsets]
        return [ids.get(i, i) for i in encoding.ids], spans

    def _spans(self, text: str, mark: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of the names that are control tokens in a text with marks, as in the text without."""
        encoding = self._inner.encode(text, add_special_tokens=False)
        for i, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            begin = text.find(self.names[i], first, last) if i in self.names else -1  # unknown text may have such an ID
            if begin >= 0 and text[begin + 1 : begin + 2] != mark:
                start = begin - text.count(mark, 0, begin)
                yield start, start + len(self.names[i])

    def _renamed_with(self, mark: str) -> tuple[library.Tokenizer, dict[int, int]]:
        """The tokenizer whose control tokens have a mark on either side of their names, and its IDs → the true ones."""
        if self._renamed[0] != mark:
            state = json.loads(self._inner.to_str()) | {"post_processor": None}
            for token in state["added_tokens"]:
                if token["id"] in self.names:
                    token["content"] = mark + token["content"] + mark
            made = library.Tokenizer.from_str(json.dumps(state))
            there: Any = made.token_to_id
            ids = {there(token["content"]): token["id"] for token in state["added_tokens"]}
            self._renamed = mark, made, ids
        return self._renamed[1:]


def _with(text: str, places: Sequence[int], mark: str) -> str:
    ends = [0, *sorted(places), len(text)]
    return mark.join(text[a:b] for a, b in itertools.pairwise(ends))


def _wrapped(text: str, spans: Sequence[tuple[int, int]], mark: str) -> tuple[str, list[int]]:
    """Return a text with a mark on either side of spans, and the index in the text of each character."""
    pieces, origin, at = [], [], 0
    for begin, end in spans:
        pieces += [text[at:begin], mark, text[begin:end], mark]
        origin += [*range(at, begin), begin, *range(begin, end), end - 1]
        at = end
    return "".join([*pieces, text[at:]]), [*origin, *range(at, len(text) + 1)]

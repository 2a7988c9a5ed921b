"""The content of the page as named tuples, and the page as HTML, in which arrays are encoded as strings."""

import base64
import html
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from training.data.tokenizers import LibraryTokenizer, Tokenizer

SCRIPTS = ("data.js", "color.js", "grid.js", "attention.js", "prediction.js", "parts.js", "circuits.js", "page.js")
LARGEST = 5_000_000
SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


class PageError(ValueError):
    """A text cannot be shown; the message is one sentence that begins with the argument."""


class AttentionMaps(NamedTuple):
    """The attention of one line of the algorithm, in all layers and heads."""

    title: str
    of: str  # the name of the text whose tokens attend
    to: str  # the name of the text that they attend to
    A: Float[np.ndarray, "L H l_x l_z"]  # the weights, which sum to 1 over l_z

    @staticmethod
    def recorded(title: str, of: str, to: str, A: Float[Array, "L H l_z l_x"]) -> "AttentionMaps":
        """Return recorded weights."""
        return AttentionMaps(title, of, to, np.asarray(jnp.swapaxes(A, 2, 3), np.float32))


class Prediction(NamedTuple):
    """Predictions of each layer at each token (the logit lens)."""

    of: str  # the name of the text
    rows: list[str]  # the source of each row: the embedding or a layer
    tokens: Int[np.ndarray, "rows l k"]  # the k likeliest tokens, likeliest first
    p: Float[np.ndarray, "rows l k"]  # their probabilities
    final: Float[np.ndarray, "rows l"]  # each row's probability of what the last row predicts
    follows: Float[np.ndarray, "l"]  # the last row's probability of the next token of the text; NaN at the end
    note: str  # shown to the reader


class LogitParts(NamedTuple):
    """Contribution of each part to the logit of the likeliest next token, relative to the mean of all logits."""

    heads: Float[np.ndarray, "L H l"]
    mlp: Float[np.ndarray, "L l"]
    embedding: Float[np.ndarray, "l"]
    rest: Float[np.ndarray, "l"]  # all biases together


class PatchEffects(NamedTuple):
    """Share of the prompt's answer that its values restore in the run of another prompt, from 0 to 1."""

    other: list[str]  # tokens of the other prompt
    tokens: Float[np.ndarray, "L l"]  # for the residual stream after each layer, at each token
    heads: Float[np.ndarray, "L H"]  # for each head's output, at all tokens
    score: str  # describes the score that measures the answer
    ends: tuple[float, float]  # the scores of the two runs
    is_estimate: bool  # whether the effects are estimated with one gradient


class Circuits(NamedTuple):
    """Scores of heads on repeated random tokens."""

    scores: dict[str, Float[np.ndarray, "L H"]]  # by name, see `training.interpretability.scores` and `circuits`
    composition: dict[str, Float[np.ndarray, "L H L H"]]  # of an earlier head with a later one, by letter; may be empty
    note: str  # shown to the reader


class Look(NamedTuple):
    """A look inside a model as it reads a text; a section is None, or a sentence that says why it is not available."""

    name: str  # of the model
    facts: list[str]  # short descriptions of the model
    texts: dict[str, list[str]]  # the tokens of each text, by its name
    words: dict[int, str]  # the tokens mentioned, by ID
    attention: list[AttentionMaps]  # at least one
    prediction: Prediction | str | None
    written: LogitParts | str | None
    patched: PatchEffects | str | None
    circuits: Circuits | str | None

    def html(self) -> str:
        """The page as one self-contained string. Raises PageError if it would be larger than 5 MB."""
        numbers, table = packed(dict(self._arrays()))
        data = json.dumps(self._described() | {"arrays": table}, ensure_ascii=False, separators=(",", ":"))
        parts = {
            "title": html.escape(f"Inside {self.name}"),
            "style": _file("page.css"),
            "data": data.replace("<", "\\u003c"),
            "numbers": numbers,
            "script": "\n".join(map(_file, SCRIPTS)),
        }
        page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))
        if len(page.encode()) > LARGEST:
            raise PageError(f"prompt: expected a page of at most 5 MB, got {len(page) / 1e6:.1f} MB; shorten it")
        return page

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:900px;border:0" title="A look inside"></iframe>'

    def _arrays(self) -> Iterator[tuple[str, tuple[np.ndarray, int]]]:
        """Yield each array of the page by name, with its bits per number."""
        for i, attended in enumerate(self.attention):
            yield f"A{i}", (attended.A, 8)
        for name, section in (("prediction", self.prediction), ("written", self.written), ("patched", self.patched)):
            if isinstance(section, tuple):
                fields: Mapping[str, Any] = section._asdict()
                yield from ((f"{name}.{f}", (a, 16)) for f, a in fields.items() if isinstance(a, np.ndarray))
        if isinstance(self.prediction, Prediction):
            where = {token: i for i, token in enumerate(self.words)}
            places = np.vectorize(where.__getitem__, otypes=[np.int64])(self.prediction.tokens)
            yield "prediction.tokens", (places, 16 if len(where) < 2**16 else 32)
        if isinstance(self.circuits, Circuits):
            yield from ((f"scores.{name}", (a, 16)) for name, a in self.circuits.scores.items())
            yield from ((f"composition.{name}", (a, 8)) for name, a in self.circuits.composition.items())

    def _described(self) -> dict[str, Any]:
        """Return everything but the arrays, for JSON."""
        described = self._asdict() | {"words": list(self.words.values())}
        described["attention"] = [a._replace(A=None)._asdict() for a in self.attention]
        for name in ("prediction", "written", "patched"):
            section = described[name]
            if isinstance(section, tuple):
                fields = section._asdict()  # pyright: ignore[reportAttributeAccessIssue]
                described[name] = {f: v for f, v in fields.items() if not isinstance(v, np.ndarray)}
        if isinstance(self.circuits, Circuits):
            scores, composition = list(self.circuits.scores), list(self.circuits.composition)
            described["circuits"] = {"scores": scores, "composition": composition, "note": self.circuits.note}
        return described


def _file(name: str) -> str:
    return resources.files("training.interpretability.page").joinpath(name).read_text("utf-8")


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token: the name of a special token, or the digits of a byte that is no whole character."""
    if isinstance(tokenizer, LibraryTokenizer) and (name := tokenizer.inner.id_to_token(token) or "").startswith("##"):
        return name  # within a word
    text = tokenizer.spelled(token).decode("utf-8", "surrogateescape")
    return "".join(f"⟨{ord(c) - 0xDC00:02X}⟩" if "\udc80" <= c <= "\udcff" else c for c in text) or f"⟨{token}⟩"


def readable(text: str) -> str:
    """Make everything in a token visible: spaces, line feeds, and unprintable characters."""
    return "".join(SHOWN.get(c) or (c if c.isprintable() else f"⟨U+{ord(c):04X}⟩") for c in text)


def readable_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """Return the readable tokens of a text."""
    return [readable(token_text(tokenizer, int(token))) for token in tokens]


def show(seen: Mapping[str, Array], tokens: Sequence[object] | None = None, *, name: str = "What was recorded") -> Look:
    """Show all attention weights among the values that `algorithms.inside.record` recorded for one sequence (``A``,
    ``A/16`` and the like, with all layers and heads), as a page; hover over, focus or tap a token to inspect it.
    `tokens` are strings or IDs (None: show positions), for an encoder-decoder, those of one of its texts. Raises
    PageError if they do not fit.
    """
    found = {of: np.asarray(A, np.float32) for of, A in seen.items() if of.partition("/")[0].partition("@")[0] == "A"}
    if not found:
        raise PageError(f"seen: expected some A, got {', '.join(seen) or 'nothing'}; record A, or A/16 and the like")
    texts: dict[str, list[str]] = {}
    blocks = []
    for of, A in found.items():
        if A.ndim != 4:
            raise PageError(
                f"seen: expected {of} with all layers and heads, for one sequence, [layers, H, l_z, l_x], got "
                f"{list(A.shape)}"
            )
        l_z, l_x = A.shape[2:]
        texts |= {_text(l): _named(tokens, l) for l in (l_z, l_x)}
        blocks.append(AttentionMaps.recorded(of, _text(l_x), _text(l_z), jnp.asarray(A)))
    if tokens is not None and _text(len(tokens)) not in texts:
        lengths = " or ".join(text.removeprefix("sequence of ") for text in texts)
        raise PageError(f"tokens: expected {lengths}, as in the attention, got {len(tokens)}")
    facts = [f"{of}: {A.shape[0]} layers of {A.shape[1]} heads" for of, A in found.items()]
    return Look(name, facts, texts, {}, blocks, None, None, None, None)


def _text(l: int) -> str:
    return f"sequence of {l}"


def _named(tokens: Sequence[object] | None, l: int) -> list[str]:
    if tokens is None or len(tokens) != l:
        return [f"·{t}" for t in range(l)]
    return [readable(str(token)) for token in tokens]


def packed(arrays: Mapping[str, tuple[np.ndarray, int]]) -> tuple[str, list[dict[str, Any]]]:
    """Pack arrays, each with its bits per number (8, 16 or 32): their bytes, deflated together, in base64; and each
    one's name, shape, bits, offset of its first byte, low and step: number n stands for ``low + n step``, and the
    highest n for NaN. Signed arrays can represent 0 exactly; integers are kept as they are.
    """
    table, parts, offset = [], [], 0
    for name, (array, bits) in sorted(arrays.items(), key=lambda item: -item[1][1]):  # keeps larger numbers aligned
        low, step = _range(array, bits)
        numbers = np.round((np.asarray(array, np.float64) - low) / step)
        numbers = np.where(np.isfinite(numbers), numbers, 2**bits - 1)
        data = numbers.astype(f"<u{bits // 8}").tobytes()
        table.append({"name": name, "shape": array.shape, "bits": bits, "offset": offset, "low": low, "step": step})
        parts.append(data)
        offset += len(data)
    return base64.b64encode(zlib.compress(b"".join(parts), 9)).decode("ascii"), table


def _range(array: np.ndarray, bits: int) -> tuple[float, float]:
    """Return low and step: 0 and 1 for integers, 0 and 1/(2^bits − 2) for weights and probabilities."""
    if np.issubdtype(array.dtype, np.integer):
        return 0.0, 1.0
    finite = array[np.isfinite(array)]
    largest = float(np.abs(finite).max(initial=0))
    if float(finite.min(initial=0)) >= 0 and largest <= 1:
        return 0.0, 1 / (2**bits - 2)
    step = max(largest, 1e-30) / (2 ** (bits - 1) - 1)
    return -step * (2 ** (bits - 1) - 1), step

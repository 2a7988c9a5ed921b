"""What is on the page, and the page."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from training.interpretability.page.packed import packed

SCRIPTS = ("data.js", "color.js", "grid.js", "attention.js", "prediction.js", "parts.js", "circuits.js", "page.js")
LARGEST = 5_000_000


class PageError(ValueError):
    """A text cannot be shown; the message is one sentence, which begins with the argument."""


class Attended(NamedTuple):
    """The attention of one line of the algorithm, in every layer and head."""

    title: str  # which
    of: str  # the text whose tokens attend
    to: str  # the text that they attend to
    A: Float[np.ndarray, "L H l_x l_z"]  # the weights; those of each token add up to 1


class Prediction(NamedTuple):
    """What each layer would predict at each token."""

    of: str  # the text
    rows: list[str]  # what each row comes from, the embedding and the layers
    tokens: Int[np.ndarray, "rows l k"]  # the likeliest tokens, the likeliest first
    p: Float[np.ndarray, "rows l k"]  # their probabilities
    final: Float[np.ndarray, "rows l"]  # the probability in each row of what the last row predicts
    # the last row's probability of the token that comes next in the text; NaN for the last one
    follows: Float[np.ndarray, "l"]
    note: str  # what the reader should know


class Written(NamedTuple):
    """What each part adds to the logit of the likeliest token, above the mean of all logits."""

    heads: Float[np.ndarray, "L H l"]  # of each head, at each token
    mlp: Float[np.ndarray, "L l"]  # of each MLP
    embedding: Float[np.ndarray, "l"]  # of the embedding
    rest: Float[np.ndarray, "l"]  # of all biases together


class Patched(NamedTuple):
    """How far values of the prompt, put into the run of another, bring its answer back: 0 not at all, 1 entirely."""

    other: list[str]  # tokens of the other prompt
    tokens: Float[np.ndarray, "L l"]  # of the residual stream after each layer, at each token
    heads: Float[np.ndarray, "L H"]  # of each head's output, at all tokens
    score: str  # what is measured
    ends: tuple[float, float]  # of the two runs
    is_estimate: bool  # whether by one gradient


class Circuits(NamedTuple):
    """What heads do with any text."""

    scores: dict[str, Float[np.ndarray, "L H"]]  # by name, see `training.interpretability.scores` and `circuits`
    # of an earlier head with a later one, by letter; empty where there is none
    composition: dict[str, Float[np.ndarray, "L H L H"]]
    note: str  # what the reader should know


class Look(NamedTuple):
    """A look inside a model that reads a text.

    A section that cannot be is the sentence that says why; one that was not asked for is None.
    """

    name: str  # of the run
    facts: list[str]  # what the model is, in words
    texts: dict[str, list[str]]  # the tokens of each text
    words: dict[int, str]  # the vocabulary, as far as it is mentioned
    attention: list[Attended]  # at least one
    prediction: Prediction | str | None  # by layers
    written: Written | str | None  # the parts of the answer
    patched: Patched | str | None  # what brings the answer of the prompt back
    circuits: Circuits | str | None  # of the model

    def html(self) -> str:
        """The page: one text, which needs nothing else. Raises PageError if it would be larger than 5 MB."""
        arrays = packed(dict(self._arrays()))
        data = json.dumps(self._described() | {"arrays": arrays.table}, ensure_ascii=False, separators=(",", ":"))
        parts = {
            "title": html.escape(f"Inside {self.name}"),
            "style": _file("page.css"),
            "data": data.replace("<", "\\u003c"),
            "numbers": arrays.text,
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
        """Each array of the page with its bits."""
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
        """All but the arrays, for JSON."""
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


def attending(A: Array) -> np.ndarray:
    """Weights by the token that attends, ``[L, H, l_x, l_z]``."""
    return np.asarray(jnp.swapaxes(A, 2, 3), np.float32)


def _file(name: str) -> str:
    return resources.files("training.interpretability.page").joinpath(name).read_text("utf-8")

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
    """The attention of one line of the algorithm, in every layer and head.

    Attributes:
        title: which.
        of: the text whose tokens attend.
        to: the text that they attend to.
        A: the weights; those of each token add up to 1.
    """

    title: str
    of: str
    to: str
    A: Float[np.ndarray, "L H l_x l_z"]


class Prediction(NamedTuple):
    """What each layer would predict at each token.

    Attributes:
        of: the text.
        rows: what each row comes from, the embedding and the layers.
        tokens: the likeliest tokens, the likeliest first.
        p: their probabilities.
        final: the probability in each row of what the last row predicts.
        follows: the last row's probability of the token that comes next in the text; NaN for the last one.
        note: what the reader should know.
    """

    of: str
    rows: list[str]
    tokens: Int[np.ndarray, "rows l k"]
    p: Float[np.ndarray, "rows l k"]
    final: Float[np.ndarray, "rows l"]
    follows: Float[np.ndarray, "l"]
    note: str


class Written(NamedTuple):
    """What each part adds to the logit of the likeliest token, above the mean of all logits.

    Attributes:
        heads: of each head, at each token.
        mlp: of each MLP.
        embedding: of the embedding.
        rest: of all biases together.
    """

    heads: Float[np.ndarray, "L H l"]
    mlp: Float[np.ndarray, "L l"]
    embedding: Float[np.ndarray, "l"]
    rest: Float[np.ndarray, "l"]


class Patched(NamedTuple):
    """How far values of the prompt, put into the run of another, bring its answer back: 0 not at all, 1 entirely.

    Attributes:
        other: tokens of the other prompt.
        tokens: of the residual stream after each layer, at each token.
        heads: of each head's output, at all tokens.
        score: what is measured.
        ends: of the two runs.
        is_estimate: whether by one gradient.
    """

    other: list[str]
    tokens: Float[np.ndarray, "L l"]
    heads: Float[np.ndarray, "L H"]
    score: str
    ends: tuple[float, float]
    is_estimate: bool


class Circuits(NamedTuple):
    """What heads do with any text.

    Attributes:
        scores: by name, see `training.interpretability.scores` and `circuits`.
        composition: of an earlier head with a later one, by letter; empty where there is none.
        note: what the reader should know.
    """

    scores: dict[str, Float[np.ndarray, "L H"]]
    composition: dict[str, Float[np.ndarray, "L H L H"]]
    note: str


class Look(NamedTuple):
    """A look inside a model that reads a text.

    A section that cannot be is the sentence that says why; one that was not asked for is None.

    Attributes:
        name: of the run.
        facts: what the model is, in words.
        texts: the tokens of each text.
        words: the vocabulary, as far as it is mentioned.
        attention: at least one.
        prediction: by layers.
        written: the parts of the answer.
        patched: what brings the answer of the prompt back.
        circuits: of the model.
    """

    name: str
    facts: list[str]
    texts: dict[str, list[str]]
    words: dict[int, str]
    attention: list[Attended]
    prediction: Prediction | str | None
    written: Written | str | None
    patched: Patched | str | None
    circuits: Circuits | str | None

    def html(self) -> str:
        """The page: one text, which needs nothing else.

        Raises:
            PageError: if it were larger than 5 MB.
        """
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

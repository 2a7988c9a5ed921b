"""What is served: a model, what it does, and the most that is taken."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from training.data.chat import Message, converser
from training.data.tokenizers import Tokenizer
from training.generation import Generator
from training.generation.inputs import padded_rows
from training.generation.modalities import of_text
from training.generation.prefixes import Prefixes
from training.generation.prompts import Prompt
from training.generation.scoring import scored, sentence_embeddings
from training.generation.text import AnswerError, Continuer, Options
from training.runs.directory import Run
from training.serving.engine import LIKELIEST

TEXTS_AT_ONCE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that is taken."""

    body: int  # bytes of a request
    tokens: int  # of a continuation
    choices: int  # continuations of a request, or texts to embed
    seconds: float  # that an answer may take, waiting included
    prefixes: int  # bytes of keys and values that are kept of texts, so that those that begin alike are read once

    @property
    def too_long(self) -> str:
        """What is said to whom an answer would take longer."""
        return f"the answer took longer than {self.seconds:g} seconds: ask for fewer tokens, or later"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """What a decoder does."""

    generator: Generator  # the model
    read: Callable[[str], Prompt]  # makes a prompt of a text
    # writes a conversation as the tokens that the next answer follows; None: the model has no template
    converse: Callable[[Sequence[Message]], list[int]] | None
    # the log-probability of each token of a text after the first, and the likeliest in its place, with theirs
    score: Callable[[list[int]], tuple[Float[ndarray, "m"], Int[ndarray, "m N"], Float[ndarray, "m N"]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder:
    """What an encoder does."""

    embed: Callable[[Sequence[list[int]]], Float[ndarray, "B d_e"]]  # the embeddings of texts, given by their tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What is served."""

    name: str  # of the model
    model: Decoder | Encoder  # what it does
    tokenizer: Tokenizer  # of the model
    config: Any  # its sizes
    limits: Limits  # the most that is taken

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end what is generated, eos first; none where the model has no such token."""
        return self.tokenizer.end_tokens


def served_of(run: Run, name: str, limits: Limits, *, weights: Literal["int8"] | None = None) -> Served:
    """Return a run as it is served under a name; "int8" rounds a decoder's weights. Raises AnswerError if it is neither
    a decoder nor an encoder, or an encoder whose weights are to be rounded.
    """
    run = of_text(run) if run.task == "gato" else run
    if run.task not in ("d", "e"):
        raise AnswerError(
            f"{name} is a run of the task {run.task}; serving needs a decoder, task d, or an encoder, task e"
        )
    if weights is not None and run.task != "d":
        raise AnswerError(f"--weights: expected a decoder's run, task d, got the task {run.task}; leave it out")
    model = _decoder_of(run, limits, weights) if run.task == "d" else _encoder_of(run)
    return Served(name=name, model=model, tokenizer=run.tokenizer, config=run.config, limits=limits)


def _decoder_of(run: Run, limits: Limits, weights: Literal["int8"] | None) -> Decoder:
    read = Continuer(run, Options(weights=weights))
    generator = read.generator
    generator.prefixes = Prefixes(limits.prefixes) if limits.prefixes else None

    def score(tokens: list[int]) -> tuple[Any, Any, Any]:
        x, lengths, n = np.array([tokens]), np.array([len(tokens)]), min(LIKELIEST, run.config.N_V)
        log_p, likeliest, of_likeliest = scored(run.theta, x, lengths=lengths, config=run.config, n=n)
        return log_p[0], likeliest[0], of_likeliest[0]

    converse = converser(run.tokenizer) if run.tokenizer.chat_template is not None else None
    return Decoder(generator=generator, read=read.prompt, converse=converse, score=score)


def _encoder_of(run: Run) -> Encoder:
    def embed(texts: Sequence[list[int]]) -> Float[ndarray, "B d_e"]:
        """Some texts at once, whose number is a power of two, so that little is compiled."""
        found = []
        for i in range(0, len(texts), TEXTS_AT_ONCE):
            rows = list(texts[i : i + TEXTS_AT_ONCE])
            n = len(rows)
            rows += rows[:1] * ((1 << (n - 1).bit_length()) - n)
            x, lengths = padded_rows(rows)
            found.append(sentence_embeddings(run.theta, x, lengths=lengths, config=run.config)[:n])
        return np.concatenate(found)

    return Encoder(embed=embed)

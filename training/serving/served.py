"""The served model, its functions, and the limits of requests."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from training.data.chat import converser, ends_of_turn
from training.data.tokenizers import Tokenizer
from training.generation import Generator
from training.generation.buckets import padded_rows, to_power_of_two
from training.generation.gato import of_text
from training.generation.grammars import Grammars
from training.generation.prefixes import Prefixes
from training.generation.requests import Prompt
from training.generation.scoring import scored, sentence_embeddings
from training.generation.text import AnswerError, Continuer, Options
from training.runs.directory import Run
from training.serving.calls import CallFormat, format_of
from training.serving.memory import LIKELIEST, Budget

TEXTS_AT_ONCE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of requests."""

    body: int  # bytes of a request
    tokens: int  # tokens of a continuation
    queue: int  # what may wait: continuations, texts to embed and texts to score; so a request has at most as many
    seconds: float  # time for an answer, waiting included
    prefixes: int  # bytes of keys and values kept for later requests with the same prefix
    requests: int = 256  # requests that are answered at once
    patience: float = 30.0  # seconds for a request to arrive
    memory: int | None = None  # bytes of all keys and values, those included; None: a share of what is free


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder and its functions."""

    generator: Generator  # the model
    budget: Budget  # the memory of its requests
    read: Callable[..., Prompt]  # `Continuer.prompt`
    # the tokens of a conversation, up to where the next answer begins; None: the model has no chat template
    converse: Callable[..., list[int]] | None
    template: str  # the chat template
    calls: CallFormat | None  # how the template writes calls of tools, if it does
    grammars: Grammars  # of what it writes
    # the log-probability of each token of a text after the first; the likeliest tokens at its position, and theirs
    score: Callable[[list[int]], tuple[Float[ndarray, "m"], Int[ndarray, "m N"], Float[ndarray, "m N"]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model with its name, tokenizer, sizes and limits."""

    name: str
    # a decoder, or an encoder as a function: the embeddings of texts, given as tokens
    model: Decoder | Callable[[Sequence[list[int]]], Float[ndarray, "B d_e"]]
    tokenizer: Tokenizer
    config: Any  # the model's sizes
    limits: Limits
    ends: tuple[int, ...] = ()  # further tokens that end a text, besides the tokenizer's

    def limit(self, name: str) -> int:
        """Return a limit of requests, or a size of the model, by name."""
        return {"N_V": self.tokenizer.N_V, "d_e": self.config.d_e}.get(name) or getattr(self.limits, name)


def served_of(run: Run, name: str, limits: Limits, *, weights: Literal["int8"] | None = None) -> ServedModel:
    """Return a decoder or encoder to be served under this name, or raise AnswerError; "int8" is for decoders."""
    run = of_text(run)
    if run.task not in ("d", "e"):
        raise AnswerError(
            f"{name} is a run of the task {run.task}; serving needs a decoder, task d, or an encoder, task e"
        )
    if weights is not None and run.task != "d":
        raise AnswerError(f"--weights: expected a decoder's run, task d, got the task {run.task}; leave it out")
    model = _decoder_of(run, limits, weights) if run.task == "d" else _encoder_of(run)
    converses = isinstance(model, Decoder) and model.converse is not None
    ends = ends_of_turn(run.tokenizer) if converses else ()
    return ServedModel(name=name, model=model, tokenizer=run.tokenizer, config=run.config, limits=limits, ends=ends)


def _decoder_of(run: Run, limits: Limits, weights: Literal["int8"] | None) -> Decoder:
    read = Continuer(run, Options(weights=weights))
    generator = read.generator
    serves = limits.prefixes and Prefixes.serve(generator.config.variant)
    generator.prefixes = Prefixes(limits.prefixes) if serves else None

    def score(tokens: list[int]) -> tuple[Any, Any, Any]:
        if len(tokens) < 2:  # the first is not predicted
            return np.zeros(0), np.zeros((0, 0), np.int32), np.zeros((0, 0))
        x, lengths, n = np.array([tokens]), np.array([len(tokens)]), min(LIKELIEST, run.config.N_V)
        log_p, likeliest, of_likeliest = scored(run.theta, x, lengths=lengths, config=run.config, n=n)
        return log_p[0], likeliest[0], of_likeliest[0]

    converses = run.tokenizer.chat_template is not None
    return Decoder(
        generator=generator,
        budget=Budget(generator, limits.memory),
        read=read.prompt,
        converse=converser(run.tokenizer) if converses else None,
        template=run.tokenizer.chat_template or "",
        calls=format_of(run.tokenizer) if converses else None,
        grammars=Grammars(run.tokenizer),
        score=score,
    )


def _encoder_of(run: Run) -> Callable[[Sequence[list[int]]], Float[ndarray, "B d_e"]]:
    def embed(texts: Sequence[list[int]]) -> Float[ndarray, "B d_e"]:
        found = []
        for i in range(0, len(texts), TEXTS_AT_ONCE):
            rows = list(texts[i : i + TEXTS_AT_ONCE])
            x, lengths = padded_rows(to_power_of_two(rows))
            found.append(sentence_embeddings(run.theta, x, lengths=lengths, config=run.config)[: len(rows)])
        return np.concatenate(found)

    return embed

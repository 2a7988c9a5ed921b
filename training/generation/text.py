"""Apply a trained run to text: a decoder continues it, an encoder fills in its masks, and so on.

answerer_for(load_run(directory), Options(n=2)).answers(["once upon", "a time"])     # n answers to each text
"""

import abc
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from algorithms import d_hidden_state, e_inference
from algorithms.inside import At, intervene
from training.data.tokenizers import Tokenizer
from training.generation import Continuation, Generator, Sampling, Translator
from training.generation.buckets import bucketed, padded_rows
from training.generation.drafting import DraftedContinuation, Drafter
from training.generation.gato import of_text
from training.generation.generating import LENGTH_PENALTY
from training.generation.pieces import Ends, Pieces, pieces_of
from training.generation.requests import Prompt, Request, keys_of
from training.generation.scoring import classify, fill_masks, sentence_embeddings
from training.runs.directory import Run
from training.settings import flag

L_GEN, TAU, TOP_P = 200, 0.7, 0.9
LARGEST_SEED = 2**32 - 1
MASK = "[MASK]"

Answer = dict[str, Any]  # an answer as JSON: its "text", and details such as its log-probability


class AnswerError(ValueError):
    """A text cannot be answered, or an option does not apply; the message is one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of an answer; None is the run's default."""

    n: int | None = None  # answers to each text, or likeliest tokens for each mask
    l_gen: int | None = None  # most tokens of a continuation, or masks after a text
    steps: int | None = None  # number of steps in which masks are filled, the most confident first
    l_max: int | None = None  # most tokens of a translation
    tau: float | None = None  # temperature
    top_k: int | None = None  # draw from the k likeliest tokens only
    top_p: float | None = None  # draw from the nucleus only
    repetition_penalty: float | None = None  # makes earlier tokens less likely
    no_repeat_ngram_size: int | None = None  # forbid repeating any n-gram of this size
    beam_size: int | None = None  # translations to keep in a beam search
    length_penalty: float | None = None  # of a beam search
    seed: int | None = None  # of the random draws
    stop: tuple[str, ...] | None = None  # texts before which an answer ends
    steer: Mapping[At, Any] | None = None  # changes to the model, as `algorithms.inside.intervene` takes them
    weights: Literal["int8"] | None = None  # "int8" rounds the weights that every token reads
    draft: bool | None = None  # let the head for the token after the next draft, see `training.generation.drafting`
    keep_final_space: bool | None = None  # read a prompt's final space; see `Continuer.prompt`


OPTIONS = tuple(field.name for field in dataclasses.fields(Options))


def answerer_for(run: Run, options: Options) -> "Answerer":
    """Return the answerer for a run. Raises AnswerError if an option is given that does not apply to such a run."""
    run = of_text(run)
    if run.task == "e" and not run.config.variant.head:
        return _Embedder(run, options)
    return ANSWERERS[run.task](run, options)


class Answerer(abc.ABC):
    """Answers texts."""

    takes_lines = True  # whether each text is a line; a decoder continues any text
    streams = False  # whether `stream` yields an answer piece by piece
    converses = False  # whether the next text may follow the answer to the last
    model: str  # the kind of model, for messages
    verb: str  # what it does to a text, for messages
    applicable: tuple[str, ...]  # names of the options that apply

    def __init__(self, run: Run, options: Options) -> None:
        self._run = run
        self.config: Any = run.config
        self.tokenizer: Tokenizer = run.tokenizer
        self.options = options
        for name in OPTIONS:
            if getattr(options, name) is not None and name not in self.applicable:
                flags = ", ".join(map(flag, self.applicable)) or "none"
                raise AnswerError(f"{flag(name)} does not apply: the run is {self.model}, whose options are {flags}")
        if options.n is not None and options.n < 1:
            raise AnswerError(f"n: expected at least 1, got {options.n}")
        self.n = options.n or 1
        if options.seed is not None and not 0 <= options.seed <= LARGEST_SEED:
            raise AnswerError(f"seed: expected 0 to {LARGEST_SEED}, got {options.seed}")

    def heals(self, text: str) -> bool:
        """Return whether a text's final space is left to its continuation; see `Continuer.prompt`."""
        return False

    @abc.abstractmethod
    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        """Return the answers to each text, numbered from `first` on, for messages and random draws: answer r to text i
        is request (i − 1)·n + r, which determines its key. Raises ValueError for a text or an option that is invalid.
        """

    def stream(self, text: str, *, number: int = 1) -> Iterator[str]:
        """Yield the pieces of the answer to text number `number` as they are generated."""
        yield self.answers([text], first=number)[0][0]["text"]

    def _sequences(self, texts: Sequence[str], first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of texts, with bos and eos, and their lengths."""
        rows = []
        for number, text in enumerate(texts, first):
            tokens = self._encoded(text)
            if not tokens:
                raise AnswerError(f"text {number} is empty: give some text to {self.verb}")
            row = self.tokenizer.framed(tokens, ends=True)
            if len(row) > self.config.l_max:
                raise AnswerError(
                    f"text {number} has {len(row)} tokens, including special ones, but the model reads at most "
                    f"l_max = {self.config.l_max}: shorten it"
                )
            rows.append(row)
        return padded_rows(rows)

    def _encoded(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)


class Continuer(Answerer):
    """Algorithm 14, in windows if a text outgrows l_max."""

    takes_lines = False
    streams = True
    converses = True
    model = "a decoder"
    verb = "continue"
    applicable = tuple(name for name in OPTIONS if name not in ("l_max", "steps", "beam_size", "length_penalty"))

    def __init__(self, run: Run, options: Options) -> None:
        super().__init__(run, options)
        self.ends = Ends.of(run.tokenizer, options.stop or ())
        self.generator = Generator(run.theta, run.config, changes=options.steer, int8=options.weights == "int8")
        if options.draft and (options.steer or options.weights):
            raise AnswerError("--draft and --weights or steer exclude each other")
        self.drafter = Drafter(self.generator) if options.draft else None
        if options.steer:  # trace the changes on two tokens, so that invalid ones fail before anything is generated
            hidden_state = intervene(d_hidden_state, options.steer)
            try:
                jax.eval_shape(hidden_state, jax.ShapeDtypeStruct((1, 2), np.int32), run.theta)
            except ValueError as error:
                raise AnswerError(f"steer: {error}") from None

    def heals(self, text: str) -> bool:
        """See `Answerer.heals`."""
        left = text.endswith(" ") and len(text) > 1 and not self.options.keep_final_space
        return left and bool(self._spaced.sum() > 1)

    def prompt(
        self,
        text: str,
        *,
        number: int = 1,
        parse_special: bool = True,
        framed: bool = True,
        keep_final_space: bool = False,
    ) -> Prompt:
        """Return text number `number` as the model reads it, `framed` by bos; names of special tokens stand for these
        if `parse_special`. If words begin with a space in the training data, a final space is not read unless
        `keep_final_space`: the continuation begins with such a token, since the space alone seldom precedes a word
        there. Raises ValueError if it is empty or not known.
        """
        heals = self.heals(text) and not keep_final_space
        encode = self.tokenizer.encode_markup if parse_special else self.tokenizer.encode
        tokens = encode(text[: len(text) - heals])
        if not tokens:
            raise AnswerError(f"text {number} is empty: give some text to continue")
        tokens = self.tokenizer.framed(tokens, ends=False) if framed else tokens
        return Prompt(tokens, int(heals), self._spaced if heals else None)

    @functools.cached_property
    def _spaced(self) -> np.ndarray:
        """Which tokens begin with a space within a text."""
        return np.array([self.tokenizer.spelled(v).startswith(b" ") for v in range(self.config.N_V)])

    def _l_gen(self, prompts: Sequence[Prompt]) -> int:
        """Return the most tokens of a continuation of these prompts."""
        if self.options.l_gen is None and self.drafter:  # which does not read windows
            return min(L_GEN, self.config.l_max + 1 - max(len(prompt.tokens) for prompt in prompts))
        return L_GEN if self.options.l_gen is None else self.options.l_gen

    def _begun(self, prompts: Sequence[Prompt], number: int) -> Continuation | DraftedContinuation:
        """Return the `Continuation` of n prompts for each text, from text number `number` on."""
        l_gen, first = self._l_gen(prompts), (number - 1) * self.n
        keys = keys_of(jax.random.key(self.options.seed or 0), len(prompts), first)
        sampling = sampling_of(self.options, self.ends.tokens)
        of_prompts = zip(prompts, keys, strict=True)
        generator = self.drafter or self.generator
        return generator.answer([Request(p.tokens, key, l_gen, sampling, p.begins) for p, key in of_prompts])

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        """See `Answerer.answers`; with the log-probabilities of the tokens."""
        return self._answers([self.prompt(text, number=i) for i, text in enumerate(texts, first)], first)

    def _answers(self, of_texts: Sequence[Prompt], first: int) -> list[list[Answer]]:
        prompts = [prompt for prompt in of_texts for _ in range(self.n)]
        continuation = self._begun(prompts, first)
        continuation.extend(continuation.wanted)
        of_rows = zip(continuation.tokens, continuation.log_p, prompts, strict=True)
        answers = [self._answer(tokens.tolist(), log_p, prompt) for tokens, log_p, prompt in of_rows]
        return [answers[i : i + self.n] for i in range(0, len(answers), self.n)]

    def _pieces(self, prompt: Prompt) -> Pieces:
        return Pieces(self.tokenizer, self.ends.stops, given=prompt.given, before=prompt.before)

    def _answer(self, tokens: list[int], log_p: np.ndarray, prompt: Prompt) -> Answer:
        end = next((i for i, token in enumerate(tokens) if token in self.ends.tokens), len(tokens))
        ended, tokens = end < len(tokens), tokens[:end]
        pieces = self._pieces(prompt)
        text = pieces.all(tokens)
        counted = len(pieces.tokens) + (ended and not pieces.stopped)
        reason = "stop" if pieces.stopped else "eos" if ended else "length"
        return {
            "text": text,
            "tokens": len(pieces.tokens),
            "ended_by": reason,
            "log_probability": float(log_p[:counted].sum(dtype=np.float64)),
            "log_probabilities": log_p[:counted].tolist(),
        }

    def stream(self, text: str, *, number: int = 1) -> Iterator[str]:
        """See `Answerer.stream`."""
        prompt = self.prompt(text, number=number)
        tokens = (int(column[0]) for column in self._begun([prompt], number).columns())
        return pieces_of(tokens, self._pieces(prompt), self.ends.tokens)


def sampling_of(options: Options, ends: Sequence[int]) -> Sampling:
    """Return the `Sampling` for these options, with the command line's defaults; the tokens `ends` end a text."""
    o = options
    usual = o.tau is None and o.top_k is None and o.top_p is None
    return {
        "tau": TAU if o.tau is None else o.tau,
        "top_k": o.top_k,
        "top_p": TOP_P if usual else o.top_p,
        "eos": tuple(ends) or None,
        "repetition_penalty": 1.0 if o.repetition_penalty is None else o.repetition_penalty,
        "no_repeat_ngram_size": o.no_repeat_ngram_size or 0,
    }


class _Translator(Answerer):
    """Algorithm 15."""

    streams = True
    model = "an encoder-decoder"
    verb = "translate"
    applicable = ("n", "l_max", "tau", "beam_size", "length_penalty", "seed", "weights")

    def __init__(self, run: Run, options: Options) -> None:
        super().__init__(run, options)
        ends = {"bos": run.tokenizer.bos_token, "eos": run.tokenizer.eos_token}
        self._translator = Translator(run.theta, run.config, **ends, int8=options.weights == "int8")

    def stream(self, text: str, *, number: int = 1) -> Iterator[str]:
        o = self.options
        if o.beam_size is not None and o.beam_size > 1:
            return super().stream(text, number=number)  # the best beam is only known at the end
        z, lengths = self._sequences([text], number)
        columns = self._translator.stream(z, lengths=lengths, **self._options(number))
        tokens = (int(column[0]) for column in columns)
        return pieces_of(tokens, Pieces(self.tokenizer), self.tokenizer.end_tokens)

    def _options(self, number: int) -> dict[str, Any]:
        """Return the options of `Translator` for texts from this number on."""
        l_max = self.config.l_max if self.options.l_max is None else self.options.l_max
        key, first = jax.random.key(self.options.seed or 0), (number - 1) * self.n
        return {"l_max": l_max, "tau": self.options.tau or 0.0, "key": key, "first": first}

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        o = self.options
        z, lengths = self._sequences(texts, first)
        if self.n > 1 and not o.tau:
            raise AnswerError(f"{self.n} answers without sampling would be the same: give --tau, or leave --n out")
        rows = np.repeat(np.arange(len(z)), self.n)
        tokens, counts, scores = self._translator.translate(
            z[rows],
            lengths=lengths[rows],
            beam_size=1 if o.beam_size is None else o.beam_size,
            length_penalty=LENGTH_PENALTY if o.length_penalty is None else o.length_penalty,
            **self._options(first),
        )
        answers = [
            {"text": self.tokenizer.decode(row[:count]), "tokens": int(count) - 1, "log_probability": float(score)}
            for row, count, score in zip(np.asarray(tokens), np.asarray(counts), np.asarray(scores), strict=True)
        ]
        return [answers[i : i + self.n] for i in range(0, len(answers), self.n)]


class _MaskFiller(Answerer):
    """Algorithm 9."""

    model = "an encoder"
    verb = "fill"
    applicable = ("n", "l_gen", "steps", "tau", "seed")

    def __init__(self, run: Run, options: Options) -> None:
        super().__init__(run, options)
        self.steps = options.steps or options.l_gen
        if self.steps is None and (options.tau, options.seed) != (None, None):
            raise AnswerError("--tau and --seed: expected --steps or --l_gen with them; add one, or leave them out")

    def _encoded(self, text: str) -> list[int]:
        if MASK not in text and not self.options.l_gen:
            raise AnswerError(f"there is no {MASK} to be filled in the text {text[:60]!r}; add it, or --l_gen N")
        return masked(text, self.tokenizer) + [self.tokenizer.mask_token] * (self.options.l_gen or 0)

    def _by_confidence(self, x: np.ndarray, lengths: np.ndarray, first: int) -> list[list[Answer]]:
        """Return n answers to each sequence, whose masks are filled in several steps."""
        x, lengths = x.repeat(self.n, axis=0), lengths.repeat(self.n)
        keys = keys_of(jax.random.key(self.options.seed or 0), len(x), (first - 1) * self.n)
        options = {"steps": self.steps, "tau": self.options.tau or 0.0, "key": keys, "mask": self.tokenizer.mask_token}
        filled = np.asarray(e_inference(bucketed(x, self.config.l_max), self._run.theta, length=lengths, **options))
        each = [{"text": self.tokenizer.decode(row[:l])} for row, l in zip(filled, lengths, strict=True)]
        return [each[i : i + self.n] for i in range(0, len(each), self.n)]

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        x, lengths = self._sequences(texts, first)
        if self.steps:
            return self._by_confidence(x, lengths, first)
        mask = self.tokenizer.mask_token
        filled = fill_masks(self._run.theta, x, lengths=lengths, config=self.config, n=self.n, mask=mask)
        answers = []
        for row, length, masks in zip(x, lengths, filled, strict=True):
            tokens = row[:length].copy()
            tokens[tokens == mask] = [candidates[0][0] for candidates in masks]
            fillings = [[{"text": self._text(v), "probability": p} for v, p in candidates] for candidates in masks]
            answers.append([{"text": self.tokenizer.decode(tokens), "masks": fillings}])
        return answers

    def _text(self, token: int) -> str:
        known = self.tokenizer
        special = {known.mask_token: MASK, known.bos_token: "[BOS]", known.eos_token: "[EOS]"}
        return special.get(token) or known.decode([token])


class _Embedder(Answerer):
    """The encoder of Algorithm 9 without its lines 10 and 11: the mean of a text's columns, scaled to unit length."""

    model = "a sentence encoder"
    verb = "embed"
    applicable = ()

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        x, lengths = self._sequences(texts, first)
        E = sentence_embeddings(self._run.theta, x, lengths=lengths, config=self.config)
        return [[{"text": " ".join(f"{v:.4f}" for v in e), "embedding": e.tolist()}] for e in E]


class _Classifier(Answerer):
    """A linear map of the first token's encoding (Radu 2026, §12.7)."""

    model = "a classifier"
    verb = "classify"
    applicable = ()

    def answers(self, texts: Sequence[str], *, first: int = 1) -> list[list[Answer]]:
        x, lengths = self._sequences(texts, first)
        P = np.asarray(classify(self._run.theta, x, lengths=lengths, config=self.config))
        labels = self._run.labels
        found = [(labels[int(p.argmax())], dict(zip(labels, p.tolist(), strict=True))) for p in P]
        return [[{"text": text, "probabilities": probabilities}] for text, probabilities in found]


ANSWERERS: dict[str, type[Answerer]] = {"d": Continuer, "e": _MaskFiller, "ed": _Translator, "classify": _Classifier}
"""The answerer for each task; `answerer_for` also answers with sentence encoders, and with Gato's text decoder."""


def masked(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a text, with the mask token in place of each `MASK`."""
    return [token for part in text.split(MASK) for token in [*tokenizer.encode(part), tokenizer.mask_token]][:-1]

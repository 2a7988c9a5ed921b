"""A trained decoder as a model for lm-evaluation-harness, to evaluate it on the harness's tasks.

The package is in the extra ``lm-eval``; docs/generation.md shows how to evaluate a run with it.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from training.generation import Generator
from training.generation.buckets import padded_rows
from training.generation.pieces import Ends, Pieces
from training.generation.requests import Request
from training.generation.scoring import scored
from training.generation.text import Options, sampling_of
from training.runs.directory import Run

LM: Any = importlib.import_module("lm_eval.api.model").LM
ROLLING: Any = importlib.import_module("lm_eval.utils")
MOST_TOKENS = 256
KNOWN = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


class HarnessModel(LM):
    """Answers the three kinds of requests of the harness, as its own model of transformers, `HFLM`, does."""

    def __init__(self, run: Run, *, batch_size: int = 16) -> None:
        """Wrap a trained decoder. Raises ValueError if the run is not a decoder."""
        if run.task != "d":
            raise ValueError(f"the run is of the task {run.task}; the harness needs a decoder, task d")
        super().__init__()
        self._run, self._batch_size, self._prefix = run, batch_size, run.tokenizer.bos_token
        self._generator = Generator(run.theta, run.config)

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation given its context, in nats, and whether it is the greedy one.
        The context is truncated on the left if both exceed l_max + 1 tokens (the last is not read). Raises ValueError
        for a continuation of 0 or more than l_max tokens.
        """
        pairs = [self._pair(*request.args) for request in requests]
        l_max = self._run.config.l_max
        counts = [len(continuation) for _, continuation in pairs]
        for n in counts:
            if not 0 < n <= l_max:
                raise ValueError(f"a continuation has {n} tokens, expected 1 to l_max = {l_max}")
        return self._scored([(context + continuation)[-l_max - 1 :] for context, continuation in pairs], counts)

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Return the log-probability of each text, in nats, every token given the previous tokens of its window."""
        sizes: Any = {"prefix_token": self._prefix, "max_seq_len": self._run.config.l_max, "context_len": 1}
        parts: list[Any] = []
        for r, request in enumerate(requests):
            windows = ROLLING.get_rolling_token_windows(self._encoded(request.args[0]), **sizes)
            parts += [(r, *ROLLING.make_disjoint_window(window)) for window in windows]
        of_parts = self._scored([[*given, *new] for r, given, new in parts], [len(new) for r, given, new in parts])
        found = [0.0] * len(requests)
        for part, of_part in zip(parts, of_parts, strict=True):
            found[part[0]] += of_part[0]
        return found

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Continue each context, truncated on the left to make room, until one of its stop texts. Raises ValueError if
        the task has an unknown option.
        """
        alike: dict[str, list[int]] = {}
        for r, request in enumerate(requests):
            alike.setdefault(repr(sorted(request.args[1].items())), []).append(r)
        texts = [""] * len(requests)
        for rows in alike.values():
            for i in range(0, len(rows), self._batch_size):
                some = rows[i : i + self._batch_size]
                found = self._generated([requests[r].args[0] for r in some], requests[some[0]].args[1], some[0])
                for r, text in zip(some, found, strict=True):
                    texts[r] = text
        return texts

    def _generated(self, contexts: Sequence[str], how: dict[str, Any], number: int) -> list[str]:
        """Continue contexts with the same options; `number` is that of the first request."""
        unknown = sorted(how.keys() - KNOWN)
        if unknown:
            raise ValueError(f"the task's options: expected {', '.join(sorted(KNOWN))}, got {unknown[0]}")
        until, l_gen, l_max = how.get("until") or (), how.get("max_gen_toks", MOST_TOKENS), self._run.config.l_max
        if not 0 < l_gen < l_max:
            raise ValueError(f"max_gen_toks: expected 1 to l_max − 1 = {l_max - 1}, got {l_gen}")
        stops = [until] if isinstance(until, str) else until
        draws = how.get("do_sample", False)
        options = Options(
            tau=how.get("temperature", 1.0) if draws else 0.0,
            top_k=how.get("top_k") if draws else None,
            top_p=how.get("top_p") if draws else None,
        )
        tokenizer = self._run.tokenizer
        ends = Ends.of(tokenizer, tuple(filter(None, stops)))  # some tasks have "", which stops nothing
        keys = [jax.random.fold_in(jax.random.key(0), number + r) for r in range(len(contexts))]
        prompts = [self._encoded(context)[-(l_max - l_gen) :] for context in contexts]
        sampling = sampling_of(options, ends.tokens)
        of_rows = zip(prompts, keys, strict=True)
        continuation = self._generator.answer([Request(prompt, key, l_gen, sampling) for prompt, key in of_rows])
        continuation.extend(l_gen)
        found = []
        for row in continuation.tokens.tolist():
            end = next((i for i, token in enumerate(row) if token in ends.tokens), len(row))
            found.append(Pieces(tokenizer, ends.stops).all(row[:end]))
        return found

    def _encoded(self, text: str) -> list[int]:
        """Return the tokens of a text as the tokenizer makes them, with its bos if it adds one."""
        tokenizer = self._run.tokenizer
        tokens = tokenizer.encode_markup(text)
        return tokens if tokens[:1] == [self._prefix] else tokenizer.framed([*tokens, 0], ends=False)[:-1]

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of both; spaces between them belong to the continuation, as in most tokenizers."""
        if not context:
            tokens = self._run.tokenizer.encode_markup(continuation)
            return (tokens[:1], tokens[1:]) if tokens[:1] == [self._prefix] else ([self._prefix], tokens)
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole, first = self._encoded(context + continuation), self._encoded(context)
        return whole[: len(first)], whole[len(first) :]

    def _scored(self, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[tuple[float, bool]]:
        """Return the log-probability of each text's last `counts` tokens, and whether each of them is the likeliest."""
        found = []
        for i in range(0, len(texts), self._batch_size):
            some = texts[i : i + self._batch_size]
            x, lengths = padded_rows([*some, *[some[0][:2]] * (self._batch_size - len(some))])
            log_p, likeliest, _ = scored(self._run.theta, x, lengths=lengths, config=self._run.config, n=1)
            is_greedy = likeliest[..., 0] == x[:, 1:]
            for r, text in enumerate(some):
                last = slice(len(text) - 1 - counts[i + r], len(text) - 1)
                found.append((float(log_p[r, last].sum(dtype=np.float64)), bool(is_greedy[r, last].all())))
        return found

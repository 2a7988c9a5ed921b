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

LM: Any = importlib.import_module("lm_eval.api.model").TemplateLM
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
        self._run, self._batch_size = run, batch_size
        self._generator = Generator(run.theta, run.config)

    @property
    def eot_token_id(self) -> int:
        """The token before a text without context."""
        return self._run.tokenizer.bos_token

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Return the tokens of a text as the tokenizer makes them, with its bos if it adds one."""
        tokens = self._run.tokenizer.encode_markup(string)
        if add_special_tokens is False or tokens[:1] == [self.eot_token_id]:
            return tokens
        return self._run.tokenizer.framed([*tokens, 0], ends=False)[:-1]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation given its context, in nats, and whether it is the greedy one.
        The context is truncated on the left if both exceed l_max + 1 tokens (the last is not read). Raises ValueError
        for a continuation of 0 or more than l_max tokens.
        """
        l_max, found = self._run.config.l_max, []
        for _, _, continuation in requests:
            if not 0 < len(continuation) <= l_max:
                raise ValueError(f"a continuation has {len(continuation)} tokens, expected 1 to l_max = {l_max}")
        for i in range(0, len(requests), self._batch_size):
            some = requests[i : i + self._batch_size]
            texts = [(context + continuation)[-l_max - 1 :] for _, context, continuation in some]
            x, lengths = padded_rows([*texts, *[texts[0][:2]] * (self._batch_size - len(some))])
            log_p, likeliest, _ = scored(self._run.theta, x, lengths=lengths, config=self._run.config, n=1)
            is_greedy = likeliest[..., 0] == x[:, 1:]
            for r, (text, (_, _, continuation)) in enumerate(zip(texts, some, strict=True)):
                last = slice(len(text) - 1 - len(continuation), len(text) - 1)
                found.append((float(log_p[r, last].sum(dtype=np.float64)), bool(is_greedy[r, last].all())))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], **options: Any) -> list[float]:
        """Return the log-probability of each text, in nats, every token given the previous tokens of its window."""
        sizes: Any = {"prefix_token": self.eot_token_id, "max_seq_len": self._run.config.l_max, "context_len": 1}
        windows: list[Any] = []
        for r, request in enumerate(requests):
            of_text = ROLLING.get_rolling_token_windows(self.tok_encode(request.args[0]), **sizes)
            windows += [(r, *ROLLING.make_disjoint_window(window)) for window in of_text]
        found = [0.0] * len(requests)
        for (r, *_), (log_p, _) in zip(windows, self._loglikelihood_tokens(windows), strict=True):
            found[r] += log_p
        return found

    def generate_until(self, requests: Sequence[Any], **options: Any) -> list[str]:
        """Continue each context, truncated on the left to make room, until one of its stop texts. Raises ValueError if
        the task has an unknown option.
        """
        found = []
        for i in range(0, len(requests), self._batch_size):
            some = requests[i : i + self._batch_size]
            asked = [self._asked(number, *request.args) for number, request in enumerate(some, i)]
            continuation = self._generator.answer([request for request, _ in asked])
            continuation.extend(continuation.wanted)
            for (request, ends), row in zip(asked, continuation.tokens.tolist(), strict=True):
                tokens = row[: request.l_gen]
                end = next((i for i, token in enumerate(tokens) if token in ends.tokens), len(tokens))
                found.append(Pieces(self._run.tokenizer, ends.stops).all(tokens[:end]))
        return found

    def _asked(self, number: int, context: str, how: dict[str, Any]) -> tuple[Request, Ends]:
        """Return request `number` for the generator, and what ends its text."""
        unknown = sorted(how.keys() - KNOWN)
        if unknown:
            raise ValueError(f"the task's options: expected {', '.join(sorted(KNOWN))}, got {unknown[0]}")
        until, l_gen, l_max = how.get("until") or (), how.get("max_gen_toks", MOST_TOKENS), self._run.config.l_max
        if not 0 < l_gen < l_max:
            raise ValueError(f"max_gen_toks: expected 1 to l_max − 1 = {l_max - 1}, got {l_gen}")
        stops = [until] if isinstance(until, str) else until
        ends = Ends.of(self._run.tokenizer, tuple(filter(None, stops)))  # some tasks have "", which stops nothing
        drawn = Options(tau=how.get("temperature", 1.0), top_k=how.get("top_k"), top_p=how.get("top_p"))
        sampling = sampling_of(drawn if how.get("do_sample", False) else Options(tau=0.0), ends.tokens)
        prompt, key = self.tok_encode(context)[-(l_max - l_gen) :], jax.random.fold_in(jax.random.key(0), number)
        return Request(prompt, key, l_gen, sampling), ends

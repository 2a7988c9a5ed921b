"""A trained decoder as a model of lm-evaluation-harness, whose tasks it can be evaluated on.

The package is the extra ``lm-eval``; docs/generation.md shows how to evaluate a run with it.
"""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from training.generation.inputs import padded_rows
from training.generation.scoring import are_likeliest, log_probabilities
from training.generation.text import Continuer, Options
from training.runs.directory import Run

LM: Any = importlib.import_module("lm_eval.api.model").LM
ROLLING: Any = importlib.import_module("lm_eval.utils")
MOST_TOKENS = 256
KNOWN = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


class HarnessModel(LM):
    """Answers the three kinds of requests that the tasks make; every text begins after bos, as in training."""

    def __init__(self, run: Run, *, batch_size: int = 16) -> None:
        """Wrap a trained decoder that reads this many texts side by side. Raises ValueError if the run is not a
        decoder.
        """
        if run.task != "d":
            raise ValueError(f"the run is of the task {run.task}; the harness needs a decoder, task d")
        super().__init__()
        self._run, self._batch_size = run, batch_size

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation after its context, in nats, and whether it is the greedy one.

        Where both outgrow l_max, the context is cut on the left.

        Raises:
            ValueError: a continuation has no tokens, or as many as l_max.
        """
        pairs = [self._encoded(*request.args) for request in requests]
        l_max = self._run.config.l_max
        for continuation in (continuation for _, continuation in pairs):
            if not 0 < len(continuation) < l_max:
                raise ValueError(
                    f"a continuation has {len(continuation)} tokens, expected 1 to l_max − 1 = {l_max - 1}"
                )
        texts = [(context + continuation)[-l_max:] for context, continuation in pairs]
        return self._scored(texts, [len(continuation) for _, continuation in pairs])

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Return how likely each text is, in nats, every token given as many of those before it as its window has."""
        found = []
        for request in requests:
            tokens = self._run.tokenizer.encode(request.args[0])
            sizes = {"prefix_token": self._prefix()[-1], "max_seq_len": self._run.config.l_max - 1, "context_len": 1}
            windows = ROLLING.get_rolling_token_windows(tokens, **sizes)
            parts = [ROLLING.make_disjoint_window(window) for window in windows]
            scored = self._scored([[*given, *new] for given, new in parts], [len(new) for _, new in parts])
            found.append(sum(log_p for log_p, _ in scored))
        return found

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Continue each context up to one of the texts that end it. Raises ValueError if an option of the task's is not
        known here.
        """
        texts = []
        for request in requests:
            context, how = request.args
            unknown = sorted(how.keys() - KNOWN)
            if unknown:
                raise ValueError(f"the task asks for {unknown[0]}, but this knows {', '.join(sorted(KNOWN))}")
            until = how.get("until") or ()
            until = [until] if isinstance(until, str) else until
            draws = how.get("do_sample", False)
            options = Options(
                l_gen=how.get("max_gen_toks", MOST_TOKENS),
                tau=how.get("temperature", 1.0) if draws else 0.0,
                top_k=how.get("top_k") if draws else None,
                top_p=how.get("top_p") if draws else None,
                stop=tuple(filter(None, until)) or None,  # some tasks name "", which ends nothing
            )
            texts.append(Continuer(self._run, options).answers([context])[0][0]["text"])
        return texts

    def _prefix(self) -> list[int]:
        return self._run.tokenizer.framed([], ends=False)

    def _encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of both; spaces between them belong to the continuation, as tokenizers have it."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        encode = self._run.tokenizer.encode
        whole, first = encode(context + continuation), encode(context) if context else []
        return self._prefix() + whole[: len(first)], whole[len(first) :]

    def _scored(self, texts: Sequence[Sequence[int]], counts: Iterable[int]) -> list[tuple[float, bool]]:
        """Return how likely the last tokens of each text are, and whether they are the likeliest."""
        found, counts = [], list(counts)
        for i in range(0, len(texts), self._batch_size):
            some = texts[i : i + self._batch_size]
            x, lengths = padded_rows([*some, *[some[0][:1]] * (self._batch_size - len(some))])
            options = {"lengths": lengths, "config": self._run.config}
            log_p = log_probabilities(self._run.theta, x, **options)
            likeliest = are_likeliest(self._run.theta, x, **options)
            for r, text in enumerate(some):
                last = slice(len(text) - 1 - counts[i + r], len(text) - 1)
                found.append((float(log_p[r, last].sum(dtype=np.float64)), bool(likeliest[r, last].all())))
        return found

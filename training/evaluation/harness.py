"""A trained decoder as a model for lm-evaluation-harness, to evaluate it on the harness's tasks.

The package is in the extra ``lm-eval``; docs/generation.md shows how to evaluate a run with it.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from training.generation.inputs import padded_rows
from training.generation.scoring import log_probabilities, scored
from training.generation.text import Continuer, Options
from training.runs.directory import Run

LM: Any = importlib.import_module("lm_eval.api.model").LM
ROLLING: Any = importlib.import_module("lm_eval.utils")
MOST_TOKENS = 256
KNOWN = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


class HarnessModel(LM):
    """Answers the three kinds of requests of the harness; every text begins with bos, as in training."""

    def __init__(self, run: Run, *, batch_size: int = 16) -> None:
        """Wrap a trained decoder. Raises ValueError if the run is not a decoder."""
        if run.task != "d":
            raise ValueError(f"the run is of the task {run.task}; the harness needs a decoder, task d")
        super().__init__()
        self._run, self._batch_size, self._prefix = run, batch_size, run.tokenizer.framed([], ends=False)

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation given its context, in nats, and whether it is the greedy one.
        The context is truncated on the left if both exceed l_max. Raises ValueError for 0 or at least l_max tokens.
        """
        pairs = [self._encoded(*request.args) for request in requests]
        l_max = self._run.config.l_max
        counts = [len(continuation) for _, continuation in pairs]
        for n in counts:
            if not 0 < n < l_max:
                raise ValueError(f"a continuation has {n} tokens, expected 1 to l_max − 1 = {l_max - 1}")
        return self._scored([(context + continuation)[-l_max:] for context, continuation in pairs], counts)

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Return the log-probability of each text, in nats, every token given the previous tokens of its window."""
        found = []
        for request in requests:
            tokens = self._run.tokenizer.encode(request.args[0])
            sizes = {"prefix_token": self._prefix[-1], "max_seq_len": self._run.config.l_max - 1, "context_len": 1}
            windows = ROLLING.get_rolling_token_windows(tokens, **sizes)
            parts = [ROLLING.make_disjoint_window(window) for window in windows]
            scored = self._scored([[*given, *new] for given, new in parts], [len(new) for _, new in parts])
            found.append(sum(log_p for log_p, _ in scored))
        return found

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Continue each context until one of its stop texts. Raises ValueError if the task has an unknown option."""
        texts = []
        for request in requests:
            context, how = request.args
            unknown = sorted(how.keys() - KNOWN)
            if unknown:
                raise ValueError(f"the task's options: expected {', '.join(sorted(KNOWN))}, got {unknown[0]}")
            until = how.get("until") or ()
            until = [until] if isinstance(until, str) else until
            draws = how.get("do_sample", False)
            options = Options(
                l_gen=how.get("max_gen_toks", MOST_TOKENS),
                tau=how.get("temperature", 1.0) if draws else 0.0,
                top_k=how.get("top_k") if draws else None,
                top_p=how.get("top_p") if draws else None,
                stop=tuple(filter(None, until)) or None,  # some tasks have "", which stops nothing
            )
            texts.append(Continuer(self._run, options).answers([context])[0][0]["text"])
        return texts

    def _encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of both; spaces between them belong to the continuation, as in most tokenizers."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        encode = self._run.tokenizer.encode
        whole, first = encode(context + continuation), encode(context) if context else []
        return self._prefix + whole[: len(first)], whole[len(first) :]

    def _scored(self, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[tuple[float, bool]]:
        """Return the log-probability of each text's last `counts` tokens, and whether each of them is the likeliest."""
        found = []
        for i in range(0, len(texts), self._batch_size):
            some = texts[i : i + self._batch_size]
            x, lengths = padded_rows([*some, *[some[0][:1]] * (self._batch_size - len(some))])
            options = {"lengths": lengths, "config": self._run.config}
            log_p = log_probabilities(self._run.theta, x, **options)
            _, likeliest, _ = scored(self._run.theta, x, **options, n=1)
            is_greedy = likeliest[..., 0] == x[:, 1 : 1 + likeliest.shape[1]]
            for r, text in enumerate(some):
                last = slice(len(text) - 1 - counts[i + r], len(text) - 1)
                found.append((float(log_p[r, last].sum(dtype=np.float64)), bool(is_greedy[r, last].all())))
        return found

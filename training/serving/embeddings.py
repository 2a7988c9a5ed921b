"""Embedding requests and their answers: https://platform.openai.com/docs/api-reference/embeddings."""

import base64
from typing import Any

import numpy as np

from training.serving.errors import RequestError, errors_of, invalid
from training.serving.fields import listed
from training.serving.requests import EmbeddingRequest
from training.serving.served import Decoder, ServedModel


def texts_of(request: EmbeddingRequest, served: ServedModel) -> list[list[int]]:
    """Return the tokens of the texts to embed, or raise RequestError."""
    if isinstance(served.model, Decoder):
        raise RequestError("the model is a decoder, which does not embed texts: use /v1/completions")
    texts = listed(request.input)
    if len(texts) > served.limits.queue:
        raise invalid("input", f"expected at most {served.limits.queue} texts, got {len(texts)}")
    return [_tokens(i, text, served) for i, text in enumerate(texts)]


def _tokens(i: int, text: str | list[int], served: ServedModel) -> list[int]:
    l_max = served.config.l_max
    if isinstance(text, str):
        with errors_of("input"):
            if not (tokens := served.tokenizer.encode(text)):
                raise ValueError(f"expected a text of at least one token, got text {i}, which is empty")
            framed = served.tokenizer.framed(tokens, ends=True)
    else:
        framed = text
    if len(framed) > l_max:
        has = f"text {i} has {len(framed)} tokens, including special ones, but the model reads at most l_max = {l_max}"
        raise invalid("input", f"{has}: shorten it", "context_length_exceeded")
    return framed


def embeddings(request: EmbeddingRequest, texts: list[list[int]], served: ServedModel) -> dict[str, Any]:
    """Return the answer to a request, given the tokens of its texts."""
    assert not isinstance(served.model, Decoder)
    E = np.asarray(served.model(texts), "<f4")
    as_text = request.encoding_format == "base64"
    of_texts = [base64.b64encode(e.tobytes()).decode() if as_text else e.tolist() for e in E]
    n = sum(map(len, texts))
    return {
        "object": "list",
        "model": served.name,
        "data": [{"object": "embedding", "index": i, "embedding": e} for i, e in enumerate(of_texts)],
        "usage": {"prompt_tokens": n, "total_tokens": n},
    }

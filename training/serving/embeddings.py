"""Embedding requests and their answers: https://platform.openai.com/docs/api-reference/embeddings."""

import base64
from typing import Any

import numpy as np

from training.serving.fields import RequestError, check_fields, check_model, errors_of, integer, invalid
from training.serving.generating import listed, not_text, token_list
from training.serving.served import Decoder, Served

FIELDS = ("model", "input", "encoding_format", "dimensions", "user")


def texts_of(body: Any, served: Served) -> list[list[int]]:
    """Return the tokens of the texts to embed, or raise RequestError."""
    check_fields(body, FIELDS, {})
    check_model(body.get("model"), served.name)
    if isinstance(served.model, Decoder):
        raise RequestError("the model is a decoder, which does not embed texts: use /v1/completions")
    d_e = served.config.d_e
    integer(body, "dimensions", d_e, least=d_e, most=d_e)
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise invalid("encoding_format", "expected float or base64")
    texts = listed(body.get("input"))
    if len(texts) > served.limits.choices:
        raise invalid("input", f"expected at most {served.limits.choices} texts, got {len(texts)}")
    return [_tokens(i, text, served) for i, text in enumerate(texts)]


def _tokens(i: int, text: Any, served: Served) -> list[int]:
    tokenizer, l_max = served.tokenizer, served.config.l_max
    tokens = token_list(text, tokenizer.N_V)
    if isinstance(text, str):
        with errors_of("input"):
            tokens = tokenizer.encode(text)
    if not tokens:
        raise not_text("input", tokenizer.N_V)
    framed = tokenizer.framed(tokens, ends=True) if isinstance(text, str) else tokens
    if len(framed) > l_max:
        has = f"text {i} has {len(framed)} tokens, including special ones, but the model reads at most l_max = {l_max}"
        raise invalid("input", f"{has}: shorten it", "context_length_exceeded")
    return framed


def embeddings(body: dict[str, Any], texts: list[list[int]], served: Served) -> dict[str, Any]:
    """Return the answer to a request, given the tokens of its texts."""
    assert not isinstance(served.model, Decoder)
    E = np.asarray(served.model(texts), "<f4")
    as_text = body.get("encoding_format") == "base64"
    of_texts = [base64.b64encode(e.tobytes()).decode() if as_text else e.tolist() for e in E]
    n = sum(map(len, texts))
    return {
        "object": "list",
        "model": served.name,
        "data": [{"object": "embedding", "index": i, "embedding": e} for i, e in enumerate(of_texts)],
        "usage": {"prompt_tokens": n, "total_tokens": n},
    }

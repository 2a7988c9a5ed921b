"""Damaged requests to the server, in process: it may refuse them, but never fails."""

import contextlib
import dataclasses
import functools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from tests import serving_cases
from tests.fuzz.comparing import chance, one_of
from tests.fuzz.damage import damaged_bytes, damaged_json, odd_value
from tests.run_cases import make_run
from training.runs.trained_model import load_run
from training.serving.app import make_app
from training.serving.engine import Engine
from training.serving.served import Decoder, Limits

__all__ = ["check", "close"]

LIMITS = Limits(body=20_000, tokens=6, queue=3, seconds=120.0, prefixes=1 << 20)
COMPLETION: dict[str, Any] = {
    "model": "small",
    "prompt": "abc",
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.5,
    "no_repeat_ngram_size": 2,
    "n": 1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "logprobs": 2,
    "echo": False,
    "keep_final_space": True,
    "logit_bias": {"3": -1.5},
    "stop": ["a"],
    "seed": 7,
    "user": "u",
}
CHAT: dict[str, Any] = {
    "model": "small",
    "messages": [{"role": "system", "content": "abc"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
    "max_completion_tokens": 3,
    "logprobs": True,
    "top_logprobs": 2,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": {"model": "small", "input": ["abc", "b"], "encoding_format": "float"},
    "/tokenize": {"model": "small", "prompt": "abc"},
}
PATHS = (*BODIES, "/v1/models", "/v1/models/small", "/health", "/metrics", "/v1/none", "/%00", "/v1/models/%ff")
_OPEN = contextlib.ExitStack()
METHODS = ("POST", "POST", "POST", "GET", "PUT", "DELETE", "OPTIONS")


@functools.cache
def _client() -> TestClient:
    """A client of a server with a small model, which runs until it is closed."""
    folder = tempfile.mkdtemp(prefix="fuzz-requests-")
    run = load_run(make_run(Path(folder) / "run", "d", L=1))
    served = serving_cases.of_run(run, converse=serving_cases.converse, **dataclasses.asdict(LIMITS))
    assert isinstance(served.model, Decoder)
    engine = Engine(served.model.generator, served.tokenizer, rows=4, queue=20)
    app = make_app(served, engine, clock=time.time)
    return _OPEN.enter_context(TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False))


def close() -> None:
    """Stop the server, if it runs."""
    _OPEN.close()
    _client.cache_clear()


def check(rng: np.random.Generator) -> None:
    """One request, and that the server answers a good one afterwards."""
    path = one_of(rng, *BODIES, "/v1/completions", "/v1/completions") if chance(rng, 0.9) else one_of(rng, *PATHS)
    body: Any = BODIES.get(path, COMPLETION)
    if path == "/v1/completions" and chance(rng, 0.7):  # few parameters go further
        names = rng.permutation(list(body))[: rng.integers(1, 6)]
        body = {name: body[name] for name in body if name in {"model", "prompt", "max_tokens", *names}}
    for _ in range(rng.integers(3)):
        body = damaged_json(rng, body)
        if isinstance(body, dict) and chance(rng, 0.3):
            body = {**body, one_of(rng, *COMPLETION, *CHAT): odd_value(rng)}
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    if chance(rng, 0.15):
        data = damaged_bytes(rng, data)
    method = "POST" if chance(rng, 0.95) else one_of(rng, *METHODS)
    headers = {"content-type": "application/json"}
    if chance(rng, 0.05):
        headers["content-type"] = one_of(
            rng, "text/plain", "application/x-www-form-urlencoded", "application/json; x", ""
        )
    answer = _client().request(method, path, content=data, headers=headers)
    what = f"{method} {path} {data[:300]!r}"
    assert answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[:300]}"
    if answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n"), f"{what}: {answer.text[-300:]}"
        assert '"error"' not in answer.text, f"{what}: {answer.text[-300:]}"
    if answer.status_code >= 400 and path.startswith("/v1/"):
        assert answer.json()["error"]["message"], what
    health = _client().get("/health")
    assert health.status_code == 200, f"after {what}: {health.text[:300]}"

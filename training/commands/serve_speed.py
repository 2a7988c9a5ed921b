"""Speed of several clients of serve.py, measured in this process."""

import http.client
import json
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import uvicorn

from training.benchmarks.decode import parameters
from training.benchmarks.timing import table
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import NumberTokenizer
from training.runs.directory import Run
from training.serving.app import make_app
from training.serving.engine import Engine
from training.serving.served import Decoder, Limits, served_of

CLIENTS = (1, 16)


def serving(config: Any, dtype: str, requests: int, tokens: int) -> str:
    """Return the tokens/s of clients of serve.py, each with several requests one after another."""
    special = SpecialTokens(config.N_V)
    run = Run(parameters(config, dtype), config, NumberTokenizer(special), "d")
    limits = Limits(body=1 << 20, tokens=tokens, queue=128, seconds=300, prefixes=0)
    served = served_of(run, "random", limits)
    assert isinstance(served.model, Decoder)
    engine = Engine(served.model.generator, run.tokenizer, rows=16, queue=128, budget=served.model.budget)
    listener = socket.create_server(("127.0.0.1", 0))
    how: dict[str, Any] = {"ws": "none", "log_config": None, "access_log": False}
    app = make_app(served, engine, clock=time.time)
    server = uvicorn.Server(uvicorn.Config(app, **how))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        rows = [_load(listener.getsockname()[1], config.N_V, n, requests, tokens) for n in CLIENTS]
    finally:
        server.should_exit = True
        thread.join()
    header = ["clients", "tokens/s", "s per request"]
    return f"`serve.py`, {dtype}, {requests} requests of {tokens} tokens each, drawn.\n\n{table(header, rows)}"


def _load(port: int, N_V: int, clients: int, requests: int, tokens: int) -> list[str]:
    """Return a row of the table: of the second of two loads, since the first compiles."""

    def client(i: int) -> list[float]:
        seconds = []
        for j in range(requests):
            prompt = " ".join(map(str, np.random.default_rng((i, j)).integers(N_V, size=16)))
            body = {"model": "random", "prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "seed": i + j}
            start = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            connection.close()
            if response.status != 200 or answer["usage"]["completion_tokens"] != tokens:
                raise RuntimeError(f"serve.py answered {response.status}: {answer}")
            seconds.append(time.perf_counter() - start)
        return seconds

    for _ in range(2):
        start = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            each = [s for seconds in pool.map(client, range(clients)) for s in seconds]
        took = time.perf_counter() - start
    return [str(clients), f"{clients * requests * tokens / took:.0f}", f"{statistics.median(each):.2f}"]

"""A server in the tests' own process, and what talks to it."""

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import time

import openai
import uvicorn

from tests.run_cases import LETTERS
from training.serving import app, served
from training.serving.engine import Engine

LIMITS = served.Limits(body=4000, tokens=60, queue=8, seconds=200.0, prefixes=1 << 20)

MARK = 3
"""What stands between messages: no text has it where a client cannot write special tokens."""


def converse(messages):
    """A template: each message, a mark, and at the end the next one's beginning."""
    if messages[-1]["role"] != "user":
        raise ValueError(f"message {len(messages)}: expected the user to speak last, got {messages[-1]['role']}")
    return [LETTERS.bos_token, *(v for m in messages for v in [*LETTERS.encode(m["content"]), MARK])]


def of_run(model, *, converse=None, **limits):
    """What is served of a run, with a template for chat if there is one."""
    found = served.served_of(model, "small", dataclasses.replace(LIMITS, **limits))
    if converse:
        found = dataclasses.replace(found, model=dataclasses.replace(found.model, converse=converse))
    return found


@contextlib.contextmanager
def serving(what, *, rows=8, queue=20, **options):
    """The port of a server in this process.

    `what`: is served; `rows`: the most continuations side by side; `queue`: that wait; `options`: of the application.
    """
    engine = None
    if isinstance(what.model, served.Decoder):
        engine = Engine(what.model.generator, what.tokenizer, rows=rows, queue=queue, budget=what.model.budget)
    application = app.make_app(what, engine, clock=time.time, **options)
    config = uvicorn.Config(application, ws="none", log_config=None, timeout_graceful_shutdown=5)
    with socket.create_server(("127.0.0.1", 0)) as listener, running(config, listener):
        yield listener.getsockname()[1]


@contextlib.contextmanager
def running(config, listener):
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def client_of(port, **options):
    return openai.OpenAI(**{"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none", "max_retries": 0} | options)


def complete(client, prompt="abc", **options):
    how = {"model": "small", "prompt": prompt, "max_tokens": 9, "temperature": 0}
    return client.completions.create(**how | options)


def asked(port, method, path, body=None, **headers):
    """The status, the headers and the body of an answer."""
    data = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
    named = {"content-type": "application/json"} if method == "POST" else {}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        connection.request(method, path, data, {name: value for name, value in named.items() if value is not None})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

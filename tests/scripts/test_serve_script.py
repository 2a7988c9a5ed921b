"""scripts/serve.py, as OpenAI's own client sees it."""

import asyncio
import importlib
import itertools
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.run_cases import LETTERS, make_run
from training.runs.trained_model import load_run

openai = pytest.importorskip("openai")
serving_cases = pytest.importorskip("tests.serving_cases")
app = importlib.import_module("training.serving.app")
starlette_requests = importlib.import_module("starlette.requests")
engine = importlib.import_module("training.serving.engine")
client_of, complete = serving_cases.client_of, serving_cases.complete

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "serve.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "small", "d")


@pytest.fixture(scope="module")
def model(run):
    return load_run(run)


@pytest.fixture(scope="module")
def port(model):
    with serving_cases.serving(serving_cases.of_run(model)) as port:
        yield port


@pytest.fixture(scope="module")
def client(port):
    with serving_cases.client_of(port) as client:
        yield client


def generated(run, printed, *flags):
    """What generate.py says."""
    lines = printed("generate", run, "--json", *flags).splitlines()
    return [answer for line in lines for answer in json.loads(line)["answers"]]


def test_greedy_text_is_that_of_generate(client, run, printed):
    (expected,) = generated(run, printed, "--prompt", "abc", "--l_gen", 9, "--tau", 0)
    answer = complete(client, logprobs=2)
    (choice,) = answer.choices
    assert choice.text == expected["text"]
    assert choice.finish_reason == {"length": "length", "eos": "stop"}[expected["ended_by"]]
    np.testing.assert_allclose(choice.logprobs.token_logprobs, expected["log_probabilities"], rtol=1e-5)
    assert "".join(choice.logprobs.tokens) == choice.text
    lengths = [len(token) for token in choice.logprobs.tokens]  # 0 of special tokens
    assert choice.logprobs.text_offset == [0, *itertools.accumulate(lengths[:-1])]
    for token, log_p, best in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert len(best) == 2
        assert (max(best, key=best.get), max(best.values())) == (token, log_p)  # it is greedy
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 9, 13)


def test_what_is_drawn_is_what_generate_draws(client, run, printed):
    how = ("--tau", 0.9, "--top-p", 0.8, "--top-k", 9, "--seed", 7)
    repeats = ("--repetition-penalty", 1.2, "--no-repeat-ngram-size", 3)
    expected = generated(run, printed, *how, *repeats, "--l_gen", 12, "--n", 2, "--prompt", "abc", "--prompt", "de")
    extra = {"top_k": 9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}
    options = {"temperature": 0.9, "top_p": 0.8, "seed": 7, "extra_body": extra}
    answer = complete(client, ["abc", "de"], n=2, max_tokens=12, **options)
    assert [choice.text for choice in answer.choices] == [found["text"] for found in expected]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    tokens = [[LETTERS.bos_token, *(int(v) for v in LETTERS.encode(text))] for text in ("abc", "de")]
    of_tokens = complete(client, tokens, n=2, max_tokens=12, **options)
    assert [choice.text for choice in of_tokens.choices] == [choice.text for choice in answer.choices]


def test_a_stop_ends_the_text(client):
    free = complete(client, max_tokens=40, temperature=1, seed=1).choices[0].text
    stop = free[10:12]
    stopped = complete(client, max_tokens=40, temperature=1, seed=1, stop=[stop, "never"]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (free[: free.index(stop)], "stop")
    options = {"max_tokens": 40, "temperature": 1, "seed": 1, "stop": stop, "stream": True}
    assert "".join(part.choices[0].text for part in complete(client, **options)) == stopped.text


def test_without_a_seed_answers_differ(client):
    assert len({complete(client, temperature=1, max_tokens=20).choices[0].text for _ in range(4)}) == 4


@pytest.mark.parametrize("leaves_at", ["http.response.start", "http.response.body"])
def test_a_stream_without_a_reader_ends(model, leaves_at):
    what, submitted = serving_cases.of_run(model), []
    of_model = engine.Engine(what.model.generator, model.tokenizer, rows=4, queue=20)

    def submit(jobs):
        submitted.extend(jobs)
        jobs[0].emit(engine.Token("a", token=0, log_p=0.0, likeliest=[], finish=None))

    of_model.submit = submit
    application = app.make_app(what, of_model, clock=time.time)
    body = json.dumps({"model": "small", "prompt": ["a", "b"], "stream": True}).encode()
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b""}
    scope["headers"] = [(b"host", b"localhost:8000"), (b"content-type", b"application/json")]

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        if message["type"] == leaves_at:
            raise OSError("the client has left")

    with pytest.raises(starlette_requests.ClientDisconnect):
        asyncio.run(application(scope, receive, send))
    assert [job.abandoned.is_set() for job in submitted] == [True, True]


def test_models_are_named(client):
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").object == "model"
    with pytest.raises(openai.NotFoundError, match="there is no model 'large', only 'small'"):
        client.models.retrieve("large")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "text 1 is empty"),
        ({"prompt": [300]}, "prompt: expected a text, tokens from 0 to 14"),
        ({"n": 9}, "n: expected an integer from 1 to 8, got 9"),
        ({"n": 3, "prompt": [*"abc"]}, "expected at most 8 completions per request, got 3 prompts with n = 3"),
        ({"max_tokens": 61}, "max_tokens: expected an integer from 1 to 60, got 61"),
        ({"temperature": -1}, "temperature: expected a temperature >= 0"),
        ({"temperature": 10**400}, "temperature: expected a number below 10\\^308"),
        ({"top_p": 0}, r"top_p: expected a probability in \(0, 1\], got 0"),
        ({"logprobs": 6}, "logprobs: expected an integer from 0 to 5"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop: expected a text or at most 4"),
        ({"stop": ""}, "none of them empty"),
        ({"seed": 2**63}, "seed: expected an integer from -9223372036854775808"),
        ({"echo": 1}, "echo: expected true or false, got 1"),
        ({"logit_bias": {"15": 1}}, "logit_bias: expected token IDs from 0 to 14?, got '15'"),
        ({"logit_bias": {"1": 101}}, "logit_bias: expected from -100 to 100 for token 1, got 101"),
        ({"extra_body": {"repetition_penalty": 1e-45}}, "repetition_penalty: expected a positive number from 0.01"),
        ({"best_of": 2}, "best_of is not supported"),
        ({"frequency_penalty": 2.5}, "frequency_penalty: expected from -2 to 2, got 2.5"),
        ({"extra_body": {"x": 1}}, "unknown parameter 'x'; expected one of model, max_tokens, .*, prompt, echo"),
        ({"prompt": 5000 * "a"}, "the request has more than 4000 bytes"),
        ({"model": "large"}, "there is no model 'large'"),
    ],
)
def test_wrong_requests_are_refused_in_a_sentence(client, options, message):
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        complete(client, **options)
    of_message = {"the request has more than 4000 bytes": 413, "there is no model 'large'": 404}
    assert refused.value.status_code == of_message.get(message, 400)


def test_chat_needs_a_template(client):
    with pytest.raises(openai.BadRequestError, match="no template for chat, as it was not trained on conversations"):
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/completions", "{", 400, "the request is not valid JSON"),
        ("POST", "/v1/completions", "3", 400, "expected a JSON object"),
        ("POST", "/v1/completions", b"\xff\xfe", 400, "the request is not valid JSON"),
        ("GET", "/v1/completions", None, 405, "Method Not Allowed; the paths are /v1/models, /v1/completions"),
        ("GET", "/", None, 404, "Not Found; the paths are /v1/models"),
    ],
)
def test_what_is_no_request_is_refused(port, method, path, body, status, message):
    found, _, text = serving_cases.asked(port, method, path, body)
    assert (found, message in json.loads(text)["error"]["message"]) == (status, True)


def test_a_full_queue_and_a_long_wait_are_said(model):
    what = serving_cases.of_run(model, seconds=0.01)
    with serving_cases.serving(what, queue=2) as port, client_of(port) as client:
        refused = "at most 2 waiting continuations, got 0 and 3 more; try again later"
        with pytest.raises(openai.RateLimitError, match=refused):
            complete(client, n=3)
        with pytest.raises(openai.InternalServerError, match="took longer than"):
            complete(client, max_tokens=60)
        with pytest.raises(openai.APIError, match="took longer than"):
            list(complete(client, max_tokens=60, stream=True))


def test_a_port_that_is_taken_is_said(run, called):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = f"serve.py: cannot listen on 127.0.0.1, port {port}: Address already in use"
        status, _, said = called("serve", run, "--port", port)
    assert (status, error in said) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_line_itself_ends_cleanly(run, number):
    """What is being answered is answered to the end."""
    command = [sys.executable, SCRIPT, run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        port = int(re.fullmatch(r"small is served at http://127.0.0.1:(\d+)/v1, in float32; Ctrl-C stops\n", line)[1])
        with client_of(port) as client:
            parts = complete(client, temperature=1, max_tokens=600, stream=True)
            next(iter(parts))
            server.send_signal(number)
            text = list(parts)
        assert text[-1].choices[0].finish_reason in ("stop", "length")
        assert server.wait(60) == 128 + number
        assert (server.stdout.read(), server.stderr.read()) == ("", "")

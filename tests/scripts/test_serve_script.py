"""scripts/serve.py, as OpenAI's own client sees it."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import importlib
import itertools
import json
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.run_cases import LETTERS, make_run
from training import commands
from training.generation import Generator
from training.generation.text import Continuer, Options
from training.runs.directory import load_run

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
app = importlib.import_module("training.serving.app")
starlette_requests = importlib.import_module("starlette.requests")
engine = importlib.import_module("training.serving.engine")
protocol = importlib.import_module("training.serving.protocol")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "serve.py"
LIMITS = protocol.Limits(body=4000, tokens=60, choices=8)
PROMPTS = ["abc", "j", "fade .", "a b", "cc"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "small", "d")


@pytest.fixture(scope="module")
def model(run):
    return load_run(run)


@contextlib.contextmanager
def serving(model, *, timeout=60.0, begun=None, queue=20):
    """The port of a server in this process; `begun` takes the rows of every batch."""
    generator = Generator(model.theta, model.config)
    original = generator.begin

    def begin(x, **options):
        if begun is not None:
            begun.append(len(x))
        return original(x, **options)

    generator.begin = begin
    of_model = engine.Engine(generator, model.tokenizer, rows=8, queue=queue)
    options = {"limits": LIMITS, "timeout": timeout, "clock": time.time}
    application = app.make_app("small", Continuer(model, Options()), of_model, **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(application, log_config=None, timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def port(model):
    with serving(model) as port:
        yield port


def client_of(port, **options):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", **options)


@pytest.fixture(scope="module")
def client(port):
    with client_of(port, max_retries=0) as client:
        yield client


def complete(client, prompt="abc", **options):
    return client.completions.create(
        **{"model": "small", "prompt": prompt, "max_tokens": 9, "temperature": 0} | options
    )


def generated(run, capsys, *flags):
    """What generate.py says."""
    capsys.readouterr()
    assert commands.generate_main([str(run), "--json", *map(str, flags)]) == 0
    return [answer for line in capsys.readouterr().out.splitlines() for answer in json.loads(line)["answers"]]


def test_greedy_text_is_that_of_generate(client, run, capsys):
    (expected,) = generated(run, capsys, "--prompt", "abc", "--l_gen", 9, "--tau", 0)
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


def test_what_is_drawn_is_what_generate_draws(client, run, capsys):
    how = ("--tau", 0.9, "--top-p", 0.8, "--top-k", 9, "--seed", 7)
    repeats = ("--repetition-penalty", 1.2, "--no-repeat-ngram-size", 3)
    expected = generated(run, capsys, *how, *repeats, "--l_gen", 12, "--n", 2, "--prompt", "abc", "--prompt", "de")
    extra = {"top_k": 9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}
    options = {"temperature": 0.9, "top_p": 0.8, "seed": 7, "extra_body": extra}
    answer = complete(client, ["abc", "de"], n=2, max_tokens=12, **options)
    assert [choice.text for choice in answer.choices] == [found["text"] for found in expected]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    tokens = [[int(v) for v in LETTERS.encode(text)] for text in ("abc", "de")]
    assert [c.text for c in complete(client, tokens, n=2, max_tokens=12, **options).choices] == [
        choice.text for choice in answer.choices
    ]


def test_a_stream_is_the_same_text(client):
    whole = complete(client, n=2, temperature=1, seed=3, max_tokens=20, logprobs=0)
    options = {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 20, "stream": True, "logprobs": 0}
    parts = list(complete(client, **options, stream_options={"include_usage": True}))
    for choice in whole.choices:
        of_choice = [c for part in parts for c in part.choices if c.index == choice.index]
        assert "".join(part.text for part in of_choice) == choice.text
        assert [part.finish_reason for part in of_choice][-1] == choice.finish_reason
        offsets = [offset for part in of_choice for offset in part.logprobs.text_offset]
        assert offsets == choice.logprobs.text_offset
    assert parts[-1].usage == whole.usage


def test_a_stop_ends_the_text(client):
    free = complete(client, max_tokens=40, temperature=1, seed=1).choices[0].text
    stop = free[10:12]
    stopped = complete(client, max_tokens=40, temperature=1, seed=1, stop=[stop, "never"]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (free[: free.index(stop)], "stop")
    options = {"max_tokens": 40, "temperature": 1, "seed": 1, "stop": stop, "stream": True}
    assert "".join(part.choices[0].text for part in complete(client, **options)) == stopped.text


def test_without_a_seed_answers_differ(client):
    assert len({complete(client, temperature=1, max_tokens=20).choices[0].text for _ in range(4)}) == 4


def test_what_arrives_together_is_generated_together(model):
    begun = []
    with serving(model, begun=begun) as port, client_of(port) as client:
        alone = {prompt: complete(client, prompt).choices[0].text for prompt in PROMPTS}
        assert begun == [1] * len(PROMPTS)
        begun.clear()
        together = threading.Barrier(len(PROMPTS))

        def ask(prompt):
            together.wait()
            return complete(client, prompt).choices[0].text

        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(ask, PROMPTS)) == list(alone.values())
        assert len(begun) < len(PROMPTS)


def jobs_of(model, done, **options):
    reader = Continuer(model, Options())
    common = {
        "l_gen": 5,
        "sampling": {"tau": 0.0, "eos": LETTERS.eos_token},
        "seed": 0,
        "number": 0,
        "stop": (),
        "likeliest": 0,
    }
    return [
        engine.Job(prompt=reader.prompt(prompt), emit=lambda step, i=i: done.put((i, step)), **common | options)
        for i, prompt in enumerate(PROMPTS)
    ]


def test_a_batch_has_what_is_drawn_alike(model):
    begun, done = [], queue.SimpleQueue()
    generator = Generator(model.theta, model.config)
    original = generator.begin
    generator.begin = lambda x, **options: begun.append((len(x), options["tau"])) or original(x, **options)
    of_model = engine.Engine(generator, model.tokenizer, rows=4, queue=20)
    other = jobs_of(model, done, sampling={"tau": 0.5, "eos": LETTERS.eos_token})
    of_model.submit([*jobs_of(model, done), *other[:2]])
    with pytest.raises(engine.FullError, match="7 continuations wait, and at most 20 may"):
        of_model.submit(14 * other[:1])
    other[1].abandoned.set()
    of_model.start()
    finished = 0
    while finished < 6:
        finished += done.get(timeout=60)[1].finish is not None
    of_model.close()
    assert begun == [(4, 0.0), (1, 0.0), (1, 0.5)]


DRAWN = {"tau": 0.9, "top_p": 0.95, "repetition_penalty": 1.1, "eos": LETTERS.eos_token}
ASKED = {  # prompt, most tokens, seed, how it is drawn, and after how many tokens of the first it arrives
    "long": ("abc", 55, 1, DRAWN, None),
    "late": ("fade . cab add a b c d e f g h", 6, 5, DRAWN, 4),
    "more": ("j ", 7, 6, DRAWN, 4),
    "other": ("abc", 5, 0, DRAWN | {"tau": 0.8}, 30),
    "behind": ("abc", 5, 0, DRAWN, 30),
}


def events_of(model, names):
    """The steps of jobs with the names of these, in the order in which they come, and the rows of every batch."""
    begun, events, arriving = [], [], queue.SimpleQueue()
    generator, reader = Generator(model.theta, model.config), Continuer(model, Options())
    original = generator.begin
    generator.begin = lambda x, **options: begun.append(len(x)) or original(x, **options)
    of_model = engine.Engine(generator, model.tokenizer, rows=4, queue=20)

    def job(name):
        prompt, l_gen, seed, sampling, _ = ASKED[name]
        common = {"number": 0, "stop": (), "likeliest": 0, "seed": seed, "sampling": sampling, "l_gen": l_gen}
        return engine.Job(prompt=reader.prompt(prompt), emit=lambda step: emit(name, step), **common)

    def emit(name, step):
        events.append((name, step))
        if name == names[0]:
            n = sum(of == name for of, _ in events)
            of_model.submit([job(late) for late in names[1:] if ASKED[late][-1] == n])
        arriving.put(step)

    of_model.submit([job(names[0])])
    of_model.start()
    finished = 0
    while finished < len(names):
        finished += arriving.get(timeout=60).finish is not None
    of_model.close()
    return events, begun


def test_who_comes_late_joins_at_the_next_step_and_gets_what_it_gets_alone(model):
    events, begun = events_of(model, [*ASKED])
    for name in ASKED:
        of_name = [step for of, step in events if of == name]
        alone = [step for _, step in events_of(model, [name])[0]]
        assert [step.token for step in of_name] == [step.token for step in alone]
        assert "".join(step.text for step in of_name) == "".join(step.text for step in alone)
        np.testing.assert_allclose([step.log_p for step in of_name], [step.log_p for step in alone], rtol=1e-4)
    order = [name for name, _ in events]
    last = len(order) - 1 - order[::-1].index("long")
    assert order.count("long") > 30
    assert order[:8] == [*4 * ["long"], "long", "late", "more", "long"]
    assert max(i for i, name in enumerate(order) if name in ("late", "more")) < last - 15
    assert order.index("other") > last  # it is drawn in another way
    assert order.index("behind") > order.index("other")  # and that one would overtake it
    assert begun == [1, 1, 1]


@pytest.mark.parametrize("leaves_at", ["http.response.start", "http.response.body"])
def test_a_stream_without_a_reader_ends(model, leaves_at):
    of_model = engine.Engine(Generator(model.theta, model.config), model.tokenizer, rows=4, queue=20)
    submitted = []

    def submit(jobs):
        submitted.extend(jobs)
        jobs[0].emit(engine.Step("a", token=0, log_p=0.0, likeliest=[], finish=None))

    of_model.submit = submit
    options = {"limits": LIMITS, "timeout": 60.0, "clock": time.time}
    application = app.make_app("small", Continuer(model, Options()), of_model, **options)
    body = json.dumps({"model": "small", "prompt": ["a", "b"], "stream": True}).encode()
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "headers": []}

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        if message["type"] == leaves_at:
            raise OSError("the client has left")

    with pytest.raises(starlette_requests.ClientDisconnect):
        asyncio.run(application(scope, receive, send))
    assert [job.abandoned.is_set() for job in submitted] == [True, True]


def test_who_waits_when_it_closes_is_told(model):
    done = queue.SimpleQueue()
    of_model = engine.Engine(Generator(model.theta, model.config), model.tokenizer, rows=4, queue=20)
    of_model.submit(jobs_of(model, done))
    of_model.start()
    of_model.close()
    last = {}
    while not done.empty():
        index, step = done.get()
        last[index] = step
    assert set(last) == set(range(5))
    assert all(isinstance(step, engine.Failed) or step.finish for step in last.values())


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
        ({"prompt": []}, "prompt: expected a text"),
        ({"n": 9}, "n: expected an integer from 1 to 8, got 9"),
        ({"n": 3, "prompt": ["a", "b", "c"]}, "are more than the 8 completions of a request"),
        ({"max_tokens": 61}, "max_tokens: expected an integer from 1 to 60, got 61"),
        ({"temperature": -1}, "temperature: expected a temperature >= 0"),
        ({"temperature": 10**400}, "temperature: expected a number below 10\\^308"),
        ({"top_p": 0}, r"top_p: expected a probability in \(0, 1\], got 0"),
        ({"logprobs": 6}, "logprobs: expected an integer from 0 to 5"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop: expected a text or at most 4"),
        ({"stop": ""}, "none of them empty"),
        ({"stop": [""]}, "none of them empty"),
        ({"seed": -1}, "seed: expected an integer from 0"),
        ({"echo": True}, "echo is not supported: leave it out"),
        ({"best_of": 2}, "best_of is not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ({"extra_body": {"temprature": 1}}, "unknown parameter 'temprature'; there are model, prompt"),
        ({"prompt": 5000 * "a"}, "the request has more than 4000 bytes"),
        ({"model": "large"}, "there is no model 'large'"),
    ],
)
def test_wrong_requests_are_refused_in_a_sentence(client, options, message):
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        complete(client, **options)
    assert refused.value.status_code == {"prompt": 413 if "more than 4000" in message else 400, "model": 404}.get(
        next(iter(options)), 400
    )


def test_chat_needs_a_template(client):
    with pytest.raises(openai.BadRequestError, match="no template for chat: use /v1/completions"):
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/completions", "{", 400, "the request is no JSON"),
        ("POST", "/v1/completions", "[" * 3000, 400, "the request is no JSON"),
        ("POST", "/v1/completions", "3", 400, "expected a JSON object"),
        ("GET", "/v1/completions", None, 405, "Method Not Allowed; there are /v1/models and /v1/completions"),
        ("GET", "/", None, 404, "Not Found; there are /v1/models"),
    ],
)
def test_what_is_no_request_is_refused(port, method, path, body, status, message):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert answer.status == status
        assert message in json.load(answer)["error"]["message"]


def test_a_full_queue_and_a_long_wait_are_said(model):
    with serving(model, timeout=0.01, queue=2) as port, client_of(port, max_retries=0) as client:
        with pytest.raises(openai.RateLimitError, match="at most 2 may: try again later"):
            complete(client, n=3)
        with pytest.raises(openai.InternalServerError, match="took longer than"):
            complete(client, max_tokens=60)
        with pytest.raises(openai.APIError, match="took longer than"):
            list(complete(client, max_tokens=60, stream=True))


def test_what_cannot_be_served_is_refused(tmp_path, run, capsys):
    of_pairs = make_run(tmp_path / "ed", "ed")
    assert commands.serve_main([str(of_pairs)]) == 2
    assert "serving needs a decoder, task d" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert commands.serve_main([str(run), "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_line_itself_ends_cleanly(run, number):
    """What is being answered is answered to the end."""
    command = [sys.executable, SCRIPT, run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        port = int(re.fullmatch(r"small is served at http://127.0.0.1:(\d+)/v1; Ctrl-C stops\n", line)[1])
        with client_of(port, max_retries=0) as client:
            parts = complete(client, temperature=1, max_tokens=600, stream=True)
            next(iter(parts))
            server.send_signal(number)
            text = list(parts)
        assert text[-1].choices[0].finish_reason in ("stop", "length")
        assert server.wait(60) == 128 + number
        assert (server.stdout.read(), server.stderr.read()) == ("", "")

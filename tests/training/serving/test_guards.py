"""Who is let in, what is counted, and that nobody keeps the server waiting."""

import asyncio
import concurrent.futures
import contextlib
import json
import socket
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")
guards = pytest.importorskip("training.serving.guards")
serving_cases = pytest.importorskip("tests.serving_cases")
serve = pytest.importorskip("training.commands.serve")
asked = serving_cases.asked
BODY = {"model": "small", "prompt": "abc", "max_tokens": 2}
KEY = "sé-cret"


def message_of(text):
    return json.loads(text)["error"]["message"]


@pytest.fixture(scope="module")
def port(model):
    with serving_cases.serving(serving_cases.of_run(model)) as port:
        yield port


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", ""]
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("GET", "/health"), ("GET", "/nowhere")])
def test_a_foreign_host_is_refused(port, method, path, host):
    status, _, text = asked(port, method, path, BODY if method == "POST" else None, host=host)
    assert (status, "is not a name of this server: give --allow-host" in message_of(text)) == (403, True)


def test_other_names_may_be_allowed_and_addresses_are_where_it_listens_on_all(model):
    what = serving_cases.of_run(model)
    with serving_cases.serving(what, names=("Models.example",)) as port:
        assert asked(port, "GET", "/health", host="models.example")[0] == 200
        assert asked(port, "GET", "/health", host="other.example")[0] == 403
    for address in ("0.0.0.0", "::"):
        with serving_cases.serving(what, address=address) as port:
            hosts = ("192.168.1.7:80", "localhost", "[fe80::1]", "evil.example", "192.168.1.7.evil.example")
            assert [asked(port, "GET", "/health", host=host)[0] for host in hosts] == [200, 200, 200, 403, 403]
    with serving_cases.serving(what, address="192.168.1.7") as port:
        assert [asked(port, "GET", "/health", host=host)[0] for host in ("192.168.1.7", "localhost")] == [200, 403]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None, "json"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize"])
def test_what_a_page_can_send_without_asking_is_refused(port, path, kind):
    status, _, text = asked(port, "POST", path, BODY, content_type=kind)
    assert (status, "Content-Type: expected application/json, got" in message_of(text)) == (415, True)


def test_without_the_key_nothing_is_told(model):
    with serving_cases.serving(serving_cases.of_run(model), api_key=KEY) as port:
        right = f"Bearer {KEY}".encode()
        wrong = [None, "", KEY.encode(), b"Bearer", right[:-1], right + b"x", b"Basic " + KEY.encode()]
        for path in ("/v1/models", "/v1/completions", "/metrics", "/nowhere"):
            method, body = ("POST", BODY) if path == "/v1/completions" else ("GET", None)
            for header in wrong:
                status, headers, text = asked(port, method, path, body, authorization=header)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert "the API key is missing or wrong" in message_of(text)
        assert asked(port, "GET", "/health")[0] == 200
        assert asked(port, "GET", "/v1/models", authorization=right)[0] == 200
        with serving_cases.client_of(port, api_key="abc") as client, pytest.raises(Exception, match="missing or wrong"):
            client.models.list()


@pytest.mark.parametrize(
    ("flags", "variable", "found"),
    [
        ([], None, None),
        ([], "of the environment", "of the environment"),
        (["--api-key-file", "key.txt"], "of the environment", "of the file"),
        ([], " ", "FORMAL_API_KEY: expected a key, got nothing; leave it out to require none"),
        (["--api-key-file", "empty.txt"], "key", "--api-key-file: .*empty.txt: expected a key, got nothing"),
        (["--api-key-file", "two.txt"], "key", "two.txt: expected a key, got several lines"),
        (["--api-key-file", "none.txt"], "key", "none.txt: No such file"),
    ],
)
def test_where_the_key_comes_from(tmp_path, monkeypatch, flags, variable, found):
    monkeypatch.chdir(tmp_path)
    for name, text in {"key": "of the file\n", "empty": "\n", "two": "a\nb\n"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    arguments = serve.parser().parse_args(["RUN", *flags])
    environment = {} if variable is None else {"FORMAL_API_KEY": variable}
    if found is None or not any(part in found for part in ("expected", "No such")):
        assert serve.api_key_of(arguments, environment) == found
    else:
        with pytest.raises(ValueError, match=found):
            serve.api_key_of(arguments, environment)


def test_pages_are_answered_where_their_origin_may_ask(model):
    ask = {"access_control_request_method": "POST", "access_control_request_headers": "content-type, authorization"}
    what = serving_cases.of_run(model)
    with serving_cases.serving(what, origins=("https://page.example",), api_key="key") as port:
        status, headers, _ = asked(port, "OPTIONS", "/v1/completions", origin="https://page.example", **ask)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
        assert "authorization" in headers["access-control-allow-headers"]
        status, headers, _ = asked(port, "OPTIONS", "/v1/completions", origin="https://evil.example", **ask)
        assert (status, "access-control-allow-origin" in headers) == (400, False)
        _, headers, _ = asked(port, "GET", "/v1/models", origin="https://page.example", authorization="Bearer key")
        assert headers["access-control-allow-origin"] == "https://page.example"
    with serving_cases.serving(what) as port:
        status, headers, _ = asked(port, "OPTIONS", "/v1/completions", origin="https://page.example", **ask)
        assert (status, "access-control-allow-origin" in headers) == (400, False)


def test_what_is_asked_and_generated_is_counted(model):
    with serving_cases.serving(serving_cases.of_run(model)) as port:
        assert json.loads(asked(port, "GET", "/health")[2]) == {"status": "ok"}
        for prompt in ("abc", "abc", 3):
            asked(port, "POST", "/v1/completions", BODY | {"prompt": prompt, "logit_bias": {"0": 100}})
        for path in ("/a", "/b"):
            asked(port, "GET", path)
        for _ in range(200):  # the last continuation leaves a moment after its answer
            status, headers, text = asked(port, "GET", "/metrics")
            if "formal_algorithms_running 0.0" in text:
                break
            time.sleep(0.05)
    assert (status, headers["content-type"].startswith("text/plain")) == (200, True)
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    expected = {
        'requests_total{path="/v1/completions",status="200"}': 2,
        'requests_total{path="/v1/completions",status="400"}': 1,
        'requests_total{path="other",status="404"}': 2,
        'request_seconds_count{path="/v1/completions"}': 3,
        "prompt_tokens_total": 8,
        "generated_tokens_total": 4,
        "running": 0,
        "waiting": 0,
    }
    assert {name: float(figures[f"formal_algorithms_{name}"]) for name in expected} == expected


def until_closed(connection):
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts)


HALF = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF += b"Content-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("trickles", [False, True])
def test_half_a_request_is_not_waited_for(model, trickles):
    """Nor one that comes byte by byte, and the server answers others afterwards."""
    with serving_cases.serving(serving_cases.of_run(model, patience=1.0)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(HALF)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(until_closed, connection)
                while trickles and not answer.done():
                    with contextlib.suppress(OSError):
                        connection.sendall(b" ")
                    time.sleep(0.1)
                text = answer.result(timeout=30)
        assert text.startswith(b"HTTP/1.1 408")
        assert b"the request did not arrive within 1 seconds" in text
        assert asked(port, "GET", "/health")[0] == 200


@contextlib.contextmanager
def bare(app, seconds):
    """The port of a server of any application, two of whose answers may run, up to a deadline."""
    bounded = guards.bounded(app, most=2, seconds=seconds)
    config = uvicorn.Config(bounded, log_config=None, timeout_graceful_shutdown=1)
    with socket.create_server(("127.0.0.1", 0)) as listener, serving_cases.running(config, listener):
        yield listener.getsockname()[1]


async def endless(scope, receive, send):
    """An answer that never ends, of a megabyte at a time."""
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    while True:
        await send(
            {
                "type": "http.response.body",
                "body": b" " * (1 << 20 if scope["path"] == "/much" else 1),
                "more_body": True,
            }
        )
        await asyncio.sleep(0.01)


def test_who_stops_reading_loses_its_place_at_the_deadline():
    """Two such clients at a limit of two; a third is answered afterwards, and who reads is told what happened."""
    with bare(endless, 1.0) as port, contextlib.ExitStack() as stack:
        for _ in range(2):
            stalled = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            stalled.sendall(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.2)
        status, _, text = asked(port, "GET", "/")
        assert (status, message_of(text)) == (503, "there are 2 requests already: try again later")
        time.sleep(3.0)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as reader:
            reader.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'data: {"error": {"message": "the answer took longer than 1 seconds' in answer
        assert answer.endswith(b"\r\n0\r\n\r\n")

"""The server's description of itself, and the fields that requests are refused without or with."""

import json
import re

import jsonschema
import pytest

openapi = pytest.importorskip("training.serving.openapi")
serving_cases = pytest.importorskip("tests.serving_cases")


@pytest.fixture(scope="module")
def port(model):
    with serving_cases.serving(serving_cases.of_run(model, converse=serving_cases.converse)) as port:
        yield port


@pytest.fixture(scope="module")
def described(port):
    status, headers, text = serving_cases.asked(port, "GET", "/openapi.json", None)
    assert (status, headers["content-type"]) == (200, "application/json")
    return json.loads(text)


def schema_of(described, path):
    content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return described["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]


def test_every_path_answers(described, port):
    for path, methods in described["paths"].items():
        (method,) = methods
        status, _, _ = serving_cases.asked(port, method.upper(), path.format(model="small"), "{}")
        assert status == (200 if method == "get" else 400), path
    _, _, text = serving_cases.asked(port, "GET", "/nowhere", None)
    known = re.findall(r"/[\w./]+", json.loads(text)["error"]["message"].partition("paths are")[2])
    assert {path for path in described["paths"] if "{" not in path} == set(known)


@pytest.mark.parametrize("path", [*openapi.REQUESTS])
def test_the_schema_has_the_fields_that_are_read(described, port, path):
    schema = schema_of(described, path)
    _, _, text = serving_cases.asked(port, "POST", path, json.dumps({"model": "small", "unknown": 1}))
    named = json.loads(text)["error"]["message"].partition("expected one of ")[2].split(", ")
    assert [*schema["properties"]] == named
    assert schema["additionalProperties"] is False
    referred = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(described))
    assert {*referred} <= {*described["components"]["schemas"]}


@pytest.mark.parametrize(
    ("path", "body", "is_valid"),
    [
        ("/v1/completions", {"model": "small", "prompt": [1, 2]}, True),
        ("/v1/completions", {"model": "small", "prompt": ["a", [1]], "logit_bias": {"1": 2}, "stop": ["a"]}, True),
        ("/v1/completions", {"model": "small", "prompt": "a", "logprobs": 6}, False),
        ("/v1/completions", {"prompt": "a"}, False),
        ("/v1/completions", {"model": "small", "prompt": "a", "best_of": 2}, False),
        ("/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "abc"}]}, True),
        ("/v1/chat/completions", {"model": "small", "messages": []}, False),
        ("/v1/chat/completions", {"model": "small", "messages": [{"content": "abc"}]}, False),
        ("/v1/embeddings", {"model": "small", "input": "a", "encoding_format": "hex"}, False),
        ("/tokenize", {"prompt": "abc"}, True),
    ],
)
def test_the_schema_and_the_server_agree(described, port, path, body, is_valid):
    whole = {**schema_of(described, path), "components": described["components"]}
    assert jsonschema.Draft202012Validator(whole).is_valid(body) == is_valid
    status, _, text = serving_cases.asked(port, "POST", path, json.dumps(body))
    assert (status == 200) == is_valid, text

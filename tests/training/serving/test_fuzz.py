"""Whatever a client sends: an answer, or a sentence that says what is wrong with it; never a failure, and no wait."""

import functools
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.training.serving.test_talking import converse

serving_cases = pytest.importorskip("tests.serving_cases")

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.integers(-(10**400), 10**400),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=5), of, max_size=3),
    max_leaves=6,
)
"""JSON as Python writes it: with NaN and Infinity, lone surrogates, and integers of any size."""
LETTERS = st.text("abcdefghij .", max_size=50)
TOKENS = st.lists(st.integers(-1, 15), max_size=50)
NUMBERS = st.floats(-1, 3) | st.sampled_from([0, 1, 1e-45, 1e-40, 1e-30, 1e38, 1e308, 2**70, float("inf")])
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]), "content": LETTERS | st.none() | ANYTHING},
    optional={"name": LETTERS, "tool_calls": st.just([]), "y": ANYTHING},
)
SHARED = {"max_tokens": st.integers(-1, 61), "temperature": NUMBERS, "top_p": NUMBERS, "top_k": st.integers(-2, 17)}
SHARED |= {"repetition_penalty": NUMBERS, "frequency_penalty": NUMBERS, "presence_penalty": NUMBERS}
SHARED |= {"no_repeat_ngram_size": st.integers(-1, 70000)}
SHARED |= {"logit_bias": st.dictionaries(st.integers(-1, 15).map(str) | st.text(max_size=3), NUMBERS, max_size=4)}
SHARED |= {"n": st.integers(0, 9), "stream": st.booleans()}
SHARED |= {"stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans(), "x": ANYTHING})}
SHARED |= {"stop": LETTERS | st.lists(LETTERS, max_size=5), "seed": st.integers(-1, 2**32), "user": LETTERS}
FIELDS = {
    "/v1/completions": SHARED
    | {"prompt": LETTERS | TOKENS | st.lists(LETTERS, max_size=4) | st.lists(TOKENS, max_size=4)}
    | {"echo": st.booleans(), "logprobs": st.integers(-1, 6), "best_of": st.integers(0, 2)},
    "/v1/chat/completions": SHARED
    | {"messages": st.lists(MESSAGE, max_size=4), "logprobs": st.booleans()}
    | {"top_logprobs": st.integers(-1, 21), "max_completion_tokens": st.integers(-1, 61)}
    | {"response_format": st.fixed_dictionaries({"type": st.sampled_from(["text", "json_object", "json_schema", "x"])})}
    | {"tools": st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": ANYTHING}), max_size=2)}
    | {"tool_choice": st.sampled_from(["none", "auto", "required"]) | ANYTHING},
    "/v1/embeddings": {
        "input": LETTERS | TOKENS | st.lists(LETTERS, max_size=4),
        "encoding_format": st.sampled_from(["float", "base64", "x"]),
        "dimensions": st.integers(7, 9),
    },
    "/tokenize": {"prompt": LETTERS, "messages": st.lists(MESSAGE, max_size=3), "add_special_tokens": st.booleans()},
}


def bodies(path):
    """Requests whose fields are mostly of their kinds, and now and then anything at all."""
    fields = {name: st.one_of(kind, kind, kind, kind, ANYTHING) for name, kind in FIELDS[path].items()}
    wanted = {
        name: fields.pop(name) for name in ("prompt", "messages", "input") if name in fields and path != "/tokenize"
    }
    wanted["model"] = st.sampled_from(6 * ["small"] + ["large"])
    return st.fixed_dictionaries(wanted, optional=fields) | ANYTHING


REQUESTS = st.sampled_from([*FIELDS]).flatmap(lambda path: st.tuples(st.just(path), bodies(path)))


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def port(request, model, encoder):
    of_decoder = functools.partial(serving_cases.of_run, model, converse=converse)
    what = of_decoder() if request.param == "decoder" else serving_cases.of_run(encoder)
    with serving_cases.serving(what, queue=100) as port:
        yield port


def assert_answered(port, path, body):
    status, headers, text = serving_cases.asked(port, "POST", path, json.dumps(body))
    if status == 200 and headers["content-type"].startswith("text/event-stream"):
        events = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
        assert events[-1] == "[DONE]", events[-1]
        assert all("error" not in json.loads(event) for event in events[:-1])
        return status
    answer = json.loads(text)
    if status != 200:
        assert 400 <= status < 500, (status, answer)
        assert answer["error"]["message"]
        assert "\n" not in answer["error"]["message"]
    return status


@pytest.mark.end_to_end
@hypothesis.settings(max_examples=60)
@hypothesis.given(request=REQUESTS)
def test_every_request_is_answered_or_refused(port, request):
    assert_answered(port, *request)


@pytest.mark.slow
@hypothesis.settings(max_examples=2000, derandomize=False)
@hypothesis.given(request=REQUESTS)
def test_every_request_of_many_is_answered_or_refused(port, request):
    assert_answered(port, *request)


@pytest.mark.end_to_end
@pytest.mark.parametrize("path", [*FIELDS])
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"nan", b'"\\ud800"', b"{}", b"[]", b'{"\\ud800": 1}', 4001 * b" "])
def test_what_is_not_a_request_is_refused(port, path, data):
    status, _, text = serving_cases.asked(port, "POST", path, data)
    assert status == (413 if len(data) > 4000 else 400)
    assert json.loads(text)["error"]["message"]

"""Calls of tools and back, and answers by a schema, of random weights, as OpenAI's own client asks for them."""

import dataclasses
import json

import pytest

from tests.run_cases import BYTES, conversing, make_run
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import LibraryTokenizer
from training.generation.grammars import Grammars
from training.runs.trained_model import load_run
from training.serving.calls import HERMES, LLAMA, MISTRAL, CallReader, format_of

openai = pytest.importorskip("openai")
pytest.importorskip("llguidance")
serving_cases = pytest.importorskip("tests.serving_cases")

SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/place"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "hours": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["place", "days", "hours"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["sea", 'the "old" mat']}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "time"}}
QUESTION = [{"role": "user", "content": "How warm?"}]


def calling(function):
    """What an assistant says that calls a function."""
    call = {"id": "b", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


HEAD = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}{{ message.role }}: {{ message.content or "" }}"""
TAIL = "<end>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
EACH = "{% for call in message.tool_calls or [] %}"
CALL = """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}"""
WITH_ID = CALL[:-1] + """, "id": "{{ call.id }}"}{% if not loop.last %}, {% endif %}"""
ONE = "{% if message.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
TEMPLATES = {  # ours, which write calls as those of the models
    "hermes": (HERMES, f"{EACH}\n<tool_call>\n{CALL}\n</tool_call>{{% endfor %}}"),
    "mistral": (
        MISTRAL,
        f"{{% if message.tool_calls %}}[TOOL_CALLS] [{EACH}{WITH_ID}{{% endfor %}}]{{% endif %}}",
    ),
    "llama": (
        dataclasses.replace(LLAMA, several=False),
        ONE + EACH + CALL.replace('"arguments"', '"parameters"') + "{% endfor %}",
    ),
}


def tokenizer_of(template, special=("[TOOL_CALLS]",)):
    """A tokenizer with this chat template, whose special tokens are those of `conversing` and more."""
    known = conversing()
    known.inner.add_special_tokens(list(special))
    new = tuple(map(known.inner.token_to_id, special))
    old = known.special
    kinds = SpecialTokens(old.N_V + len(new), bos=old.bos, eos=old.eos, others=(*old.others, *new), ends=old.ends)
    return LibraryTokenizer(known.inner, special=kinds, chat_template=template)


def template_of(kind):
    return HEAD + TEMPLATES[kind][1] + TAIL


@pytest.fixture(scope="module", params=[*TEMPLATES])
def served(request, tmp_path_factory):
    """The client of a model, its format of calls, and the port."""
    tokenizer = tokenizer_of(template_of(request.param))
    run = load_run(make_run(tmp_path_factory.mktemp("runs") / "small", "d", tokenizer, l_max=1024))
    what = serving_cases.of_run(run, tokens=300, queue=100)
    with serving_cases.serving(what, rows=32, queue=120) as port, serving_cases.client_of(port) as client:
        yield client, what.model.calls, port


def talk(client, messages=QUESTION, **options):
    return client.chat.completions.create(**{"model": "small", "messages": messages, "max_tokens": 300} | options)


def assert_follows(text):
    """An answer is by the schema; its numbers and texts are those that JSON and Python know."""
    found = json.loads(text)
    assert found.keys() == {"place", "days", "hours"}
    assert found["place"] in SCHEMA["$defs"]["place"]["enum"]
    assert type(found["days"]) is int
    assert 1 <= found["days"] <= 7
    assert 1 <= len(found["hours"]) <= 3
    assert all(type(hour) is bool for hour in found["hours"])


@pytest.mark.thorough
@pytest.mark.end_to_end
def test_a_hundred_answers_follow_their_schema(served):
    form = {"type": "json_schema", "json_schema": {"name": "forecast", "strict": True, "schema": SCHEMA}}
    answer = talk(served[0], n=100, seed=1, response_format=form, temperature=1.5)
    assert [choice.finish_reason for choice in answer.choices] == 100 * ["stop"]
    texts = [choice.message.content for choice in answer.choices]
    for text in texts:
        assert_follows(text)
    assert len(set(texts)) > 50
    alone = talk(served[0], n=1, seed=1, response_format=form, temperature=1.5)
    assert alone.choices[0].message.content == texts[0]


@pytest.mark.sampled(1)
@pytest.mark.end_to_end
def test_a_required_call_and_back(served):
    """The call follows its schema; streamed, it is the same; and its result is read as the template writes it."""
    client, form, port = served
    how = {"tools": [WEATHER, TIME], "tool_choice": "required", "seed": 3, "temperature": 0.9}
    how["parallel_tool_calls"] = False
    (choice,) = talk(client, **how).choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content, call.type) == ("tool_calls", None, "function")
    named = talk(client, **how | {"tool_choice": {"type": "function", "function": {"name": "weather"}}})
    (weather,) = named.choices[0].message.tool_calls
    assert weather.function.name == "weather"
    assert_follows(weather.function.arguments)

    parts = [c for part in talk(client, **how, stream=True) for c in part.choices]
    streamed = [call for part in parts for call in part.delta.tool_calls or []]
    assert (streamed[0].index, streamed[0].type, streamed[0].function.name) == (0, "function", call.function.name)
    assert "".join(part.function.arguments for part in streamed) == call.function.arguments
    assert [part.finish_reason for part in parts if part.finish_reason] == ["tool_calls"]
    assert "".join(part.delta.content or "" for part in parts) == ""

    result = {"role": "tool", "tool_call_id": weather.id, "content": "9 degrees"}
    said = [*QUESTION, named.choices[0].message.model_dump(exclude_none=True), result]
    answer = talk(client, said, tools=[WEATHER, TIME], tool_choice="none", max_tokens=5)
    assert answer.choices[0].message.tool_calls is None
    whole = {"tools": [WEATHER, TIME], "messages": said}
    tokens = json.loads(serving_cases.asked(port, "POST", "/tokenize", whole)[2])["tokens"]
    text = tokenizer_of(template_of("hermes")).inner.decode(tokens, skip_special_tokens=False)
    arguments = json.dumps(json.loads(weather.function.arguments))
    key = "parameters" if form.opens == "" else "arguments"
    assert f'{{"name": "weather", "{key}": {arguments}' in text
    assert text.startswith("".join(json.dumps(tool) + "\n" for tool in (WEATHER, TIME)) + "user: How warm?<end>")
    assert text.endswith("<end>tool: 9 degrees<end>assistant: ")


@pytest.mark.end_to_end
def test_strict_tools_constrain_the_calls_that_a_model_makes_by_itself(served):
    """A bias on the token that calls begin with makes the model call, where it is one."""
    client, form, _ = served
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    free = talk(client, tools=[strict], seed=1, max_tokens=20).choices[0]
    assert free.message.tool_calls is None
    assert free.message.content
    if form == MISTRAL:
        (begins,) = tokenizer_of(template_of("mistral")).encode_markup(form.opens)
        called = talk(client, tools=[strict], seed=1, logit_bias={str(begins): 100}, max_tokens=150)
        assert_follows(called.choices[0].message.tool_calls[0].function.arguments)


@pytest.mark.sampled(1)
@pytest.mark.end_to_end
def test_any_object_is_json(served):
    """Random weights end few texts by themselves, so each bracket that closes gets a bias."""
    closing = {str(token): 8 for token in tokenizer_of(template_of("hermes")).encode('"}]')}
    answer = talk(served[0], n=10, seed=2, response_format={"type": "json_object"}, logit_bias=closing)
    whole = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert len(whole) > 5
    assert all(type(json.loads(choice.message.content)) is dict for choice in whole)


@pytest.mark.parametrize("start", ["called", "free"])
@pytest.mark.parametrize(
    ("form", "written", "wrong"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', '<tool_call>\n{"name": "g'),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]',
            '[TOOL_CALLS] [{"name": "f", "arguments": {"y',
        ),
        (LLAMA, '{"name": "f", "parameters": {"x": 1}}', '{"no'),
    ],
)
def test_a_grammar_has_the_calls_that_a_template_writes(form, start, written, wrong):
    grammars, schema = Grammars(BYTES), {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}
    rules = form.rules({"f": schema | {"additionalProperties": False}}, grammars, several=True)

    def fits(text):
        """How many characters of a text are permitted, and whether the text may end there."""
        grammar = grammars.of(f"start: {start}\n{rules}", [BYTES.eos_token])
        n = next((i for i, c in enumerate(text.encode()) if not grammar.permits([*text.encode()[:i]])[c]), len(text))
        return n, n == len(text) and bool(grammar.permits([*text.encode()])[BYTES.eos_token])

    assert fits(written) == (len(written), True)
    several = form.separator.join([written, written.removeprefix(form.opens + form.first)])
    if form is MISTRAL:
        several = written[:-1] + ", " + written[len("[TOOL_CALLS] [") :]
    assert fits(several) == (len(several), True)
    assert fits(wrong) == (len(wrong) - 1, False)
    assert fits("hello") == ((5, True) if start == "free" else (0, False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [{"type": "custom"}]}, "tools: expected a list of"),
        ({"tools": [TIME, TIME]}, "tools: expected a name of its own for each tool"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools: expected names of at most 64 letters"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice: expected none, auto, required or",
        ),
        ({"response_format": {"type": "xml"}}, "response_format: expected the type text or json_object, or"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            r"response_format: expected a form that llguidance knows .*Unimplemented keys: \[\"not\"\]; simplify it",
        ),
        (
            {"response_format": {"type": "json_object"}, "extra_body": {"no_repeat_ngram_size": 2}},
            "no_repeat_ngram_size: expected 0, as it may forbid",
        ),
        ({"messages": [*QUESTION, {"role": "tool", "content": "a", "tool_call_id": "b"}]}, "expected the ID of a call"),
        (
            {"messages": [calling({"name": "f", "arguments": "[1]"})]},
            r"messages\[0\].tool_calls\[0\].function.arguments: expected an object, as JSON in a text",
        ),
    ],
)
def test_what_cannot_be_called_is_refused(served, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        talk(served[0], **options)


@pytest.mark.parametrize("kind", [*TEMPLATES])
def test_the_format_of_a_template_is_found(kind):
    assert format_of(tokenizer_of(template_of(kind))) == TEMPLATES[kind][0]


@pytest.mark.parametrize(
    "template",
    [
        conversing().chat_template,  # knows no tools
        HEAD + TAIL,  # shows tools, and no calls
        HEAD + EACH + "<tool_call><function={{ call.function.name }}></tool_call>{% endfor %}" + TAIL,  # another way
    ],
)
def test_other_templates_have_no_format(template):
    assert format_of(tokenizer_of(template)) is None


F, G = ('{"name": "f", "arguments": {"x": "</tool_call> }"}}', '{"name": "g", "arguments": {"y": [{}]}}')
X, Y = '{"x": "</tool_call> }"}', '{"y": [{}]}'


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, "I see.\n<tool_call>\n" + F + "\n</tool_call>\n", "I see.", [("f", X)]),
        (HERMES, 2 * ("<tool_call>" + G + "</tool_call>\n"), "", [("g", Y), ("g", Y)]),
        (HERMES, "<tool_call>{}</tool_call><tool_call>" + G, "<tool_call>{}</tool_call>", [("g", Y)]),
        (HERMES, "<tool_call>" + F.replace("f", "h") + "</tool_", "<tool_call>" + F.replace("f", "h") + "</tool_", []),
        (HERMES, "<tool_call>" + F[:40], "", [("f", F[27:40])]),
        (MISTRAL, "[TOOL_CALLS] [" + F + ", " + G + "]", "", [("f", X), ("g", Y)]),
        (MISTRAL, "Yes[TOOL_CALLS][" + G[:-1] + ', "id": "abc"}]', "Yes", [("g", Y)]),
        (LLAMA, F.replace("arguments", "parameters"), "", [("f", X)]),
        (LLAMA, "<|python_tag|>" + F + "; " + G, "", [("f", X), ("g", Y)]),
        (LLAMA, ' {"name": "Ann", "parameters": {}}', ' {"name": "Ann", "parameters": {}}', []),
    ],
)
@pytest.mark.parametrize("n", [1, 2, 5, 1000])
def test_calls_are_read_back_however_the_text_arrives(form, text, content, calls, n):
    reader, said, found = CallReader(form, ["f", "g"], several=True), "", {}
    for i in range(0, len(text), n):
        read = reader.add(text[i : i + n], is_last=i + n >= len(text))
        said += read.content
        for part in read.calls:
            call = found.setdefault(part["index"], part)
            if call is not part:
                call["function"]["arguments"] += part["function"]["arguments"]
    assert said == content
    assert [tuple(call["function"].values()) for call in found.values()] == calls
    assert len({call["id"] for call in found.values()}) == len(calls)


LOOSE = {"properties": {"n": {"type": "integer", "minimum": 3, "maximum": 4}}, "required": ["n"]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (LOOSE | {"additionalProperties": False}, [{"n": 3}, {"n": 4}]),
        ({"$ref": "#/$defs/n", "$defs": {"n": LOOSE | {"additionalProperties": False}}}, [{"n": 3}, {"n": 4}]),
        ({"anyOf": [{"const": 5}, LOOSE | {"additionalProperties": False}]}, [{"n": 3}, {"n": 4}]),
        ({}, [{}]),
    ],
)
def test_arguments_are_an_object_whatever_a_schema_leaves_out(served, parameters, expected):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    for seed in range(3):
        how = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.5}
        (choice,) = talk(served[0], seed=seed, **how).choices
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, json.loads(call.function.arguments) in expected) == ("tool_calls", True)


def read_by(port, **fields):
    """The text that a model reads for a conversation."""
    status, _, text = serving_cases.asked(port, "POST", "/tokenize", fields)
    assert status == 200, text
    tokens = json.loads(text)["tokens"]
    return tokenizer_of(template_of("hermes")).inner.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize(("arguments", "shown"), [("", "{}"), ('{"place": "se', json.dumps('{"place": "se'))])
def test_calls_without_arguments_and_cut_short_are_read_back(served, arguments, shown):
    """As `json` writes them."""
    called = calling({"name": "time", "arguments": arguments})
    said = [*QUESTION, called, {"role": "tool", "tool_call_id": "b", "content": "9"}]
    key = "parameters" if served[1].opens == "" else "arguments"
    assert f'{{"name": "time", "{key}": {shown}' in read_by(served[2], messages=said)


@pytest.mark.end_to_end
def test_variables_of_the_template_are_passed_to_it(tmp_path):
    switch = "{% if enable_thinking is false %}quiet {% endif %}{{ reasoning_effort or '' }}"
    run = load_run(make_run(tmp_path / "small", "d", tokenizer_of(HEAD + switch + TAIL), l_max=200))
    what = serving_cases.of_run(run)
    with serving_cases.serving(what) as port, serving_cases.client_of(port) as client:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        plain, quiet, low = (
            read_by(port, messages=QUESTION, **more) for more in ({}, off, {"reasoning_effort": "low"})
        )
        assert (plain, quiet) == ("user: How warm?<end>assistant: ", "user: How warm?quiet <end>assistant: ")
        assert low == "user: How warm?low<end>assistant: "
        used = talk(client, max_tokens=2, reasoning_effort="low", extra_body=off).usage.prompt_tokens
        assert used == talk(client, max_tokens=2).usage.prompt_tokens + len("quiet low")
        for field, more in (("chat_template_kwargs", {"thinking": 1}), ("chat_template_kwargs", {"messages": []})):
            with pytest.raises(
                openai.BadRequestError, match=f"{field}: expected variables that the chat template reads"
            ):
                talk(client, max_tokens=2, extra_body={field: more})

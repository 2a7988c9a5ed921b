"""Chat, echo, biases, embeddings and tokens, as OpenAI's own client asks for them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer, e_encoding
from tests.run_cases import LETTERS

openai = pytest.importorskip("openai")
serving_cases = pytest.importorskip("tests.serving_cases")
complete, converse = serving_cases.complete, serving_cases.converse

EOS = LETTERS.eos_token
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = [{"role": role, "content": text} for role, text in (("user", "abc"), ("assistant", "j"), ("user", "de"))]


@pytest.fixture(scope="module")
def port(model):
    with serving_cases.serving(serving_cases.of_run(model, converse=converse)) as port:
        yield port


@pytest.fixture(scope="module")
def client(port):
    with serving_cases.client_of(port) as client:
        yield client


def talk(client, messages=MESSAGES, **options):
    return client.chat.completions.create(**{"model": "small", "messages": messages, "temperature": 0} | options)


def distributions(model, tokens):
    return np.asarray(d_transformer(jnp.asarray(tokens), model.theta))


def test_an_answer_follows_the_template(client):
    answer = talk(client, max_tokens=9, logprobs=True, top_logprobs=3)
    (expected,) = complete(client, converse(MESSAGES), logprobs=3).choices
    (choice,) = answer.choices
    said = choice.message
    assert (answer.object, said.role, said.content) == ("chat.completion", "assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason
    told = choice.logprobs.content
    assert [token.token for token in told] == expected.logprobs.tokens
    assert [token.logprob for token in told] == expected.logprobs.token_logprobs
    assert [bytes(token.bytes).decode() for token in told] == expected.logprobs.tokens
    for token, best in zip(told, expected.logprobs.top_logprobs, strict=True):
        assert {one.token: one.logprob for one in token.top_logprobs} == best
    used = answer.usage
    assert (used.prompt_tokens, used.completion_tokens) == (len(converse(MESSAGES)), len(told))


def test_a_streamed_answer_is_the_same(client):
    how = {"n": 2, "temperature": 1, "seed": 3, "max_completion_tokens": 20, "logprobs": True}
    whole = talk(client, **how)
    parts = list(talk(client, **how, stream=True, stream_options={"include_usage": True}))
    assert {part.object for part in parts} == {"chat.completion.chunk"}
    for choice in whole.choices:
        of_choice = [c for part in parts for c in part.choices if c.index == choice.index]
        assert of_choice[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in of_choice) == choice.message.content
        assert [part.finish_reason for part in of_choice if part.finish_reason] == [choice.finish_reason]
        told = [token for part in of_choice if part.logprobs for token in part.logprobs.content]
        assert told == choice.logprobs.content
    assert parts[-1].usage == whole.usage
    assert whole.choices[0].message.content != whole.choices[1].message.content


def test_an_answer_stops_and_has_the_room_of_the_context(client, model):
    free = talk(client, temperature=1, seed=1).choices[0]
    room = model.config.l_max - len(converse(MESSAGES)) + 1
    if free.finish_reason == "length":
        assert talk(client, temperature=1, seed=1).usage.completion_tokens == room
    stop = free.message.content[5:7]
    stopped = talk(client, temperature=1, seed=1, stop=stop).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (free.message.content.partition(stop)[0], "stop")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages": []}, "messages: expected a list of at least one message"),
        ({"messages": [{"content": "abc"}]}, r"messages\[0\]: expected an object with a role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, r"messages\[0\].content: expected a te"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, r"messages\[0\].x is not supported: leave it out"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, r"messages\[0\]: the chat template writes no "),
        ({"messages": MESSAGES[:2]}, "messages: message 2: expected the user to speak last, got assistant"),
        ({"messages": [{"role": "user", "content": "é"}]}, "messages: character 'é'"),
        ({"messages": [MESSAGES[0] | {"content": 50 * "a"}]}, "conversation has 52 tokens, and the model reads at mo"),
        ({"max_tokens": 35}, "conversation has 10 tokens, and l_max = 40 leaves room for at most 31 more, got 35"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens and max_completion_tokens exclude each other"),
        ({"top_logprobs": 2}, "top_logprobs: expected logprobs to be true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected an integer from 0 to 20"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: the chat template shows no tools"),
        ({"prompt": "abc"}, "unknown parameter 'prompt'"),
    ],
)
def test_what_is_no_conversation_is_refused(client, options, message):
    body = {"extra_body": {"prompt": "abc"}} if "prompt" in options else options
    with pytest.raises(openai.BadRequestError, match=message):
        talk(client, **body)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("prompt", ["abc", [0, 1, 2], [LETTERS.bos_token, 0, 1, 2]])
def test_echo_tells_the_prompt_and_its_log_probabilities(client, model, prompt):
    """A text follows bos, which is not the client's; tokens are taken as they are."""
    plain = complete(client, prompt, logprobs=2)
    answer = complete(client, prompt, logprobs=2, echo=True)
    (choice,), (without,) = answer.choices, plain.choices
    tokens = [LETTERS.bos_token, 0, 1, 2] if isinstance(prompt, str) else prompt
    names = (
        [{LETTERS.bos_token: "[BOS]"}.get(v) or LETTERS.decode([v]) for v in prompt] if tokens is prompt else [*"abc"]
    )
    n = len(names)
    assert choice.text == "".join(names) + without.text
    told, expected = choice.logprobs, without.logprobs
    P = distributions(model, tokens)
    assert told.tokens == [*names, *expected.tokens]
    log_p = [None if t < 0 else np.log(P[tokens[t + 1], t]) for t in range(len(tokens) - 1 - n, len(tokens) - 1)]
    assert told.token_logprobs[:n] == [p if p is None else pytest.approx(p, rel=1e-4) for p in log_p]
    np.testing.assert_allclose(told.token_logprobs[n:], expected.token_logprobs, rtol=1e-6)
    for t, best in zip(range(len(tokens) - 1 - n, len(tokens) - 1), told.top_logprobs[:n], strict=True):
        wanted = t >= 0 and {int(v) for v in [*np.argsort(P[:, t])[-2:], tokens[t + 1]]}
        texts = {LETTERS.name(v) if v in LETTERS.special_tokens else LETTERS.decode([v]): v for v in wanted or ()}
        assert best == (
            None if t < 0 else pytest.approx({text: np.log(P[v, t]) for text, v in texts.items()}, rel=1e-4)
        )
    starts = [len("".join(names[:i])) for i in range(n)]
    assert told.text_offset == [*starts, *(len("".join(names)) + offset for offset in expected.text_offset)]
    assert answer.usage == plain.usage
    assert answer.usage.prompt_tokens == len(tokens)


def test_a_prompt_without_bos_in_parts_or_to_be_scored_alone(client):
    bare = complete(client, extra_body={"add_special_tokens": False})
    assert bare.usage.prompt_tokens == 3
    assert bare.choices == complete(client, [0, 1, 2]).choices
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    talked = [talk(client, [{"role": "user", "content": content}], max_tokens=5).choices for content in ("abc", parts)]
    assert talked[0] == talked[1]
    (alone,) = complete(client, "abcdef", logprobs=0, echo=True, max_tokens=0).choices
    (longer,) = complete(client, "abcdef", logprobs=0, echo=True).choices
    assert (alone.text, alone.finish_reason) == ("abcdef", "length")
    assert alone.logprobs.token_logprobs == longer.logprobs.token_logprobs[:6]


def test_biases_rule_tokens_out_and_in(client):
    free = complete(client, max_tokens=20).choices[0].text
    without = complete(client, max_tokens=20, logit_bias={str(LETTERS.encode(v)[0]): -100 for v in set(free)})
    assert not set(without.choices[0].text) & set(free)
    only = complete(client, max_tokens=20, temperature=1, logit_bias={"7": 100})
    assert set(only.choices[0].text) == {LETTERS.decode([7])}


def test_what_conversations_begin_with_is_read_once(model, monkeypatch):
    """The answer of one request is known to the next, and the tokens are those of a server that keeps nothing."""
    long = {"role": "system", "content": "abcdefghij" * 2}
    said = [long, {"role": "user", "content": "fade"}]

    def figures(port):
        lines = serving_cases.asked(port, "GET", "/metrics")[2].splitlines()
        return dict(line.removeprefix("formal_algorithms_").rsplit(" ", 1) for line in lines if line[0] != "#")

    def answers(prefixes):
        what = serving_cases.of_run(model, converse=converse, prefixes=prefixes)
        with serving_cases.serving(what) as port, serving_cases.client_of(port) as client:
            answer = talk(client, said, max_tokens=5, temperature=0)
            after = [*said, {"role": "assistant", "content": answer.choices[0].message.content}]
            more = talk(client, [*after, {"role": "user", "content": "j"}], max_tokens=4, temperature=0.8, seed=3, n=2)
            other = talk(client, [long, {"role": "user", "content": "a"}], max_tokens=4)
            return [c.message.content for a in (answer, more, other) for c in a.choices], figures(port)

    expected, without = answers(0)
    found, figures_of = answers(1 << 20)
    assert found == expected
    assert "prefix_tokens" not in without
    assert float(figures_of["prefix_tokens"]) >= 27 + 22  # the first conversation, and what all of them begin with
    assert 0 < float(figures_of["prefix_bytes"]) <= 1 << 20


def test_tokens_of_texts_and_conversations_are_told(port):
    status, _, text = serving_cases.asked(port, "POST", "/tokenize", {"model": "small", "prompt": "abc"})
    assert (status, json.loads(text)) == (200, {"count": 4, "max_model_len": 40, "tokens": [EOS - 1, 0, 1, 2]})
    for body, tokens in (
        ({"prompt": "abc", "add_special_tokens": False}, [0, 1, 2]),
        ({"messages": MESSAGES}, converse(MESSAGES)),
    ):
        assert json.loads(serving_cases.asked(port, "POST", "/tokenize", body)[2])["tokens"] == tokens
    for body, message in (
        ({}, "prompt: expected either prompt or messages"),
        ({"prompt": 3}, "prompt: expected a text, got 3"),
        ({"prompt": "é"}, "prompt: character 'é'"),
        ({"model": "large", "prompt": "a"}, "there is no model 'large'"),
    ):
        assert message in json.loads(serving_cases.asked(port, "POST", "/tokenize", body)[2])["error"]["message"]


@pytest.fixture(scope="module")
def of_encoder(encoder):
    with serving_cases.serving(serving_cases.of_run(encoder)) as port, serving_cases.client_of(port) as client:
        yield client


def mean_encoding(encoder, text):
    tokens = encoder.tokenizer.framed(encoder.tokenizer.encode(text), ends=True)
    X = np.asarray(e_encoding(jnp.asarray(tokens), encoder.theta))
    mean = X.mean(axis=1)
    return mean / np.linalg.norm(mean)


@pytest.mark.end_to_end
def test_embeddings_are_those_of_the_encoder(of_encoder, encoder):
    texts = ["abc", "fade . cab", "j"]
    found = of_encoder.embeddings.create(model="small", input=texts)  # as base64, without saying so
    as_floats = of_encoder.embeddings.create(model="small", input=texts, encoding_format="float")
    for i, text in enumerate(texts):
        np.testing.assert_allclose(found.data[i].embedding, mean_encoding(encoder, text), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(as_floats.data[i].embedding, found.data[i].embedding, rtol=1e-6)
    assert [one.index for one in found.data] == [0, 1, 2]
    assert found.usage.prompt_tokens == sum(len(text) + 2 for text in texts)
    tokens = LETTERS.framed(LETTERS.encode("abc"), ends=True)  # which are taken as they are
    of_tokens = of_encoder.embeddings.create(model="small", input=tokens)
    np.testing.assert_allclose(of_tokens.data[0].embedding, found.data[0].embedding, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": ""}, "input: expected a text of at least one token"),
        ({"input": [99]}, "input: expected a text"),
        ({"input": ["a", 50 * "a"]}, "text 1 has 52 tokens, including special ones, but the model reads at most l_max"),
        ({"input": 9 * ["a"]}, "input: expected at most 8 texts, got 9"),
        ({"dimensions": 3}, "dimensions: expected an integer from 8 to 8, got 3"),
        ({"encoding_format": "hex"}, "encoding_format: expected float or base64"),
    ],
)
def test_what_cannot_be_embedded_is_refused(of_encoder, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        of_encoder.embeddings.create(**{"model": "small", "input": "abc"} | options)


def test_each_kind_of_model_says_what_it_does_not_do(of_encoder, client):
    for call, message in (
        (lambda: complete(of_encoder), "the model is an encoder, which cannot complete text: use /v1/emb"),
        (lambda: talk(of_encoder), "the model is an encoder, which cannot answer"),
        (lambda: client.embeddings.create(model="small", input="a"), "the model is a decoder, which does not embed te"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            call()
    assert [model.id for model in of_encoder.models.list()] == ["small"]

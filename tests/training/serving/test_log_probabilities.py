"""Log-probabilities as OpenAI's API documents them, for a model whose tokens are bytes and parts of words."""

import numpy as np
import pytest

from tests import serving_cases
from tests.run_cases import conversing, make_run
from training.runs.trained_model import load_run

SEEDS = range(6)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("run") / "small", "d", conversing()))


@pytest.fixture(scope="module")
def client(run):
    with serving_cases.serving(serving_cases.of_run(run)) as port, serving_cases.client_of(port) as client:
        yield client


def drawn(client, seed, **options):
    how = {"temperature": 1.0, "seed": seed, "max_tokens": 20}
    return serving_cases.complete(client, "the cat", **how | options).choices[0]


@pytest.mark.end_to_end
def test_five_asked_are_five_given_and_the_drawn_one(client):
    """Of different names, also those that are parts of characters."""
    seen = set()
    for seed in SEEDS:
        choice = drawn(client, seed, logprobs=5)
        told = choice.logprobs
        for token, log_p, best in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
            assert len(best) == 5 + (log_p < sorted(best.values())[-5])
            assert best[token] == log_p
            seen |= {token, *best}
    assert "" not in seen
    assert any(token.startswith("bytes:\\x") for token in seen)


@pytest.mark.end_to_end
def test_the_bytes_of_all_tokens_are_the_text(client):
    said = [{"role": "user", "content": "the cat"}]
    for seed in SEEDS:
        how = {"model": "small", "messages": said, "temperature": 1.0, "seed": seed, "max_tokens": 20, "logprobs": True}
        (choice,) = client.chat.completions.create(**how, top_logprobs=20).choices
        told = choice.logprobs.content
        ordinary = [token for token in told if token.token not in ("<s>", "</s>", "<end>")]
        assert b"".join(bytes(token.bytes) for token in ordinary).decode(errors="replace") == choice.message.content
        for token in told:
            assert len(token.top_logprobs) == 20
            log_p = np.array([best.logprob for best in token.top_logprobs])
            assert (np.diff(log_p) <= 0).all()
            assert all(bytes(best.bytes) for best in token.top_logprobs)


def test_names_of_special_tokens_are_tokens_in_completions_and_text_if_asked(client, run):
    for options, count in (({}, 3), ({"parse_special": False}, len(run.tokenizer.encode("<end>the cat")))):
        choice = serving_cases.complete(client, "<end>the cat", max_tokens=1, extra_body=options)
        expected = len(run.tokenizer.encode("the cat")) + 1 if count == 3 else count
        assert choice.usage.prompt_tokens == expected


def test_a_final_space_is_read_if_asked(client, run):
    """Otherwise the continuation begins with it, and is returned without."""
    for options, read in (({}, "the cat"), ({"keep_final_space": True}, "the cat ")):
        choice = serving_cases.complete(client, "the cat ", max_tokens=1, extra_body=options)
        assert choice.usage.prompt_tokens == len(run.tokenizer.framed(run.tokenizer.encode(read), ends=False))


def test_a_stop_that_names_a_special_token_is_that_token(client, run):
    """Which is then the last, and has no text."""
    bos = run.tokenizer.bos_token
    choice = drawn(client, 0, logit_bias={str(bos): 100}, stop=["<s>"], logprobs=1)
    assert (choice.text, choice.finish_reason, choice.logprobs.tokens) == ("", "stop", ["<s>"])


def test_seeds_have_64_bits_and_minus_one_is_drawn(client):
    for seed in (2**62, -5, 2**63 - 1):
        first, again, other = (drawn(client, s).text for s in (seed, seed, seed - 1))
        assert first == again != other
    assert len({drawn(client, -1).text for _ in range(4)}) == 4


def test_a_bias_that_is_no_number_names_its_field(client):
    with pytest.raises(Exception, match=r"logit_bias\.5: expected a number below 10\^308, got 'x'") as refused:
        drawn(client, 0, logit_bias={"5": "x"})
    assert refused.value.param == "logit_bias"


def test_a_developer_is_the_system(client):
    how = {"model": "small", "temperature": 0, "max_tokens": 5}
    user = {"role": "user", "content": "the cat"}
    answers = [
        client.chat.completions.create(**how, messages=[{"role": role, "content": "be"}, user]).choices[0].message
        for role in ("system", "developer")
    ]
    assert answers[0] == answers[1]

"""Drafts by the head for the token after the next change no token of Algorithm 14, and save passes of the model."""

import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import MTP
from tests import cases
from tests.family_cases import config_of
from training.generation.continuation import Generator
from training.generation.drafting import Drafter
from training.generation.requests import Request, keys_of

LENGTHS = (5, 1, 3)


def drafter_of(name):
    config = alg.DTransformerConfig(L=2, **cases.SHARED) if name == "PAPER" else config_of(name)
    config = config.__class__(**vars(config) | {"variant": config.variant.but(mtp=MTP())})
    return Drafter(Generator(cases.random_theta(config, scale=0.4), config))


def requests_of(drafter, tau, key, **sampling):
    prompts = [cases.random_tokens(n, seed=n, n=drafter.config.N_V) for n in LENGTHS]
    l_gen = drafter.config.l_max - max(LENGTHS) + 1  # the last token is drawn from the last position
    keys = keys_of(key, len(prompts), 0)
    return prompts, [Request(x, k, l_gen, {"tau": tau, **sampling}) for x, k in zip(prompts, keys, strict=True)]


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [1.0, 0.0])
@pytest.mark.parametrize("name", ["PAPER", "DEEPSEEK", "LAYERS", "QWEN3_NEXT", "GEMMA3", "BLOOM", "GPT3_SHARED"])
def test_tokens_are_those_of_algorithm_14(name, tau):
    drafter = drafter_of(name)
    prompts, requests = requests_of(drafter, tau, cases.key(1))
    drafted = drafter.answer(requests)
    drafted.extend(drafted.wanted)
    assert drafted.tokens.shape == (len(LENGTHS), requests[0].l_gen)
    cases.assert_drawn(drafter.theta, prompts, drafted.tokens, tau, cases.key(1), drafter.config.l_max)
    assert drafter.passes > drafter.accepted > 0
    with pytest.raises(ValueError, match=r"l_gen: .* or generate at most"):
        drafter.answer([requests[0]._replace(l_gen=requests[0].l_gen + 1)])


PENALTIES = {"repetition_penalty": 1.1, "no_repeat_ngram_size": 4, "presence_penalty": 0.2, "frequency_penalty": 0.1}
PENALTIES["logit_bias"] = {3: 3.0, 7: 3.0, 4: -9.0}


@pytest.mark.end_to_end
@pytest.mark.parametrize("sampling", [{"top_p": 0.5}, {"top_p": 0.9, **PENALTIES}])
def test_ends_first_tokens_penalties_and_likelihoods_are_those_without_drafts(sampling):
    drafter = drafter_of("PAPER")
    _, requests = requests_of(drafter, 0.8, cases.key(2), eos=(11, 5), **sampling)
    requests = [request._replace(begins=np.arange(drafter.config.N_V) % 2 == 0) for request in requests]
    expected = Generator(drafter.theta, drafter.config).answer(requests)
    columns = np.stack([*expected.columns()], axis=1)
    drafted = drafter.answer(requests)
    np.testing.assert_array_equal(np.stack([*drafted.columns()], axis=1), columns)
    np.testing.assert_allclose(drafted.log_p, expected.log_p, rtol=1e-9, atol=1e-12)
    assert len({*map(tuple, columns == columns[:, -1:])}) > 1  # they end at different places
    assert drafter.passes > drafter.accepted > 0

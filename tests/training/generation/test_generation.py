"""Generation from a cache gives the tokens of Algorithm 14, whatever the batch, the padding and the order."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import GPT2, LLAMA, PAPER, DTransformerConfig, d_inference, d_transformer
from algorithms.alg14_inference import tempered
from algorithms.ops.activation import softmax
from tests import cases
from tests.cases import later, random_theta
from tests.training.generation.test_quantized import unrounded
from training.generation import Generator, attending, cache, decoding, prompts
from training.generation.requests import Request
from training.generation.sampling import SamplingArrays, draw, permitted

pytestmark = pytest.mark.sampled(1, tests=10)

N_V, L_MAX = 17, 131
CONFIG = DTransformerConfig(N_V=N_V, l_max=L_MAX, L=2, H=3, d_e=11, d_mlp=13, d_attn=5, d_mid=7)
THETA = later(lambda: random_theta(CONFIG))
GENERATOR = later(lambda: Generator(THETA(), CONFIG))
PROMPTS = np.random.default_rng(0).integers(N_V, size=(3, 9))
LENGTHS = np.array([9, 1, 4])
KEY = later(lambda: jax.random.key(7))


def run(**options):
    options = {"lengths": LENGTHS, "l_gen": 12, "tau": 1.0, "key": KEY()} | options
    prompts = options.pop("prompts", PROMPTS)
    return np.asarray(GENERATOR().generate(prompts, **options))


def assert_replayed(theta, tokens, tau):
    cases.assert_drawn(theta, [x[:l] for x, l in zip(PROMPTS, LENGTHS, strict=True)], tokens, tau, KEY(), L_MAX)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [0.6, *(pytest.param(tau, marks=pytest.mark.slow) for tau in (0.0, 1.0, np.inf))])
def test_tokens_are_those_of_algorithm_14(tau):
    l_gen = L_MAX - int(LENGTHS.max()) + 1  # up to the last position, so that the cache grows
    tokens = run(tau=tau, l_gen=l_gen)
    assert_replayed(THETA(), tokens, tau)
    x, key = jnp.asarray(PROMPTS[1, : LENGTHS[1]]), jax.random.fold_in(KEY(), 1)
    np.testing.assert_array_equal(tokens[1], d_inference(x, THETA(), l_gen=l_gen, tau=tau, key=key))


def test_padding_does_not_matter_nor_a_prompt_that_ends_with_eos():
    wider = np.full((3, 14), -5)
    for r, length in enumerate(LENGTHS):
        wider[r, :length] = PROMPTS[r, :length]
    np.testing.assert_array_equal(run(prompts=wider), run())
    assert run(eos=int(PROMPTS[0, 8]), tau=np.inf)[0, 0] == run(tau=np.inf)[0, 0]


def test_a_step_of_one_request_whose_weights_are_read_in_groups_of_rows():
    config = DTransformerConfig(N_V=1024, l_max=8, L=1, H=2, d_e=128, d_mlp=1024)
    theta = random_theta(config)
    prompt = np.array([[5, 1000, 17]], np.int32)
    model = Generator(theta, config)
    state = prompts.read(model, prompt, more=1).state
    P, _ = jax.jit(decoding.step)(model.weights, None, state)
    np.testing.assert_allclose(P[:, 0], d_transformer(jnp.asarray(prompt[0]), theta)[:, -1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("how", [{}, {"tau": 3.0, "top_k": 5, "presence_penalty": 1.0, "logit_bias": {2: 4.0}}])
def test_scores_are_the_log_probabilities_of_the_generated_tokens(how):
    """Under the model, however they are drawn."""
    begun = GENERATOR().begin(PROMPTS, lengths=LENGTHS, l_gen=6, key=KEY(), likeliest=3, **how)
    begun.extend(4)
    begun.extend(6)
    tokens = begun.tokens
    rows = [np.concatenate([PROMPTS[r, : LENGTHS[r]], tokens[r]]) for r in range(3)]
    P = np.asarray(d_transformer(jnp.asarray([np.pad(x, (0, 15 - len(x))) for x in rows]), THETA()))
    for r, x in enumerate(rows):
        before = range(LENGTHS[r] - 1, len(x) - 1)
        np.testing.assert_allclose(begun.log_p[r], [np.log(P[x[t + 1], r, t]) for t in before], rtol=1e-12)
        best = [np.argsort(-P[:, r, t])[:3] for t in before]
        np.testing.assert_array_equal(begun.likeliest[0][r], best)
        expected = [np.log(P[vs, r, t]) for t, vs in zip(before, best, strict=True)]
        np.testing.assert_allclose(begun.likeliest[1][r], expected, rtol=1e-12)


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.end_to_end)])
def test_eos_ends_a_sequence_and_fills_its_row(stream):
    free = run(l_gen=30)
    eos = int(free[0, 4])
    ended = run(l_gen=30, eos=eos)
    for r in range(3):
        where = np.flatnonzero(free[r] == eos)
        n = where[0] if len(where) else 30
        np.testing.assert_array_equal(ended[r, :n], free[r, :n])
        assert (ended[r, n:] == eos).all()
    if stream:
        columns = list(GENERATOR().stream(PROMPTS[:1], lengths=LENGTHS[:1], l_gen=30, eos=eos, key=KEY()))
        assert [int(column[0]) for column in columns] == [*ended[0, : len(columns) - 1], eos]
        assert len(columns) < 30


def brute_force_restricted(p, tau, top_k, top_p):
    """The definition, token by token."""
    order = sorted(range(len(p)), key=lambda v: -p[v])[:top_k]
    q = {v: p[v] ** (1 / tau) for v in order}
    total = sum(q.values())
    chosen, mass = [], 0.0
    for v in order:
        if mass < (1.0 if top_p is None else top_p):
            chosen.append(v)
            mass += q[v] / total
    return [q[v] / sum(q[u] for u in chosen) if v in chosen else 0.0 for v in range(len(p))]


def distribution(P, tau, top_k, top_p):
    """What is drawn from, where all columns have the same settings."""
    sampling = SamplingArrays.of([{"tau": tau, "top_k": top_k, "top_p": top_p}] * P.shape[1], len(P))
    log_P = permitted(jnp.log(jnp.asarray(P)), sampling)
    return np.asarray(softmax(tempered(log_P, sampling.tau)))


def sorted_sets(log_P, top_k, top_p):
    """The tokens that are left in a column with τ = 1, by sorting its scores, with the ties of the last one."""
    left = log_P >= np.sort(log_P)[::-1][(top_k or len(log_P)) - 1]
    P = np.where(left & ~np.isneginf(log_P), np.exp2(log_P), 0)
    descending = np.sort(P / P.sum())[::-1]
    before = np.cumsum(descending) - descending
    least = descending[max(1, (before < (1 if top_p is None else top_p)).sum()) - 1]
    return left & (P / P.sum() >= least) & ~np.isneginf(log_P)


@pytest.mark.parametrize(("platform", "dtype"), [("cpu", np.float32), ("cpu", np.float64), ("gpu", np.float32)])
def test_top_k_and_top_p_leave_what_sorting_leaves(platform, dtype, monkeypatch):
    monkeypatch.setattr("training.generation.sampling.platform_of", lambda _: platform)  # of the digits that it finds
    monkeypatch.setattr("training.generation.sampling.PART", 7)  # so that there are several
    generator = np.random.default_rng(7)
    for kinds in (3, 1000):  # many ties, and few
        B, N_V = 120, 53
        exponents = generator.integers(-kinds, kinds, size=(N_V, B)) * 4 / kinds
        scores = np.where(generator.random((N_V, B)) < 0.3, -np.inf, exponents)
        scores[generator.integers(N_V, size=B), np.arange(B)] = 0.0
        scores[generator.integers(N_V, size=B), np.arange(B)] = -0.0
        every = itertools.product((None, 1, 5, 40, N_V), (None, 1e-9, 0.3011, 0.7013, 0.9917))
        settings = [{"top_k": k, "top_p": p} for k, p in every]
        samplings = [settings[generator.integers(len(settings))] for _ in range(B)]
        log_P = jnp.asarray(scores * np.log(2), dtype)
        got = ~np.isneginf(permitted(log_P, SamplingArrays.of(samplings, N_V)))
        expected = [sorted_sets(column, **sampling) for column, sampling in zip(scores.T, samplings, strict=True)]
        np.testing.assert_array_equal(got, np.stack(expected, axis=1))


@pytest.mark.parametrize(
    ("P", "top_k", "expected"),
    [
        ([0.5, 0.1, 0.15, 0.25], 2, [0.5, 0, 0, 0.5]),
        ([0.75, 0.0, 0.25], None, [0.5, 0, 0.5]),  # a token that was ruled out before
    ],
)
def test_an_infinite_temperature_leaves_the_excluded_tokens_out(P, top_k, expected):
    np.testing.assert_allclose(distribution(np.array(P)[:, None], np.inf, top_k, None)[:, 0], expected)


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    "how",
    [
        {"top_p": 1e-300},
        {"tau": 1.2e-38, "top_k": 2, "top_p": 0.9},
        {"tau": 1e-40, "top_p": 1e-40},
    ],
)
def test_settings_too_small_for_float32_take_the_likeliest_token(how):
    """Even where it is not the first one, and unlikely."""
    P = jnp.asarray(np.random.default_rng(1).dirichlet(np.full(11, 9.0), size=4).T, jnp.float32)
    sampling = SamplingArrays.of([how] * 4, 11)
    y = draw(jnp.log(P), lambda: jax.random.split(KEY(), 4), sampling)
    assert jnp.any(y > 0)
    np.testing.assert_array_equal(y, P.argmax(axis=0))


OF_EACH = (
    {"tau": 0.0},
    {"tau": 0.7, "top_k": 3},
    {"tau": 1.3, "top_p": 0.6},
    {"tau": np.inf, "top_k": 5, "top_p": 0.9},
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.7, "presence_penalty": -0.4, "tau": 0.0},
    {"no_repeat_ngram_size": 2, "eos": 3},
    {"tau": 0.9, "top_k": 9, "top_p": 0.95, "repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "eos": 4},
    {"logit_bias": {2: -100.0, 5: 3.5}, "tau": 0.8},
    {"logit_bias": {7: 100.0}},
    {},
)
"""Settings of requests side by side."""


@pytest.mark.end_to_end
def test_each_request_is_drawn_in_its_own_way_and_gets_what_it_gets_alone():
    B = len(OF_EACH)
    prompts = np.random.default_rng(8).integers(N_V, size=(B, 9))
    lengths, keys = np.arange(B) % 9 + 1, jax.random.split(KEY(), B)
    of_rows = zip(prompts, lengths, keys, OF_EACH, strict=True)
    together = GENERATOR().answer([Request(x[:l], key, 25, sampling) for x, l, key, sampling in of_rows])
    together.extend(25)
    for r, sampling in enumerate(OF_EACH):
        one = slice(r, r + 1)
        alone = GENERATOR().begin(prompts[one], lengths=lengths[one], l_gen=25, key=keys[one], **sampling)
        alone.extend(25)
        n = alone.tokens.shape[1]
        np.testing.assert_array_equal(together.tokens[r, :n], alone.tokens[0])
        np.testing.assert_allclose(together.log_p[r, :n], alone.log_p[0], rtol=1e-9)
    assert 2 not in together.tokens[8]
    assert set(together.tokens[9]) == {7}
    assert (together.tokens[10] != together.tokens[9]).any()


@pytest.mark.parametrize(("frequency", "presence"), [(0.9, 0.0), (0.0, 1.7), (-0.3, 0.6)])
def test_penalties_count_what_was_generated_and_not_the_prompt(frequency, presence):
    """As OpenAI describes them: the score less α_frequency times how often a token came, less α_presence if it did."""
    text, one = PROMPTS[0].tolist(), {"prompts": PROMPTS[:1], "lengths": LENGTHS[:1], "l_gen": 20, "tau": 0.0}
    tokens = run(**one, frequency_penalty=frequency, presence_penalty=presence)[0]
    x = np.array([*text, *tokens])
    log_P = np.log(np.asarray(d_transformer(jnp.asarray(x), THETA())))
    for i, token in enumerate(tokens):
        counts = np.bincount(tokens[:i], minlength=N_V)
        scores = log_P[:, len(text) + i - 1] - frequency * counts - presence * (counts > 0)
        assert scores.argmax() == token
    assert (tokens != run(**one)[0]).any()


@pytest.mark.usefixtures("x32")
def test_a_nucleus_at_a_high_temperature_sees_what_underflows():
    log_P = jnp.array([[0.0], [-200.0], [-400.0]])
    q = np.exp([0.0, -2.0, -4.0])
    left = permitted(log_P, SamplingArrays.of([{"tau": 100.0, "top_p": 0.999}], 3))
    np.testing.assert_allclose(softmax(tempered(left, jnp.array([100.0])))[:, 0], q / q.sum(), rtol=1e-5)


def test_drawn_tokens_have_their_frequencies():
    n = 20000
    p = np.random.default_rng(3).dirichlet(np.ones(N_V))
    P = jnp.tile(p[:, None], (1, n))
    sampling = SamplingArrays.of([{"tau": 1.3, "top_k": 9, "top_p": 0.8}] * n, N_V)
    y = draw(jnp.log(P), lambda: jax.random.split(KEY(), n), sampling)
    q = np.array(brute_force_restricted(p, 1.3, 9, 0.8))
    counts = np.bincount(y, minlength=N_V)
    assert (counts[q == 0] == 0).all()
    np.testing.assert_allclose(counts / n, q, atol=4 * np.sqrt(0.25 / n))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prompts": np.zeros((1, L_MAX + 1), int), "lengths": [L_MAX + 1]}, ValueError, "at most l_max = 131"),
        ({"l_gen": L_MAX - 7}, ValueError, "need l_max >= 132"),
        ({"lengths": [9, 0, 4]}, ValueError, "request 1 is empty"),
        ({"lengths": [9, 10, 4]}, ValueError, "request 1 has length 10, but prompts has 9 columns"),
        ({"lengths": [9, 1]}, ValueError, "one row for each request"),
        ({"lengths": [9.0, 1.0, 4.0]}, TypeError, "lengths: expected integers"),
        ({"prompts": PROMPTS.astype(float)}, TypeError, "prompts: expected integers"),
        ({"prompts": PROMPTS + 1, "lengths": [9, 9, 9]}, ValueError, "token 17 at position 5 of request 1 is unknown"),
        ({"tau": -0.1}, ValueError, "tau: expected a temperature >= 0"),
        ({"top_k": N_V + 1}, ValueError, "at most 17, the size of the vocabulary"),
        ({"top_k": 2.0}, TypeError, "top_k: expected an integer"),
        ({"top_p": 0.0}, ValueError, r"top_p: expected a probability in \(0, 1\]"),
        ({"eos": N_V}, ValueError, "eos: expected a token"),
        ({"eos": 2.5}, TypeError, "eos: expected an integer token, got 2.5"),
        ({"logit_bias": {N_V: 1}}, ValueError, "logit_bias: expected a token"),
        ({"logit_bias": {0: float("nan")}}, ValueError, "logit_bias: expected from -100 to 100 for token 0, got nan"),
        ({"l_gen": 0}, ValueError, "l_gen: expected at least 1"),
        ({"key": lambda: jax.random.key_data(KEY())}, TypeError, "typed key"),
        ({"repetition_penalty": 1e-45}, ValueError, "repetition_penalty: expected a positive number from 0.01 to 100"),
        ({"no_repeat_ngram_size": -1, "eos": 3}, ValueError, "no_repeat_ngram_size: expected at least 1"),
        ({"no_repeat_ngram_size": 3}, ValueError, "no_repeat_ngram_size: needs eos"),
        ({"key": lambda: jax.random.split(KEY(), 2)}, ValueError, "one for each of the 3 requests, got 2"),
    ],
)
def test_wrong_requests_are_refused(options, error, message):
    made = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(error, match=message):
        run(**made)


@pytest.mark.parametrize(
    ("changes", "config", "error", "message"),
    [
        (None, CONFIG, TypeError, "theta: expected DTransformerParams, got NoneType"),
        ({}, "GPT2", TypeError, "config: expected DTransformerConfig, got str"),
        ({"variant": GPT2}, CONFIG, ValueError, r"config.variant: expected θ's own, .* give the config"),
        ({}, dataclasses.replace(CONFIG, N_V=18), ValueError, "W_e: expected .* = .11, 18. from the configuration"),
        ({}, dataclasses.replace(CONFIG, l_max=5), ValueError, "W_p: expected .* = .11, 5. from the configuration"),
        ({"W_p": None}, CONFIG, ValueError, "W_p: expected an array .* in PAPER, got None"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(changes, config, error, message):
    with pytest.raises(error, match=message):
        Generator(changes if changes is None else THETA()._replace(**changes), config)


def test_on_a_tpu_a_query_stands_there_eight_times_and_attends_the_same(monkeypatch):
    H, B, C = 3, 2, 5
    rng = np.random.default_rng(3)
    Q, K, V = (jnp.asarray(rng.normal(size=s)) for s in ((H, 4, B), (H * B, C, 4), (H * B, C, 7)))
    permitted = jnp.asarray([[True, False, True, True, False], [False] * C])
    scores = np.einsum("hbcd,hdb->hbc", K.reshape(H, B, C, 4), Q) / 2
    weights = np.exp(scores) * np.asarray(permitted)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    expected = np.einsum("hbc,hbcd->hdb", weights, V.reshape(H, B, C, 7)).reshape(H * 7, B)
    for platform in ("cpu", "tpu"):
        monkeypatch.setattr(cache, "platform_of", lambda _, platform=platform: platform)
        attend = functools.partial(attending.attend_cached, permitted=permitted)
        np.testing.assert_allclose(attend(Q, cache.KeyValues(K, V)), expected, rtol=1e-12)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", [PAPER, LLAMA], ids=["PAPER", "LLAMA"])
def test_rounded_weights_give_the_tokens_of_the_model_with_these_weights(variant):
    """Prompts of one token leave nothing to be read with the weights as they were."""
    config = dataclasses.replace(CONFIG, d_e=12, variant=variant, **({"d_attn": 6} if variant is LLAMA else {}))
    theta = jax.tree.map(lambda a: a.astype(jnp.float32), random_theta(config))
    rounded = Generator(theta, config, int8=True)
    exact = Generator(theta, config)
    exact.weights = unrounded(rounded.weights)
    options = {"lengths": np.ones(3, int), "l_gen": 20, "tau": 0.0, "key": KEY()}
    tokens = rounded.generate(PROMPTS[:, :1], **options)
    np.testing.assert_array_equal(tokens, exact.generate(PROMPTS[:, :1], **options))
    options["lengths"] = np.ones(1, int)
    for r in range(3):
        np.testing.assert_array_equal(tokens[r], rounded.generate(PROMPTS[r : r + 1, :1], **options)[0])


@pytest.mark.end_to_end
@pytest.mark.parametrize(("top_k", "top_p"), [(4, None), (None, 0.6), (6, 0.5)])
def test_restricted_agrees_with_transformers(top_k, top_p):
    torch = pytest.importorskip("torch")
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    scores = torch.from_numpy(np.random.default_rng(2).normal(size=(5, 23)) * 2)
    P = torch.softmax(scores, -1).numpy().T
    scores = logits_process.TemperatureLogitsWarper(0.7)(None, scores)
    if top_k:
        scores = logits_process.TopKLogitsWarper(top_k)(None, scores)
    if top_p:
        scores = logits_process.TopPLogitsWarper(top_p)(None, scores)
    expected = torch.softmax(scores, -1).numpy().T
    np.testing.assert_allclose(distribution(P, 0.7, top_k, top_p), expected, atol=1e-12)

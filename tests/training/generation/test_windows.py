"""Generation past l_max, in windows; and what may not be repeated, against transformers."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import DTransformerConfig, d_transformer
from algorithms.alg14_inference import sample
from tests.cases import later, random_theta
from training.generation import Generator
from training.generation.prompts import window_start
from training.generation.requests import Request
from training.generation.sampling import History, SamplingArrays, penalized

pytestmark = pytest.mark.sampled(2, tests=4)

N_V, L_MAX = 17, 11
CONFIG = DTransformerConfig(N_V=N_V, l_max=L_MAX, L=2, H=3, d_e=11, d_mlp=13, d_attn=5, d_mid=7)
THETA = later(lambda: random_theta(CONFIG))
GENERATOR = later(lambda: Generator(THETA(), CONFIG))
PROMPTS = np.random.default_rng(0).integers(N_V - 3, size=(3, 29))
LENGTHS = np.array([9, 29, 4])  # the second is longer than l_max
KEY = later(lambda: jax.random.key(7))


def generated(l_gen, **options):
    options = {"lengths": LENGTHS, "sliding": True, "key": KEY()} | options
    prompts = options.pop("prompts", PROMPTS)
    return np.asarray(GENERATOR().generate(prompts, l_gen=l_gen, **options))


@jax.jit
def distribution(x, length):
    return d_transformer(x, THETA())[:, length - 1]


def given(text, t):
    """The model's distribution of token t of a text, from those in its window."""
    start = window_start(t, L_MAX)
    assert t <= L_MAX or L_MAX // 2 <= t - start <= L_MAX
    return distribution(jnp.asarray(np.pad(text[start:t], (0, L_MAX - (t - start)))), t - start)


def test_each_token_is_predicted_from_its_window():
    tokens = generated(40, tau=0.8)
    for r, l in enumerate(LENGTHS):
        text = np.concatenate([PROMPTS[r, :l], tokens[r]])
        for i in range(40):
            key = jax.random.fold_in(jax.random.fold_in(KEY(), r), i)
            assert tokens[r, i] == sample(jnp.log(given(text, l + i)), 0.8, key)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("bias", [None, {3: 2.0}])
def test_each_token_is_drawn_among_those_that_its_request_permits(bias):
    """Beside a request that permits all: tokens of one remainder by 3 follow each other, counted from the first."""

    def permits(tokens):
        return np.arange(N_V) % 3 == len(tokens) % 3

    def requests(first):
        texts = [x[:l] for x, l in zip(PROMPTS, LENGTHS, strict=True)]
        how = [permits, None, permits]
        of_rows = enumerate(zip(texts, how, strict=True))
        return [
            Request(x, jax.random.fold_in(KEY(), r), 40, {"tau": 0.8, "logit_bias": bias}, permits=only)
            for r, (x, only) in of_rows
        ][first:]

    together, joined = GENERATOR().answer(requests(0)), GENERATOR().answer(requests(0)[:1])
    together.extend(40)
    joined.extend(7)
    joined.join(requests(1), keep=[0, 1, 2])
    joined.extend(40)
    for r, l in enumerate(LENGTHS):
        start = int(joined.starts[r])
        np.testing.assert_array_equal(joined.tokens[r, start:], together.tokens[r, : 40 - start])
        text = np.concatenate([PROMPTS[r, :l], together.tokens[r]])
        for i in range(40):
            scores = np.log(np.asarray(given(text, l + i)))
            scores[3] += (bias or {3: 0})[3]
            if r != 1:
                scores[~permits(text[l : l + i])] = -np.inf
            key = jax.random.fold_in(jax.random.fold_in(KEY(), r), i)
            assert text[l + i] == sample(jnp.asarray(scores), 0.8, key)


@pytest.mark.end_to_end
def test_windows_do_not_depend_on_the_other_requests_nor_on_the_steps():
    tokens = generated(31)
    for r in range(3):
        alone = {"prompts": PROMPTS[r : r + 1], "lengths": LENGTHS[r : r + 1]}
        keys = jax.random.fold_in(KEY(), r)[None]
        np.testing.assert_array_equal(generated(31, **alone, key=keys)[0], tokens[r])
    columns = GENERATOR().stream(PROMPTS, lengths=LENGTHS, l_gen=31, key=KEY(), sliding=True)
    np.testing.assert_array_equal(np.stack(list(columns), axis=1), tokens)


@pytest.mark.end_to_end
def test_what_has_ended_stays_so_in_the_next_windows():
    free = generated(31)
    firsts = np.array([[[*row, v].index(v) for row in free.tolist()] for v in range(N_V)])
    eos = int((firsts.max(axis=1) - firsts.min(axis=1)).argmax())  # one sequence ends long before another
    assert firsts[eos].max() - firsts[eos].min() > L_MAX
    ended = generated(31, eos=eos)
    for r, n in enumerate(firsts[eos]):
        np.testing.assert_array_equal(ended[r, :n], free[r, :n])
        assert (ended[r, n:] == eos).all()


def processors(torch, penalty, ngram):
    module = importlib.import_module("transformers.generation.logits_process")
    found = [module.RepetitionPenaltyLogitsProcessor(penalty)] if penalty else []
    found += [module.NoRepeatNGramLogitsProcessor(ngram)] if ngram else []
    return lambda ids, scores: module.LogitsProcessorList(found)(torch.as_tensor(ids), torch.as_tensor(scores)).numpy()


@pytest.mark.end_to_end
@pytest.mark.parametrize(("penalty", "ngram"), [(1.3, 0), (0.7, 0), (None, 1), (None, 2), (None, 3), (2.0, 4)])
def test_repetition_is_that_of_transformers(penalty, ngram):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    rng = np.random.default_rng(5)
    tokens = rng.integers(4, size=(6, 40))  # few, so that much repeats
    scores = rng.normal(size=(6, 7))
    lengths = np.array([1, 2, 3, 5, 17, 40])
    history = History(jnp.asarray(np.pad(tokens, ((0, 0), (0, 8)))), jnp.asarray(lengths), jnp.asarray(lengths))
    sampling = {"repetition_penalty": penalty or 1.0, "no_repeat_ngram_size": ngram}
    found = np.asarray(penalized(jnp.asarray(scores.T), history, SamplingArrays.of([sampling] * 6, len(scores[0])))).T
    for r, length in enumerate(lengths):
        expected = processors(torch, penalty, ngram)(tokens[r : r + 1, :length], scores[r : r + 1].copy())
        np.testing.assert_allclose(found[r], expected[0], rtol=1e-12)


@pytest.mark.end_to_end
def test_a_sequence_that_nothing_can_follow_ends():
    """The prompt has all tokens but one, or all of them, the end included."""
    eos, everything = N_V - 1, np.arange(N_V)[::-1]
    prompts = np.stack([np.where(everything == 5, 4, everything), everything])
    options = {"prompts": prompts, "lengths": np.full(2, N_V), "no_repeat_ngram_size": 1, "eos": eos}
    assert generated(4, **options).tolist() == [[5, eos, eos, eos], [eos] * 4]
    assert generated(4, **options, tau=0.0).tolist() == [[5, eos, eos, eos], [eos] * 4]

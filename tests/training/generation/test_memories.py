"""What attends, and with which memory, changes no number: whole sequences, prompts in slots, cached steps, kept
prefixes and joined batches continue texts as Algorithm 14 does, with whatever lines a variant has.

A memory that forgets what a line does to queries and keys (positions, norms, distances, windows, caps) fails here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_hidden_state, d_inference, d_transformer
from tests import family_cases as cases
from tests.cases import later, padded
from training.generation import Generator, decoding, prefilling, prefixes, prompts
from training.generation.prefixes import Prefixes
from training.generation.requests import Request

pytestmark = pytest.mark.sampled(1)

L_MAX, L_GEN, TAU = 23, 7, 0.8
KEYS = later(lambda: jax.random.split(jax.random.key(3), 3))
KNOWN, SHORT = cases.X[0], cases.X[1, :9]
SHARED = 8
TEXTS = [KNOWN, SHORT, np.concatenate([KNOWN[:SHARED], cases.X[1, : 13 - SHARED]])]  # the last begins like the first


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch):
    """A few tokens are a prefix, and are read in several parts."""
    monkeypatch.setattr(prefixes, "LEAST", 4)
    monkeypatch.setattr(prefixes, "FEW", 3)
    monkeypatch.setattr(prefixes, "MANY", 4)


@functools.cache
def model(name):
    config = cases.config_of(name, l_max=L_MAX)
    return cases.theta_of(config), config


@functools.cache
def of_algorithm_14(name):
    """The continuation of each text, and the logarithms of P there, all tokens of P, ``[3, L_GEN, N_V]``."""
    theta, _ = model(name)
    x, keys = jnp.asarray(np.stack([TEXTS[0], TEXTS[2]])), KEYS()[jnp.array([0, 2])]
    long = d_inference(x, theta, l_gen=L_GEN, tau=TAU, key=keys)
    short = d_inference(jnp.asarray(SHORT), theta, l_gen=L_GEN, tau=TAU, key=KEYS()[1])
    tokens = np.stack([long[0], short, long[1]])
    whole = [np.concatenate([text, of_text]) for text, of_text in zip(TEXTS, tokens, strict=True)]
    x = np.stack([np.pad(text, (0, 13 + L_GEN - len(text))) for text in whole])
    log_P = np.log(d_transformer(jnp.asarray(x), theta, implementation="paper"))
    rows = [log_P[:, b, len(text) - 1 :][:, :L_GEN].T for b, text in enumerate(TEXTS)]
    return tokens, np.stack(rows)


def assert_continued(name, tokens, log_p, texts=(0, 1, 2)):
    """The tokens are those of Algorithm 14, and their probabilities those of a whole pass."""
    expected, log_P = of_algorithm_14(name)
    for row, b in enumerate(texts):
        np.testing.assert_array_equal(tokens[row], expected[b])
        of_tokens = np.take_along_axis(log_P[b], expected[b][:, None], axis=1)[:, 0]
        np.testing.assert_allclose(log_p[row], of_tokens, rtol=0, atol=1e-9)


def a_whole_sequence(name):
    """Packed: all texts in one sequence, each a document of its own; by the default kernels."""
    theta, config = model(name)
    tokens, log_P = of_algorithm_14(name)
    whole = [np.concatenate([text, of_text]) for text, of_text in zip(TEXTS, tokens, strict=True)]
    segments = np.repeat(np.arange(3), [len(text) for text in whole])
    longer = theta
    if config.variant.embedding.limit(theta) is not None:  # W_p has a column for each position of a document
        W_p = jnp.pad(theta.W_p, ((0, 0), (0, len(segments) - L_MAX)))
        longer = theta._replace(W_p=W_p)
    X = d_hidden_state(jnp.asarray(np.concatenate(whole)), longer, segments=jnp.asarray(segments))
    logits = config.variant.unembedding.logits(X, theta)
    for b, text in enumerate(TEXTS):
        first = np.flatnonzero(segments == b)[0] + len(text) - 1
        found = jax.nn.log_softmax(logits[:, first : first + L_GEN], axis=0)
        np.testing.assert_allclose(found.T, log_P[b], rtol=0, atol=1e-9)


def a_prompt_in_slots(name):
    """The step after a prompt, read by one program for all layers, and by one for each."""
    theta, config = model(name)
    generator, (x, lengths) = Generator(theta, config), padded(TEXTS)
    _, log_P = of_algorithm_14(name)
    for parameters in (theta, generator.apart):
        state = prefilling.prefill(parameters, x.astype(np.int32), lengths.astype(np.int32), C=64)
        P, _ = jax.jit(decoding.step)(generator.weights, None, state)
        np.testing.assert_allclose(np.log(P.T), log_P[:, 0], rtol=0, atol=1e-9)


def cached_steps(name):
    x, lengths = padded(TEXTS)
    begun = Generator(*model(name)).begin(x, lengths=lengths, l_gen=L_GEN, key=KEYS(), tau=TAU)
    begun.extend(L_GEN)
    assert_continued(name, begun.tokens, begun.log_p)


def a_kept_prefix(name):
    """The last text begins like the first, which was read, and partly generated, before."""
    kept = Prefixes(1 << 20)
    generator = Generator(*model(name), prefixes=kept)
    begun = generator.begin(KNOWN[None, :6], lengths=np.array([6]), l_gen=2, key=KEYS()[:1])
    begun.extend(2)
    begun.keep(0)
    prompts.read(generator, [KNOWN], more=1)
    found = kept.found
    x, lengths = padded([TEXTS[2], TEXTS[1]])
    begun = generator.begin(x, lengths=lengths, l_gen=L_GEN, key=KEYS()[jnp.array([2, 1])], tau=TAU)
    begun.extend(L_GEN)
    assert kept.found == found + SHARED
    assert_continued(name, begun.tokens, begun.log_p, (2, 1))


def joined_batches(name):
    """The last text joins when the others have three tokens."""
    generator = Generator(*model(name))
    x, lengths = padded(TEXTS[:2])
    begun = generator.begin(x, lengths=lengths, l_gen=L_GEN, key=KEYS()[:2], tau=TAU)
    begun.extend(3)
    begun.join([Request(TEXTS[2], KEYS()[2], L_GEN, {"tau": TAU})], keep=[1, 2, 0])
    begun.extend(3 + L_GEN)
    rows = [slice(start, start + L_GEN) for start in begun.starts]
    tokens, log_p = ([a[r, rows[r]] for r in range(3)] for a in (begun.tokens, begun.log_p))
    assert begun.starts.tolist() == [0, 3, 0]
    assert_continued(name, tokens, log_p, (1, 2, 0))


MEMORIES = (a_whole_sequence, a_kept_prefix, a_prompt_in_slots, joined_batches, cached_steps)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("continue_with", MEMORIES, ids=lambda memory: memory.__name__)
@pytest.mark.parametrize(
    "name", [*(name for name in cases.EVERY if name not in cases.RECURRENT or "GEMMA4" in name), *cases.OWN]
)
def test_with_every_memory_texts_continue_as_by_algorithm_14(continue_with, name):
    continue_with(name)


@pytest.mark.thorough
@pytest.mark.parametrize("continue_with", [memory for memory in MEMORIES if memory is not a_kept_prefix])
def test_states_that_cannot_be_cut_at_a_prefix_continue_otherwise(continue_with):
    continue_with("HYBRID")

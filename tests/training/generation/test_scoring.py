"""Scores against forward passes of the plain algorithms, one sequence at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import GPT2, d_transformer, e_transformer, ed_transformer, mask_token
from tests.cases import ED, N_V, D, E, later, random_theta
from training.generation.scoring import bits_per_byte, classify, fill_masks, log_probabilities, perplexity
from training.tasks.classify import ClassifierParams, class_probabilities

X = np.random.default_rng(0).integers(N_V, size=(3, 11))
LENGTHS = np.array([11, 1, 6])
Z = np.random.default_rng(1).integers(N_V, size=(3, 7))
Z_LENGTHS = np.array([2, 7, 5])
THETA = later(lambda: {config: random_theta(config) for config in (D, ED, E)})


def scores(config, x=X, lengths=LENGTHS, **options):
    return log_probabilities(THETA()[config], x, lengths=lengths, config=config, **options)


def log_p_of(P, r):
    """Of the tokens of sequence r after the first, by the distributions ``[N_V, r, t]``."""
    return np.array([np.log(P[v, r, t]) for t, v in enumerate(X[r, 1 : LENGTHS[r]])])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tied", [True, False])
def test_log_probabilities_of_a_decoder(tied):
    config = dataclasses.replace(D, variant=GPT2)
    theta = THETA()[D]._replace(variant=GPT2, **({"W_u": None} if tied else {}))
    padded = np.where(np.arange(11) < LENGTHS[:, None], X, -7)
    log_p = log_probabilities(theta, padded, lengths=LENGTHS, config=config)
    P = np.asarray(d_transformer(X, theta))
    for r, length in enumerate(LENGTHS):
        np.testing.assert_allclose(log_p[r, : length - 1], log_p_of(P, r), rtol=1e-10)
        assert (log_p[r, length - 1 :] == 0).all()


@pytest.mark.end_to_end
def test_log_probabilities_of_an_encoder_decoder():
    log_p = scores(ED, z=Z, z_lengths=Z_LENGTHS)
    P = np.asarray(ed_transformer(Z, X, THETA()[ED], z_length=Z_LENGTHS))
    np.testing.assert_allclose(log_p.sum(axis=1), [log_p_of(P, r).sum() for r in range(3)], rtol=1e-10)


def test_perplexity_of_a_uniform_model_is_the_size_of_its_vocabulary():
    theta = jax.tree.map(np.zeros_like, THETA()[D])._replace(W_e=THETA()[D].W_e, variant=GPT2)
    config = dataclasses.replace(D, variant=GPT2)
    log_p = log_probabilities(theta, X, lengths=LENGTHS, config=config)
    np.testing.assert_allclose(perplexity(log_p, LENGTHS), N_V, rtol=1e-12)
    with pytest.raises(ValueError, match="at least two tokens"):
        perplexity(np.zeros((2, 0)), np.array([1, 1]))


@pytest.mark.parametrize("stride", [1, 5, D.l_max - 1])
@pytest.mark.parametrize("n", [1, D.l_max - 1, D.l_max, 70])
def test_bits_per_byte_predict_every_token_once_from_the_window(stride, n):
    text = np.random.default_rng(2).integers(N_V, size=n)
    bits = bits_per_byte(THETA()[D], text, 2 * n, config=D, stride=stride, batch_size=3)
    with_bos = np.concatenate([[N_V - 2], text])
    start, end, nats = 0, 1, 0.0  # predicted: all before `end`
    while end < len(with_bos):
        window = with_bos[start : start + D.l_max]
        P = np.asarray(d_transformer(np.pad(window, (0, D.l_max - len(window))), THETA()[D]))
        nats -= sum(np.log(P[with_bos[t], t - start - 1]) for t in range(end, start + len(window)))
        end, start = start + len(window), start + stride
    np.testing.assert_allclose(bits, nats / np.log(2) / (2 * n), rtol=1e-10)


def test_masks_are_filled_with_the_likeliest_tokens():
    x = X.copy()
    lengths, masks = np.array([11, 4, 6]), [[0, 5], [3], [1, 2]]
    x[x == mask_token(N_V)] = 0
    for row, places in zip(x, masks, strict=True):
        row[places] = mask_token(N_V)
    filled = fill_masks(THETA()[E], x, lengths=lengths, config=E, n=4)
    whole = np.asarray(e_transformer(x, THETA()[E], length=lengths))
    for r in range(3):
        P = whole[:, r]
        assert len(filled[r]) == len(masks[r])
        for candidates, t in zip(filled[r], masks[r], strict=True):
            assert [v for v, _ in candidates] == np.argsort(-P[:, t])[:4].tolist()
            np.testing.assert_allclose([p for _, p in candidates], np.sort(P[:, t])[::-1][:4], rtol=1e-10)


def test_classes_are_those_of_each_text_alone():
    rng = np.random.default_rng(3)
    W_c, b_c = (jnp.asarray(rng.standard_normal(shape)) for shape in ((5, E.d_e), 5))
    params = ClassifierParams(THETA()[E], W_c, b_c)
    P = classify(params, X, lengths=LENGTHS, config=E)
    for r in range(3):
        p = class_probabilities(X[r], params, length=LENGTHS[r])
        np.testing.assert_allclose(P[r], p, rtol=1e-10)
        assert P[r].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: log_probabilities(THETA()[E], X, lengths=LENGTHS, config=D), TypeError, "expected DTransformerParams"),
        (lambda: scores(D, X + 9), ValueError, "is unknown"),
        (lambda: scores(D, lengths=LENGTHS - 1), ValueError, "request 1 is empty"),
        (lambda: scores(D, z=Z), ValueError, "a decoder has no context"),
        (lambda: scores(ED), ValueError, "needs contexts"),
        (lambda: scores(ED, z=Z[:2], z_lengths=Z_LENGTHS[:2]), ValueError, "for each of the 3 sequences of x, got 2"),
        (lambda: bits_per_byte(THETA()[D], X[0], 0, config=D), ValueError, "n_bytes: expected at least 1"),
        (lambda: bits_per_byte(THETA()[D], X[0][:0], 1, config=D), ValueError, "at least one token"),
        (lambda: bits_per_byte(THETA()[D], X[0], 1, config=D, stride=23), ValueError, "at most 22"),
        (lambda: fill_masks(THETA()[E], 0 * X, lengths=LENGTHS, config=E), ValueError, "sequence 0 has no mask_token"),
        (lambda: fill_masks(THETA()[E], X, lengths=LENGTHS, config=E, n=18), ValueError, "size of the vocabulary"),
        (lambda: classify(THETA()[E], X, lengths=LENGTHS, config=E), TypeError, "expected ClassifierParams"),
    ],
)
def test_wrong_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()

"""Translation from a cache gives Algorithm 15's tokens; beam search lies between greedy and exhaustive search."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER, EDTransformerConfig, bos_token, ed_inference, ed_transformer, eos_token
from algorithms.lines import Attention, Distances
from tests.cases import later, random_theta
from tests.training.generation.test_quantized import unrounded
from training.generation import Translator, translate
from training.generation.quantized import QuantizedMatrix

pytestmark = pytest.mark.sampled(1, tests=4)

N_V, L_MAX = 17, 71
CONFIG = EDTransformerConfig(N_V=N_V, l_max=L_MAX, L_enc=1, L_dec=2, H=3, d_e=11, d_mlp=13, d_attn=5, d_mid=7)
THETA = later(lambda: random_theta(CONFIG))
TRANSLATOR = later(lambda: Translator(THETA(), CONFIG))
Z = np.random.default_rng(0).integers(N_V, size=(3, 9))
LENGTHS = np.array([9, 1, 4])
KEY = later(lambda: jax.random.key(7))
KEYS = later(lambda: jax.vmap(jax.random.fold_in, (None, 0))(KEY(), jnp.arange(3)))
# A vocabulary and a length so small that every translation can be looked at.
TOY = EDTransformerConfig(N_V=5, l_max=7, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=5)
TOY_THETA = later(lambda: random_theta(TOY, seed=28, scale=0.7))  # some translations end early
TOY_P = jax.jit(lambda z, x: ed_transformer(z, x, TOY_THETA()))


def run(**options):
    options = {"lengths": LENGTHS, "l_max": L_MAX} | options
    return [np.asarray(a) for a in TRANSLATOR().translate(options.pop("z", Z), **options)]


def predicted(theta, x):
    """The distributions ``[N_V, r, t]`` that Algorithm 8 gives to the next token of each translation."""
    return np.asarray(ed_transformer(Z, jnp.asarray(x), theta, z_length=LENGTHS))


def log_probability(P, r, x):
    """Of the tokens of x after the first."""
    return sum(np.log(P[v, r, t]) for t, v in enumerate(x[1:]))


@pytest.mark.parametrize("tau", [0.8, *(pytest.param(tau, marks=pytest.mark.slow) for tau in (0.0, np.inf))])
def test_tokens_are_those_of_algorithm_15(tau):
    tokens, lengths, _ = run(tau=tau, key=KEY())
    expected, expected_lengths = ed_inference(Z, THETA(), z_length=LENGTHS, tau=tau, key=KEYS())
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(lengths, expected_lengths)
    if tau == np.inf:
        assert lengths.min() < L_MAX  # some translation has ended by itself
    columns = TRANSLATOR().stream(Z[:1], lengths=LENGTHS[:1], l_max=L_MAX, tau=tau, key=KEY())
    assert [int(column[0]) for column in columns] == tokens[0, 1 : lengths[0]].tolist()


IN_TURN = (Attention(clip=0.3), Attention(scale=0.9), Attention(positions=Distances(buckets=4, farthest=5)))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("shared", [1, 2])
def test_decoder_layers_take_attentions_in_turn(shared):
    """Each computes the keys and values of the context by its own line."""
    variant = PAPER.but(attention=IN_TURN, shared_layers=shared)
    config = dataclasses.replace(CONFIG, variant=variant, L_enc=2, L_dec=4)
    theta = random_theta(config)
    tokens, _, scores = translate(theta, Z, lengths=LENGTHS, config=config, l_max=20, tau=0.8, key=KEY())
    expected, _ = ed_inference(Z, theta, z_length=LENGTHS, tau=0.8, key=KEYS(), l_max=20)
    np.testing.assert_array_equal(tokens, expected)
    P = predicted(theta, tokens)
    for r, x in enumerate(np.asarray(tokens)):
        n = int(np.argmax(x[1:] == eos_token(N_V))) + 1 if eos_token(N_V) in x[1:] else 19
        np.testing.assert_allclose(scores[r], log_probability(P, r, x[: n + 1]), atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"tau": 1.0}, {"beam_size": 3}])
def test_scores_are_the_log_probabilities_of_the_plain_algorithm(options):
    tokens, lengths, scores = run(l_max=11, key=KEY(), **options)
    P = predicted(THETA(), tokens)
    for r in range(3):
        x = tokens[r, : lengths[r]]
        np.testing.assert_allclose(scores[r], log_probability(P, r, x), rtol=1e-10)
        assert (tokens[r, lengths[r] :] == eos_token(N_V)).all()
        assert x[0] == bos_token(N_V)
        assert lengths[r] == 11 or x[-1] == eos_token(N_V)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"beam_size": 3}])
def test_padding_batch_and_order_do_not_matter(options):
    tokens, lengths, scores = run(l_max=11, **options)
    order = np.array([2, 0, 1])
    wider = np.full((3, 14), -5)
    for i, r in enumerate(order):
        wider[i, : LENGTHS[r]] = Z[r, : LENGTHS[r]]
    shuffled = run(z=wider, lengths=LENGTHS[order], l_max=11, **options)
    np.testing.assert_array_equal(shuffled[0], tokens[order])
    np.testing.assert_array_equal(shuffled[1], lengths[order])
    np.testing.assert_allclose(shuffled[2], scores[order], rtol=1e-12)
    alone = run(z=Z[1:2], lengths=LENGTHS[1:2], l_max=11, **options)
    np.testing.assert_array_equal(alone[0][0], tokens[1])


def plain_beam_search(z, K, alpha, l_max):
    """The definition, with a forward pass of Algorithm 8 for every extension."""
    eos, bos = eos_token(TOY.N_V), bos_token(TOY.N_V)
    beams = [([bos], 0.0)]
    for length in range(1, l_max):
        candidates = []
        for x, log_p in beams:
            if x[-1] == eos:
                candidates.append((x, log_p))
            else:
                p = np.asarray(TOY_P(jnp.asarray(z), jnp.asarray(x + [0] * (l_max - length))))[:, length - 1]
                candidates += [([*x, v], log_p + np.log(p[v])) for v in range(TOY.N_V)]
        beams = sorted(candidates, key=lambda c: -c[1] / ((4 + len(c[0])) / 6) ** alpha)[:K]
    return beams[0]


@pytest.mark.end_to_end
@pytest.mark.parametrize(("K", "alpha"), [(2, 0.0), (3, 0.6), pytest.param(5, 2.0, marks=pytest.mark.slow)])
def test_beam_search_is_its_definition(K, alpha):
    z = np.random.default_rng(6).integers(5, size=(12, 3))
    options = {"lengths": np.full(12, 3), "l_max": 7, "beam_size": K, "length_penalty": alpha}
    tokens, lengths, scores = translate(TOY_THETA(), z, config=TOY, **options)
    for r in range(12):
        x, log_p = plain_beam_search(z[r], K, alpha, 7)
        assert np.asarray(tokens[r, : lengths[r]]).tolist() == x
        np.testing.assert_allclose(scores[r], log_p, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"z": np.zeros((1, L_MAX + 1), int), "lengths": np.array([L_MAX + 1])}, ValueError, "at most l_max = 71"),
        ({"z": Z + 17}, ValueError, "is unknown"),
        ({"l_max": L_MAX + 1}, ValueError, "l_max: expected at least 1 and at most 71, the l_max of the model, got 72"),
        ({"beam_size": 18}, ValueError, "at most 17, the size of the vocabulary, got 18"),
        ({"beam_size": 2.0}, TypeError, "beam_size: expected an integer"),
        ({"length_penalty": -1.0}, ValueError, "length_penalty: expected a finite number >= 0"),
        ({"tau": 1.0}, ValueError, "needs a key"),
        ({"tau": 1.0, "key": KEY, "beam_size": 2}, ValueError, "draws nothing, so tau must be 0"),
        ({"key": 3}, TypeError, "typed key"),
    ],
)
def test_wrong_requests_are_refused(options, error, message):
    made = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(error, match=message):
        run(**made)
    with pytest.raises(TypeError, match="theta: expected EDTransformerParams"):
        Translator((), CONFIG)


@pytest.mark.end_to_end
def test_rounded_weights_translate_as_the_model_with_these_weights():
    theta = jax.tree.map(lambda a: a.astype(jnp.float32), THETA())
    rounded, exact = Translator(theta, CONFIG, int8=True), Translator(theta, CONFIG)
    leaves = jax.tree.leaves(rounded.weights, is_leaf=lambda W: isinstance(W, QuantizedMatrix))
    n = sum(isinstance(W, QuantizedMatrix) for W in leaves)
    assert n == 2 * (2 + 2 + 2) + 1  # W and W_o twice, the MLP, and W_u
    exact.weights = unrounded(rounded.weights)
    options = {"lengths": LENGTHS, "l_max": 12}
    np.testing.assert_array_equal(rounded.translate(Z, **options)[0], exact.translate(Z, **options)[0])

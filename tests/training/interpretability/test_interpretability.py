"""Lenses, attribution, circuits, scores and patching against other ways to compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER, VARIANTS, DTransformerConfig, d_hidden_state, d_transformer, ed_hidden_state
from algorithms.inside import at, intervene, record
from tests import cases
from training.interpretability import attribution as parts
from training.interpretability import circuits, patching, scores
from training.interpretability.lens import logit_lens, tuned_lens

pytestmark = pytest.mark.sampled(1, tests=5)

D = cases.later(lambda: cases.random_theta(cases.D))
X, OTHER = (np.random.default_rng(seed).integers(14, size=6) for seed in (1, 9))
BATCH = np.random.default_rng(2).integers(14, size=(2, 6))
SIZES = {"N_V": 17, "l_max": 23, "L": 2, "H": 6, "d_e": 12, "d_mlp": 13, "d_attn": 4, "d_mid": 4}


def score(x):
    P = d_transformer(x, D())
    return jnp.log(P[3, -1]) - jnp.log(P[5, -1])


def test_the_last_row_of_the_logit_lens_is_the_output():
    P, seen = record(d_transformer, "X@8")(BATCH, D())
    p = jax.nn.softmax(logit_lens(seen["X@8"], D()), axis=1)
    cases.assert_close(p[-1], P)
    one = d_transformer(BATCH, D()._replace(layers=jax.tree.map(lambda a: np.asarray(a)[:1], D().layers)))
    cases.assert_close(p[0], one)  # a model of the first layer alone


@pytest.mark.parametrize("shared_layers", [1, 2])
def test_the_logit_lens_of_a_decoder_whose_norms_come_last(shared_layers):
    lines = {"order": "norm_last", "final_norm": False, "shared_layers": shared_layers}
    variant = VARIANTS["OPT"].but(**lines)
    theta = cases.random_theta(DTransformerConfig(**SIZES, variant=variant))
    P, seen = record(d_transformer, "X@8", "X_tilde@5")(BATCH, theta)
    found = logit_lens(seen["X@8"], theta)
    cases.assert_close(jax.nn.softmax(found[-1], axis=0), P)
    cases.assert_close(found[0], variant.unembedding.logits(seen["X_tilde@5"][1], theta))


def test_the_logit_lens_of_an_encoder_decoder():
    theta = cases.random_theta(cases.ED)
    x, seen = record(ed_hidden_state, "X@19")(X, OTHER, theta)
    cases.assert_close(logit_lens(seen["X@19"], theta)[-1], theta.W_u @ x)
    with pytest.raises(ValueError, match="theta: expected parameters of Algorithm 8 or 10"):
        logit_lens(seen["X@19"], cases.random_theta(cases.E))


def test_the_tuned_lens_is_nearer_to_the_output_than_the_logit_lens():
    P, seen = record(d_transformer, "X@8")(BATCH, D())
    lens = tuned_lens(seen["X@8"], D(), steps=100, eta=1e-2)

    def divergence(X):
        log_q = jax.nn.log_softmax(logit_lens(X, D()), axis=1)
        return (P[None] * (jnp.log(P)[None] - log_q)).sum(1).mean((-1, -2))

    before, after = divergence(seen["X@8"]), divergence(lens(seen["X@8"]))
    assert after[0] < before[0] / 2
    np.testing.assert_allclose(after[-1], 0, atol=1e-4)


@pytest.mark.parametrize("name", ["PAPER", "GPT2", "LLAMA", "GEMMA"])
def test_the_parts_add_up_to_the_logits(name):
    config = DTransformerConfig(**SIZES, variant=VARIANTS[name])
    theta = cases.random_theta(config)
    hidden, seen = record(lambda x: d_hidden_state(x, theta), *parts.READS)(BATCH)
    weights = cases.normal(17)
    found = parts.attribution(seen, theta, weights)
    logits = config.variant.unembedding.logits(hidden, theta)
    cases.assert_close(found.total(), jnp.tensordot(weights, logits, 1))
    assert found.heads.shape == (2, 6, 2, 6)


@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_the_part_of_a_head_is_what_is_missing_without_it_where_the_scale_stays(factor):
    """Of the last layer's head and MLP off, whose part reaches the logits in no other way but through the scale."""
    theta = D()._replace(layers=D().layers._replace(mlp=jax.tree.map(np.zeros_like, D().layers.mlp)))
    theta, weights = theta._replace(variant=D().variant.but(residual_factor=factor)), cases.normal(17)

    def run(changes):
        f = intervene(lambda x: d_hidden_state(x, theta), changes)
        return record(f, *parts.READS)(X)[1]

    with_it, without = run({}), run({at("Y@2", layer=1, head=2): 0.0})
    scale = [np.sqrt(np.var(s["X@8"][-1], axis=0)) for s in (with_it, without)]
    found, rest = (parts.attribution(s, theta, weights) for s in (with_it, without))
    missing = (found.total() - found.constant) * scale[0] - (rest.total() - rest.constant) * scale[1]
    cases.assert_close(found.heads[1, 2] * scale[0], missing)  # in the sum before the scale


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cases.random_theta(cases.E), "theta: expected parameters of Algorithm 10, got ETransformerParams"),
        (lambda: D()._replace(variant=VARIANTS["GEMMA2"]), "normalize_output: expected None"),
        (lambda: D()._replace(variant=PAPER.but(unembedding=PAPER.unembedding.but(cap=3.0))), "cap: expected None"),
    ],
)
def test_attribution_is_refused_where_parts_do_not_add_up(make, says):
    with pytest.raises(ValueError, match=says):
        parts.attribution({}, make(), cases.normal(17))


def test_circuits_are_what_attention_computes():
    W = D().layers.attention
    zeros = {b: jnp.zeros_like(getattr(W.heads, b)) for b in ("b_q", "b_k", "b_v")}
    no_biases = W._replace(heads=W.heads._replace(**zeros))
    theta = D()._replace(layers=D().layers._replace(attention=no_biases))
    _, seen = record(d_transformer, "X_tilde@5", "S@4", "A", "Y@2")(X, theta)
    QK, OV = circuits.qk_circuits(no_biases), circuits.ov_circuits(no_biases)
    for l, h in np.ndindex(2, 3):
        X_tilde = seen["X_tilde@5"][l]
        cases.assert_close(X_tilde.T @ QK[l, h] @ X_tilde, seen["S@4"][l, h])
        written = W.W_o[l][:, 7 * h : 7 * (h + 1)] @ seen["Y@2"][l, h]
        cases.assert_close(OV[l, h] @ X_tilde @ seen["A"][l, h], written)


def test_eigenvalues_are_those_of_the_whole_circuit():
    found = circuits.copying_eigenvalues(D())
    OV = circuits.ov_circuits(D().layers.attention)
    for l, h in np.ndindex(2, 3):
        every = np.linalg.eigvals(np.asarray(D().W_u @ OV[l, h] @ D().W_e))
        largest = every[np.argsort(-np.abs(every))][:7]
        np.testing.assert_allclose(np.sort_complex(found[l, h]), np.sort_complex(largest), atol=1e-8)
    assert (np.abs(circuits.copying_scores(D())) <= 1).all()
    W = D().layers.attention
    W = W._replace(W_o=jnp.moveaxis(W.heads.W_v, -1, 1).reshape(2, 11, 21))  # W_o^h = W_vᵀ: the circuit is positive
    copying = D()._replace(W_u=D().W_e.T, layers=D().layers._replace(attention=W))
    np.testing.assert_allclose(circuits.copying_scores(copying), 1, atol=1e-8)


def test_composition_by_its_definition():
    W = D().layers.attention
    QK, OV = (np.asarray(M) for M in (circuits.qk_circuits(W), circuits.ov_circuits(W)))
    found = circuits.composition_scores(W)
    for letter, M in (("Q", QK[1, 2]), ("K", QK[1, 2].T), ("V", OV[1, 2])):
        expected = np.linalg.norm(M @ OV[0, 1]) / np.linalg.norm(M) / np.linalg.norm(OV[0, 1])
        cases.assert_close(found[letter][0, 1, 1, 2], expected)
        assert (found[letter][1] == 0).all()
        assert (found[letter][0, :, 0] == 0).all()


def test_scores_of_drawn_patterns():
    x = jnp.array([4, 7, 5, 4, 7, 5])
    A = np.zeros((1, 3, 6, 6))
    A[0, 0, [0, 0, 1, 2, 3, 4], np.arange(6)] = 1  # the previous token
    A[0, 1, [0, 0, 0, 0, 1, 2], np.arange(6)] = 1  # the same token before, from the fourth on
    A[0, 2, [0, 0, 0, 1, 2, 3], np.arange(6)] = 1  # what followed it
    batch = jnp.stack([A, A], axis=3)
    for A_b, x_b in ((jnp.asarray(A), x), (batch, jnp.stack([x, x]))):
        assert scores.previous_token_scores(A_b).tolist()[0] == [1, 0.2, 0.2]
        assert scores.duplicate_token_scores(A_b, x_b).tolist()[0] == [0, 1, 0]
        assert scores.induction_scores(A_b, x_b).tolist()[0] == [0, 0, 1]


@pytest.mark.end_to_end
@pytest.mark.parametrize(("name", "by", "shape"), [("X@8", "token", (2, 6)), ("Y@2", "head", (2, 3))])
def test_activation_patching_is_one_intervention_after_the_other(name, by, shape):
    found = patching.activation_patching(score, name, (X,), (OTHER,), by=by)
    assert found.shape == shape
    for layer, i in ((0, 1), (1, shape[1] - 1)):
        where = at(name, layer=layer, **{by: i})
        value = record(score, where)(X)[1][where]
        cases.assert_close(found[layer, i], intervene(score, {where: value})(OTHER))


@pytest.mark.end_to_end
def test_attribution_patching_is_the_slope_of_patching():
    estimate = patching.attribution_patching(score, "Y@2", (X,), (OTHER,))
    _, of_source = record(score, "Y@2")(X)
    _, of_target = record(score, "Y@2")(OTHER)
    epsilon = 1e-6
    for layer, head in ((0, 2), (1, 0)):
        step = epsilon * (of_source["Y@2"] - of_target["Y@2"])[layer, head]
        moved = intervene(score, {at("Y@2", layer=layer, head=head): lambda Y, step=step: Y + step})(OTHER)
        slope = (moved - score(OTHER)) / epsilon
        np.testing.assert_allclose(estimate[layer, head].sum(), slope, rtol=1e-3, atol=1e-6)


@pytest.mark.end_to_end
def test_path_patching_by_hand():
    """What the sender writes is added to the stream after the MLP, which does not read it; the receiver does."""
    sender, receiver = at("Y@2", layer=0, head=1), at("Q", layer=1, head=2)
    (Y_source, Y_target) = (record(score, sender)(x)[1][sender] for x in (X, OTHER))
    after = at("X@8", layer=0)
    written = D().layers.attention.W_o[0][:, 7:14] @ (Y_source - Y_target)
    moved = intervene(score, {after: record(score, after)(OTHER)[1][after] + written})
    Q = record(moved, receiver)(OTHER)[1][receiver]
    found = patching.path_patching(score, sender, receiver, (X,), (OTHER,))
    cases.assert_close(found, intervene(score, {receiver: Q})(OTHER))


@pytest.mark.end_to_end
def test_causal_tracing_brings_the_clean_score_back():
    tokens, noise = slice(1, 3), cases.normal(11, 2)
    corrupted, restored = patching.causal_tracing(score, (X,), tokens, noise)
    _, seen = record(score, "X@3")(X)
    by_hand = intervene(score, {"X@3": seen["X@3"].at[:, 1:3].add(noise)})(X)
    cases.assert_close(corrupted, by_hand)
    assert abs(corrupted - score(X)) > 1e-3
    cases.assert_close(restored[-1, -1], score(X))
    cases.assert_close(restored[0, 0], corrupted)  # a token before the noise is clean as it is

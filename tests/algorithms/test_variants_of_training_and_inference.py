"""Algorithms 11 to 15 have θ's variant and take an implementation; what does not fit, or lacks a key, is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    BIDIRECTIONAL,
    PAPER,
    VASWANI,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    attention,
    bos_token,
    d_hidden_state,
    d_inference,
    d_training,
    d_transformer,
    e_encoding,
    e_hidden_state,
    e_training,
    e_transformer,
    ed_decoding,
    ed_encoding,
    ed_hidden_state,
    ed_inference,
    ed_training,
    ed_transformer,
    eos_token,
    log_loss,
    mask_token,
    mh_attention,
    scaled_dot_product_attention,
)
from algorithms.lines import MLP, Embedding, LayerNorm, RMSNorm, Unembedding
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

pytestmark = pytest.mark.sampled(3)

SIZES = {"N_V": 7, "l_max": 8, "H": 2, "d_e": 4, "d_mlp": 3, "d_attn": 1, "d_mid": 5}
LAYERS = {"d": {"L": 1}, "e": {"L": 1}, "ed": {"L_enc": 1, "L_dec": 1}}
CONFIGS = {"d": DTransformerConfig, "e": ETransformerConfig, "ed": EDTransformerConfig}
N_V, ETA, KEY = SIZES["N_V"], 0.05, jax.random.key(3)
x, z = cases.random_tokens(2, 5, n=N_V), cases.random_tokens(2, 3, n=N_V, seed=1)
# Each differs from the paper in every field that its architecture reads.
VARIANTS = {
    "d": PAPER.but(
        embedding=Embedding(scaled=True),
        norm=RMSNorm(epsilon=0.1),
        mlp=MLP(activation="gelu_tanh"),
        unembedding=Unembedding(tied=True),
    ),
    "e": PAPER.but(
        embedding=Embedding(normalized=True),
        norm=LayerNorm(epsilon=0.1),
        mlp=MLP(activation="relu"),
        unembedding=Unembedding(tied=True, bias=True),
    ),
    "ed": VASWANI.but(norm=LayerNorm(epsilon=0.1), mlp=MLP(activation="gelu")),
}


@functools.cache
def theta_of(architecture, variant, seed=0, scale=0.5):
    return cases.random_theta(
        CONFIGS[architecture](variant=variant, **SIZES, **LAYERS[architecture]), seed, scale=scale
    )


def descended(loss, theta, of_sequences):
    """``θ ← θ − η ∇loss(θ)`` by hand, sequence by sequence."""
    gradient = jax.jit(jax.grad(loss))
    for arguments in of_sequences:
        theta = jax.tree.map(lambda W, g: W - ETA * g, theta, gradient(theta, *arguments))
    return theta


def d_trained(theta, **options):
    def loss(theta, x):
        X = d_hidden_state(x, theta, **options)
        return log_loss(X[:, :-1], theta.W_e.T, x[1:], implementation="paper")

    return descended(loss, theta, [(x_n,) for x_n in x])


def e_trained(theta, **options):
    hidden = [jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(KEY, 0), n), 0.5, (5,)) for n in range(2)]
    assert 0 < sum(map(np.sum, hidden)) < 10

    def loss(theta, x, hidden):
        X = e_hidden_state(jnp.where(hidden, mask_token(N_V), x), theta, **options)
        weights = (hidden | (x == mask_token(N_V))).astype(X.dtype)
        return log_loss(X, theta.W_e.T, x, b_u=theta.b_u, weights=weights, implementation="paper")

    return descended(loss, theta, list(zip(x, hidden, strict=True)))


def ed_trained(theta, **options):
    def loss(theta, z, x):
        X = ed_hidden_state(z, x, theta, **options)
        return log_loss(X[:, :-1], theta.W_e.T, x[1:], implementation="paper")

    return descended(loss, theta, list(zip(z, x, strict=True)))


TRAININGS = {
    "d": (functools.partial(d_training, x, N_epochs=1, eta=ETA), d_trained),
    "e": (functools.partial(e_training, x, N_epochs=1, eta=ETA, p_mask=0.5, key=KEY), e_trained),
    "ed": (functools.partial(ed_training, z, x, N_epochs=1, eta=ETA), ed_trained),
}


@pytest.mark.parametrize(
    ("architecture", "implementation"),
    [
        ("d", "auto"),
        ("e", "paper"),
        *(pytest.param("ed", how, marks=pytest.mark.slow) for how in ("auto", *cases.IMPLEMENTATIONS)),
        *(pytest.param(a, how, marks=pytest.mark.slow) for a in ("d", "e") for how in cases.IMPLEMENTATIONS),
    ],
)
def test_training_with_a_variant_is_its_steps_by_hand(architecture, implementation):
    variant = VARIANTS[architecture]
    theta = theta_of(architecture, variant)
    train, by_hand = TRAININGS[architecture]
    expected = by_hand(theta, implementation="paper")
    trained = train(theta, implementation=implementation)
    assert trained.variant == variant
    cases.assert_trees_close(trained, expected)
    for leaf, initial in zip(jax.tree.leaves(trained), jax.tree.leaves(theta), strict=True):
        assert np.abs(leaf - initial).max() > 0 or leaf.size < 20  # b_k has no gradient


PROMPTS = cases.random_tokens(7, 2, n=N_V)
CONTEXTS = cases.random_tokens(7, 3, n=N_V, seed=1)
KEYS = jax.random.split(KEY, 7)


def likeliest_continuations(theta, l_gen, **options):
    """Token by token; what stands behind a token does not change its distribution."""
    f = jax.jit(lambda x: d_transformer(x, theta, **options))
    x = np.concatenate([PROMPTS, np.zeros((7, l_gen), int)], axis=1).astype(np.int32)
    for i in range(2, 2 + l_gen):
        x[:, i] = np.argmax(f(jnp.asarray(x))[:, :, i - 1], axis=0)
    return x[:, 2:]


def likeliest_transductions(theta, l_max, **options):
    f = jax.jit(lambda x: ed_transformer(CONTEXTS, x, theta, **options))
    x = np.full((7, l_max), eos_token(N_V), np.int32)
    x[:, 0] = bos_token(N_V)
    for i in range(1, l_max):
        going_on = x[:, i - 1] != eos_token(N_V)
        x[:, i] = np.where(going_on, np.argmax(f(jnp.asarray(x))[:, :, i - 1], axis=0), eos_token(N_V))
    return x


INFERENCES = {
    "d": (
        lambda theta, **options: d_inference(PROMPTS, theta, l_gen=6, tau=0.0, key=KEYS, **options),
        lambda theta, **options: likeliest_continuations(theta, 6, **options),
    ),
    "ed": (
        lambda theta, **options: ed_inference(CONTEXTS, theta, tau=0.0, key=KEYS, l_max=6, **options)[0],
        lambda theta, **options: likeliest_transductions(theta, 6, **options),
    ),
}


@pytest.mark.parametrize(
    ("architecture", "implementation"),
    [
        ("d", "auto"),
        ("ed", "paper"),
        *(pytest.param(a, how, marks=pytest.mark.slow) for a in INFERENCES for how in cases.IMPLEMENTATIONS),
    ],
)
def test_inference_with_a_variant_takes_its_likeliest_tokens(architecture, implementation):
    variant = VARIANTS[architecture]
    theta = theta_of(architecture, variant, seed=1 if architecture == "d" else 3, scale=1.0)
    if architecture == "ed":  # so that the tokens depend on the context, and not on the last β alone
        norm = theta.decoder.norm5
        theta = theta._replace(decoder=theta.decoder._replace(norm5=norm._replace(beta=0 * norm.beta)))
    infer, by_hand = INFERENCES[architecture]
    expected = by_hand(theta)
    np.testing.assert_array_equal(infer(theta, implementation=implementation), expected)
    other = variant.but(
        embedding=variant.embedding.but(scaled=not variant.embedding.scaled), norm=variant.norm.but(epsilon=1e-6)
    )
    assert (by_hand(theta._replace(variant=other)) != expected).any()
    assert len(np.unique(expected, axis=0)) > 1


# Everything that has a variant, by its parameters.
Z = cases.normal(4, 3)
OF_A_VARIANT = {
    "d": {
        "d_transformer": lambda theta, **o: d_transformer(x[0], theta, **o),
        "d_hidden_state": lambda theta, **o: d_hidden_state(x[0], theta, **o),
        "d_training": lambda theta, **o: d_training(x, theta, N_epochs=1, eta=ETA, **o),
        "d_inference": lambda theta, **o: d_inference(x[0], theta, l_gen=2, tau=1.0, key=KEY, **o),
    },
    "e": {
        "e_transformer": lambda theta, **o: e_transformer(x[0], theta, **o),
        "e_hidden_state": lambda theta, **o: e_hidden_state(x[0], theta, **o),
        "e_encoding": lambda theta, **o: e_encoding(x[0], theta, **o),
        "e_training": lambda theta, **o: e_training(x, theta, N_epochs=1, eta=ETA, p_mask=0.5, key=KEY, **o),
    },
    "ed": {
        "ed_transformer": lambda theta, **o: ed_transformer(z[0], x[0], theta, **o),
        "ed_hidden_state": lambda theta, **o: ed_hidden_state(z[0], x[0], theta, **o),
        "ed_encoding": lambda theta, **o: ed_encoding(z[0], theta, **o),
        "ed_decoding": lambda theta, **o: ed_decoding(Z, x[0], theta, **o),
        "ed_training": lambda theta, **o: ed_training(z, x, theta, N_epochs=1, eta=ETA, **o),
        "ed_inference": lambda theta, **o: ed_inference(z[0], theta, tau=1.0, key=KEY, l_max=3, **o),
    },
}
every_function = pytest.mark.parametrize(
    ("architecture", "name"), [(a, name) for a, functions in OF_A_VARIANT.items() for name in functions]
)


RMS, SINUSOIDAL = PAPER.but(norm=RMSNorm()), PAPER.but(embedding=Embedding(positions="sinusoidal"))
# (the parameters', the variant that is asked for, what of the parameters does not fit it)
MISFITS = [
    (PAPER, RMS, r"\.beta: expected None in PAPER.but\(norm=RMSNorm\(\)\)"),
    (RMS, PAPER, r"\.beta: expected an array .*d_e\] in PAPER, got None"),
    (SINUSOIDAL, PAPER, "W_p: .* in PAPER, got"),
    (PAPER, SINUSOIDAL, "W_p: expected None in PAPER.but"),
]


@pytest.mark.usefixtures("as_for_users")
@every_function
def test_a_variant_that_cannot_be_the_parameters_is_refused(architecture, name):
    for of_theta, variant, field in MISFITS:
        with pytest.raises(ValueError, match=field):
            OF_A_VARIANT[architecture][name](theta_of(architecture, of_theta)._replace(variant=variant))


@pytest.mark.usefixtures("as_for_users")
@every_function
def test_an_implementation_is_heeded_and_known(architecture, name):
    f, theta = OF_A_VARIANT[architecture][name], theta_of(architecture, PAPER)
    with pytest.raises(ValueError, match=r"implementation: expected one of .*, got 'fast'"):
        f(theta, implementation="fast")
    with pytest.raises(ValueError, match=r'implementation="cudnn" is not available'):
        f(theta, implementation="cudnn")


# Dropout draws from a key.
X, W_QKV, W, Q = cases.normal(7, 3), head_params(d_z=7), mh_params(d_z=7), cases.normal(5, 3)
WITH_DROPOUT = {
    "attention": lambda **o: attention(X, X, W_QKV, BIDIRECTIONAL, dropout=0.1, **o),
    "mh_attention": lambda **o: mh_attention(X, X, W, BIDIRECTIONAL, dropout=0.1, **o),
    "scaled_dot_product_attention": lambda **o: scaled_dot_product_attention(Q, Q, Q, BIDIRECTIONAL, dropout=0.1, **o),
} | {
    name: functools.partial(f, theta_of(architecture, PAPER), dropout=0.1)
    for architecture, functions in OF_A_VARIANT.items()
    for name, f in functions.items()
    if not name.endswith(("training", "inference"))
}


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_dropout_without_a_key_is_refused(name):
    f = WITH_DROPOUT[name]
    with pytest.raises(ValueError, match=r"\bkey: .*needs .*jax\.random\.key"):
        f()
    with pytest.raises(ValueError, match=r"\bkey: .*needs .*jax\.random\.key"):
        f(key=None)
    assert jax.eval_shape(lambda: f(key=KEY)).ndim == 2


def test_without_dropout_a_key_changes_nothing():
    one, other = (mh_attention(X, X, W, BIDIRECTIONAL, **options) for options in ({}, {"key": KEY}))
    np.testing.assert_array_equal(one, other)

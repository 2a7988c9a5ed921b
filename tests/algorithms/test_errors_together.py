"""Every message for inputs that are right each by itself, and wrong together: batches, keys, lengths, variants."""

import jax
import jax.numpy as jnp
import pytest

from algorithms import (
    BERT,
    PAPER,
    UNIDIRECTIONAL,
    VASWANI,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    attention,
    d_hidden_state,
    d_inference,
    d_training,
    d_transformer,
    documents,
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
    log_loss,
    mh_attention,
    padding,
    scaled_dot_product_attention,
    single_query_attention,
    token_embedding,
)
from algorithms.lines import RMSNorm
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params
from tests.algorithms.test_errors import assert_told

pytestmark = pytest.mark.usefixtures("as_for_users")


d = cases.random_theta(DTransformerConfig(L=1, **cases.TINY))
e = cases.random_theta(ETransformerConfig(L=1, d_f=2, **cases.TINY))
ed = cases.random_theta(EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY))
bert = cases.random_theta(ETransformerConfig(L=1, variant=BERT, **cases.TINY))
RMS = PAPER.but(norm=RMSNorm())
rms = cases.random_theta(DTransformerConfig(L=1, variant=RMS, **cases.TINY))
x, xs, three = cases.random_tokens(3, n=7), cases.random_tokens(2, 3, n=7), cases.random_tokens(3, 3, n=7)
X, XS, Q = cases.normal(7, 3), cases.normal(7, 2, 3), cases.normal(5, 2, 3)
W_qkv, W = head_params(d_z=7), mh_params(d_z=7)
MASK, MASKS = jnp.ones((3, 3), bool), jnp.ones((3, 3, 3), bool)
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 2)

OF_2 = "…batch = [2] from "  # what a message has of a batch of two sequences
BATCHES = [
    (lambda: attention(XS, cases.normal(7, 3, 3), W_qkv, MASK), f"Z: expected…[d_z, *batch, l_z] with{OF_2}X, got"),
    (lambda: attention(X, XS, W_qkv, MASK), "Z: expected…batch = [] from X, got float64[7, 2, 3]"),
    (lambda: attention(XS, XS, W_qkv, MASKS), f"mask: expected booleans{OF_2}X,…got bool[3, 3, 3]; rows are"),
    (lambda: attention(X, X, W_qkv, MASKS), "mask: expected booleans…batch = [] from X,…got bool[3, 3, 3]"),
    (lambda: attention(XS, XS, W_qkv, MASK[None]), f"mask: expected booleans{OF_2}X,…got bool[1, 3, 3]"),
    (lambda: attention(*[XS[:, :, None]] * 2, W_qkv, MASKS[:2]), "mask:…batch = [2, 1] from X,…got bool[2, 3, 3]"),
    (lambda: scaled_dot_product_attention(Q, Q[:, :1], Q, MASK), f"K: expected…{OF_2}Q, got float64[5, 1, 3]"),
    (lambda: mh_attention(XS, XS, W, padding(jnp.array([1, 2, 3]))), f"mask.length: expected{OF_2}X, got int64[3]"),
    (lambda: mh_attention(XS, XS, W, documents(three)), f"mask.documents_z:{OF_2}X, l_z = 3 from Z, got int32[3, 3]"),
    (lambda: scaled_dot_product_attention(Q, Q, cases.normal(5, 3, 3), MASK), f"V: expected…{OF_2}Q, l_z = 3 from K"),
    (lambda: single_query_attention(XS[..., 0], X, W_qkv), f"E: expected…d_in = 7 from e, {OF_2[1:]}e, got float64[7,"),
    (
        lambda: log_loss(XS, X.T, xs.T),
        f"targets: expected integers [*batch, l] with{OF_2}X, l = 3 from X, got int32[3,",
    ),
    (lambda: log_loss(XS, X.T, xs, weights=X[0]), f"weights: expected…{OF_2}X, l = 3 from X, got float64[3]"),
    (
        lambda: ed_transformer(three, xs, ed),
        "x: expected integers [*batch, l_x] with batch = [3] from z, got int32[2, 3]",
    ),
    (lambda: ed_transformer(xs, x, ed), "x: expected integers [*batch, l_x] with batch = [2] from z, got int32[3]"),
    (lambda: ed_decoding(cases.normal(3, 3, 4), xs, ed), "x: expected…batch = [3] from Z, got int32[2, 3]"),
    (lambda: e_transformer(xs, e, length=jnp.array([1, 2, 3])), f"length: expected{OF_2}x, got int64[3]"),
    (lambda: ed_encoding(xs, ed, z_length=jnp.array([1, 2, 3])), f"z_length: expected{OF_2}z, got int64[3]"),
    (lambda: d_hidden_state(xs, d, positions=three), f"positions: expected{OF_2}x, l = 3 from x, got int32[3, 3]"),
    (lambda: d_hidden_state(xs, d, segments=three), f"segments: expected{OF_2}x, l = 3 from x, got int32[3, 3]"),
    (
        lambda: d_transformer(x, jax.tree.map(lambda a: a[None], d)),
        "theta.W_e: expected…[d_e, N_V], got float64[1, 3, 7]",
    ),
]

A_KEY_FOR_EACH = f"key: expected a typed key [*batch] with{OF_2}…; give one for each sequence: jax.random.split(key, 2)"
KEYS_OF_A_BATCH = [
    (lambda: d_transformer(xs, d, dropout=0.1, key=KEY), A_KEY_FOR_EACH),
    (lambda: e_encoding(xs, e, dropout=0.1, key=KEY), A_KEY_FOR_EACH),
    (lambda: ed_hidden_state(xs, xs, ed, dropout=0.1, key=KEY), A_KEY_FOR_EACH),
    (lambda: mh_attention(XS, XS, W, MASK, dropout=0.1, key=KEY), A_KEY_FOR_EACH),
    (lambda: d_inference(xs, d, l_gen=1, tau=1.0, key=KEY), A_KEY_FOR_EACH),
    (lambda: ed_inference(xs, ed, tau=1.0, key=KEY), A_KEY_FOR_EACH),
    (lambda: d_inference(xs, d, l_gen=1, tau=1.0, key=jax.random.split(KEY, 3)), A_KEY_FOR_EACH),
    (lambda: d_inference(xs[None], d, l_gen=1, tau=1.0, key=KEYS), "key:…batch = [1, 2]…; give…split(key, (1, 2))"),
    (lambda: d_inference(x, d, l_gen=1, tau=1.0, key=KEYS), "key: expected…batch = [] from x…; give a single one"),
    (
        lambda: e_training(xs, e, N_epochs=1, eta=0.1, p_mask=0.5, key=KEYS),
        "key: expected a typed key [], got key<fry>[2]",
    ),
    (
        lambda: ed_transformer(x, xs, ed, dropout=0.1, key=KEYS),
        "z: expected one context per sequence of x, since dropout draws separately for each, got one for all",
    ),
]

UP_TO = "expected at least 0 and at most"
LENGTHS = [
    (lambda: e_transformer(x, e, length=jnp.asarray(4)), f"length: {UP_TO} l = 3 tokens, got 4"),
    (lambda: e_transformer(x, e, length=jnp.asarray(-1)), f"length: {UP_TO} l = 3 tokens, got -1"),
    (lambda: e_hidden_state(xs, e, length=jnp.array([1, 4])), f"length: {UP_TO} l = 3 tokens, got [1 4]"),
    (lambda: e_encoding(x, e, length=4), f"length: {UP_TO} l = 3 tokens, got 4"),
    (lambda: ed_transformer(x, x, ed, z_length=jnp.asarray(4)), f"z_length: {UP_TO} l_z = 3 tokens, got 4"),
    (lambda: ed_hidden_state(x, x, ed, z_length=4), f"z_length: {UP_TO} l_z = 3 tokens, got 4"),
    (lambda: ed_encoding(x, ed, z_length=4), f"z_length: {UP_TO} l_z = 3 tokens, got 4"),
    (lambda: ed_decoding(cases.normal(3, 3), x, ed, z_length=4), f"z_length: {UP_TO} l_z = 3 tokens, got 4"),
    (
        lambda: ed_inference(x, ed, tau=1.0, key=KEY, z_length=jnp.asarray(4)),
        f"z_length: {UP_TO} l_z = 3 tokens, got 4",
    ),
    (
        lambda: d_training(xs, d, N_epochs=1, eta=0.1, lengths=jnp.array([1, 4])),
        f"lengths: {UP_TO} l = 3 tokens, got [1 4]",
    ),
    (
        lambda: e_training(xs, e, N_epochs=1, eta=0.1, p_mask=0.5, key=KEY, lengths=jnp.array([1, 4])),
        f"lengths: {UP_TO} l = 3 tokens, got [1 4]",
    ),
    (
        lambda: ed_training(xs, xs, ed, N_epochs=1, eta=0.1, x_lengths=jnp.array([-1, 3])),
        f"x_lengths: {UP_TO} l_x = 3 tokens, got [-1  3]",
    ),
    (lambda: d_inference(x, d, l_gen=1, tau=jnp.asarray(-1.0), key=KEY), "tau: expected a temperature >= 0…got -1.0"),
    (lambda: d_training(xs, d, N_epochs=1, eta=jnp.asarray(-1.0)), "eta: expected a learning rate >= 0, got -1.0"),
]

NEEDS_A_KEY = "key: dropout = 0.3 needs one; give key=jax.random.key(seed), or dropout=0.0"
DROPOUT = [
    (lambda: attention(X, X, W_qkv, MASK, dropout=0.3), NEEDS_A_KEY),
    (lambda: mh_attention(X, X, W, UNIDIRECTIONAL, dropout=0.3), NEEDS_A_KEY),
    (lambda: scaled_dot_product_attention(X, X, X, MASK, dropout=0.3), NEEDS_A_KEY),
    (lambda: d_transformer(x, d, dropout=0.3), NEEDS_A_KEY),
    (lambda: d_hidden_state(x, d, dropout=0.3), NEEDS_A_KEY),
    (lambda: e_transformer(x, e, dropout=0.3), NEEDS_A_KEY),
    (lambda: ed_transformer(x, x, ed, dropout=0.3), NEEDS_A_KEY),
    (lambda: e_hidden_state(x, e, dropout=0.3), NEEDS_A_KEY),
    (lambda: e_encoding(x, e, dropout=0.3), NEEDS_A_KEY),
    (lambda: ed_hidden_state(x, x, ed, dropout=0.3), NEEDS_A_KEY),
    (lambda: ed_encoding(x, ed, dropout=0.3), NEEDS_A_KEY),
    (lambda: ed_decoding(cases.normal(3, 3), x, ed, dropout=0.3), NEEDS_A_KEY),
    (lambda: d_transformer(x, d, dropout=1.0, key=KEY), "dropout: expected a probability in [0, 1), got 1.0"),
]

LACKS_BETA = "beta: expected an array […d_e] in PAPER, got None; use the variant that these parameters were made"
HAS_BETA = "beta: expected None in PAPER.but(norm=RMSNorm(…)), got parameters; use the variant that these"
VARIANTS = [
    (
        lambda: d_training(xs, d._replace(W_p=None), N_epochs=1, eta=0.1),
        "theta.W_p: expected an array [d_e, l_max] in PAPER, got None; use",
    ),
    (
        lambda: ed_transformer(x, x, ed._replace(variant=VASWANI)),
        "theta.W_p: expected None in VASWANI, got parameters; use the variant",
    ),
    (lambda: d_transformer(x, rms._replace(variant=PAPER)), LACKS_BETA),
    (lambda: d_inference(x, rms._replace(variant=PAPER), l_gen=1, tau=1.0, key=KEY), LACKS_BETA),
    (lambda: d_transformer(x, d._replace(norm=rms.norm)), LACKS_BETA),  # of one norm only
    (lambda: d_transformer(x, d._replace(variant=RMS)), HAS_BETA),
    (lambda: d_transformer(x, rms._replace(norm=d.norm)), HAS_BETA),
    (lambda: ed_inference(x, ed._replace(variant=RMS), tau=1.0, key=KEY), HAS_BETA),
    (
        lambda: e_transformer(x, bert._replace(variant=PAPER)),
        "theta.embedding_norm: expected None in PAPER, got parameters; use",
    ),
    (
        lambda: e_transformer(x, bert._replace(embedding_norm=None, variant=PAPER)),
        "theta.b_u: expected None in PAPER, got parameters; use the",
    ),
    (
        lambda: e_training(xs, e._replace(W_u=None), N_epochs=1, eta=0.1, p_mask=0.5, key=KEY),
        "theta.W_u: a tied unembedding needs d_f = d_e = 3, got d_f = 2; give W_u",
    ),
]


@pytest.mark.parametrize(("call", "message"), BATCHES + KEYS_OF_A_BATCH + LENGTHS + DROPOUT + VARIANTS)
def test_what_does_not_go_together_is_told(call, message):
    assert_told(call, ValueError, message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: d_transformer(x), "d_transformer() missing a required argument: 'theta'"),
        (lambda: d_transformer(x, d, z_length=3), "d_transformer() got an unexpected keyword argument 'z_length'"),
        (lambda: d_transformer(x, d, variant=RMS), "d_transformer() got an unexpected keyword argument 'variant'"),
        (lambda: e_transformer(x, e, length="3"), "length: expected a number, got str '3'"),
        (lambda: d_inference(x, d, l_gen=1, tau="1", key=KEY), "tau: expected a number, got str '1'"),
        (lambda: attention(X, X, W_qkv, MASK, dropout="0.1"), "dropout: expected a number, got str '0.1'"),
        (lambda: token_embedding(jnp.array([True]), X), "v: expected integers [*batch], got bool[1]"),
        (
            lambda: d_transformer(xs, d, dropout=0.1, key=jax.random.PRNGKey(0)),
            "key: expected a typed key, jax.random",
        ),
    ],
)
def test_another_kind_of_argument_is_told(call, message):
    assert_told(call, TypeError, message)

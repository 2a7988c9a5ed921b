"""Every message for a wrong input: what was expected, what came, and what to do."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    BERT,
    PAPER,
    UNIDIRECTIONAL,
    VASWANI,
    AttentionParams,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    attention,
    banded,
    d_hidden_state,
    d_inference,
    d_training,
    d_transformer,
    documents,
    e_training,
    e_transformer,
    ed_inference,
    ed_training,
    ed_transformer,
    init_d_transformer,
    init_ed_transformer,
    layer_norm,
    log_loss,
    mh_attention,
    padding,
    positional_embedding,
    rms_norm,
    scaled_dot_product_attention,
    single_query_attention,
    sinusoidal_positional_embedding,
    token_embedding,
    unembedding,
)
from algorithms.lines import MLP, Attention, Embedding, LayerNorm, Rotary
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

pytestmark = pytest.mark.usefixtures("as_for_users")


D, E, ED = (
    DTransformerConfig(L=1, **cases.TINY),
    ETransformerConfig(L=1, d_f=2, **cases.TINY),
    EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY),
)
d, e, ed = cases.random_theta(D), cases.random_theta(E), cases.random_theta(ED)
sinusoidal = ed._replace(W_p=None, variant=PAPER.but(embedding=Embedding(positions="sinusoidal")))
x, xs = cases.random_tokens(3, n=7), cases.random_tokens(2, 3, n=7)
X, W_qkv, W = cases.normal(7, 3), head_params(d_z=7), mh_params(d_z=7)
Q = cases.normal(5, 3)
KEY, KEYS = jax.random.key(0), jax.random.split(jax.random.key(0), 2)
SIZES = {"N_V": 7, "l_max": 5, "H": 2, "d_e": 6, "d_mlp": 4, "L": 1}
MASK = jnp.ones((3, 3), bool)


def config(**changes):
    return DTransformerConfig(**(SIZES | changes))


# (call, type of the exception, what its message has, "…" for anything)
TABLE = [
    # Algorithms 1 and 2, and the sinusoids
    (lambda: token_embedding(1.5, X), TypeError, "v: expected integers [*batch], got float 1.5"),
    (lambda: token_embedding(True, X), TypeError, "v: expected integers [*batch], got bool True"),
    (lambda: token_embedding(1, x), TypeError, "W_e: expected floating-point numbers [d_e, N_V], got int32[3]"),
    (
        lambda: token_embedding(1, [X]),
        TypeError,
        "W_e: expected floating-point numbers [d_e, N_V], got list; make it an array with jnp.asarray",
    ),
    (
        lambda: token_embedding(1, X[0]),
        ValueError,
        "W_e: expected floating-point numbers [d_e, N_V], got float64[3]; tokens are columns",
    ),
    (lambda: positional_embedding(0.0, X), TypeError, "l: expected integers [*batch], got float 0.0"),
    (
        lambda: positional_embedding(0, X[0]),
        ValueError,
        "W_p: expected floating-point numbers [d_e, l_max], got float64[3]; tokens are columns",
    ),
    (lambda: sinusoidal_positional_embedding(7, 5), ValueError, "d_e: expected a positive even number,…got 7"),
    (lambda: sinusoidal_positional_embedding(0, 5), ValueError, "d_e: expected a positive even number,…got 0"),
    (lambda: sinusoidal_positional_embedding(2, 0), ValueError, "l_max: expected a positive number…got 0"),
    (lambda: sinusoidal_positional_embedding(2, 1, base=1), ValueError, "base: expected a number above 1…got 1"),
    # Algorithms 3, 4 and 5
    (
        lambda: single_query_attention(X[:3, 0], X, W_qkv),
        ValueError,
        "E: expected floating-point numbers [d_in, *batch, T] with d_in = 3 from e,…got float64[7, 3]",
    ),
    (lambda: single_query_attention(X[:, 0], X, W), TypeError, "W_qkv: expected AttentionParams, got MHAttention"),
    (
        lambda: single_query_attention(X[:, 0], X, W_qkv._replace(b_k=W_qkv.b_v)),
        ValueError,
        "W_qkv.b_k: expected floating-point numbers [d_attn] with d_attn = 5 from W_qkv.W_q, got float64[3]",
    ),
    (
        lambda: attention(X, cases.normal(11, 3), W_qkv, UNIDIRECTIONAL),
        ValueError,
        "W_qkv.W_k: expected floating-point numbers [d_attn, d_z] with d_attn = 5…d_z = 11 from Z, got float64[5, 7]",
    ),
    (
        lambda: attention(X.T, X, W_qkv, UNIDIRECTIONAL),
        ValueError,
        "W_qkv.W_q:…with d_x = 3 from X, got float64[5, 7]; tokens are columns, weights are [d_out, d_in]",
    ),
    (
        lambda: attention(X[None], X, W_qkv, MASK),
        ValueError,
        "W_qkv.W_q:…with d_x = 1 from X, got float64[5, 7];…and a batch is [d, *batch, l]",
    ),
    (lambda: attention(X, X, tuple(W_qkv), MASK), TypeError, "W_qkv: expected AttentionParams, got tuple"),
    (
        lambda: attention(X, X, W_qkv, MASK.astype(int)),
        TypeError,
        "mask: expected a structural mask such as UNIDIRECTIONAL, or booleans [*batch, l_z, l_x], got int",
    ),
    (
        lambda: attention(X, X, W_qkv, None),
        TypeError,
        "mask: expected a structural mask such as UNIDIRECTIONAL, or booleans [*batch, l_z, l_x], got NoneType None",
    ),
    (
        lambda: attention(X, X[:, :2], W_qkv, MASK),
        ValueError,
        "mask: expected booleans [*batch, l_z, l_x] with…l_z = 2 from Z, l_x = 3 from X, got bool[3, 3]; rows are",
    ),
    (
        lambda: attention(X, X, W_qkv, documents(jnp.zeros(2, int))),
        ValueError,
        "mask.documents_z: expected integers [*batch, l_z] with batch = [] from X, l_z = 3 from Z, got int64[2]",
    ),
    (lambda: attention(X, X, W_qkv, MASK, implementation="fast"), ValueError, "one of 'auto', 'paper'…, got 'fast'"),
    (lambda: attention(X, X, W_qkv, MASK, dropout=1.0), ValueError, "dropout: expected a probability in [0, 1), got 1"),
    (
        lambda: attention(X, X, W_qkv, MASK, key=jax.random.PRNGKey(0)),
        TypeError,
        "key: expected a typed key, jax.random.key(seed), got uint32[2]",
    ),
    (
        lambda: attention(X, X, W_qkv, MASK, key=KEYS),
        ValueError,
        "key: expected a typed key [*batch] with batch = [] from X, got key<fry>[2]; give a single one",
    ),
    (
        lambda: mh_attention(X, X, W._replace(W_o=W.W_o[:, :4]), MASK),
        ValueError,
        "W.W_o: expected floating-point numbers [d_out, H*d_mid] with H = 2…d_mid = 3 from W.heads.W_v, got float64[13",
    ),
    (
        lambda: mh_attention(X, X, W._replace(heads=jax.tree.map(lambda a: a[0], W.heads)), MASK),
        ValueError,
        "W.heads.W_q: expected floating-point numbers [H, d_attn, d_x] with d_x = 7 from X, got float64[5, 7]",
    ),
    (lambda: mh_attention(X, X, W_qkv, MASK), TypeError, "W: expected MHAttentionParams, got AttentionParams"),
    (
        lambda: scaled_dot_product_attention(Q, Q[:3], Q, MASK),
        ValueError,
        "K: expected floating-point numbers [d_attn, *batch, l_z] with d_attn = 5 from Q,…got float64[3, 3]",
    ),
    (
        lambda: scaled_dot_product_attention(Q, Q, Q[:, :2], MASK),
        ValueError,
        "V: expected floating-point numbers [d_mid, *batch, l_z] with…l_z = 3 from K, got float64[5, 2]",
    ),
    (
        lambda: jax.jvp(lambda X: attention(X, X, W_qkv, MASK, implementation="dense"), (X,), (X,)),
        TypeError,
        'forward-mode differentiation…reverse mode only; give implementation="paper"',
    ),
    # masks
    (lambda: banded(0), ValueError, "banded: expected a width of at least 1 token, got 0"),
    (lambda: banded(1.5), ValueError, "banded: expected a width of at least 1 token, got 1.5"),
    (lambda: padding(-1), ValueError, "padding: expected a length >= 0, got -1"),
    (lambda: padding(1.5), TypeError, "padding: expected an integer length, or one for each sequence, got 1.5"),
    (lambda: padding(jnp.array([1, -2])), ValueError, "padding: expected a length >= 0, got [ 1 -2]"),
    (
        lambda: documents(x) & documents(x),
        ValueError,
        "cannot join two documents() masks: number the documents of both",
    ),
    (
        lambda: UNIDIRECTIONAL & MASK.astype(int),
        TypeError,
        "mask: expected booleans [*batch, l_z, l_x], got int64[3, 3]",
    ),
    (lambda: UNIDIRECTIONAL & MASK[0], TypeError, "mask: expected booleans [*batch, l_z, l_x], got bool[3]"),
    # Algorithms 6 and 7, the loss
    (
        lambda: layer_norm(X[0], X[0], Q[:, 0]),
        ValueError,
        "beta: expected floating-point numbers [d_e] with d_e = 3 from e, got float64[5]",
    ),
    (lambda: layer_norm(X[0], X[0], X[0], epsilon=-1), ValueError, "epsilon: expected a number >= 0, got -1"),
    (lambda: layer_norm(x, X[0], X[0]), TypeError, "e: expected floating-point numbers [d_e, *batch], got int32[3]"),
    (
        lambda: rms_norm(X[0], Q[:, 0]),
        ValueError,
        "gamma: expected floating-point numbers [d_e] with d_e = 3 from e, got float64[5]",
    ),
    (lambda: rms_norm(X[0], X[0], epsilon=float("nan")), ValueError, "epsilon: expected a number >= 0, got nan"),
    (
        lambda: unembedding(Q[:, 0], X),
        ValueError,
        "W_u: expected floating-point numbers [N_V, d_e] with d_e = 5 from e, got float64[7, 3]",
    ),
    (
        lambda: log_loss(X, X.T, x[:2]),
        ValueError,
        "targets: expected integers [*batch, l] with batch = [] from X, l = 3 from X, got int32[2]",
    ),
    (lambda: log_loss(X, X.T, X[0]), TypeError, "targets: expected integers [*batch, l], got float64[3]"),
    (
        lambda: log_loss(X, X.T, x, weights=X[0, :2]),
        ValueError,
        "weights: expected floating-point numbers [*batch, l] with batch = [] from X, l = 3 from X, got float64[2]",
    ),
    (
        lambda: log_loss(X, X.T, x, b_u=X[:, 0]),
        ValueError,
        "b_u: expected floating-point numbers [N_V] with N_V = 3 from W_u, got float64[7]",
    ),
    (lambda: log_loss(X, X.T, x, label_smoothing=1.0), ValueError, "label_smoothing: expected a share…got 1"),
    (lambda: log_loss(X, X.T, x, N_V=0), ValueError, "N_V: expected at least 1, or None, got 0"),
    (lambda: log_loss(X, X.T, x, implementation="no"), ValueError, "implementation: expected one of…got 'no'"),
    # Algorithms 8, 9 and 10
    (lambda: d_transformer(x, e), TypeError, "theta: expected DTransformerParams, got ETransformerParams"),
    (lambda: d_transformer(x, 3), TypeError, "theta: expected DTransformerParams, got int 3"),
    (
        lambda: d_transformer(X[0], d),
        TypeError,
        "x: expected integers [*batch, l] or floating-point numbers [d_e, *batch, l], got float64[3]",
    ),
    (
        lambda: d_transformer([1, 2], d),
        TypeError,
        "x: expected integers [*batch, l] or floating-point numbers [d_e, *batch, l], got list [1, 2]; make it",
    ),
    (lambda: d_transformer(x[0], d), ValueError, "x: expected integers [*batch, l], got int32[]"),
    (lambda: d_transformer(x[:0], d), ValueError, "x: expected at least one token,…begin with bos_token"),
    (
        lambda: d_transformer(jnp.tile(x, 2), d),
        ValueError,
        "x: expected at most l_max = 5 tokens, got 6; cut it into chunks, or make the parameters with a larger l_max",
    ),
    (
        lambda: d_transformer(x, d._replace(W_p=None)),
        ValueError,
        "theta.W_p: expected an array [d_e, l_max] in PAPER, got None; use the variant that these",
    ),
    (
        lambda: d_transformer(x, d._replace(variant="GPT2")),
        TypeError,
        "theta.variant: expected a Variant such as PAPER, got 'GPT2'",
    ),
    (
        lambda: d_transformer(x, d._replace(W_u=d.W_u[:, :2])),
        ValueError,
        "theta.W_u: expected floating-point numbers [N_V, d_e] with N_V = 7…d_e = 3 from theta.W_e, got float64[7, 2]",
    ),
    (
        lambda: d_transformer(x, d._replace(norm=d.norm._replace(gamma=X[:, 0]))),
        ValueError,
        "theta.norm.gamma: expected floating-point numbers [d_e] with d_e = 3 from theta.W_e, got",
    ),
    (
        lambda: d_transformer(x, jax.tree.map(lambda a: a[..., None], d)),
        ValueError,
        "theta.W_e: expected floating-point numbers [d_e, N_V], got float64[3, 7, 1]",
    ),
    (lambda: d_hidden_state(x, d, positions=X[0]), TypeError, "positions: expected integers"),
    (
        lambda: d_hidden_state(x, d, segments=xs),
        ValueError,
        "segments: expected integers [*batch, l] with batch = [] from x, l = 3 from x, got int32[2, 3]",
    ),
    (
        lambda: e_transformer(x, e._replace(W_u=None)),
        ValueError,
        "theta.W_u: a tied unembedding needs d_f = d_e = 3, got d_f = 2",
    ),
    (lambda: e_transformer(x, e, length=2.5), TypeError, "length: expected integers [*batch], got float 2.5"),
    (
        lambda: e_transformer(x, e, length=jnp.array([1, 2])),
        ValueError,
        "length: expected integers [*batch] with batch = [] from x, got int64[2]",
    ),
    (lambda: ed_transformer(X[0], x, ed), TypeError, "z: expected integers [*batch, l_z], got float64[3]"),
    (lambda: ed_transformer(x, x, d), TypeError, "theta: expected EDTransformerParams, got DTransformerParams"),
    (lambda: ed_transformer(x, jnp.tile(x, 2), ed), ValueError, "x: expected at most l_max = 5 tokens, got 6"),
    (lambda: ed_transformer(jnp.tile(x, 2), x, ed), ValueError, "z: expected at most l_max = 5 tokens, got 6"),
    (lambda: ed_transformer(x, x, ed, z_length=True), TypeError, "z_length: expected integers [*batch], got bool True"),
    # Algorithms 11, 12 and 13
    (
        lambda: ed_training(xs[:1], xs, ed, N_epochs=1, eta=0.1),
        ValueError,
        "x: expected integers [N_data, l_x] with N_data = 1 from z, got int32[2, 3]",
    ),
    (
        lambda: ed_training(xs, xs, ed, N_epochs=1, eta=0.1, z_lengths=np.array([1, 4])),
        ValueError,
        "z_lengths: expected at least 0 and at most l_z = 3 tokens, got [1 4]",
    ),
    (
        lambda: ed_training(xs, xs, ed, N_epochs=1, eta=0.1, x_lengths=np.array([1, -1])),
        ValueError,
        "x_lengths: expected at least 0 and at most l_x = 3 tokens, got [ 1 -1]",
    ),
    (lambda: d_training(x, d, N_epochs=1, eta=0.1), ValueError, "x: expected integers [N_data, l], got int32"),
    (lambda: d_training(xs, d, N_epochs=-1, eta=0.1), ValueError, "N_epochs: expected at least 0, got -1"),
    (lambda: d_training(xs, d, N_epochs=1.0, eta=0.1), TypeError, "N_epochs: expected an integer, got float 1.0"),
    (lambda: d_training(xs, d, N_epochs=1, eta=-0.1), ValueError, "eta: expected a learning rate >= 0, got -0.1"),
    (
        lambda: d_training(xs, d, N_epochs=1, eta=0.1, lengths=np.array([1, 2, 3])),
        ValueError,
        "lengths: expected integers [N_data] with N_data = 2 from x, got int64[3]",
    ),
    (
        lambda: d_training(xs, d, N_epochs=1, eta=0.1, lengths=np.array([1.0, 2.0])),
        TypeError,
        "lengths: expected integers [N_data], got float64[2]",
    ),
    (
        lambda: e_training(xs, e, N_epochs=1, eta=0.1, p_mask=0.0, key=KEY),
        ValueError,
        "p_mask: expected a probability in (0, 1), got 0.0",
    ),
    (
        lambda: e_training(xs, e, N_epochs=1, eta=float("nan"), p_mask=0.5, key=KEY),
        ValueError,
        "eta: expected a learning rate >= 0, got nan",
    ),
    (
        lambda: e_training(xs, e, N_epochs=1, eta=0.1, p_mask=0.5, key=0),
        TypeError,
        "key: expected a typed key, jax.random.key(seed), got int",
    ),
    # Algorithms 14 and 15
    (
        lambda: d_inference(x, d, l_gen=4, tau=1.0, key=KEY),
        ValueError,
        "l_gen: a prompt of 3 tokens and 4 more need l_max >= 6, got l_max = 5;…generate at most 3 tokens",
    ),
    (lambda: d_inference(x, d, l_gen=0, tau=1.0, key=KEY), ValueError, "l_gen: expected at least 1, got 0"),
    (lambda: d_inference(x, d, l_gen=True, tau=1.0, key=KEY), TypeError, "l_gen: expected an integer, got bool True"),
    (
        lambda: d_inference(x, d, l_gen=1, tau=-1.0, key=KEY),
        ValueError,
        "tau: expected a temperature >= 0 (0 is greedy, inf is uniform), got -1.0",
    ),
    (
        lambda: d_inference(X[0], d, l_gen=1, tau=1.0, key=KEY),
        TypeError,
        "x: expected integers [*batch, l], got float64[3]",
    ),
    (
        lambda: d_inference(x, d, l_gen=1, tau=1.0, key=KEYS),
        ValueError,
        "key: expected a typed key [*batch] with batch = [] from x, got key<fry>[2]; give a single one",
    ),
    (lambda: ed_inference(x, ed, tau=-1.0, key=KEY), ValueError, "tau: expected a temperature >= 0…got -1.0"),
    (lambda: ed_inference(x, ed, tau=1.0, key=KEY, l_max=0), ValueError, "l_max: expected at least 1, or None, got 0"),
    (
        lambda: ed_inference(x, ed, tau=1.0, key=KEY, l_max=6),
        ValueError,
        "l_max: expected at most 5, the l_max of the parameters, got 6",
    ),
    (
        lambda: ed_inference(x, sinusoidal, tau=1.0, key=KEY),
        ValueError,
        "l_max: expected the longest output in tokens, since these parameters set no limit, got None",
    ),
    (
        lambda: ed_inference(x, ed, tau=1.0, key=KEY, z_length=4),
        ValueError,
        "z_length: expected at least 0 and at most l_z = 3 tokens, got 4",
    ),
    # configurations, variants, initializers
    (lambda: config(N_V=3), ValueError, "DTransformerConfig.N_V: expected at least 4 (an ordinary token…got 3"),
    (lambda: config(l_max=0), ValueError, "DTransformerConfig.l_max: expected a positive integer, got 0"),
    (lambda: config(H=2.0), TypeError, "DTransformerConfig.H: expected an integer, got 2.0"),
    (lambda: config(L=-1), ValueError, "DTransformerConfig.L: expected a positive integer, got -1"),
    (lambda: config(d_mlp=True), TypeError, "DTransformerConfig.d_mlp: expected an integer, got True"),
    (
        lambda: config(d_e=7),
        ValueError,
        "DTransformerConfig: d_e = 7 is not a multiple of H = 2; change one of them or give d_attn",
    ),
    (lambda: config(d_mid=0), ValueError, "DTransformerConfig.d_mid: expected a positive integer, got 0"),
    (lambda: config(variant="PAPER"), TypeError, "DTransformerConfig.variant: expected a Variant…got 'PAPER'"),
    (lambda: dataclasses.replace(ED, L_dec=0), ValueError, "EDTransformerConfig.L_dec: expected a positive integer"),
    (
        lambda: ETransformerConfig(variant=BERT, d_f=3, **SIZES),
        ValueError,
        "tied unembedding W_u = W_eᵀ needs d_f = d_e = 6, got d_f = 3; give tied=False",
    ),
    (lambda: PAPER.but(norm="batch_norm"), ValueError, "Variant.norm: expected LayerNorm, got 'batch_norm'"),
    (lambda: MLP(activation="tanh"), ValueError, "MLP.activation: expected one of 'relu', …or None, got 'tanh'"),
    (
        lambda: Embedding(positions="rope"),
        ValueError,
        "Embedding.positions: expected one of 'learned', …or None, got 'rope'",
    ),
    (lambda: PAPER.but(dropout=0.1), ValueError, "Variant.dropout: expected one of the fields embedding, norm, "),
    (lambda: LayerNorm(epsilon=-1e-5), ValueError, "LayerNorm.epsilon: expected a number >= 0, got -1e-05"),
    (lambda: PAPER.but(norms=LayerNorm()), ValueError, "Variant.norms: expected one of the fields embedding, norm, "),
    (lambda: Attention(window=0), ValueError, "Attention.window: expected a width of at least 1 token, or None, got 0"),
    (lambda: Attention(cap=0.0), ValueError, "Attention.cap: expected a number > 0, or None, got 0.0"),
    (lambda: PAPER.but(attention=()), ValueError, "Variant.attention: expected one line, or several with"),
    (
        lambda: PAPER.but(attention=(Attention(), Attention(biases=False))),
        ValueError,
        "Variant.attention: expected one line, or several with the same parameters, got (Attention(",
    ),
    (lambda: Rotary(share=0.0), ValueError, "Rotary.share: expected a share in (0, 1], got 0.0"),
    (lambda: init_ed_transformer(KEY, D), TypeError, "config: expected EDTransformerConfig, got DTransformerConfig"),
    (lambda: init_d_transformer(KEY, D, scheme="he"), ValueError, "scheme: expected 'glorot' or 'gpt2', got 'he'"),
    (lambda: init_d_transformer(0, D), TypeError, "key: expected a typed key, jax.random.key(seed), got int 0"),
]


@pytest.mark.parametrize(("call", "kind", "message"), TABLE, ids=[message[:50] for _, _, message in TABLE])
def test_a_wrong_input_is_told(call, kind, message):
    assert_told(call, kind, message)


def assert_told(call, kind, message):
    """Exactly this type of exception, and the message, where "…" stands for anything."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert re.search(".*".join(map(re.escape, message.split("…"))), str(caught.value)), str(caught.value)


def test_a_wrong_input_is_told_inside_other_programs_too():
    """The checks see what the function is given, however it is batched, compiled or differentiated."""
    with pytest.raises(
        TypeError, match=r"x: expected integers \[\*batch, l\] or .*\[d_e, \*batch, l\], got bool\[2, 3\]"
    ):
        jax.jit(d_transformer)(xs > 2, d)
    with pytest.raises(ValueError, match=r"x: expected at most l_max = 5 tokens, got 6"):
        jax.vmap(d_transformer, (0, None))(jnp.tile(xs, 2), d)
    with pytest.raises(ValueError, match=r"mask: expected booleans .* batch = \[\] from X, .* got bool\[2, 3, 3\]"):
        jax.vmap(attention, (0, None, None, None))(jnp.stack([X, X]), X, W_qkv, jnp.stack([MASK, MASK]))
    with pytest.raises(ValueError, match=r"theta.norm.gamma: .* d_e = 3 from theta.W_e, got float64\[2\]"):
        jax.grad(lambda norm: d_transformer(x, d._replace(norm=norm)).sum())(jax.tree.map(lambda a: a[:2], d.norm))


def test_what_is_not_known_under_jit_is_not_refused():
    """A traced τ, η or length cannot be checked: it is the caller's word."""
    jax.eval_shape(lambda tau: d_inference(x, d, l_gen=1, tau=tau, key=KEY), 1.0)
    jax.eval_shape(lambda eta: d_training(xs, d, N_epochs=1, eta=eta), 0.1)
    jax.eval_shape(lambda length: e_transformer(x, e, length=length), 4)


def test_the_defaults_are_the_papers():
    assert config().variant is PAPER
    assert not config().tied
    assert ed_transformer.__wrapped__ is not None
    assert EDTransformerConfig(L_enc=1, L_dec=1, **{k: v for k, v in SIZES.items() if k != "L"}, variant=VASWANI).tied
    assert AttentionParams._fields == ("W_q", "b_q", "W_k", "b_k", "W_v", "b_v")

"""VASWANI, BERT and GPT2 against the independent implementations of PyTorch and transformers, with random weights."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    BERT,
    GPT2,
    PAPER,
    VASWANI,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    Variant,
    d_transformer,
    e_hidden_state,
    e_transformer,
    ed_transformer,
    sinusoidal_positional_embedding,
)
from algorithms.lines import MLP, Embedding, LayerNorm, RMSNorm
from tests import cases
from training.crosscheck import oracle

SIZES = {"N_V": 17, "l_max": 13, "H": 2, "d_e": 6, "d_mlp": 11}
DOUBLE = jnp.dtype("float64")
x, z = cases.random_tokens(7), cases.random_tokens(5, seed=1)


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e .[compare]")
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(previous)


@pytest.fixture(scope="module")
def transformers(torch):
    return pytest.importorskip("transformers", reason="transformers is not installed: pip install -e .[compare]")


def softmax(logits):
    return oracle.softmax(np.asarray(logits.detach().numpy().T))


def load(torch, model, arrays, **options):
    """Fill a PyTorch module with float64 arrays by their names."""
    state = {name: torch.tensor(np.asarray(array)) for name, array in arrays.items()}
    return model.double().eval().load_state_dict(state, **options)


def projections(attention):
    """W and b of the queries, keys and values of all heads, one above another: [H·d, d_e], [H·d]."""
    h = attention.heads
    return [(np.concatenate(W), np.concatenate(b)) for W, b in ((h.W_q, h.b_q), (h.W_k, h.b_k), (h.W_v, h.b_v))]


def of_layer(stacked, l):
    return jax.tree.map(lambda a: np.asarray(a[l]), stacked)


def in_projection(attention):
    W, b = zip(*projections(attention), strict=True)
    return np.concatenate(W), np.concatenate(b)


def nn_attention(name, attention):
    W, b = in_projection(attention)
    return {
        f"{name}.in_proj_weight": W,
        f"{name}.in_proj_bias": b,
        f"{name}.out_proj.weight": attention.W_o,
        f"{name}.out_proj.bias": attention.b_o,
    }


def linear(name, W, b):
    return {f"{name}.weight": W, f"{name}.bias": b}


def nn_layer(name, layer, attentions, norms):
    """torch.nn.TransformerEncoderLayer and …DecoderLayer, whose modules have these names."""
    arrays = linear(f"{name}.linear1", layer.mlp.W_mlp1, layer.mlp.b_mlp1)
    arrays |= linear(f"{name}.linear2", layer.mlp.W_mlp2, layer.mlp.b_mlp2)
    for theirs, ours in attentions.items():
        arrays |= nn_attention(f"{name}.{theirs}", getattr(layer, ours))
    for i, ours in enumerate(norms, start=1):
        norm = getattr(layer, ours)
        arrays |= {f"{name}.norm{i}.weight": norm.gamma, f"{name}.norm{i}.bias": norm.beta}
    return arrays


def encoder_layer(name, layer):
    return nn_layer(name, layer, {"self_attn": "attention"}, ("norm1", "norm2"))


def decoder_layer(name, layer):
    attentions = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
    return nn_layer(name, layer, attentions, ("norm3", "norm4", "norm5"))


@pytest.mark.parametrize("z_length", [None, 3])
def test_vaswani_is_torch_nn_transformer(torch, z_length):
    config = EDTransformerConfig(L_enc=2, L_dec=1, variant=VASWANI, **SIZES)
    theta = cases.random_theta(config)
    assert theta.W_p is None
    assert theta.W_u is None
    make = functools.partial(torch.nn.Transformer, 6, 2, 2, 1, 11, dropout=0.0, layer_norm_eps=1e-6, batch_first=True)
    model = make()
    model.encoder.norm = model.decoder.norm = None  # the paper has no norm after the last layer
    arrays = {}
    for l in range(2):
        arrays |= encoder_layer(f"encoder.layers.{l}", of_layer(theta.encoder, l))
    load(torch, model, arrays | decoder_layer("decoder.layers.0", of_layer(theta.decoder, 0)))
    W_e = np.asarray(theta.W_e)

    def embed(tokens):
        t, i = np.arange(len(tokens))[:, None], np.arange(3)[None, :]
        angle = t / 10000 ** (2 * i / 6)
        positions = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(-1, 6)
        return torch.tensor(math.sqrt(6) * W_e.T[np.asarray(tokens)] + positions)[None]

    hidden = model(
        embed(z[:z_length]),
        embed(x),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64),
    )
    P = ed_transformer(z, x, theta, z_length=z_length)
    cases.assert_close(P, softmax(hidden[0] @ torch.tensor(W_e)))


def test_bert_is_bert_for_masked_lm(torch, transformers):
    config = ETransformerConfig(L=2, variant=BERT, **SIZES)
    theta = cases.random_theta(config)
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=17,
            hidden_size=6,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=11,
            max_position_embeddings=13,
            type_vocab_size=1,
            attn_implementation="eager",
        )
    )

    def norm(name, norm):
        return linear(name, norm.gamma, norm.beta)

    arrays = {
        "bert.embeddings.word_embeddings.weight": theta.W_e.T,
        "bert.embeddings.position_embeddings.weight": theta.W_p.T,
        "bert.embeddings.token_type_embeddings.weight": np.zeros((1, 6)),  # they are part of W_p
        "cls.predictions.decoder.weight": theta.W_e.T,
        "cls.predictions.decoder.bias": theta.b_u,
        "cls.predictions.bias": theta.b_u,
        **norm("bert.embeddings.LayerNorm", theta.embedding_norm),
        **linear("cls.predictions.transform.dense", theta.W_f, theta.b_f),
        **norm("cls.predictions.transform.LayerNorm", theta.norm),
    }
    for l in range(2):
        layer, name = of_layer(theta.layers, l), f"bert.encoder.layer.{l}"
        for theirs, (W, b) in zip(("query", "key", "value"), projections(layer.attention), strict=True):
            arrays |= linear(f"{name}.attention.self.{theirs}", W, b)
        arrays |= linear(f"{name}.attention.output.dense", layer.attention.W_o, layer.attention.b_o)
        arrays |= norm(f"{name}.attention.output.LayerNorm", layer.norm1)
        arrays |= linear(f"{name}.intermediate.dense", layer.mlp.W_mlp1, layer.mlp.b_mlp1)
        arrays |= linear(f"{name}.output.dense", layer.mlp.W_mlp2, layer.mlp.b_mlp2)
        arrays |= norm(f"{name}.output.LayerNorm", layer.norm2)
    load(torch, model, arrays)
    tokens = torch.tensor(np.asarray(x), dtype=torch.int64)[None]
    cases.assert_close(e_transformer(x, theta), softmax(model(tokens).logits[0]))
    attended = (torch.arange(7) < 4).to(torch.int64)[None]
    expected = softmax(model(tokens, attention_mask=attended).logits[0])[:, :4]
    cases.assert_close(e_transformer(x, theta, length=4)[:, :4], expected)


def test_gpt2_is_gpt2_lm_head_model(torch, transformers):
    config = DTransformerConfig(L=2, variant=GPT2, **SIZES)
    theta = cases.random_theta(config)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=17,
            n_positions=13,
            n_embd=6,
            n_layer=2,
            n_head=2,
            n_inner=11,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="eager",
        )
    )
    arrays = {
        "transformer.wte.weight": theta.W_e.T,
        "transformer.wpe.weight": theta.W_p.T,
        "lm_head.weight": theta.W_e.T,
        **linear("transformer.ln_f", theta.norm.gamma, theta.norm.beta),
    }
    for l in range(2):
        layer, name = of_layer(theta.layers, l), f"transformer.h.{l}"
        W, b = in_projection(layer.attention)
        arrays |= linear(f"{name}.ln_1", layer.norm1.gamma, layer.norm1.beta)
        arrays |= linear(f"{name}.attn.c_attn", W.T, b)  # a Conv1D multiplies from the other side
        arrays |= linear(f"{name}.attn.c_proj", layer.attention.W_o.T, layer.attention.b_o)
        arrays |= linear(f"{name}.ln_2", layer.norm2.gamma, layer.norm2.beta)
        arrays |= linear(f"{name}.mlp.c_fc", layer.mlp.W_mlp1.T, layer.mlp.b_mlp1)
        arrays |= linear(f"{name}.mlp.c_proj", layer.mlp.W_mlp2.T, layer.mlp.b_mlp2)
    load(torch, model, arrays)
    tokens = torch.tensor(np.asarray(x), dtype=torch.int64)[None]
    cases.assert_close(d_transformer(x, theta), softmax(model(tokens).logits[0]))


def test_sinusoids_may_be_computed_or_given_as_learned_positions():
    theta = cases.random_theta(EDTransformerConfig(L_enc=1, L_dec=1, variant=VASWANI, **SIZES))
    W_p = sinusoidal_positional_embedding(6, 13, base=10000, dtype=DOUBLE)
    computed = ed_transformer(z, x, theta)
    learned = VASWANI.but(embedding=VASWANI.embedding.but(positions="learned"))
    given = ed_transformer(z, x, theta._replace(W_p=W_p, variant=learned))
    cases.assert_close(given, computed, 1e-13)


def test_rms_norm_replaces_every_norm_of_the_decoder(monkeypatch):
    """Gopher's lines 5, 7 and 10, by the oracle with its layer norm replaced."""
    variant = PAPER.but(norm=RMSNorm())
    theta = cases.random_theta(DTransformerConfig(L=2, variant=variant, **SIZES))
    assert theta.norm.beta is None

    def layer_norm_each(X, norm):
        return np.stack([oracle.rms_norm(column, norm.gamma) for column in X.T], axis=1)

    monkeypatch.setitem(oracle.d_transformer.__globals__, "layer_norm_each", layer_norm_each)
    cases.assert_close(d_transformer(x, theta), oracle.d_transformer(x, oracle.unstack(theta)))


def test_the_output_bias_and_the_embedding_norm_are_added_to_the_paper():
    theta = cases.random_theta(ETransformerConfig(L=1, variant=BERT, **SIZES))
    logits = theta.W_e.T @ e_hidden_state(x, theta) + theta.b_u[:, None]
    P = e_transformer(x, theta)
    cases.assert_close(P, oracle.softmax(np.asarray(logits)))
    plain = BERT.but(embedding=Embedding())
    without = e_transformer(x, theta._replace(embedding_norm=None, variant=plain))
    assert np.abs(P - without).max() > 1e-3


def test_the_embedding_is_scaled_by_the_root_of_d_e():
    theta = cases.random_theta(EDTransformerConfig(L_enc=1, L_dec=1, variant=VASWANI, tied=False, **SIZES))
    scaled = PAPER.but(norm=LayerNorm(epsilon=1e-6), embedding=Embedding(positions="sinusoidal", scaled=True))
    plain = PAPER.but(norm=LayerNorm(epsilon=1e-6), embedding=Embedding(positions="sinusoidal"))
    expected = ed_transformer(z, x, theta._replace(W_e=math.sqrt(6) * theta.W_e, variant=plain))
    cases.assert_close(ed_transformer(z, x, theta._replace(variant=scaled)), expected)


@pytest.mark.parametrize("variant", [PAPER, GPT2])
def test_an_activation_can_be_named(variant):
    theta = cases.random_theta(DTransformerConfig(L=1, tied=False, **SIZES))
    named = PAPER.but(norm=variant.norm, mlp=MLP(activation=variant.mlp.activation or "gelu"))
    relu = PAPER.but(norm=variant.norm, mlp=MLP(activation="relu"))
    P, of_named, of_relu = (d_transformer(x, theta._replace(variant=v)) for v in (variant, named, relu))
    cases.assert_close(of_named, P, 1e-13)
    assert np.abs(of_relu - P).max() > 1e-3


def test_variants_are_frozen_and_hashable():
    assert len({PAPER, VASWANI, BERT, GPT2, Variant()}) == 4
    with pytest.raises(AttributeError):
        PAPER.epsilon = 1.0

"""RoBERTa, DistilBERT and ALBERT of transformers, at random: outputs, gradients by name, and both directions."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ALBERT, BERT, ROBERTA, ETransformerConfig, e_encoding, e_hidden_state
from algorithms.lines import MLP
from tests import interchange_cases as cases
from tests.cases import random_theta
from training.interchange import InterchangeError, load_pretrained, save_pretrained

torch, transformers = cases.libraries()

ROBERTA_SIZES = {"vocab_size": 29, "max_position_embeddings": 15, "hidden_size": 15, "num_hidden_layers": 3}
ROBERTA_SIZES |= {"num_attention_heads": 5, "intermediate_size": 7, "type_vocab_size": 1, "layer_norm_eps": 0.1}
ROBERTA_SIZES |= {"pad_token_id": 1}
DISTILBERT_SIZES = {"vocab_size": 29, "max_position_embeddings": 13, "dim": 15, "n_layers": 3, "n_heads": 5}
DISTILBERT_SIZES |= {"hidden_dim": 7, "activation": "relu"}
ALBERT_SIZES = {"vocab_size": 29, "max_position_embeddings": 13, "embedding_size": 7, "hidden_size": 15}
ALBERT_SIZES |= {"num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 11, "layer_norm_eps": 0.1}
MODELS = {
    "RobertaForMaskedLM": ROBERTA_SIZES,
    "RobertaModel": {**ROBERTA_SIZES, "hidden_act": "gelu_new", "pad_token_id": 2, "type_vocab_size": 2},
    "DistilBertForMaskedLM": DISTILBERT_SIZES,
    "DistilBertModel": DISTILBERT_SIZES,
    "AlbertForMaskedLM": {**ALBERT_SIZES, "num_hidden_groups": 2},
    "AlbertModel": {**ALBERT_SIZES, "hidden_act": "relu"},
}
LENGTHS = np.array([11, 6])


def make(name):
    kind = getattr(transformers, f"{name.partition('For')[0].removesuffix('Model')}Config")
    return cases.randomized(torch, getattr(transformers, name)(kind(**MODELS[name], attn_implementation="eager")))


def theirs(model, x):
    attended = torch.tensor(np.arange(11) < LENGTHS[:, None]).long()
    out = model(torch.tensor(x), attention_mask=attended)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def ours(x, theta, config):
    options = {"length": jnp.asarray(LENGTHS)}
    if theta.W_f is None:
        return jnp.moveaxis(e_encoding(jnp.asarray(x), theta, **options), 0, -1)
    return cases.column_logits(e_hidden_state(jnp.asarray(x), theta, **options), theta)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if "For" in n else pytest.mark.slow) for n in MODELS])
def test_outputs_and_gradients_are_those_of_transformers(tmp_path, name):
    model = make(name).double()
    path = cases.saved(model, tmp_path)
    theta, config, _ = load_pretrained(path)
    x = np.random.default_rng(1).integers(3, 29, (2, 11))
    how = {"read": np.arange(11) < LENGTHS[:, None]}
    outputs = functools.partial(ours, x, config=config)
    compared = cases.assert_as_theirs(torch, model, path, theta, outputs, theirs(model, x), "float64", **how)
    unread = {n for n, p in model.named_parameters() if p.grad is None}
    assert all("pooler" in n for n in unread)
    assert compared == {n for n, _ in model.named_parameters()} - unread


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_way_there_and_back_is_exact(tmp_path, name, dtype):
    path = cases.saved(make(name), tmp_path / "theirs", dtype)
    x = np.random.default_rng(1).integers(3, 29, (2, 11))
    opened, kind = getattr(transformers, name).from_pretrained, name.partition("For")[0].removesuffix("Model").lower()
    cases.assert_written_again(torch, path, opened, lambda model: theirs(model, x), to=kind)


@pytest.mark.parametrize(
    ("kind", "variant", "sizes"),
    [
        *((kind, ROBERTA if kind == "roberta" else BERT, {}) for kind in ("bert", "roberta", "distilbert")),
        ("albert", ALBERT.but(shared_layers=2), {"d_in": 5}),
    ],
)
def test_our_own_models_open_in_transformers(tmp_path, kind, variant, sizes):
    config = ETransformerConfig(N_V=17, l_max=12, L=2, H=3, d_e=12, d_mlp=7, variant=variant, **sizes)
    theta = random_theta(config)
    save_pretrained(tmp_path / "out", theta, config, to=kind)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    x = np.random.default_rng(1).integers(3, 17, (2, 11))
    read = np.arange(11) < LENGTHS[:, None]
    found, expected = np.asarray(ours(x, theta, config)), theirs(model, x).detach().numpy()
    cases.assert_same(found[read], expected[read], "float64", "logits")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("RobertaForMaskedLM", {"hidden_act": "relu"}, "different activations in the layers and the head"),
        ("RobertaForMaskedLM", {"architectures": ["RobertaForSequenceClassification"]}, "the head of RobertaForSeq"),
        ("RobertaForMaskedLM", {"max_position_embeddings": 2}, "max_position_embeddings: expected an integer of at"),
        ("DistilBertModel", {"sinusoidal_pos_embds": True}, "sinusoidal positions"),
        ("DistilBertModel", {"n_layers": 4}, r"number of layers \(L\): expected 3"),
        ("AlbertForMaskedLM", {"num_hidden_groups": 3}, r"groups of different sizes \(4 layers in 3\)"),
        ("AlbertForMaskedLM", {"num_hidden_groups": 1}, r"number of layers \(L\): expected 2"),
        ("AlbertModel", {"inner_group_num": 2}, "several layers in a group"),
    ],
)
def test_what_is_lacking_or_contradicts_is_said(name, fields, message, tmp_path):
    cases.assert_refused(make(name), tmp_path, message, **fields)


def test_what_a_kind_cannot_say_is_refused(tmp_path):
    variant = BERT.but(mlp=MLP(activation="silu"))
    config = ETransformerConfig(N_V=17, l_max=12, L=1, H=3, d_e=12, d_mlp=7, N_types=2, variant=variant)
    for to, message in (
        ("distilbert", "no token types"),
        ("roberta", "no head with the activation"),
        ("albert", "no embedding.factored = False"),
    ):
        with pytest.raises(InterchangeError, match=message):
            save_pretrained(tmp_path / "out", random_theta(config), config, to=to)

"""T5 and its version 1.1 of transformers, at random: logits, gradients by name, both directions, and translations."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import T5, EDTransformerConfig, ed_hidden_state
from algorithms.lines import MLP, Distances
from tests import interchange_cases as cases
from tests.cases import random_theta
from training.interchange import load_pretrained, save_pretrained

torch, transformers = cases.libraries()

SIZES = {"vocab_size": 31, "d_model": 12, "d_kv": 5, "d_ff": 7, "num_layers": 2, "num_decoder_layers": 3}
SIZES |= {"num_heads": 3, "relative_attention_num_buckets": 6, "relative_attention_max_distance": 7}
SIZES |= {"layer_norm_epsilon": 1e-3, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
MODELS = {"t5": {}, "t5 1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}
LENGTHS = np.array([13, 9])


def make(name):
    """A model at random; one of version 1.1 with a matrix of its own for the logits, as in Google's files."""
    config = transformers.T5Config(**SIZES, **MODELS[name])
    model = transformers.T5ForConditionalGeneration(config).double()
    if name == "t5 1.1":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return cases.randomized(torch, model)


def data():
    """Without padding tokens, whose embedding has no gradient there."""
    return np.random.default_rng(1).integers(3, 31, (2, 13)), np.random.default_rng(2).integers(3, 31, (2, 11))


def saved(name, path, dtype="float64"):
    path = cases.saved(make(name), path, dtype)
    if name == "t5 1.1":
        cases.change_config(path, tie_word_embeddings=False)
    return path


def theirs(model, z, x):
    attended = torch.tensor(np.arange(13) < LENGTHS[:, None]).long()
    options = {"decoder_input_ids": torch.tensor(x), "use_cache": False}
    return model(input_ids=torch.tensor(z), attention_mask=attended, **options).logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("implementation", ["auto", pytest.param("paper", marks=pytest.mark.slow)])
def test_logits_and_gradients_are_those_of_transformers(tmp_path, name, implementation):
    model = make(name)
    path = saved(name, tmp_path)
    theta, config, _ = load_pretrained(path)
    z, x = data()

    def ours(theta):
        options = {"z_length": jnp.asarray(LENGTHS), "implementation": implementation}
        X = ed_hidden_state(jnp.asarray(z), jnp.asarray(x), theta, **options)
        return jnp.moveaxis(config.variant.unembedding.logits(X, theta), 0, -1)

    compared = cases.assert_as_theirs(torch, model, path, theta, ours, theirs(model, z, x), "rounded")
    assert len(compared) == len(list(model.parameters()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_way_there_and_back_is_exact(tmp_path, name, dtype):
    path = saved(name, tmp_path / "theirs", dtype)
    opened = transformers.T5ForConditionalGeneration.from_pretrained
    cases.assert_written_again(torch, path, opened, lambda model: theirs(model, *data()))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_greedy_translations_are_those_of_transformers(tmp_path, name):
    rules = {"use_cache": False}  # which has as many layers as the encoder
    cases.assert_greedy(torch, make(name), saved(name, tmp_path), data()[0], LENGTHS, 15, **rules)


@pytest.mark.parametrize(("gated", "tied"), [(False, True), (True, False)])
def test_our_own_models_open_in_transformers(tmp_path, gated, tied):
    mlp = MLP(activation="gelu_tanh", gated=True, biases=False) if gated else T5.mlp
    variant = T5.but(mlp=mlp, attention=T5.attentions[0].but(positions=Distances(buckets=8, farthest=9)))
    variant = variant.but(unembedding=variant.unembedding.but(tied=tied, scaled=tied))
    sizes = {"N_V": 17, "l_max": 23, "L_enc": 2, "L_dec": 3, "H": 4, "d_e": 12, "d_mlp": 13, "d_attn": 8, "d_mid": 8}
    config = EDTransformerConfig(**sizes, variant=variant)
    theta = random_theta(config)
    save_pretrained(tmp_path / "out", theta, config)
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    z, x = (a % 17 for a in data())
    X = ed_hidden_state(jnp.asarray(z), jnp.asarray(x), theta, z_length=jnp.asarray(LENGTHS))
    ours = jnp.moveaxis(variant.unembedding.logits(X, theta), 0, -1)
    cases.assert_same(ours, theirs(model, z, x).detach(), "rounded", "logits")
    assert load_pretrained(tmp_path / "out")[1] == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"feed_forward_proj": "gated-swish2"}, "the activation 'swish2'"),
        ({"feed_forward_proj": "doubly-gated-gelu"}, "the MLP of feed_forward_proj = 'doubly-gated-gelu'"),
        ({"architectures": ["T5EncoderModel"]}, "the head of T5EncoderModel"),
        ({"relative_attention_num_buckets": 5}, "Distances.buckets: expected an even number >= 4, got 5"),
        ({"relative_attention_max_distance": 2}, "Distances.farthest: expected a distance > 3, half of the buckets"),
        ({"relative_attention_num_buckets": 8}, "relative_attention_bias.weight"),
        ({"num_layers": 5}, r"number of layers of the encoder \(L_enc\): expected 2, as"),
    ],
)
def test_what_is_lacking_or_contradicts_is_said(fields, message, tmp_path):
    cases.assert_refused(make("t5"), tmp_path, message, **fields)

"""Looking inside imported models, against the values of transformers."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer, e_transformer, ed_transformer
from algorithms.inside import record
from tests import cases
from training.interchange import load_pretrained


@pytest.fixture(scope="module")
def models():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e .[compare]")
    return torch, pytest.importorskip("transformers", reason="transformers is not installed: pip install -e .[compare]")


def loaded(models, folder, kind, config):
    """A model of transformers with random weights, and the same as imported."""
    torch, _ = models
    torch.manual_seed(0)
    model = kind(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model, *load_pretrained(folder)[:2]


def outputs(models, model, **tokens):
    torch, _ = models
    with torch.no_grad():
        tokens = {name: torch.tensor(np.asarray(x)) for name, x in tokens.items()}
        return model(**tokens, output_hidden_states=True, output_attentions=True)


def assert_same(seen, theirs, axes):
    assert len(seen) == len(theirs)
    for ours, other in zip(seen, theirs, strict=True):
        cases.assert_close(ours, other.numpy().transpose(axes), 1e-5)


HIDDEN, ATTENTION = (2, 0, 1), (1, 3, 0, 2)
COMMON = {"vocab_size": 97, "attn_implementation": "eager"}
x = np.random.default_rng(0).integers(4, 90, (2, 13))


@pytest.mark.usefixtures("x32")
def test_gpt2_is_that_of_transformers(models, tmp_path):
    _, transformers = models
    config = transformers.GPT2Config(
        n_layer=3, n_head=4, n_embd=48, n_positions=32, bos_token_id=95, eos_token_id=96, **COMMON
    )
    model, theta, config = loaded(models, tmp_path, transformers.GPT2LMHeadModel, config)
    out = outputs(models, model, input_ids=x)
    _, seen = record(d_transformer, "X@3", "X@8", "X@10", "A")(jnp.asarray(x), theta, variant=config.variant)
    assert_same([seen["X@3"], *seen["X@8"][:-1], seen["X@10"]], out.hidden_states, HIDDEN)
    assert_same(seen["A"], out.attentions, ATTENTION)


@pytest.mark.usefixtures("x32")
def test_llama_is_that_of_transformers(models, tmp_path):
    _, transformers = models
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, max_position_embeddings=32, **COMMON)
    model, theta, config = loaded(models, tmp_path, transformers.LlamaForCausalLM, config)
    out = outputs(models, model, input_ids=x)
    _, seen = record(d_transformer, "X@3", "X@8", "X@10", "A")(jnp.asarray(x), theta, variant=config.variant)
    assert_same([seen["X@3"], *seen["X@8"][:-1], seen["X@10"]], out.hidden_states, HIDDEN)
    assert_same(seen["A"], out.attentions, ATTENTION)


@pytest.mark.usefixtures("x32")
def test_bert_is_that_of_transformers(models, tmp_path):
    _, transformers = models
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(**sizes, max_position_embeddings=32, **COMMON)
    model, theta, config = loaded(models, tmp_path, transformers.BertForMaskedLM, config)
    out = outputs(models, model, input_ids=x)
    _, seen = record(e_transformer, "X@3", "X@8", "A")(jnp.asarray(x), theta, variant=config.variant)
    assert_same([seen["X@3"], *seen["X@8"]], out.hidden_states, HIDDEN)
    assert_same(seen["A"], out.attentions, ATTENTION)


@pytest.mark.usefixtures("x32")
def test_bart_is_that_of_transformers(models, tmp_path):
    _, transformers = models
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"d_model": 48, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32}
    config = transformers.BartConfig(**sizes, dropout=0.0, **COMMON)
    model, theta, config = loaded(models, tmp_path, transformers.BartForConditionalGeneration, config)
    z, y = x[:, :7], x[:, 5:10]
    out = outputs(models, model, input_ids=z, decoder_input_ids=y)
    names = ("Z@3", "Z@8", "X@12", "X@19", "A/5", "A/14", "A/16")
    _, seen = record(ed_transformer, *names)(jnp.asarray(z), jnp.asarray(y), theta, variant=config.variant)
    assert_same([seen["Z@3"], *seen["Z@8"]], out.encoder_hidden_states, HIDDEN)
    assert_same([seen["X@12"], *seen["X@19"]], out.decoder_hidden_states, HIDDEN)
    assert_same(seen["A/5"], out.encoder_attentions, ATTENTION)
    assert_same(seen["A/14"], out.decoder_attentions, ATTENTION)
    assert_same(seen["A/16"], out.cross_attentions, ATTENTION)

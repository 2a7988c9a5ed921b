"""The oracle's changed lines against `transformers`: imported models of each family at random, all in float64.

`transformers` computes norms, softmax and rotary angles in float32 by name; here that name means float64.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms import PAPER, lines
from tests.algorithms.test_inside_models import DECODERS, ENCODER_DECODERS, ENCODERS
from tests.interchange_cases import libraries, randomized, saved
from tests.training.interchange import test_decoders, test_encoders
from training.crosscheck.models import family_parameters
from training.interchange import load_pretrained
from training.oracle import family
from training.oracle.parameters import unstack

torch, transformers = libraries()
LENGTH = 9
X, Z = (np.random.default_rng(n).integers(3, 13, LENGTH) for n in (5, 6))  # 0 to 2 are padding tokens of some
PRESENT = (np.arange(LENGTH) < 7).astype(int)


@pytest.fixture(autouse=True)
def hf(monkeypatch):
    """The package `transformers`, in which float32 is float64."""
    _ = pytest.importorskip("safetensors.torch"), transformers.modeling_utils  # tables of dtypes, made before
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    exact = transformers.activations.ACT2FN["gelu_pytorch_tanh"]  # its own has 8 digits
    monkeypatch.setattr(bloom.BloomGelu, "forward", lambda _, X: exact(X))
    for module, name, value in (
        (torch, "float32", torch.float64),
        (torch, "float", torch.float64),
        (torch.Tensor, "float", torch.Tensor.double),
    ):
        monkeypatch.setattr(module, name, value)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield transformers
    torch.set_default_dtype(default)


def imported(model, folder):
    """The parameters of an imported model, as the oracle has them, and its variant."""
    theta, config, _ = load_pretrained(saved(model, folder))
    return family_parameters(theta), config.variant


def assert_logits(found, model, upto=None, **inputs):
    """The oracle's logits are those that the model has for one sequence."""
    model.set_attn_implementation("eager")
    model.config.use_cache = False
    with torch.no_grad():
        inputs = {name: torch.asarray(np.array(x)[None]) for name, x in inputs.items()}
        logits = model(**inputs).logits
    expected = logits[0].numpy().T[:, :upto]
    atol = 1e-5 if model.config.model_type == "lfm2_moe" else 1e-10  # it adds 1e-6 to the sum of the experts' weights
    np.testing.assert_allclose(found[:, :upto], expected, rtol=1e-10, atol=atol * np.abs(expected).max())


def each(makers):
    return pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in makers.items()])


@pytest.mark.sampled(16)
@each(DECODERS)
def test_decoders_logits(make, tmp_path):
    model = make()
    assert_logits(family.d_logits(X, *imported(model, tmp_path)), model, input_ids=X)


@each(ENCODERS)
def test_encoders_with_padding(make, tmp_path):
    model = make()
    found = family.e_logits(X, *imported(model, tmp_path), length=7)
    assert_logits(found, model, upto=7, input_ids=X, attention_mask=PRESENT)


@each(ENCODER_DECODERS)
def test_encoder_decoders_with_padding(make, tmp_path):
    model = make()
    found = family.ed_logits(Z, X, *imported(model, tmp_path), z_length=7)
    assert_logits(found, model, input_ids=Z, attention_mask=PRESENT, decoder_input_ids=X)


def test_types_of_tokens(tmp_path, monkeypatch):
    monkeypatch.setitem(
        test_encoders.MODELS, "RobertaForMaskedLM", {**test_encoders.ROBERTA_SIZES, "type_vocab_size": 2}
    )
    model, types = test_encoders.make("RobertaForMaskedLM"), (np.arange(LENGTH) > 5).astype(int)
    found = family.e_logits(X, *imported(model, tmp_path), types=types)
    assert_logits(found, model, input_ids=X, token_type_ids=types)


ROPE = {"rope_type": "default", "rope_theta": 100.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 3.0, "beta_slow": 0.5, "original_max_position_embeddings": 20}
SCALINGS = [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 40},
    YARN,
    YARN | {"truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20, "attention_factor": 1.3},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_scaled_rotary_positions(tmp_path, scaling):
    model = test_decoders.make("llama", rope_parameters={**ROPE, **scaling})
    parameters, variant = imported(model, tmp_path)
    assert_logits(family.d_logits(X, parameters, variant), model, input_ids=X)
    plain = variant.but(attention=variant.attention.but(positions=variant.attention.positions.but(scaling=None)))
    with pytest.raises(AssertionError):
        assert_logits(family.d_logits(X, parameters, plain), model, input_ids=X)


def test_positions_that_are_given_padding_and_documents(tmp_path):
    model = test_decoders.make("llama with biases")
    parameters, variant = imported(model, tmp_path)
    positions = np.sort(np.random.default_rng(3).choice(30, LENGTH, replace=False))
    found = family.d_logits(X, parameters, variant, positions=positions, length=7)
    assert_logits(found, model, upto=7, input_ids=X, position_ids=positions, attention_mask=PRESENT)
    found = family.d_logits(X, parameters, variant, documents=[0] * 4 + [1] * (LENGTH - 4))
    assert_logits(found[:, :4], model, input_ids=X[:4])
    assert_logits(found[:, 4:], model, input_ids=X[4:])


def test_xlnet_has_transformer_xls_scores():
    N_V, H, L, d_e = 31, 6, 3, 42
    sizes = {"vocab_size": N_V, "d_model": d_e, "n_layer": L, "n_head": H, "d_inner": 61}
    config = transformers.XLNetConfig(**sizes, attn_type="uni", layer_norm_eps=1e-3)
    model = randomized(torch, transformers.XLNetLMHeadModel(config).double())
    weights = {name: W.numpy() for name, W in model.state_dict().items()}

    def norm(name):
        return SimpleNamespace(gamma=weights[f"{name}.weight"], beta=weights[f"{name}.bias"])

    layers = []
    for l in range(L):
        name = f"transformer.layer.{l}"
        parts = {f"W_{part}": np.moveaxis(weights[f"{name}.rel_attn.{part}"], 0, 2) for part in "qkvr"}
        relative = {"W_r": parts.pop("W_r"), "u": weights[f"{name}.rel_attn.r_w_bias"]}
        relative["v"] = weights[f"{name}.rel_attn.r_r_bias"]
        W_o = weights[f"{name}.rel_attn.o"].reshape(d_e, -1)
        mlp = {f"W_mlp{i}": weights[f"{name}.ff.layer_{i}.weight"] for i in (1, 2)}
        mlp |= {f"b_mlp{i}": weights[f"{name}.ff.layer_{i}.bias"] for i in (1, 2)}
        attention = unstack(SimpleNamespace(heads=SimpleNamespace(**parts), **relative, W_o=W_o, b_o=None))
        norms = {"norm1": norm(f"{name}.rel_attn.layer_norm"), "norm2": norm(f"{name}.ff.layer_norm")}
        layers.append(SimpleNamespace(attention=attention, mlp=SimpleNamespace(**mlp), **norms))
    W_e, b_u = weights["transformer.word_embedding.weight"].T, weights["lm_loss.bias"]
    theta = SimpleNamespace(W_e=W_e, layers=layers, W_u=None, b_u=b_u)
    attention, embedding = lines.Attention(positions=lines.TransformerXL()), lines.Embedding(positions=None)
    norm = lines.LayerNorm(epsilon=1e-3)
    variant = PAPER.but(embedding=embedding, norm=norm, attention=attention, order="norm_last")
    assert_logits(family.d_logits(X, theta, variant), model, input_ids=X)

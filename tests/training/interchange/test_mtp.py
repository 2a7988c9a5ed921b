"""Files with a head for the token after the next, which transformers drops: its layer is one of a model with one layer
of transformers', and the rest by hand.
"""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import d_hidden_state, mtp_hidden_state
from algorithms.lines import MTP
from tests import interchange_cases as cases
from tests.training.interchange.test_decoders import make
from training.interchange import InterchangeError, load_pretrained, save_pretrained

torch, transformers = cases.libraries()
pytestmark = [pytest.mark.end_to_end, pytest.mark.sampled(1)]
COPIES = ("embed_tokens.weight", "shared_head.head.weight")
OWN = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight")
OF_QWEN = ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight", "mtp.norm.weight")
MODELS = {
    "deepseek_v3, with first layers": {"mlp_layer_types": None, "first_k_dense_replace": 0},
    "glm4_moe, normalized": {"mlp_layer_types": None, "first_k_dense_replace": 0},
    "glm4_moe_lite": {"mlp_layer_types": ["sparse"]},
    "qwen3_next": {"layer_types": ["full_attention"]},
}


def norm_of(model, seed):
    """A norm as the model's last, with a scale of its own."""
    return cases.randomized(torch, copy.deepcopy(model.model.norm), seed).double()


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tensors_are_those_of_the_file(tmp_path, name):
    model, one = make(name), make(name, seed=1, num_hidden_layers=1, **MODELS[name])
    cases.saved(one, tmp_path / "one")
    path, is_qwen, L = cases.saved(model, tmp_path / "file"), "qwen" in name, model.config.num_hidden_layers
    layer = "mtp.layers.0" if is_qwen else f"model.layers.{L}"
    norm_e, norm_x, d_e = norm_of(model, 2), norm_of(model, 3), model.config.hidden_size
    W_m = torch.from_numpy(np.random.default_rng(4).normal(size=(d_e, 2 * d_e)) / d_e**0.5)
    tensors, of_one = cases.tensors_of(path), cases.tensors_of(tmp_path / "one")
    rest = (norm_e.weight, norm_x.weight, W_m, one.model.norm.weight)
    names = OF_QWEN if is_qwen else tuple(f"{layer}.{own}" for own in OWN)
    tensors |= dict(zip(names, (W.detach().numpy() for W in rest), strict=True))
    if not is_qwen:
        shared = (tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])
        tensors |= dict(zip((f"{layer}.{of}" for of in COPIES), shared, strict=True))
    tensors |= {n.replace("model.layers.0", layer): W for n, W in of_one.items() if n.startswith("model.layers.0.")}
    assert load_pretrained(path)[1].variant.mtp is None  # as transformers has saved it
    (file,) = path.glob("*.safetensors")
    safetensors.numpy.save_file(tensors, file, {"format": "pt"})
    cases.change_config(path, **{"mtp_num_hidden_layers" if is_qwen else "num_nextn_predict_layers": 1})
    theta, config, _ = load_pretrained(path)
    assert config.variant.mtp == MTP()

    x = torch.from_numpy(np.random.default_rng(5).integers(model.config.vocab_size, size=(2, 9)))
    with torch.no_grad():
        h, e = model.model(x).last_hidden_state[:, :-1], model.get_input_embeddings()(x[:, 1:])
        columns = torch.cat([norm_e(e), norm_x(h)], dim=-1) @ W_m.T
        expected = one.model(inputs_embeds=columns).last_hidden_state @ model.lm_head.weight.T

    @jax.jit
    def logits(x, theta):
        X = mtp_hidden_state(d_hidden_state(x, theta), jnp.roll(x, -1, axis=1), theta)
        return theta.variant.unembedding.logits(X, theta)

    found = np.moveaxis(np.asarray(logits(jnp.asarray(x.numpy()), theta))[..., :-1], 0, -1)
    cases.assert_same(found, expected.numpy(), "float32" if is_qwen else "rounded", "logits of the head")

    save_pretrained(tmp_path / "again", theta, config)
    again = cases.tensors_of(tmp_path / "again")
    assert again.keys() == tensors.keys()
    for n, W in again.items():
        np.testing.assert_array_equal(W, tensors[n], n)
    assert load_pretrained(tmp_path / "again")[1] == config
    cases.change_config(path, **{"mtp_num_hidden_layers" if is_qwen else "num_nextn_predict_layers": 2})
    with pytest.warns(UserWarning, match="2 heads for tokens after the next are left out"):
        assert load_pretrained(path)[1].variant.mtp is None
    with pytest.raises(InterchangeError, match="mtp = "):
        save_pretrained(tmp_path / "model.gguf", jax.tree.map(lambda a: a.astype("float32"), theta), config)

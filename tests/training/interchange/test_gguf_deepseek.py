"""GGUF files of DeepSeek and GLM-5: as llama.cpp's converter lays them out, read to what transformers computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_logits
from tests import gguf_cases
from tests import interchange_cases as cases
from tests.training.interchange.test_decoders import make
from tests.training.interchange.test_gguf import written as written_by_us
from training.generation import generate
from training.interchange import load_pretrained

torch, transformers = cases.libraries()
pytestmark = pytest.mark.sampled(2)

YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}
YARN |= {"beta_fast": 3.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}
MODELS = {
    "V3": ("deepseek_v3, with first layers", {"rope_parameters": YARN}),
    "V3, all layers with experts": ("deepseek_v3", {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
    "GLM-4.7-Flash": ("glm4_moe_lite", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "GLM-5": ("glm_moe_dsa", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "V2": ("deepseek_v2", {"rope_parameters": YARN, "first_k_dense_replace": 1, "n_shared_experts": 3}),
    "V2, within groups": ("deepseek_v2, within groups", {"tie_word_embeddings": True}),
}
GREEDY = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def written(name):
    kind, changes = MODELS[name]
    return make(kind, **changes).float()


def first_of(config):
    types = getattr(config, "mlp_layer_types", None)
    return types.count("dense") if types else config.first_k_dense_replace


def metadata_of(config, *, whole=False):
    """What llama.cpp's converter says of a model; `whole`: as before 2025-04, with the heads' own sizes."""
    d_c, d_r, H = config.kv_lora_rank, config.qk_rope_head_dim, config.num_attention_heads
    rotary, nope, v = config.rope_parameters, config.qk_nope_head_dim, config.v_head_dim
    is_v3 = config.model_type != "deepseek_v2"
    found = gguf_cases.settings_of(config) | {
        "vocab_size": config.vocab_size,
        "attention.head_count_kv": H if whole else 1,
        "attention.kv_lora_rank": d_c,
        "attention.key_length": nope + d_r if whole else d_c + d_r,
        "attention.value_length": v if whole else d_c,
        "leading_dense_block_count": first_of(config),
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_gating_func": 2 if is_v3 else 1,
        "expert_group_count": config.n_group or 1,
        "expert_group_used_count": config.topk_group or 1,
        "rope.dimension_count": d_r,
    }
    if not whole:
        found |= {"attention.key_length_mla": nope + d_r, "attention.value_length_mla": v}
    if config.q_lora_rank:
        found["attention.q_lora_rank"] = config.q_lora_rank
    if is_v3 and config.norm_topk_prob:
        found["expert_weights_norm"] = True
    if rotary["rope_type"] == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 8,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "rope.scaling.yarn_beta_fast": 3.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        }
    if gguf_cases.architecture_of(config) == "glm-dsa":
        found["attention.indexer.head_count"] = config.index_n_heads
        found["attention.indexer.key_length"] = config.index_head_dim
        found["attention.indexer.top_k"] = config.index_topk
    return found


def write(path, model, changes=(), **how):
    """Write a file as llama.cpp's converter does; `changes`: metadata by key, None to leave it out."""
    settings = metadata_of(model.config, **how) | dict(changes)
    return gguf_cases.write(path, model, settings=settings, **how)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_written_as_by_llama_cpp_and_computes_what_transformers_does(name, tmp_path):
    """Logits and cached greedy tokens, also of a file from before 2025-04."""
    model = written(name)
    file, tensors = written_by_us(model, tmp_path), gguf_cases.tensors_of(model)
    assert set(file.tensors) == set(tensors)
    for one, array in tensors.items():
        np.testing.assert_array_equal(file.read(one), array, err_msg=one)
    described, prefix = metadata_of(model.config), f"{gguf_cases.architecture_of(model.config)}."
    found = {key.removeprefix(prefix): value for key, value in file.metadata.items()}
    found |= {"expert_weights_norm": found.get("expert_weights_norm", False)}  # which the converter leaves out
    if not first_of(model.config):
        described.pop("feed_forward_length")
    assert {key: found.get(key) for key in described} == described
    exact = {one for one, info in file.tensors.items() if info.type == "F32"}
    assert all(one in exact for one in tensors if "norm" in one or "probs" in one or "gate_inp" in one)

    theta, config, _ = load_pretrained(tmp_path / "theirs")
    for whole in (False, True):
        opened, as_read, _ = load_pretrained(write(tmp_path / f"{whole}.gguf", model, whole=whole))
        assert as_read == config
        jax.tree.map(np.testing.assert_array_equal, opened, theta)
    x = np.random.default_rng(1).integers(config.N_V, size=19)
    ours = jnp.moveaxis(d_logits(jnp.asarray(x), theta), 0, -1)
    cases.assert_same(ours, model(torch.tensor(x)[None]).logits[0].detach(), "float32", "logits")
    options = {"l_gen": 8, "tau": 0.0, "key": jax.random.key(0)}
    tokens = generate(theta, x[None, :3], lengths=np.array([3]), config=config, **options)
    assert tokens[0].tolist() == model.generate(torch.tensor(x[None, :3]), **GREEDY)[0, 3:].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_gating_func": 3}, r"expert_gating_func: expected 1 \(softmax\) or 2 \(sigmoid\), got 3"),
        ({"expert_gating_func": 1}, "deepseek2.expert_weights_norm: expected false with the softmax, got True"),
        ({"rope.scaling.yarn_log_multiplier": None}, "yarn_log_multiplier: expected a number above 0, got None"),
        ({"rope.scaling.yarn_attn_factor": 1.5}, "does not have: deepseek2.rope.scaling.yarn_attn_factor = 1.5"),
        ({"attention.head_count_kv": 6}, "head_count_kv: expected 1, got 6"),
        ({"attention.key_length": 13}, "attention.key_length: expected 14, got 13"),
        ({"attention.key_length_mla": 4}, "qk_nope_head_dim: expected an integer of at least 1"),
        ({"attention.kv_lora_rank": None}, "attention.kv_lora_rank: expected an integer of at least 1, got None"),
        ({"leading_dense_block_count": 5}, "no layer with experts"),
        ({"nextn_predict_layers": 1}, "does not have: deepseek2.nextn_predict_layers = 1"),
    ],
)
def test_what_a_file_needs_more_is_named(changes, message, tmp_path):
    path = write(tmp_path / "model.gguf", written("V3"), changes)
    cases.assert_unreadable(path, message)

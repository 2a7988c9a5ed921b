"""Decoders of transformers, from GPT-2 to DeepSeek, at random: logits, gradients by name, and both directions."""

import fnmatch
import functools
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import VARIANTS, DTransformerConfig, d_hidden_state, d_transformer
from tests import interchange_cases as cases
from tests.cases import random_theta
from training.generation import generate
from training.interchange import convert, load_pretrained, save_pretrained
from training.interchange.architectures import ARCHITECTURES
from training.interchange.description import Fields
from training.runs.named_arrays import flatten
from training.tasks.models import model_shapes

torch, transformers = cases.libraries()

SIZES = {"vocab_size": 31, "hidden_size": 12, "intermediate_size": 17, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 32, "head_dim": 10}
SIZES |= {"rms_norm_eps": 1e-3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
STRETCHED = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0}
STRETCHED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}
YARN |= {"attention_factor": 1.25, "beta_fast": 3.0}
GEMMA = {"sliding_window": 5, "query_pre_attn_scalar": 7}
BY_KIND = {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
BY_KIND |= {"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0}}
OF_LAYERS = {"S": "sliding_attention", "F": "full_attention"}
GEMMA4 = {"num_hidden_layers": 7, "layer_types": [OF_LAYERS[kind] for kind in "SSFSSFF"], "sliding_window": 5}
GEMMA4 |= {"global_head_dim": 14, "num_global_key_value_heads": 3, "final_logit_softcapping": 0.7}
GEMMA4 |= {"vocab_size_per_layer_input": 31}
GEMMA4["rope_parameters"] = BY_KIND | {"full_attention": {"rope_type": "proportional", "rope_theta": 100.0}}
GEMMA4["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.45
EXPERTS = {"moe_intermediate_size": 11, "num_experts_per_tok": 2}
OSS = {"rope_parameters": {**YARN, "truncate": False}, "swiglu_limit": 0.7}
MSCALE = {**YARN, "attention_factor": None, "mscale": 0.7, "mscale_all_dim": 0.9}
LATENT = {"num_key_value_heads": 6, "n_routed_experts": 8, "first_k_dense_replace": 0, "kv_lora_rank": 10}
LATENT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "head_dim": 4}
GROUPS = {"q_lora_rank": 7, "n_group": 4, "topk_group": 2}
WITHIN = {"topk_method": "group_limited_greedy"}
INDEXER = {"index_n_heads": 9, "index_head_dim": 7, "index_topk": 5}
FIRST = {"first_k_dense_replace": 2, "num_hidden_layers": 5}
OLMO3 = {"hidden_size": 60, "num_hidden_layers": 5, "sliding_window": 5}
DEFAULT = {"rope_type": "default", "rope_theta": 100.0}
HALF = {**DEFAULT, "partial_rotary_factor": 0.5}
MROPE = {**HALF, "mrope_interleaved": True, "mrope_section": [1, 1, 1]}
DELTA = {"num_hidden_layers": 5, "linear_num_value_heads": 6, "linear_num_key_heads": 3}
IN_TURN = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
SHARED = {"num_experts": 5, "shared_expert_intermediate_size": 22}
DELTA |= {"linear_key_head_dim": 5, "linear_value_head_dim": 7, "linear_conv_kernel_dim": 3}
OLMO_HYBRID = {"hidden_size": 24, "num_key_value_heads": 3, "linear_key_head_dim": 10, "linear_value_head_dim": 5}
FACTORS = {"embedding_multiplier": 1.7, "residual_multiplier": 0.3, "attention_multiplier": 0.6}
FACTORS |= {"logits_scaling": 0.49}
MAMBA = {"num_hidden_layers": 5, "layer_types": ["mamba", "mamba", "attention", "mamba", "attention"]}
MAMBA |= {"hidden_size": 24, "mamba_n_heads": 6, "mamba_n_groups": 3, "mamba_d_state": 5, "mamba_d_head": 8}
MAMBA |= {"mamba_d_conv": 3, "shared_intermediate_size": 19}
BAMBA = {name: value for name, value in MAMBA.items() if name not in ("layer_types", "shared_intermediate_size")}
FALCON = dict(BAMBA)
FALCON |= {"num_hidden_layers": 3, "mamba_d_ssm": 48, "head_dim": 4, "mamba_norm_before_gate": False}
FALCON |= {"embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "key_multiplier": 0.7, "mlp_multipliers": [0.8, 0.9]}
FALCON |= {"attention_in_multiplier": 1.3, "attention_out_multiplier": 0.5, "ssm_out_multiplier": 0.4}
FALCON |= {"ssm_in_multiplier": 0.5, "ssm_multipliers": [1.25, 0.5, 1.5, 0.75, 1.75], "rope_parameters": DEFAULT}
NEMOTRON = {"mamba_num_heads": 6, "n_groups": 3, "ssm_state_size": 5, "mamba_head_dim": 8, "conv_kernel": 3}
NEMOTRON |= {"layer_norm_epsilon": 1e-3, "num_hidden_layers": None, "time_step_min": 0.6, "mlp_bias": True}
LFM = {"num_hidden_layers": 5, "norm_eps": 1e-3, "head_dim": 2, "rope_parameters": DEFAULT}
CONVOLUTIONS = ["conv", "conv", "full_attention"]
ROTATED = {"position_embedding_type": "rope", "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
KIMI = {"num_hidden_layers": 5, "num_key_value_heads": 6, "kv_lora_rank": 10, "num_experts": 8, "head_dim": 4}
KIMI |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "num_shared_experts": 2}
KIMI |= {"linear_num_heads": 3, "linear_head_dim": 5, "linear_conv_kernel_dim": 3}
NEOX = {"hidden_size": 48, "head_dim": 8}
LLAMA4 = {"num_hidden_layers": 5, "intermediate_size_mlp": 19, "num_local_experts": 5, "num_experts_per_tok": 2}
LLAMA4 |= {"attention_chunk_size": 5, "floor_scale": 3, "attn_scale": 0.7}
MODELS = {
    "gpt2": ("gpt2", {"n_inner": 7}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2, relu": ("gpt2", {"activation_function": "relu", "layer_norm_epsilon": 0.1}),
    "llama": ("llama", {"tie_word_embeddings": True, "rope_parameters": STRETCHED}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "olmo2": ("olmo2", {"hidden_size": 60}),
    "olmo3": ("olmo3", {**OLMO3, "rope_parameters": {**BY_KIND, "full_attention": YARN}}),
    "olmo_hybrid": ("olmo_hybrid", {**DELTA, **OLMO_HYBRID, "rope_parameters": {"rope_theta": None}}),
    "olmo_hybrid, rotated": (
        "olmo_hybrid",
        {**DELTA, **OLMO_HYBRID, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
        | {"num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "linear_attention"]}
        | {"linear_allow_neg_eigval": False},
    ),
    "glm4": ("glm4", {"head_dim": 12, "rope_parameters": HALF}),
    "nanochat": ("nanochat", {"final_logit_softcapping": 0.7}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "sliding_window": 5, "layer_norm_eps": 1e-3, "logit_scale": 0.3}),
    "qwen3_5": ("qwen3_5_text", {**DELTA, "rope_parameters": MROPE, "head_dim": 12}),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**DELTA, **EXPERTS, **SHARED, **IN_TURN, "head_dim": 12, "rope_parameters": HALF},
    ),
    "qwen3_next": ("qwen3_next", {**DELTA, **EXPERTS, **SHARED, **IN_TURN, "head_dim": 12, "rope_parameters": HALF}),
    "granite": ("granite", FACTORS),
    "granite, experts": ("granitemoe", {**FACTORS, "head_dim": 2, "num_local_experts": 5, "num_experts_per_tok": 3}),
    "granite, shared experts": (
        "granitemoeshared",
        {**FACTORS, "head_dim": 2, "num_local_experts": 5, "shared_intermediate_size": 35, "attention_bias": True},
    ),
    "granite, experts and none shared": (
        "granitemoeshared",
        {**FACTORS, "head_dim": 2, "num_local_experts": 5, "shared_intermediate_size": 0},
    ),
    "granite_hybrid": ("granitemoehybrid", {**MAMBA, **FACTORS, "num_local_experts": 0}),
    "granite_hybrid, experts": ("granitemoehybrid", {**MAMBA, **EXPERTS, **ROTATED, "shared_intermediate_size": 34}),
    "recurrent_gemma": (
        "recurrent_gemma",
        {"num_hidden_layers": 4, "intermediate_size": 34, "attention_window_size": 5, "lru_width": 18}
        | {"conv1d_width": 3, "logits_soft_cap": 0.7, "rope_parameters": HALF, "head_dim": 12},
    ),
    "kimi_linear": ("kimi_linear", {**KIMI, **EXPERTS, "num_expert_group": 4, "topk_group": 2}),
    "kimi_linear, a latent of queries": (
        "kimi_linear",
        {**KIMI, **EXPERTS, **IN_TURN, "q_lora_rank": 7, "mlp_layer_types": ["sparse"] * 3},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {**GEMMA, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.7}),
    "gemma3": ("gemma3_text", {**GEMMA, "num_hidden_layers": 7, "rope_parameters": BY_KIND}),
    "gemma4": ("gemma4_text", {**GEMMA4, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0}),
    "gemma4_unified": ("gemma4_unified_text", GEMMA4 | {"attention_k_eq_v": True}),
    "gemma4, shared": (
        "gemma4_text",
        {**GEMMA4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 7}
        | {"num_hidden_layers": 5, "layer_types": [OF_LAYERS[kind] for kind in "SFSSF"], "hidden_size": 24},
    ),
    "gemma4, experts": (
        "gemma4_text",
        {**GEMMA4, **EXPERTS, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 3}
        | {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
        | {"num_hidden_layers": 3, "layer_types": [OF_LAYERS[kind] for kind in "SFF"]},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "num_experts": 5, "norm_topk_prob": True}),
    "olmoe": ("olmoe", {**EXPERTS, "num_experts": 5, "hidden_size": 60}),
    "olmoe, clipped": ("olmoe", {**EXPERTS, "num_experts": 5, "hidden_size": 60, "clip_qkv": 0.5}),
    "minimax_m2": (
        "minimax_m2",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "hidden_size": 60, "head_dim": 12, "rope_parameters": HALF},
    ),
    "llama4": ("llama4_text", {**LLAMA4, "interleave_moe_layer_step": 2, "use_qk_norm": False}),
    "llama4, as Scout": (
        "llama4_text",
        {**LLAMA4, "num_experts_per_tok": 1, "rope_parameters": {**STRETCHED, "high_freq_factor": 1.0}},
    ),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, **OSS}),
    "deepseek_v3": ("deepseek_v3", {**EXPERTS, **LATENT, **GROUPS}),
    "deepseek_v3, with first layers": ("deepseek_v3", {**EXPERTS, **LATENT, **GROUPS, **FIRST}),
    "deepseek_v32": ("deepseek_v32", {**EXPERTS, **LATENT, **GROUPS, **INDEXER, "rope_parameters": MSCALE}),
    "glm_moe_dsa": ("glm_moe_dsa", {**EXPERTS, **LATENT, **FIRST, **INDEXER, "q_lora_rank": 7}),
    "deepseek_v2": ("deepseek_v2", {**EXPERTS, **LATENT, "q_lora_rank": None, "rope_parameters": MSCALE}),
    "deepseek_v2, within groups": ("deepseek_v2", {**EXPERTS, **LATENT, **GROUPS, **WITHIN}),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**EXPERTS, **LATENT, "q_lora_rank": 7, "rope_parameters": DEFAULT}
        | {"mlp_layer_types": ["dense", "dense", "sparse"]},
    ),
    "arcee": ("arcee", {"mlp_bias": True}),
    "apertus": ("apertus", {"rope_parameters": STRETCHED}),
    "seed_oss": ("seed_oss", {}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "starcoder2": ("starcoder2", {"sliding_window": 5, "norm_epsilon": 1e-3, "hidden_size": 60}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, **SHARED, "shared_expert_intermediate_size": 23}),
    "glm4_moe": ("glm4_moe", {**EXPERTS, "n_routed_experts": 8, "head_dim": 12}),
    "glm4_moe, normalized": (
        "glm4_moe",
        {**EXPERTS, **GROUPS, "n_routed_experts": 8, "head_dim": 12, "use_qk_norm": True, "attention_bias": True},
    ),
    "exaone4": ("exaone4", {"num_hidden_layers": 5, "sliding_window": 5}),
    "exaone4, without windows": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "hunyuan": (
        "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 3.0, "factor": 1.0}},
    ),
    "ministral3": ("ministral3", {"rope_parameters": {**MSCALE, "llama_4_scaling_beta": 0.7}}),
    "olmo": ("olmo", {"hidden_size": 60, "clip_qkv": 0.5}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_intermediate_size": 11, "moe_k": 2, "moe_num_experts": 5, "moe_layer_start_index": 2, "head_dim": 2},
    ),
    "bamba": ("bamba", {**BAMBA, "attn_layer_indices": [1, 4], "mlp_bias": True, "head_dim": 4}),
    "falcon_h1": ("falcon_h1", FALCON),
    "falcon_h1, normalized": (
        "falcon_h1",
        {**FALCON, "mamba_rms_norm": True, "attention_in_multiplier": 1.0}
        | {"attention_bias": True, "mlp_bias": True, "mlp_multipliers": [0.8, 1.0]},
    ),
    "nemotron_h": ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "M-MM-*-*M"}),
    "nemotron_h, experts": (
        "nemotron_h",
        {**NEMOTRON, **EXPERTS, "n_routed_experts": 6, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.7}
        | {"hybrid_override_pattern": "ME*-M"}
        | {"moe_shared_expert_intermediate_size": 15, "time_step_min": 0.6, "mlp_bias": False},
    ),
    "lfm2": ("lfm2", {**LFM, "full_attn_idxs": [1, 4], "conv_bias": True, "block_multiple_of": 7}),
    "lfm2_moe": (
        "lfm2_moe",
        {**LFM, **EXPERTS, "num_experts": 5, "num_dense_layers": 2}
        | {"layer_types": ["conv", "full_attention"] * 2 + ["conv"]},
    ),
    "ettin": (
        "modernbert-decoder",
        {"num_hidden_layers": 4, "head_dim": 2, "local_attention": 10, "norm_eps": 1e-3, "pad_token_id": 0},
    ),
    "opt": ("opt", {"ffn_dim": 17}),
    "opt, norm last, no biases": ("opt", {"ffn_dim": 17, "do_layer_norm_before": False, "enable_bias": False}),
    "gpt_neo": ("gpt_neo", {"attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 5}),
    "gpt_neox": ("gpt_neox", {**NEOX, "rotary_pct": 0.5, "layer_norm_eps": 1e-3}),
    "gpt_neox, in turn": ("gpt_neox", {**NEOX, "use_parallel_residual": False, "attention_bias": False}),
    "bloom": ("bloom", {"seq_length": 32, "layer_norm_epsilon": 1e-3}),
}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
QUICK = ("gpt2", "llama with biases", "qwen3", "gemma3", "gpt_neox", "bloom")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]


def make(name, seed=0, **changes):
    kind, own = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **own, **changes}, **EAGER)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    model.get_input_embeddings().padding_idx = None  # which has no gradient
    return cases.randomized(torch, model, seed)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_logits_and_gradients_are_those_of_transformers(tmp_path, name, dtype):
    make(name)
    with cases.in_float64(torch):
        model = make(name)
    path = cases.saved(model, tmp_path, dtype)
    x = np.random.default_rng(1).integers(model.config.vocab_size, size=(2, 19))
    is_rounded = name == "lfm2_moe" and dtype == "float64"  # it adds 1e-6 to the sum of the experts' weights
    cases.assert_decodes_as_theirs(torch, model, path, x, "rounded" if is_rounded else dtype)


SIGHT = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
SIGHT |= {"num_key_value_heads": 2, "position_embedding_size": 16, "image_size": 28, "patch_size": 14}
SIGHT |= {"depth": 1, "num_heads": 2, "out_hidden_size": 12, "num_position_embeddings": 4}
SIGHT |= {"vision_output_dim": 8, "projector_input_dim": 8, "projector_output_dim": 8}
SIGHT |= {"mm_embed_dim": 12, "mm_posemb_size": 4, "output_proj_dims": 12}
SOUND = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "subsampling_conv_channels": [4, 4]}
OF_IMAGES = "multi_modal_projector vision_tower"
WHOLE = {
    "gemma4": ("gemma4, shared", {"audio_config": SOUND}, "audio_tower embed_audio embed_vision vision_tower"),
    "gemma4_unified": ("gemma4_unified", {"audio_config": {"output_proj_dims": 8}}, "embed_audio vision_embedder"),
    "gemma3": ("gemma3", {}, OF_IMAGES),
    "mistral3": ("ministral3", {}, OF_IMAGES),
    "qwen3_5": ("qwen3_5", {}, "visual"),
    "qwen3_5_moe": ("qwen3_5_moe", {}, "visual"),
    "llama4": ("llama4", {}, "multi_modal_projector vision_model"),
}
"""Models that see or hear: their text model, what they are besides, and the modules of that."""


@pytest.mark.parametrize("kind", ["gemma4", *(pytest.param(n, marks=pytest.mark.slow) for n in [*WHOLE][1:])])
def test_the_text_model_of_one_that_sees_or_hears_is_read(tmp_path, kind):
    name, others, towers = WHOLE[kind]
    of_text, own = MODELS[name]
    text = {**SIZES, **own, "model_type": of_text, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=SIGHT, **others, **EAGER)
    model = cases.randomized(torch, transformers.AutoModelForImageTextToText.from_config(config))
    path, x = cases.saved(model, tmp_path / kind, "float32"), np.random.default_rng(1).integers(31, size=19)
    with pytest.warns(UserWarning, match=".*".join(["only the text model", *towers.split()])):
        theta, config, _ = load_pretrained(path)
    # transformers 5.24 cannot run Llama 4 without images
    logits = (model.language_model if kind == "llama4" else model)(input_ids=torch.tensor(x)[None]).logits[0]
    cases.assert_same(
        config.variant.unembedding.logits(d_hidden_state(x, theta), theta).T, logits.detach(), "float32", "logits"
    )
    assert "\nnote: only the text model is read" in convert(path, tmp_path / "run")
    save_pretrained(tmp_path / "text", theta, config, to=of_text)
    chex.assert_trees_all_equal(load_pretrained(tmp_path / "text")[0], theta)


def test_sizes_that_gemma_3s_first_files_leave_out_are_those_of_transformers():
    """As in the config.json of Gemma 3 4B, whose scaling is that of global layers."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    whole = transformers.AutoConfig.for_model("gemma3", text_config=dict(text)).text_config.to_dict()
    models = [ARCHITECTURES["gemma3_text"].read_config(Fields(Path("config.json"), said), []) for said in (text, whole)]
    assert models[0] == models[1]
    assert models[0].config.N_V == 262_208


@pytest.mark.parametrize(("key", "value"), [(5, 7), (4, 2)])
def test_convolutions_of_queries_keys_and_values_may_be_saved_in_thirds(tmp_path, key, value):
    """By transformers 5.24, which divides the rows of OLMo Hybrid's as if they were equally many."""
    model = make("olmo_hybrid", linear_key_head_dim=key, linear_value_head_dim=value)
    path, x = cases.saved(model, tmp_path), np.random.default_rng(1).integers(31, size=13)
    shapes = [a.shape for name, a in cases.tensors_of(path).items() if "0.linear_attn.v_conv1d" in name]
    assert shapes == [((6 * key + 6 * value) // 3, 1, 3)]
    logits = model(torch.asarray(x)[None]).logits[0]
    P = d_transformer(x, load_pretrained(path)[0])
    np.testing.assert_allclose(P, torch.softmax(logits, 1).T.detach(), atol=1e-4)


@pytest.mark.sampled(12)
@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_way_there_and_back_is_exact(tmp_path, name, dtype):
    path = cases.saved(make(name), tmp_path / "theirs", dtype)
    x, opened = torch.arange(19)[None], functools.partial(transformers.AutoModelForCausalLM.from_pretrained, **EAGER)
    cases.assert_written_again(torch, path, opened, lambda model: model(x).logits, to=MODELS[name][0])


OLD_YARN, OLD_LLAMA3 = ({k: v for k, v in scaling.items() if k != "rope_theta"} for scaling in (YARN, STRETCHED))
SPELLINGS = {
    "llama": ({}, {"rope_theta": 100.0, "rope_scaling": OLD_LLAMA3}),
    "gemma3": (
        {},
        {"rope_theta": 1000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"type": "linear", "factor": 8.0}}
        | {"layer_types": None, "sliding_window_pattern": 6},
    ),
    "olmo3": (
        {"rope_parameters": {"sliding_attention": DEFAULT, "full_attention": YARN}},
        {"rope_theta": 100.0, "rope_scaling": OLD_YARN, "layer_types": None},
    ),
    "glm4": ({}, {"rope_theta": 100.0, "partial_rotary_factor": None}),
    "gemma4": (  # as transformers 5.5 wrote it
        {},
        {"rope_parameters": GEMMA4["rope_parameters"], "per_layer_config": None}
        | {"global_head_dim": 14, "num_global_key_value_heads": 3, "use_bidirectional_attention": "vision"},
    ),
    "minimax_m2": ({}, {"rope_theta": 100.0, "rotary_dim": 6}),
    "nemotron_h": ({}, {"layers_block_type": None, "hybrid_override_pattern": "M-MM-*-*M"}),
    "gemma": ({}, {"rope_theta": 10_000.0, "hidden_act": "gelu", "hidden_activation": None}),  # as transformers warns
    "llama with biases": (  # InternLM 3: transformers 5.24 has only its configuration
        {},
        {"rope_parameters": YARN, "model_type": "internlm3", "qkv_bias": True, "bias": True}
        | {"attention_bias": None, "mlp_bias": None},
    ),
    "llama4": (
        {},
        {"rope_theta": 500_000.0, "layer_types": None, "moe_layers": None, "no_rope_layers": []}
        | {"interleave_moe_layer_step": 2, "attn_temperature_tuning": 4},
    ),
    "kimi_linear": (  # its published files count layers from 1, and the last has latent attention whatever the turn
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2}
        | {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 3},
        {"linear_attn_config": {"num_heads": 3, "head_dim": 5, "short_conv_kernel_size": 3, "full_attn_layers": [4, 5]}}
        | dict.fromkeys(("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "layer_types"))
        | {"mlp_layer_types": None, "first_k_dense_replace": 2, "moe_router_activation_func": "sigmoid"},
    ),
}
"""A model → how it is made, and the fields of its config.json in published or older files."""


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_fields_of_published_files_are_read(tmp_path, name):
    changes, said = SPELLINGS[name]
    path = cases.saved(make(name, **changes), tmp_path)
    expected = load_pretrained(path)[1]
    cases.change_config(path, **{"rope_parameters": None, **said})
    assert load_pretrained(path)[1] == expected


# of Falcon-H1-0.5B's config.json; transformers itself has no factors but 1
PUBLISHED_FALCON = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
PUBLISHED_FALCON |= {"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128}
PUBLISHED_FALCON |= {"embedding_multiplier": 5.656854249492381, "lm_head_multiplier": 0.0390625}
PUBLISHED_FALCON |= {"key_multiplier": 0.39062499999999994, "attention_out_multiplier": 0.9375}
PUBLISHED_FALCON |= {"ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23570226039551587}
PUBLISHED_FALCON |= {"mlp_multipliers": [0.8838834764831844, 0.5859375]}
PUBLISHED_FALCON |= {"ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]}
PUBLISHED_E = {"num_kv_shared_layers": 20, "use_double_wide_mlp": True, "num_hidden_layers": 35, "hidden_size": 1536}
PUBLISHED_E |= {"layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7, "num_key_value_heads": 1}
PUBLISHED_E |= {"intermediate_size": 6144, "final_logit_softcapping": 30.0}
PUBLISHED_E4 = {"num_kv_shared_layers": 18, "num_hidden_layers": 42, "hidden_size": 2560, "num_key_value_heads": 2}
PUBLISHED_E4 |= {"intermediate_size": 10_240, "final_logit_softcapping": 30.0}
PUBLISHED_31 = {"num_hidden_layers": 60, "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16}
PUBLISHED_31 |= {"intermediate_size": 21_504, "final_logit_softcapping": 30.0, "num_global_key_value_heads": 4}
PUBLISHED_31 |= {"attention_k_eq_v": True, "sliding_window": 1024, "hidden_size_per_layer_input": 0}
PUBLISHED_26 = PUBLISHED_31 | {"num_hidden_layers": 30, "hidden_size": 2816, "num_attention_heads": 16}
PUBLISHED_26 |= {"num_key_value_heads": 8, "num_global_key_value_heads": 2, "intermediate_size": 2112}
PUBLISHED_26 |= {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}
PUBLISHED = {
    "glm4_moe_lite": ("GLM4_MOE_LITE", 1e6, {}),
    "glm4_moe": ("GLM4_MOE", 1e6, {"attention_bias": True, "head_dim": 128}),
    "qwen2_moe": ("QWEN2_MOE", 1e6, {"output_router_logits": True}),
    "qwen3_5_moe_text": ("QWEN3_5_MOE", 1e7, {"output_router_logits": True}),
    "seed_oss": ("SEED_OSS", 1e7, {}),
    "arcee": ("ARCEE", 1e4, {}),
    "apertus": ("APERTUS", 12e6, {"rope_parameters": None}),
    "ernie4_5": ("ERNIE4_5", 5e5, {}),
    "starcoder2": ("STARCODER2", 1e5, {"sliding_window": 4096}),
    "exaone4": ("EXAONE4", 1e6, {}),
    "ministral3": ("MINISTRAL3", 1e6, {"rope_parameters": None}),
    "hunyuan_v1_dense": ("HUNYUAN", 1e4, {"head_dim": 128}),
    "olmo": ("OLMO", 1e4, {}),
    "ernie4_5_moe": ("ERNIE4_5_MOE", 5e5, {}),
    "lfm2": ("LFM2", 1e6, {"layer_types": CONVOLUTIONS * 3, "hidden_size": 2048, "num_hidden_layers": 9}),
    "lfm2_moe": ("LFM2_MOE", 1e6, {"layer_types": CONVOLUTIONS * 3, "num_hidden_layers": 9}),
    "deepseek_v32": ("DEEPSEEK_V32", 1e4, {}),
    "glm_moe_dsa": ("GLM5", 1e6, {}),
    "modernbert-decoder": ("ETTIN", None, {}),
    "gemma4_text": ("GEMMA4_E", None, PUBLISHED_E),
    "gemma4_text, E4B": (None, None, PUBLISHED_E4),
    "gemma4_text, 31B": ("GEMMA4", None, PUBLISHED_31),
    "gemma4_text, 26B-A4B": ("GEMMA4_MOE", None, PUBLISHED_26),
    "falcon_h1": ("FALCON_H1", 1e11, PUBLISHED_FALCON),
    "nemotron_h": ("NEMOTRON_H", 1e4, {"hybrid_override_pattern": "M-M-M-M-M*-" * 2}),
}


CLASSES = {"d": "AutoModelForCausalLM", "e": "AutoModelForMaskedLM", "ed": "AutoModelForSeq2SeqLM"}
WITHOUT = ("torch.nn.Transformer", "embedding_gemma", "internlm3", "llada")  # which transformers does not make by kind
OTHERS = [pytest.param(k, marks=pytest.mark.thorough) for k in ARCHITECTURES if k not in (*PUBLISHED, *WITHOUT)]


@pytest.mark.parametrize("published", [*PUBLISHED, *OTHERS])
def test_the_published_sizes_have_all_parameters_and_the_records_lines(published):
    """Those that transformers has as defaults, by shape alone."""
    name, base, said = PUBLISHED.get(published, (None, None, {}))
    kind = published.partition(",")[0]
    said = said if base is None else {"rope_parameters": {"rope_type": "default", "rope_theta": base}, **said}
    config, architecture = transformers.AutoConfig.for_model(kind, **said), ARCHITECTURES[kind]
    with torch.device("meta"):
        theirs = getattr(transformers, CLASSES[architecture.task]).from_config(config)
    state, names = config.to_dict() | {"architectures": [type(theirs).__name__]}, list(theirs.state_dict())
    model = architecture.read_config(Fields(Path("config.json"), state), names)
    assert name is None or model.config.variant.but(first=()) == VARIANTS[name]
    shapes = {n: leaf.shape for n, leaf in flatten(model_shapes(model.task, model.config)).items()}
    entries = architecture.entries(model, state)
    n = sum(np.prod(entry.shape(shapes), dtype=int) for entry in entries)
    ours = {name for entry in entries for name in (entry.name, *entry.aliases)}
    ignored = [
        name for name in {*names} - ours if any(fnmatch.fnmatchcase(name, pattern) for pattern in architecture.ignored)
    ]
    stored = [*theirs.named_parameters(), *((name, b) for name, b in theirs.named_buffers() if name in names)]
    assert n == sum(tensor.numel() for name, tensor in stored if name not in ignored)


OLD = {"type": "linear", "factor": 8.0}
BOTH = {
    "replaced": ("llama", {"rope_parameters": STRETCHED, "rope_scaling": OLD, "rope_theta": 30.0}),
    "beside": ("llama", {"rope_parameters": OLD, "rope_theta": 30.0}),
    "a default": ("llama", {"rope_parameters": STRETCHED, "rope_theta": 30.0, "rope_scaling": {}}),
    "gpt_neox": ("gpt_neox", {"rope_parameters": {**OLD, "rope_theta": 30.0}, "rope_scaling": OLD, "rotary_pct": 0.5}),
    "changed": ("gemma3", {"rope_parameters": BY_KIND, "rope_scaling": {"factor": 3.0}}),
    "share": ("glm4", {"rope_parameters": OLD, "partial_rotary_factor": 1 / 3, "pad_token_id": 0}),
}


@pytest.mark.parametrize("name", BOTH)
def test_old_and_new_fields_of_positions_side_by_side_mean_what_they_do_in_transformers(tmp_path, name):
    kind, said = BOTH[name]
    path, x = cases.saved(make(kind), tmp_path, "float32"), np.random.default_rng(1).integers(31, size=19)
    cases.change_config(path, **said)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, **EAGER)
    expected = torch.softmax(theirs(torch.asarray(x)[None]).logits[0], 1).T.detach()
    np.testing.assert_allclose(d_transformer(x, load_pretrained(path)[0]), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, r"rope_type = 'longrope'"),
        ("llama", {"rope_parameters": {**YARN, "mscale": 0.7}}, r"another scaling of the scores \(mscale = 0.7\)"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "for only part of the rows"),
        (
            "llama with biases",
            {"model_type": "internlm3", "qkv_bias": False, "bias": True, "attention_bias": None, "mlp_bias": None},
            "biases of some matrices",
        ),
        ("llama", {"hidden_act": "quick_gelu"}, "the activation 'quick_gelu'"),
        ("deepseek_v3", {"first_k_dense_replace": 7}, "no layer with experts \\(first_k_dense_replace = 7"),
        ("deepseek_v3", {"attention_bias": True}, "biases of latents"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, r"another choice of experts \(topk_method = 'noaux_tc'\)"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"layers without experts \(mlp_only_layers"),
        ("llama4", {"layer_types": ["sliding_attention"] * 5}, "expected chunked_attention or full_attention for each"),
        ("llama4", {"moe_layers": [1, 5]}, r"moe_layers: expected numbers of layers from 0 to 4, got \[1, 5\]"),
        ("llama4, as Scout", {"rope_parameters": YARN}, "use_qk_norm with yarn"),
        ("olmoe", {"clip_qkv": 0}, r"Attention.clip: expected a finite number > 0, or None, got 0.0"),
        ("olmoe", {"clip_qkv": "8"}, "clip_qkv: expected a number of at least 0, got '8'"),
        ("mixtral", {"clip_qkv": 8.0}, "clipped queries, keys and values"),
        ("mixtral", {"sliding_window": 5}, "windows in all layers"),
        ("qwen3_next", {"mlp_only_layers": [0]}, r"layers without experts \(mlp_only_layers"),
        ("qwen3_5", {"attention_bias": True}, r"biases of the gates of heads \(attention_bias = True\)"),
        ("granite", {"logits_scaling": 0}, "Unembedding.factor: expected a finite number > 0, got 0.0"),
        ("granite_hybrid", {"mamba_conv_bias": False}, "a convolution without biases"),
        ("granite_hybrid", {"mamba_proj_bias": True}, "biases of the projections of a recurrence"),
        ("granite_hybrid", {"time_step_limit": [0.0, 0.1]}, r"limits of Δ \(time_step_limit = \[0.0, 0.1\]\)"),
        ("granite_hybrid", {"layer_types": ["conv"] * 5}, "layer_types: expected linear_attention or full_attention"),
        ("falcon_h1", {"attention_bias": True}, "a factor of an attention's input beside biases"),
        ("falcon_h1", {"mlp_bias": True}, "a factor of an MLP's output beside biases"),
        ("falcon_h1", {"mlp_multipliers": [0.8]}, "mlp_multipliers: expected a list of 2 numbers"),
        ("falcon_h1, normalized", {"mamba_norm_before_gate": True}, "a recurrence's norm before its gate"),
        ("nemotron_h", {"layers_block_type": ["mamba", *["mlp"] * 8]}, "an MLP that follows neither an attention nor"),
        ("nemotron_h", {"layers_block_type": 7}, "layers_block_type: expected a list, got 7"),
        ("bamba", {"attn_layer_indices": 7}, "attn_layer_indices: expected a list, got 7"),
        ("deepseek_v3", {"mlp_layer_types": True}, "mlp_layer_types: expected a list, got True"),
        ("deepseek_v32", {"indexer_types": 7}, "indexer_types: expected a list, got 7"),
        ("nemotron_h", {"moe_latent_size": 7}, r"experts of a latent \(moe_latent_size = 7\)"),
        ("kimi_linear", {"layer_types": ["linear_attention"] * 4}, "linear_attention or full_attention for each of 5"),
        ("kimi_linear", {"mlp_layer_types": ["sparse", "dense"] * 2 + ["sparse"]}, "layers without experts after"),
        ("kimi_linear", {"moe_router_activation_func": "softmax"}, "other scores of experts"),
        ("kimi_linear", {"attention_bias": True}, "biases of latents"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, "another nonlinearity"),
        ("gemma4, experts", {"use_double_wide_mlp": True}, "wider MLPs beside experts"),
        ("gemma4", {"num_kv_shared_layers": 5}, "num_kv_shared_layers: expected fewer, so that each kind has a layer"),
        ("gemma4", {"layer_types": ["sliding_attention"] * 7}, "a window in the last layer, which transformers remov"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 14}}}, "layers of one kind with several sizes"),
        ("gemma4, shared", {"vocab_size_per_layer_input": 30}, "inputs of layers for other tokens"),
        ("mixtral", {"num_local_experts": 3}, "not part of the model"),
        ("olmoe", {"num_experts": 1 << 30}, "an integer of at least 1 and less than 2\\^16"),
        ("mixtral", {"num_experts_per_tok": 7}, "Experts.k"),
        *(
            ("gpt_neo", {"attention_layers": None, "attention_types": types}, "attention_types: expected global or loc")
            for types in (5, [["global", 1 << 40]], [[["global"], 2]], [[["near"], 3]], [[[["global"]], 3]])
        ),
    ],
)
def test_what_is_lacking_is_said(name, fields, message, tmp_path):
    cases.assert_refused(make(name), tmp_path, message, **fields)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name", ["PAPER", "GPT2", "LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3", "APERTUS"]
)
@pytest.mark.parametrize("tied", [True, False])
def test_our_own_models_open_in_transformers(tmp_path, name, tied):
    variant, sizes = VARIANTS[name], {"N_V": 17, "l_max": 23, "L": 7, "H": 4, "d_e": 12, "d_mlp": 13}
    sizes |= {} if name in ("PAPER", "GPT2") else {"H_kv": 2, "d_attn": 8, "d_mid": 8}
    config = DTransformerConfig(**sizes, tied=tied, variant=variant)
    theta = random_theta(config)
    save_pretrained(tmp_path / "out", theta, config)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__.lower().startswith("gpt2" if name == "PAPER" else name.lower())
    x = np.arange(17)
    X = d_hidden_state(jnp.asarray(x), theta)
    ours = jnp.moveaxis(config.variant.unembedding.logits(X, theta), 0, -1)
    cases.assert_same(ours, model(torch.tensor(x)[None]).logits[0].detach(), "rounded", "logits")
    again, config_again, _ = load_pretrained(tmp_path / "out")
    assert config_again.tied == tied
    assert config_again == config or name == "PAPER" or tied != variant.unembedding.tied
    chex.assert_trees_all_equal(*map(jax.tree.leaves, (again, theta)), strict=True)


@pytest.mark.parametrize("name", EVERY)
def test_greedy_generation_is_that_of_transformers(tmp_path, name):
    """Prompts of several lengths, past the windows."""
    # of RecurrentGemma, a cache has no other size; of Nemotron-H, steps from one ignore the smallest Δ
    kind, cached = MODELS[name][0], {"recurrent_gemma": {"lru_width": 12}, "nemotron_h": {"time_step_min": 1e-9}}
    model = make(name, **cached.get(kind, {}))
    theta, config, _ = load_pretrained(cases.saved(model, tmp_path))
    prompts = [np.random.default_rng(n).integers(3, config.N_V, n) for n in (1, 4, 9)]
    x = np.array([[*prompt, *[0] * (9 - len(prompt))] for prompt in prompts])
    options = {"l_gen": 14, "tau": 0.0, "key": jax.random.key(0)}
    ours = generate(theta, x, lengths=np.array([*map(len, prompts)]), config=config, **options)
    how = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for prompt, tokens in zip(prompts, ours, strict=True):
        theirs = model.generate(torch.tensor(prompt)[None], **how)[0, len(prompt) :]
        assert tokens.tolist() == theirs.tolist()
    cases.record(type(model).__name__, "greedy tokens that differ", "float64", 0)

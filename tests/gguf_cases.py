"""Files of GGUF that tests write: models of transformers, as llama.cpp's converter lays them out."""

from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install -e .[models]")


def permuted(array, H):
    """The rows of q or k as llama.cpp has them, written from its definition."""
    return array.reshape(H, 2, array.shape[0] // H // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def settings_of(config):
    """The metadata of a configuration, by key without the architecture's name."""
    if config.model_type in ("gpt2", "gemma4_text"):
        return (_of_gpt2 if config.model_type == "gpt2" else _of_gemma4)(config)
    rope = config.rope_parameters
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        **_norm(config),
        "rope.freq_base": rope.get("full_attention", rope)["rope_theta"],
    }
    if config.model_type in ("gemma2", "gemma3_text", "olmo3", "cohere2"):
        found["attention.sliding_window"] = config.sliding_window
    if config.model_type == "olmo3":
        found["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if config.model_type == "ministral3":
        found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"]}
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        found |= {f"rope.scaling.yarn_{name}": rope[name] for name in ("beta_fast", "beta_slow")}
        found["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
        found["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if config.model_type == "glm4":
        found["rope.dimension_count"] = int(config.head_dim * rope["partial_rotary_factor"])
    if config.model_type == "starcoder2":
        found["attention.layer_norm_epsilon"] = config.norm_epsilon
    if config.model_type == "olmo":
        found |= {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": config.clip_qkv}
    if config.model_type == "granite":
        names = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
        factors = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
        found |= {name: getattr(config, factor) for name, factor in zip(names, factors, strict=True)}
    if config.model_type == "gemma2":
        found["attn_logit_softcapping"] = config.attn_logit_softcapping
        found["final_logit_softcapping"] = config.final_logit_softcapping
    return found


def _of_gpt2(config):
    return {
        "context_length": config.n_positions,
        "embedding_length": config.n_embd,
        "feed_forward_length": config.n_inner or 4 * config.n_embd,
        "block_count": config.n_layer,
        "attention.head_count": config.n_head,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def _of_gemma4(config):
    """Those that llama.cpp's converter writes: lists over layers, and the sizes of layers with windows apart."""
    in_window = [kind == "sliding_attention" for kind in config.layer_types]
    rope, n, own = (
        config.rope_parameters,
        config.num_hidden_layers - config.num_kv_shared_layers,
        config.per_layer_config,
    )
    d, units = own["full_attention"].head_dim, config.intermediate_size
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [own[kind].num_key_value_heads for kind in config.layer_types],
        "feed_forward_length": [units * (1 + (config.use_double_wide_mlp and l >= n)) for l in range(len(in_window))],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": in_window,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "final_logit_softcapping": config.final_logit_softcapping,
    }
    for suffix, rows in (("", d), ("_swa", own["sliding_attention"].head_dim)):
        found |= {
            f"{key}{suffix}": rows for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
        }
    if config.enable_moe_block:
        found |= {"expert_count": config.num_experts, "expert_used_count": config.top_k_experts}
        found["expert_feed_forward_length"] = config.moe_intermediate_size
    return found


def _norm(config):
    if config.model_type == "cohere2":
        return {"attention.layer_norm_epsilon": config.layer_norm_eps, "logit_scale": config.logit_scale}
    return (
        {} if config.model_type in ("starcoder2", "olmo") else {"attention.layer_norm_rms_epsilon": config.rms_norm_eps}
    )


def names_in(architecture, L):
    """The names of gguf's tensors by those of transformers' modules, in L layers."""
    number = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(number, L)


ARCHITECTURES = {"olmo3": "olmo2", "hunyuan_v1_dense": "hunyuan-dense", "ministral3": "mistral3", "gpt_oss": "gpt-oss"}
ARCHITECTURES |= {"mixtral": "llama", "qwen3_moe": "qwen3moe", "minimax_m2": "minimax-m2", "qwen2_moe": "qwen2moe"}
ARCHITECTURES |= {"glm4_moe": "glm4moe", "ernie4_5_moe": "ernie4_5-moe", "glm_moe_dsa": "glm-dsa"}
ARCHITECTURES |= dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), "deepseek2")
PERMUTED = "llama", "mistral3", "smollm3", "granite", "arcee", "olmo"


def architecture_of(config):
    """llama.cpp's name of a kind of model."""
    return ARCHITECTURES.get(config.model_type, config.model_type.removesuffix("_text"))


def tensors_of(model, *, whole=False):
    """The tensors of a model by their names in llama.cpp, in whose order their rows are.

    `whole`: the keys and values of latent attention in one, as before 2025-04.
    """
    config, architecture, found = model.config, architecture_of(model.config), {}
    names = names_in(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if ".act_fn." in name or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        stem = name.removesuffix("_bias").removesuffix(".bias").removesuffix(".weight")
        stem = stem.replace("gate.moe_statics", "moe_statics")  # as in files of Ernie
        if architecture == "gemma4" and (own := _of_router(stem, names)):  # which its converter names
            found[own] = tensor.float().numpy()
            continue
        for one, part in _parts(stem, tensor.float().numpy(), config, whole=whole).items():
            target, array = names.get_name(one), part
            if architecture in PERMUTED and one.endswith(("q_proj", "k_proj")):
                H = config.num_attention_heads if one.endswith("q_proj") else config.num_key_value_heads
                array = permuted(part, H)
            if architecture in ("gemma", "gemma2", "gemma3") and target.endswith("norm"):
                array = part + 1
            if architecture == "gpt2" and part.ndim == 2 and ".h." in name:
                array = part.T
            found[f"{target}.{'bias' if name.endswith('bias') else 'weight'}"] = np.ascontiguousarray(array)
    if architecture == "gemma4":  # divisors of frequencies in layers without windows
        share, d = (
            config.rope_parameters["full_attention"]["partial_rotary_factor"],
            settings_of(config)["rope.dimension_count"],
        )
        n = int(d * share / 2)
        found["rope_freqs.weight"] = np.array([1.0] * n + [1e30] * (d // 2 - n), np.float32)
    return found


def _of_router(stem, names):
    """The names of the scales of a router and of experts, as Gemma 4's converter has them."""
    for scale, of in (("router.scale", "router.proj"), ("router.per_expert_scale", "experts.down_proj")):
        if stem.endswith(scale):
            return f"{names.get_name(stem.replace(scale, of))}.scale"
    return None


def _parts(stem, array, config, *, whole):
    """The arrays of a module by their own modules: gates and first matrices of all experts, keys and values."""
    is_expert, fused = stem.endswith(("experts.gate_up_proj", "experts.down_proj")), config.model_type == "gpt_oss"
    array = array.swapaxes(1, 2) if is_expert and fused and array.ndim == 3 else array
    if is_expert and "gate_up" in stem and config.model_type != "gemma4_text":
        halves = (array[:, ::2], array[:, 1::2]) if fused else np.split(array, 2, axis=1)
        return {stem.replace("gate_up", part): half for part, half in zip(("gate", "up"), halves, strict=True)}
    if stem.endswith("kv_b_proj") and not whole:
        of_heads = array.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        k, v = np.split(of_heads, [config.qk_nope_head_dim], axis=1)
        return {stem.replace("kv_b", "k_b"): k.swapaxes(1, 2), stem.replace("kv_b", "v_b"): v}
    return {stem: array}


def write(path, model, *, kind=None, fields=(), tensors=(), settings=None, whole=False):
    """Write a model.

    `path`: the file; `model`: of transformers; `kind`: from a tensor's name in GGUF to how its numbers are stored,
    as gguf names it; None: all in F32; `fields`: more metadata, by key, None to leave one out; `tensors`: more tensors,
    by name; `settings`: the metadata by key without the architecture's name; None: those of `settings_of`; `whole`: as
    in `tensors_of`.
    """
    architecture = architecture_of(model.config)
    writer = gguf.GGUFWriter(str(path), architecture)
    settings = settings_of(model.config) if settings is None else settings
    for key, value in {**{f"{architecture}.{k}": v for k, v in settings.items()}, **dict(fields)}.items():
        if value is not None:
            add_field(writer, key, value)
    numbers = {}  # of xIELU, which a file stores as lists
    for name, tensor in model.state_dict().items():
        if ".act_fn." in name:
            numbers.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensor.float().item())
    for key, value in numbers.items():
        writer.add_array(key, value)
    for name, array in {**tensors_of(model, whole=whole), **dict(tensors)}.items():
        form = gguf.GGMLQuantizationType[(kind(name) if kind and name not in tensors else None) or "F32"]
        data = array if form.name == "F32" else gguf.quants.quantize(array, form)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=form)
    finish(writer)
    return Path(path)


def add_field(writer, key, value):
    """Write a field of metadata, with the type that llama.cpp gives such values."""
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(key, value)


def finish(writer):
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

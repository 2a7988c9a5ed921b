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
    if config.model_type == "gpt2":
        return {
            "context_length": config.n_positions,
            "embedding_length": config.n_embd,
            "feed_forward_length": config.n_inner or 4 * config.n_embd,
            "block_count": config.n_layer,
            "attention.head_count": config.n_head,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
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


def write(path, model, *, kind=None, fields=(), tensors=()):
    """Write a model.

    `path`: the file; `model`: of transformers; `kind`: from a tensor's name in GGUF to how its numbers are stored,
    as gguf names it; None: all in F32; `fields`: more metadata, by key; `tensors`: more tensors, by name.
    """
    config = model.config
    others = {"olmo3": "olmo2", "hunyuan_v1_dense": "hunyuan-dense", "ministral3": "mistral3"}
    architecture = others.get(config.model_type, config.model_type.removesuffix("_text"))
    names = names_in(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in {**{f"{architecture}.{k}": v for k, v in settings_of(config).items()}, **dict(fields)}.items():
        add_field(writer, key, value)
    numbers = {}  # of xIELU, of which a file has lists
    for name, tensor in model.state_dict().items():
        if ".act_fn." in name:
            numbers.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensor.float().item())
            continue
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if architecture in ("llama", "mistral3", "smollm3", "granite", "arcee", "olmo") and (
            "q_proj" in name or "k_proj" in name
        ):
            array = permuted(array, config.num_attention_heads if "q_" in name else config.num_key_value_heads)
        if architecture.startswith("gemma") and target.endswith("norm.weight"):
            array = array + 1
        if architecture == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T
        form = gguf.GGMLQuantizationType[(kind(target) if kind else None) or "F32"]
        data = array if form.name == "F32" else gguf.quants.quantize(np.ascontiguousarray(array), form)
        writer.add_tensor(target, np.ascontiguousarray(data), raw_dtype=form)
    for key, value in numbers.items():
        writer.add_array(key, value)
    for name, array in dict(tensors).items():
        writer.add_tensor(name, array)
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

"""Present a GGUF file as a checkpoint of `transformers`, with the fields of a config.json and the same tensor names.

One mapping then reads both, and `gguf_writing` writes by the same tables. What GGUF changes is undone: the order of the
rows of q and k, since its rotary positions rotate adjacent rows (`llama`, `smollm3`); the 1 added to the scales of
norms (`gemma`); and the matrices that `Conv1D` transposes (`gpt2`). Defaults are llama.cpp's. A key that is not
understood raises an error that names it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from training.interchange.containers import Tensors
from training.interchange.description import MOST_LAYERS
from training.interchange.errors import InterchangeError
from training.interchange.experts import SHARED
from training.interchange.gguf_file import GGUFFile, Metadata
from training.interchange.gguf_hybrids import (
    by_heads,
    flat,
    heads_of_layers,
    interval_of,
    rows_of_values,
    split,
    with_rates,
    with_values_by_keys,
)
from training.interchange.gguf_rotary import ROPE_FACTORS, ROTARY, rotary_in, with_rotary
from training.interchange.llama4 import CHUNKED
from training.interchange.mapping import Entry, Shape
from training.interchange.unsupported import NEEDS

TIED = "tie_word_embeddings"
"""Our own key, for models whose tensor output.weight repeats token_embd.weight."""

_LINEARS = {
    **{f"attn_{a}": f"self_attn.{a}_proj" for a in "qkv"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{a}": f"mlp.{a}_proj" for a in ("gate", "up", "down")},
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
}
_EXPERTS = {f"ffn_{a}_exps": f"mlp.experts.{a}_proj" for a in ("gate", "up", "down")}
_LLAMA = {**_LINEARS, **_EXPERTS, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "block_sparse_moe.gate"}
_QWEN_MOE = {**_LLAMA, "ffn_gate_inp": "mlp.gate"}
_OLMO2 = {
    **_LINEARS,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4 = {
    **_LINEARS,
    "ffn_up": "mlp.gate_up_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_MINIMAX = {**_LLAMA, "exp_probs_b": "block_sparse_moe.e_score_correction"}
_LLAMA4 = {
    **_LLAMA,
    **{f"ffn_{a}": f"feed_forward.{a}_proj" for a in ("gate", "up", "down")},
    **{f"ffn_{a}_shexp": f"feed_forward.shared_expert.{a}_proj" for a in ("gate", "up", "down")},
    "ffn_gate_inp": "feed_forward.router",
}
_GEMMA2 = {**_OLMO2, "ffn_norm": "pre_feedforward_layernorm"}
_GPT_OSS = {
    **_LINEARS,
    **_EXPERTS,
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
_DEEPSEEK = {
    **_QWEN_MOE,
    **{f"attn_{a}": f"self_attn.{a}_proj" for a in ("q_a", "q_b", "k_b", "v_b", "kv_b")},
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    **{f"attn_{a}_norm": f"self_attn.{a}_layernorm" for a in ("q_a", "kv_a")},
    **{f"ffn_{a}_shexp": f"mlp.shared_experts.{a}_proj" for a in ("gate", "up", "down")},
    "exp_probs_b": "mlp.gate.e_score_correction",
}
_QWEN3_NEXT = {
    **{name: theirs for name, theirs in _QWEN_MOE.items() if name != "ffn_norm"},
    **{f"ffn_{a}_shexp": f"mlp.shared_expert.{a}_proj" for a in ("gate", "up", "down")},
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN35 = {
    **_QWEN3_NEXT,
    **{f"ffn_{a}": f"mlp.{a}_proj" for a in ("gate", "up", "down")},
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
_GRANITE_HYBRID = {
    **_LLAMA,
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **{f"ffn_{a}_shexp": f"shared_mlp.{a}_proj" for a in ("gate", "up", "down")},
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
_GRANITE_MOE = {name: theirs for name, theirs in _GRANITE_HYBRID.items() if not name.startswith("ssm_")}
_KIMI = {
    **_DEEPSEEK,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b": "block_sparse_moe.gate.e_score_correction",
    **{f"ffn_{a}_shexp": f"block_sparse_moe.shared_experts.{a}_proj" for a in ("gate", "up", "down")},
    **{f"ssm_conv1d_{a}": f"self_attn.{a}_conv1d" for a in "qkv"},
    **{f"ssm_{gate}_{a}": f"self_attn.{gate}_{a}_proj" for gate in "fg" for a in "ab"},
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
}
_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GPT2_OUTER = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
IN_TRANSFORMERS = {
    "command-r": "cohere",
    "gptneox": "gpt_neox",
    "modern-bert": "modernbert",
    "nomic-bert": "nomic_bert",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "starcoder": "gpt_bigcode",
}
"""The names in transformers of architectures that GGUF names differently."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
SHARED_LENGTH = "expert_shared_feed_forward_length"
SOFTMAX, SIGMOID = 1, 2
"""What expert_gating_func says of the weights of experts."""


_MIXTRAL = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
_CHOICE = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
_GPT_OSS_FIELDS = {"expert_feed_forward_length": "intermediate_size", **ROTARY, **_WINDOW, **_MIXTRAL}
_COHERE_FIELDS = {
    **{key: field for key, field in ROTARY.items() if field != "rms_norm_eps"},
    **_WINDOW,
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "logit_scale": "logit_scale",
}
_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_MINIMAX_FIELDS = {"expert_feed_forward_length": "intermediate_size", **ROTARY, **_MIXTRAL}
_LLAMA4_FIELDS = {
    **ROTARY,
    **_MIXTRAL,
    "feed_forward_length": "intermediate_size_mlp",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
_LATENTS = {
    **{key: ROTARY[key] for key in ("context_length", "embedding_length", "block_count", "attention.head_count")},
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    **_WIDTH,
}
_LATENTS_OPTIONAL = {
    "feed_forward_length": ("intermediate_size", None),
    "leading_dense_block_count": ("first_k_dense_replace", 0),
    "attention.q_lora_rank": ("q_lora_rank", None),
    "expert_weights_scale": ("routed_scaling_factor", 1.0),
    "expert_group_count": ("n_group", 1),
    "expert_group_used_count": ("topk_group", 1),
}
_DEEPSEEK_FIELDS = {
    **_LATENTS,
    **{key: field for key, (field, _) in _LATENTS_OPTIONAL.items()},
    "attention.value_length_mla": "v_head_dim",
    "expert_weights_norm": "norm_topk_prob",
}
_DELTA_FIELDS = {
    **ROTARY,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_QWEN3_NEXT_FIELDS = {
    **_DELTA_FIELDS,
    **_CHOICE,
    **_WIDTH,
    SHARED_LENGTH: "shared_expert_intermediate_size",
}
_MAMBA_FIELDS = {
    **{key: field for key, field in ROTARY.items() if key != "attention.head_count_kv"},
    **_FACTORS,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
_KIMI_FIELDS = {
    **{key: field for key, field in _LATENTS.items() if not key.startswith("expert_") or key in _WIDTH},
    "context_length": "model_max_length",
    "feed_forward_length": "intermediate_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_token",
    "expert_shared_count": "num_shared_experts",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "kda.head_dim": "linear_head_dim",
}
_KIMI_OPTIONAL = {
    "leading_dense_block_count": ("first_k_dense_replace", 0),
    "attention.q_lora_rank": ("q_lora_rank", None),
    "expert_weights_scale": ("routed_scaling_factor", 1.0),
    "expert_group_count": ("num_expert_group", 1),
    "expert_group_used_count": ("topk_group", 1),
}
_GPT2_FIELDS = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_PARTS = {"gate": "gate_proj", "mlp1": "up_proj", "mlp2": "down_proj"}


def _llama(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    found, window = with_rotary(m, ROTARY), m.get("attention.sliding_window")
    found |= {"model_type": "mistral", "sliding_window": window} if window else {}
    has_experts = m.has("blk.0.ffn_gate_inp.weight")
    return found | ({"model_type": "mixtral", **m.fields(_MIXTRAL)} if has_experts else {})


def _olmo2(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; a file with windows is OLMo 3's, whose frequencies are not scaled in them."""
    found, window = with_rotary(m, ROTARY), m.get("attention.sliding_window")
    if not window:
        return found
    rotary = found["rope_parameters"]
    in_windows = {"rope_type": "default", "rope_theta": rotary["rope_theta"]}
    found["rope_parameters"] = {"sliding_attention": in_windows, "full_attention": rotary}
    return found | {"model_type": "olmo3", "sliding_window": window, "layer_types": _layer_types(m, found, 4)}


def _cohere2(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; every fourth layer attends to all tokens."""
    found = with_rotary(m, names)
    return found | {"layer_types": _layer_types(m, found, 4)}


def _minimax(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; the weights of experts are sigmoids, divided by their sum."""
    if m.get("expert_gating_func", SIGMOID) != SIGMOID:
        raise m.wrong("expert_gating_func", f"{SIGMOID} (sigmoid)")
    return with_rotary(m, names, intermediate_size=m.integer("feed_forward_length"))


def _llama4(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields: chunks and a temperature of 8,192 tokens, unless the file has a window of 0, and norms of
    queries and keys unless there are 128 experts, as in llama.cpp.
    """
    found = with_rotary(m, names)
    if found["num_hidden_layers"] >= MOST_LAYERS:
        raise m.wrong("block_count", f"fewer than {MOST_LAYERS} layers")
    found["use_qk_norm"] = found["num_local_experts"] != 128
    window = m.get("attention.sliding_window", 8192)
    if window == 0:
        return found | {"no_rope_layers": [1] * found["num_hidden_layers"], "attention_chunk_size": None}
    if window != 8192:
        raise m.wrong("attention.sliding_window", "0 or 8192")
    return found


def _qwen3_moe(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; the weights of the chosen experts are divided by their sum, as in llama.cpp."""
    return with_rotary(m, names) | {"norm_topk_prob": True}


def _gpt_oss(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; every second layer attends to all tokens, and the rows of YaRN are not rounded."""
    width = m.integer("feed_forward_length")
    found = with_rotary(m, names, 150_000.0, intermediate_size=width, sliding_window=128)
    if found["rope_parameters"]["rope_type"] == "yarn":
        found["rope_parameters"]["truncate"] = False
    return found


def _deepseek(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields: of V3 if the weights of experts are sigmoids. Without groups in the file, a token chooses
    among all experts, as in llama.cpp.
    """
    found = {**m.fields(_LATENTS), **{name: m.get(key) or none for key, (name, none) in _LATENTS_OPTIONAL.items()}}
    gate, rotary = m.get("expert_gating_func") or SOFTMAX, rotary_in(m, found["qk_rope_head_dim"], 10_000.0)
    if gate not in (SOFTMAX, SIGMOID):
        raise m.wrong("expert_gating_func", f"{SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    if gate == SIGMOID:
        found |= {"model_type": "deepseek_v3", "norm_topk_prob": m.get("expert_weights_norm", False)}
    else:
        method = "greedy" if found["n_group"] == 1 else "group_limited_greedy"
        found |= {"model_type": "deepseek_v2", "topk_method": method}
    if rotary["rope_type"] == "yarn":
        mscale = round(10 * m.number("rope.scaling.yarn_log_multiplier"), 6)
        rotary |= {"mscale": mscale, "mscale_all_dim": mscale}
    return {**found, **_heads_of_latents(m, found), "rope_parameters": rotary}


def _heads_of_latents(m: Metadata, found: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of the heads; files from before 2025-04 have them under other keys."""
    d_c, d_r, H = (found[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "num_attention_heads"))
    of_head, expected = "", {"head_count_kv": H}
    if m.raw("attention.key_length_mla") is not None:
        of_head, expected = "_mla", {"head_count_kv": 1, "key_length": d_c + d_r, "value_length": d_c}
    for key, size in expected.items():
        if m.integer(f"attention.{key}", size) != size:
            raise m.wrong(f"attention.{key}", str(size))
    return {
        "qk_nope_head_dim": m.integer(f"attention.key_length{of_head}") - d_r,
        "v_head_dim": m.integer(f"attention.value_length{of_head}"),
    }


def _qwen3_next(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; every n-th layer has attention, and the weights of experts are divided by their sum."""
    found = with_rotary(m, names) | {"norm_topk_prob": True}
    found["linear_value_head_dim"] = rows_of_values(m, found["linear_num_value_heads"])
    return found | {"full_attention_interval": m.integer("full_attention_interval", 4)}


def _qwen35(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; the positions of a text are the same in all sections of the rotated rows."""
    found = with_rotary(m, names)
    found["linear_value_head_dim"] = rows_of_values(m, found["linear_num_value_heads"])
    sections = _sections(m.integer("rope.dimension_count"))
    if m.raw("rope.dimension_sections") != sections:
        raise m.wrong("rope.dimension_sections", str(sections))
    return found | {"full_attention_interval": m.integer("full_attention_interval", 4)}


def _sections(d: int) -> list[int]:
    """Return how many pairs of d rotated rows are of each of three positions, which take turns, and of a fourth."""
    return [(d // 2 + 2) // 3, (d // 2 + 1) // 3, d // 2 // 3, 0]


def _granite_hybrid(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; without experts, the shared MLP is the only one."""
    types, H_kv = by_heads(m)
    found = with_rotary(m, names) | {"num_key_value_heads": H_kv, "layer_types": types, "num_local_experts": 0}
    found["mamba_d_head"] = rows_of_values(m, found["mamba_n_heads"])
    found["attention_bias"] = any(m.has(f"blk.{l}.attn_q.bias") for l in range(len(types)))
    if m.get("rope.scaling.finetuned", True):
        found["position_embedding_type"] = "rope"
    found[SHARED] = found["intermediate_size"]
    if m.raw("expert_count"):
        found |= m.fields({**_MIXTRAL, SHARED_LENGTH: SHARED})
    return found


def _granite_moe(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields, of a model with an MLP that every token takes if there is one."""
    found = with_rotary(m, names)
    if m.raw(SHARED_LENGTH):
        return found | {"model_type": "granitemoeshared", SHARED: m.integer(SHARED_LENGTH)}
    return found


def _kimi(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields; recurrences have as many heads as attentions, and the weights of experts are sigmoids, divided
    by their sum.
    """
    found = {**m.fields(names), **{name: m.get(key) or none for key, (name, none) in _KIMI_OPTIONAL.items()}}
    types, _ = by_heads(m)
    if m.get("expert_gating_func", SIGMOID) != SIGMOID:
        raise m.wrong("expert_gating_func", f"{SIGMOID} (sigmoid)")
    if not m.get("expert_weights_norm", True):
        raise m.wrong("expert_weights_norm", "true")
    d_c, d_r, H = (found[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "num_attention_heads"))
    for key, size in {"key_length": d_c + d_r, "value_length": d_c}.items():
        if m.integer(f"attention.{key}", size) != size:
            raise m.wrong(f"attention.{key}", str(size))
    found |= {
        "qk_nope_head_dim": m.integer("attention.key_length_mla") - d_r,
        "v_head_dim": m.integer("attention.value_length_mla"),
    }
    return found | {"layer_types": types, "linear_num_heads": H, "num_key_value_heads": H}


def _gemma2(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    found = with_rotary(m, names, sliding_window=4096, **caps)
    return found | _windows(m, found, 2, largest=46)


def _gemma3(m: Metadata, names: dict[str, str]) -> dict[str, Any]:
    found = with_rotary(m, {**ROTARY, **_WINDOW}, 1_000_000.0, sliding_window=1024)
    in_windows = {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 10_000.0)}
    found["rope_parameters"] = {"sliding_attention": in_windows, "full_attention": found["rope_parameters"]}
    found["final_logit_softcapping"] = m.get("final_logit_softcapping") or None
    return found | _windows(m, found, 6, largest=62)


def _windows(m: Metadata, found: dict[str, Any], pattern: int, *, largest: int) -> dict[str, Any]:
    """Return the fields on which layers have windows and on the scale of the scores; as in llama.cpp, the model with
    ``largest`` layers divides its scores by √(d_e/H).
    """
    L, d_e, H = (found[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    return {
        "layer_types": _layer_types(m, found, pattern),
        "query_pre_attn_scalar": d_e // H if largest == L else found["head_dim"],
    }


def _layer_types(m: Metadata, found: dict[str, Any], pattern: int) -> list[str]:
    """Return which layers have windows: all but every ``pattern``-th, unless the file says otherwise."""
    L = found["num_hidden_layers"]
    if L >= MOST_LAYERS:
        raise m.wrong("block_count", f"fewer than {MOST_LAYERS} layers")
    in_window = m.raw("attention.sliding_window_pattern")  # a number, or whether each layer has a window
    if not isinstance(in_window, list):
        period = m.integer("attention.sliding_window_pattern", pattern)
        in_window = [bool((l + 1) % period) for l in range(L)]
    if len(in_window) != L:
        raise m.wrong("attention.sliding_window_pattern", f"a number, or true or false for each of {L} layers")
    return ["sliding_attention" if w else "full_attention" for w in in_window]


def _of_heads(state: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata on sizes that GGUF has twice, from the fields of config.json."""
    d = state.get("head_dim")
    if d is None:
        return {}
    turned = int(d * state["rope_parameters"].get("partial_rotary_factor", 1))
    return {"rope.dimension_count": turned, "attention.value_length": d}


def _of_olmo(state: dict[str, Any]) -> dict[str, Any]:
    """Return OLMo's: which layers have windows, if there are any."""
    in_window = [kind == "sliding_attention" for kind in state.get("layer_types", ())]
    return _of_heads(state) | ({"attention.sliding_window_pattern": in_window} if in_window else {})


def _of_sigmoids(state: dict[str, Any]) -> dict[str, Any]:
    """Return those of experts whose weights are sigmoids."""
    return _of_heads(state) | {"expert_gating_func": SIGMOID}


def _of_llama4(state: dict[str, Any]) -> dict[str, Any]:
    """Return Llama 4's: a window of 0 if it has neither chunks nor layers without positions."""
    is_plain = CHUNKED not in state["layer_types"] and all(state["no_rope_layers"])
    return _of_heads(state) | ({"attention.sliding_window": 0} if is_plain else {})


def _of_latents(state: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSeek's: to llama.cpp, a latent with the rotated rows is one head's keys, and the latent its values."""
    d_c, d_r, rotary = state["kv_lora_rank"], state["qk_rope_head_dim"], state["rope_parameters"]
    found = {
        "attention.head_count_kv": 1,
        "attention.key_length": d_c + d_r,
        "attention.value_length": d_c,
        "attention.key_length_mla": state["qk_nope_head_dim"] + d_r,
        "expert_gating_func": SIGMOID if state["model_type"] == "deepseek_v3" else SOFTMAX,
    }
    is_yarn = rotary["rope_type"] == "yarn"
    return found | ({"rope.scaling.yarn_log_multiplier": rotary["mscale_all_dim"] / 10} if is_yarn else {})


def _of_qwen3_next(state: dict[str, Any]) -> dict[str, Any]:
    """Return Qwen3-Next's."""
    inner = state["linear_num_value_heads"] * state["linear_value_head_dim"]
    return _of_heads(state) | {"ssm.inner_size": inner, **interval_of(state)}


def _of_qwen35(state: dict[str, Any]) -> dict[str, Any]:
    """Return Qwen 3.5's."""
    found = _of_qwen3_next(state)
    return found | {"rope.dimension_sections": _sections(found["rope.dimension_count"])}


def _of_granite_hybrid(state: dict[str, Any]) -> dict[str, Any]:
    """Return Granite 4's."""
    found = _of_heads(state) | heads_of_layers(state, state["num_key_value_heads"])
    found |= {"ssm.inner_size": state["mamba_n_heads"] * state["mamba_d_head"]}
    found |= {"rope.scaling.finetuned": state["position_embedding_type"] == "rope"}
    if state["num_local_experts"]:
        found |= {key: state[field] for key, field in _MIXTRAL.items()}
        found[SHARED_LENGTH] = state[SHARED]
    return found


def _of_granite_moe(state: dict[str, Any]) -> dict[str, Any]:
    """Return those of Granite's with experts."""
    return _of_heads(state) | ({SHARED_LENGTH: state[SHARED]} if state.get(SHARED) else {})


def _of_kimi(state: dict[str, Any]) -> dict[str, Any]:
    """Return Kimi Linear's: latents as in DeepSeek's, and how many of the first layers have an MLP."""
    d_c, d_r = state["kv_lora_rank"], state["qk_rope_head_dim"]
    optional = {key: state[name] for key, (name, _) in _KIMI_OPTIONAL.items() if state.get(name) is not None}
    return {
        **optional,
        **heads_of_layers(state, 1),
        "leading_dense_block_count": state["mlp_layer_types"].count("dense"),
        "attention.key_length": d_c + d_r,
        "attention.value_length": d_c,
        "attention.key_length_mla": state["qk_nope_head_dim"] + d_r,
        "attention.value_length_mla": state["v_head_dim"],
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
    }


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


class Kind(NamedTuple):
    """How GGUF stores models of one architecture."""

    # the metadata, and `names` → the fields of config.json
    fields: Callable[[Metadata, dict[str, str]], dict[str, Any]] = with_rotary
    names: dict[str, str] = ROTARY  # keys of the metadata → the fields of config.json that they are
    types: tuple[str, ...] = ()  # its kinds of checkpoints, if not the one with the architecture's name
    outer: dict[str, str] = _OUTER  # names of modules outside the layers → those in transformers
    inner: dict[str, str] = _LLAMA  # names of modules in a layer → those in transformers
    layers: str = "model.layers"  # the name of the layers' module
    permuted: bool = False  # whether the rows of q and k have another order
    shifted: bool = False  # whether the scales of norms have 1 added
    by_keys: bool = False  # whether the heads of values of recurrences have another order
    # what llama.cpp has of models of this kind: no W_u of their own, or one also of those that share W_e; heads that
    # share keys and values
    ties: bool = False
    repeats: bool = False
    shares: bool = True
    transposed: tuple[str, ...] = ()  # the modules in a layer whose matrices are transposed
    plain: Mapping[str, str] = NOTHING  # whole names of tensors in a layer, where one ends with no weight or bias
    # the shapes in a file of what `flat` shapes here, by the fields of config.json, if they are others
    shapes: Mapping[str, Callable[[dict[str, Any]], tuple[int, ...]]] = NOTHING
    # the fields of config.json → the metadata that are not in `names`
    derived: Callable[[dict[str, Any]], dict[str, Any]] = _of_heads

    def name(self, theirs: str) -> str:
        """Return the name in GGUF of a tensor of transformers."""
        module, _, field = theirs.rpartition(".")
        layer, _, part = module.removeprefix(f"{self.layers}.").partition(".")
        if module.startswith(f"{self.layers}.") and layer.isdigit():
            plain = _inverse(self.plain).get(f"{part}.{field}")
            if plain is not None:
                return f"blk.{layer}.{plain}"
            return f"blk.{layer}.{_inverse(self.inner)[part]}.{field}"
        return f"{_inverse(self.outer)[module]}.{field}"

    def convert(self, name: str, array: np.ndarray, state: dict[str, Any], *, write: bool) -> np.ndarray:
        """Return the numbers of a tensor, of a name in GGUF, as transformers has them, or to `write` as GGUF has."""
        part = part_of(name)
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part)
        if self.permuted and heads:
            return _reordered(array, state[heads], write=write)
        array = with_rates(array, write=write) if part == "ssm_a" else array
        array = with_values_by_keys(part, array, state, write=write) if self.by_keys else array
        if self.shifted and part.endswith("norm") and part != "ssm_norm":
            return array.astype(np.float32) + np.float32(1 if write else -1)
        if part in self.transposed and array.ndim == 2:
            return array.T
        return array.reshape(self.shape(name, array.shape, state, write=write))

    def shape(self, name: str, shape: tuple[int, ...], state: dict[str, Any], *, write: bool) -> tuple[int, ...]:
        """Return the shape of a tensor, of a name in GGUF, as transformers has it, or to `write` as GGUF has it."""
        part = part_of(name)
        if part in self.transposed and len(shape) == 2:
            return shape[::-1]
        if not write:
            return flat(part, shape)
        return np.broadcast_to(0, shape).reshape(self.shapes[part](state)).shape if part in self.shapes else shape


KINDS: dict[str, Kind] = {
    "llama": Kind(_llama, {**ROTARY, **_WINDOW, **_MIXTRAL}, ("llama", "mistral", "mixtral"), permuted=True),
    "smollm3": Kind(permuted=True),
    "granite": Kind(names={**ROTARY, **_FACTORS}, permuted=True),
    "granitemoe": Kind(
        _granite_moe,
        {**ROTARY, **_FACTORS, **_MIXTRAL},
        ("granitemoe", "granitemoeshared"),
        inner=_GRANITE_MOE,
        permuted=True,
        derived=_of_granite_moe,
    ),
    "qwen2": Kind(),
    "qwen3": Kind(),
    "olmo2": Kind(_olmo2, {**ROTARY, **_WINDOW}, ("olmo2", "olmo3"), inner=_OLMO2, derived=_of_olmo, repeats=True),
    "glm4": Kind(inner=_GLM4),
    "cohere2": Kind(_cohere2, _COHERE_FIELDS, inner=_LINEARS, ties=True),
    "minimax-m2": Kind(_minimax, _MINIMAX_FIELDS, ("minimax_m2",), inner=_MINIMAX, derived=_of_sigmoids, repeats=True),
    "llama4": Kind(_llama4, _LLAMA4_FIELDS, ("llama4_text",), inner=_LLAMA4, derived=_of_llama4),
    "qwen3moe": Kind(_qwen3_moe, {**ROTARY, **_CHOICE, **_WIDTH}, ("qwen3_moe",), inner=_QWEN_MOE),
    "olmoe": Kind(names={**ROTARY, **_CHOICE}, inner=_QWEN_MOE, repeats=True, shares=False),
    "gpt-oss": Kind(_gpt_oss, _GPT_OSS_FIELDS, ("gpt_oss",), inner=_GPT_OSS, repeats=True),
    "deepseek2": Kind(
        _deepseek, _DEEPSEEK_FIELDS, ("deepseek_v3", "deepseek_v2"), inner=_DEEPSEEK, derived=_of_latents
    ),
    "gemma": Kind(shifted=True, ties=True),
    "gemma2": Kind(_gemma2, {**ROTARY, **_WINDOW, **_CAPS}, inner=_GEMMA2, shifted=True, ties=True),
    "gemma3": Kind(_gemma3, {**ROTARY, **_WINDOW, **_CAPS}, ("gemma3_text",), inner=_GEMMA2, shifted=True, ties=True),
    "qwen3next": Kind(
        _qwen3_next,
        _QWEN3_NEXT_FIELDS,
        ("qwen3_next",),
        inner=_QWEN3_NEXT,
        shifted=True,
        plain={"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
        derived=_of_qwen3_next,
    ),
    "qwen35": Kind(
        _qwen35,
        _DELTA_FIELDS,
        ("qwen3_5_text",),
        inner=_QWEN35,
        shifted=True,
        by_keys=True,
        plain={"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
        derived=_of_qwen35,
    ),
    "granitehybrid": Kind(
        _granite_hybrid,
        _MAMBA_FIELDS,
        ("granitemoehybrid",),
        inner=_GRANITE_HYBRID,
        permuted=True,
        plain={"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"},
        shapes={
            **dict.fromkeys(("ssm_a", "ssm_d"), lambda state: (-1, 1)),
            "ssm_norm": lambda state: (state["mamba_n_groups"], -1),
        },
        derived=_of_granite_hybrid,
    ),
    "kimi-linear": Kind(
        _kimi,
        _KIMI_FIELDS,
        ("kimi_linear",),
        inner=_KIMI,
        repeats=True,
        plain={"ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias"},
        shapes={
            "ssm_a": lambda state: (-1, 1),
            **dict.fromkeys(
                ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"),
                lambda state: (-1, 1, state["linear_conv_kernel_dim"]),
            ),
        },
        derived=_of_kimi,
    ),
    "gpt2": Kind(
        Metadata.fields,
        _GPT2_FIELDS,
        outer=_GPT2_OUTER,
        inner=_GPT2,
        layers="transformer.h",
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
}
"""By general.architecture."""


def open_gguf(path: Path) -> "tuple[dict[str, Any], GGUFTensors]":
    """Return the fields of config.json and the tensors, each read on request. Raises InterchangeError if the file is
    damaged, or its model needs an unsupported feature.
    """
    file = GGUFFile(path)
    if file.metadata.get("split.count", 1) != 1:
        raise InterchangeError(
            f"{path} is one of {file.metadata['split.count']} files; join them first: llama-gguf-split --merge"
        )
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in KINDS:
        raise _unknown(path, str(architecture))
    state = state_of(file, architecture)
    return state, GGUFTensors(file, KINDS[architecture], state)


def state_of(file: Any, architecture: str) -> dict[str, Any]:
    """Return the fields of config.json for a GGUFFile. Raises InterchangeError for a key that is not understood."""
    metadata = Metadata(file, architecture)
    kind = KINDS[architecture]
    found = kind.fields(metadata, kind.names)
    if not metadata.has("token_embd.weight"):
        raise InterchangeError(f"{file.path} has no tensor token_embd.weight, so it is not a language model")
    metadata.get("vocab_size")  # which its shape says
    tied = metadata.get(TIED, not metadata.has("output.weight"))
    metadata.check()
    N_V = file.tensors["token_embd.weight"].shape[0]
    shared = {"model_type": (*kind.types, architecture)[0], "vocab_size": N_V, "tie_word_embeddings": tied}
    return shared | found | _token_ids(file, N_V)


def _unknown(path: Path, architecture: str) -> InterchangeError:
    """Return the error about an unsupported architecture."""
    known = f"{', '.join([*KINDS][:-1])} and {[*KINDS][-1]}"
    needs = NEEDS.get(IN_TRANSFORMERS.get(architecture, architecture))
    if needs:
        return InterchangeError(
            f"{path} holds a model of the architecture {architecture}, which needs {needs}; in GGUF this library reads "
            f"{known}"
        )
    return InterchangeError(
        f"{path}: general.architecture: expected one of {known}, got {architecture[:60]!r}; if it has a checkpoint of "
        "transformers, convert that instead"
    )


def _token_ids(file: GGUFFile, N_V: int) -> dict[str, Any]:
    """Return the fields on special tokens; the file may name several that end a text."""

    def of(name: str) -> list[int]:
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return [token] if isinstance(token, int) and 0 <= token < N_V else []

    ends = list(dict.fromkeys(of("eos") + of("eot") + of("eom")))
    found = {"bos_token_id": of("bos"), "pad_token_id": of("padding"), "eos_token_id": ends}
    return {name: ids if len(ids) > 1 else ids[0] for name, ids in found.items() if ids}


def in_gguf(entries: list[Entry], names: Sequence[str] = ()) -> list[Entry]:
    """Return the tensors of a checkpoint as GGUF has them: the experts of a layer together, each matrix of theirs by
    itself, and latents' keys and values by head, unless one tensor has both among those of a file, its `names`.
    """
    found: dict[str, Entry] = {}
    for entry in entries:
        module, _, field = entry.name.rpartition(".")
        layer = ".".join(entry.name.split(".")[:3])
        if ".mlp.experts." in entry.leaves[0]:
            for leaf in entry.leaves:
                kind, _, part = leaf.rpartition(".")[2].partition("_")
                name = f"{layer}.mlp.experts.{_PARTS[part]}.{'weight' if kind == 'W' else 'bias'}"
                found[name] = Entry(name, (leaf,), entry.layer, of_experts=True)
        elif module.endswith(".kv_b_proj") and entry.name not in names:
            for kind, leaf in zip("kv", entry.leaves, strict=True):
                name = f"{layer}.self_attn.{kind}_b_proj.weight"
                found[name] = Entry(name, (leaf,), entry.layer, transposed=kind == "k", of_experts=True)
        else:
            name = {"sinks": f"{entry.name}.weight", "e_score_correction_bias": f"{entry.name[:-5]}.bias"}
            for one in split(entry._replace(name=name.get(field, entry.name))):
                found[one.name] = one
    return list(found.values())


def written(entries: list[Entry], kind: Kind) -> list[Entry]:
    """Return the tensors to write: those of `in_gguf`, and W_e once more where llama.cpp asks for W_u."""
    found = in_gguf(entries)
    by_name = {kind.name(entry.name): entry for entry in found}
    if not kind.repeats or "output.weight" in by_name:
        return found
    return [*found, by_name["token_embd.weight"]._replace(name=f"{kind.outer['output']}.weight")]


class GGUFTensors(Tensors):
    """The tensors of a GGUF file by their names in transformers, each dequantized on request."""

    def __init__(self, file: GGUFFile, kind: Kind, state: dict[str, Any]) -> None:
        self.path, self.file, self._kind, self._state = file.path, file, kind, state
        self._stored: dict[str, str] = {}  # the names in the file
        self._blocks: dict[str, tuple[int, Callable[[str], np.ndarray]]] = {}  # see `keep`
        for name in file.tensors:
            if name != ROPE_FACTORS and not (name == "output.weight" and state["tie_word_embeddings"]):
                theirs = _theirs(name, kind)
                self._check_new(theirs, self._stored)
                self._stored[theirs] = name
        self.names = list(self._stored)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        stored, (size, _) = self._stored[name], self._blocks.get(name, (1, None))
        *rows, numbers = self.file.tensors[stored].shape
        return self._kind.shape(stored, (*rows, numbers // size), self._state, write=False)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor."""
        stored, (_, read) = self._stored[name], self._blocks.get(name, (1, self.file.read))
        return self._kind.convert(stored, read(stored), self._state, write=False)

    def type(self, name: str) -> str:
        """Return the type of a tensor's numbers."""
        return self.file.tensors[self._stored[name]].type

    def keep(self, name: str, size: int, read: Callable[[str], np.ndarray]) -> None:
        """Let a matrix be read as `read` returns it, given its name in the file: blocks of this size of each row."""
        self._blocks[name] = size, read


def _theirs(name: str, kind: Kind) -> str:
    """Return the name of a tensor in transformers; if it has none there, its own, which no model expects."""
    layer, _, tail = name.removeprefix("blk.").partition(".")
    if name.startswith("blk.") and layer.isdigit() and tail in kind.plain:
        return f"{kind.layers}.{layer}.{kind.plain[tail]}"
    parts = re.fullmatch(r"(?:blk\.(?P<layer>\d{1,9})\.)?(?P<module>\w+)\.(?P<field>weight|bias)", name)
    if not parts:
        return name
    module = (kind.inner if parts["layer"] else kind.outer).get(parts["module"])
    if module is None:
        return name
    return ".".join([*([kind.layers, parts["layer"]] if parts["layer"] else []), module, parts["field"]])


def part_of(name: str) -> str:
    """Return the name of a module in its layer, or of a tensor that has no other, from that of a tensor in GGUF."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def _reordered(array: np.ndarray, H: int, *, write: bool) -> np.ndarray:
    """Reorder rows so that rotary positions rotate the halves of a head, or to `write` adjacent rows."""
    if array.shape[0] % (2 * H):
        return array  # the mapping reports the wrong shape
    pairs = (2, -1) if write else (-1, 2)
    return array.reshape(H, *pairs, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)

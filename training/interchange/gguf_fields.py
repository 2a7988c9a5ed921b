"""The metadata of a GGUF file on its model, as the fields of a config.json, and the other way round.

Most keys are fields under another name; a table for each architecture has these. Two functions have the rest: one
returns the other fields, from the metadata and the fields found so far; the other, ``of_…``, the other metadata, from
all fields. Defaults are llama.cpp's.
"""

from typing import Any

from training.interchange.experts import SHARED
from training.interchange.gguf_file import Metadata
from training.interchange.gguf_hybrids import by_heads, heads_of_layers, interval_of, rows_of_values
from training.interchange.gguf_rotary import OF_SIZES, ROTARY, rotary_in, with_rotary
from training.interchange.llama4 import CHUNKED

SHARED_LENGTH = "expert_shared_feed_forward_length"
SOFTMAX, SIGMOID = 1, 2
"""Values of expert_gating_func, and the weights of experts that they mean."""

MIXTRAL = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
CHOICE = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
WINDOW = {"attention.sliding_window": "sliding_window"}
CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
GPT_OSS = {"expert_feed_forward_length": "intermediate_size", **ROTARY, **WINDOW, **MIXTRAL}
COHERE = {**OF_SIZES, **WINDOW, "attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}
STARCODER2 = {**OF_SIZES, "attention.layer_norm_epsilon": "norm_epsilon"}
ERNIE_MOE = {
    **ROTARY,
    **WIDTH,
    "expert_count": "moe_num_experts",
    "expert_used_count": "moe_k",
    "expert_shared_count": "moe_num_shared_experts",
}
FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
MINIMAX = {"expert_feed_forward_length": "intermediate_size", **ROTARY, **MIXTRAL}
LLAMA4 = {
    **ROTARY,
    **MIXTRAL,
    "feed_forward_length": "intermediate_size_mlp",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
LATENTS = {
    **{key: ROTARY[key] for key in ("context_length", "embedding_length", "block_count", "attention.head_count")},
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    **WIDTH,
}
LATENTS_OPTIONAL = {
    "feed_forward_length": ("intermediate_size", None),
    "leading_dense_block_count": ("first_k_dense_replace", 0),
    "attention.q_lora_rank": ("q_lora_rank", None),
    "expert_weights_scale": ("routed_scaling_factor", 1.0),
    "expert_group_count": ("n_group", 1),
    "expert_group_used_count": ("topk_group", 1),
}
DEEPSEEK_OPTIONAL = {
    **{key: field for key, (field, _) in LATENTS_OPTIONAL.items()},
    "attention.value_length_mla": "v_head_dim",
    "expert_weights_norm": "norm_topk_prob",
}
DELTA = {
    **ROTARY,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_WITH_SHARED = {**CHOICE, **WIDTH, SHARED_LENGTH: "shared_expert_intermediate_size"}
QWEN2_MOE = ROTARY | _WITH_SHARED
QWEN3_NEXT = DELTA | _WITH_SHARED
QWEN35_MOE = {key: field for key, field in QWEN3_NEXT.items() if key != "feed_forward_length"}
MAMBA = {
    **{key: field for key, field in ROTARY.items() if key != "attention.head_count_kv"},
    **FACTORS,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
KIMI = {
    **{key: field for key, field in LATENTS.items() if not key.startswith("expert_") or key in WIDTH},
    "context_length": "model_max_length",
    "feed_forward_length": "intermediate_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_token",
    "expert_shared_count": "num_shared_experts",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "kda.head_dim": "linear_head_dim",
}
KIMI_OPTIONAL = {
    **{key: of for key, of in LATENTS_OPTIONAL.items() if key != "feed_forward_length"},
    "expert_group_count": ("num_expert_group", 1),
}
GLM4_MOE = {
    **ROTARY,
    **WIDTH,
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
}
GLM4_MOE_OPTIONAL = {
    **{key: of for key, of in LATENTS_OPTIONAL.items() if of[0] not in ("intermediate_size", "q_lora_rank")},
    "expert_weights_norm": ("norm_topk_prob", False),
}
GPT2 = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}

State = dict[str, Any]
"""The fields of a config.json."""


def experts_in(m: Metadata, names: dict[str, str], base: float = 10_000.0, **defaults: float) -> State:
    """Return the fields of a model whose experts are as wide as its MLPs would be, unless the file says otherwise."""
    return with_rotary(m, names, base, intermediate_size=m.integer("feed_forward_length"), **defaults)


def llama(m: Metadata, found: State) -> State:
    """Return Llama's fields; those of Mistral with windows, and of Mixtral with experts."""
    window = m.get("attention.sliding_window")
    more = {"model_type": "mistral", "sliding_window": window} if window else {}
    return more | ({"model_type": "mixtral", **m.fields(MIXTRAL)} if m.has("blk.0.ffn_gate_inp.weight") else {})


def olmo2(m: Metadata, found: State) -> State:
    """Return OLMo's fields; a file with windows is OLMo 3's, whose frequencies are not scaled in them."""
    window, rotary = m.get("attention.sliding_window"), found["rope_parameters"]
    if not window:
        return {}
    rotary = _in_windows(rotary, rotary["rope_theta"])
    return {"model_type": "olmo3", "sliding_window": window, **rotary, **_layer_types(m, 4)}


def _in_windows(rotary: State, base: float) -> State:
    """Return the field rope_parameters of a model whose layers with windows have others, which are not scaled."""
    in_windows = {"rope_type": "default", "rope_theta": base}
    return {"rope_parameters": {"sliding_attention": in_windows, "full_attention": rotary}}


def cohere2(m: Metadata, found: State) -> State:
    """Return Command R7B's fields: every fourth layer attends to all tokens."""
    return _layer_types(m, 4)


def olmo(m: Metadata, found: State) -> State:
    """Return the first OLMo's fields, whose ε is always the same."""
    if m.number("attention.layer_norm_epsilon", 1e-5) != 1e-5:
        raise m.wrong("attention.layer_norm_epsilon", "1e-5")
    return {"clip_qkv": m.get("attention.clamp_kqv") or None}


def exaone4(m: Metadata, found: State) -> State:
    """Return EXAONE 4's fields: only the model with 64 layers has windows in llama.cpp, in three of four."""
    if m.layers() != 64:
        return {"sliding_window": None, "layer_types": ["full_attention"] * m.layers()}
    return {"sliding_window": m.get("attention.sliding_window", 4096), **_layer_types(m, 4)}


def ernie_moe(m: Metadata, found: State) -> State:
    """Return Ernie's fields: what every token takes is as wide as some experts."""
    width = found["moe_num_shared_experts"] * found["moe_intermediate_size"]
    if m.integer(SHARED_LENGTH, width) != width or m.integer("interleave_moe_layer_step", 1) != 1:
        raise m.wrong(f"{SHARED_LENGTH} and interleave_moe_layer_step", f"{width} and 1")
    return {"moe_layer_start_index": m.get("leading_dense_block_count", 0)}


def minimax(m: Metadata, found: State) -> State:
    """Return MiniMax's fields: the weights of experts are sigmoids, divided by their sum."""
    _check_sigmoids(m)
    return {}


def _check_sigmoids(m: Metadata) -> None:
    if m.get("expert_gating_func", SIGMOID) != SIGMOID:
        raise m.wrong("expert_gating_func", f"{SIGMOID} (sigmoid)")


def llama4(m: Metadata, found: State) -> State:
    """Return Llama 4's fields: chunks and a temperature of 8,192 tokens, unless the file has a window of 0, and norms
    of queries and keys unless there are 128 experts, as in llama.cpp.
    """
    L, window = m.layers(), m.get("attention.sliding_window", 8192)
    if window not in (0, 8192):
        raise m.wrong("attention.sliding_window", "0 or 8192")
    has_norms = {"use_qk_norm": found["num_local_experts"] != 128}
    return has_norms | ({} if window else {"no_rope_layers": [1] * L, "attention_chunk_size": None})


def gpt_oss(m: Metadata, found: State) -> State:
    """Return GPT-OSS's fields: every second layer attends to all tokens, and the rows of YaRN are not rounded."""
    rotary = found["rope_parameters"]
    return {"rope_parameters": {**rotary, "truncate": False}} if rotary["rope_type"] == "yarn" else {}


def deepseek(m: Metadata, found: State) -> State:
    """Return DeepSeek's fields, of V3 if the weights of experts are sigmoids. Without groups in the file, a token
    chooses among all experts, as in llama.cpp.
    """
    found = found | _of_optional(m, LATENTS_OPTIONAL)
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
    is_one_head = m.raw("attention.key_length_mla") is not None
    H_kv = {"head_count_kv": 1 if is_one_head else found["num_attention_heads"]}
    return {**found, **_heads_of_latents(m, found, H_kv, is_one_head=is_one_head), "rope_parameters": rotary}


def glm4_moe(m: Metadata, found: State) -> State:
    """Return GLM-4.5's fields: the last of its layers predict the token after the next."""
    _check_sigmoids(m)
    later = m.get("nextn_predict_layers", 0)
    sizes = {"num_hidden_layers": m.layers() - later, "num_nextn_predict_layers": later}
    return sizes | _of_optional(m, GLM4_MOE_OPTIONAL) | {"use_qk_norm": m.has("blk.0.attn_q_norm.weight")}


def kimi(m: Metadata, found: State) -> State:
    """Return Kimi Linear's fields: recurrences have as many heads as attentions, and the weights of experts are
    sigmoids, divided by their sum.
    """
    (types, _), H = by_heads(m), found["num_attention_heads"]
    _check_sigmoids(m)
    if not m.get("expert_weights_norm", True):
        raise m.wrong("expert_weights_norm", "true")
    sizes = _of_optional(m, KIMI_OPTIONAL) | _heads_of_latents(m, found, {}, is_one_head=True)
    return sizes | {"layer_types": types, "linear_num_heads": H, "num_key_value_heads": H}


def _of_optional(m: Metadata, names: dict[str, tuple[str, Any]]) -> State:
    """Return the fields, with a default, of keys that a file may lack."""
    return {field: m.get(key) or default for key, (field, default) in names.items()}


def _heads_of_latents(m: Metadata, found: State, sizes: dict[str, int], *, is_one_head: bool) -> State:
    """Return the sizes of the heads, which a file has under keys of their own if a latent with the rotated rows is one
    head's keys there, and the latent its values; files from before 2025-04 do not. Others must be `sizes`.
    """
    d_c, d_r = found["kv_lora_rank"], found["qk_rope_head_dim"]
    for key, size in {**sizes, **({"key_length": d_c + d_r, "value_length": d_c} if is_one_head else {})}.items():
        if m.integer(f"attention.{key}", size) != size:
            raise m.wrong(f"attention.{key}", str(size))
    of_head = "_mla" if is_one_head else ""
    return {
        "qk_nope_head_dim": m.integer(f"attention.key_length{of_head}") - d_r,
        "v_head_dim": m.integer(f"attention.value_length{of_head}"),
    }


def delta(m: Metadata, found: State) -> State:
    """Return Qwen3-Next's fields: every n-th layer has attention."""
    return {
        "linear_value_head_dim": rows_of_values(m, found["linear_num_value_heads"]),
        "full_attention_interval": m.integer("full_attention_interval", 4),
    }


def qwen35(m: Metadata, found: State) -> State:
    """Return Qwen 3.5's fields: the positions of a text are the same in all sections of the rotated rows."""
    sections = _sections(m.integer("rope.dimension_count"))
    if m.raw("rope.dimension_sections") != sections:
        raise m.wrong("rope.dimension_sections", str(sections))
    return delta(m, found)


def _sections(d: int) -> list[int]:
    """Return how many pairs of d rotated rows are of each of three positions, which take turns, and of a fourth."""
    return [(d // 2 + 2) // 3, (d // 2 + 1) // 3, d // 2 // 3, 0]


def granite_hybrid(m: Metadata, found: State) -> State:
    """Return Granite 4's fields: without experts, the shared MLP is the only one."""
    types, H_kv = by_heads(m)
    more = {"num_key_value_heads": H_kv, "layer_types": types, "num_local_experts": 0}
    more["mamba_d_head"] = rows_of_values(m, found["mamba_n_heads"])
    more["attention_bias"] = any(m.has(f"blk.{l}.attn_q.bias") for l in range(len(types)))
    if m.get("rope.scaling.finetuned", True):
        more["position_embedding_type"] = "rope"
    more[SHARED] = found["intermediate_size"]
    return more | (m.fields({**MIXTRAL, SHARED_LENGTH: SHARED}) if m.raw("expert_count") else {})


def granite_moe(m: Metadata, found: State) -> State:
    """Return the fields of a Granite with experts, and with an MLP that every token takes if there is one."""
    if m.raw(SHARED_LENGTH):
        return {"model_type": "granitemoeshared", SHARED: m.integer(SHARED_LENGTH)}
    return {}


def gemma2(m: Metadata, found: State) -> State:
    """Return Gemma 2's fields: every second layer attends to all tokens."""
    return _windows(m, found, 2, largest=46)


def gemma3(m: Metadata, found: State) -> State:
    """Return Gemma 3's fields: every sixth layer attends to all tokens, and has other frequencies than the rest."""
    rotary = _in_windows(found["rope_parameters"], m.number("rope.freq_base_swa", 10_000.0))
    caps = {"final_logit_softcapping": m.get("final_logit_softcapping") or None}
    return rotary | caps | _windows(m, found, 6, largest=62)


def _windows(m: Metadata, found: State, pattern: int, *, largest: int) -> State:
    """Return the fields on which layers have windows and on the scale of the scores; as in llama.cpp, the model with
    ``largest`` layers divides its scores by √(d_e/H).
    """
    L, d_e, H = (found[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    return {**_layer_types(m, pattern), "query_pre_attn_scalar": d_e // H if largest == L else found["head_dim"]}


def _layer_types(m: Metadata, pattern: int) -> State:
    """Return which layers have windows: all but every ``pattern``-th, unless the file says otherwise."""
    L, key = m.layers(), "attention.sliding_window_pattern"
    in_window = m.raw(key)  # a number, or whether each layer has a window
    if not isinstance(in_window, list):
        period = m.integer(key, pattern)
        in_window = [bool((l + 1) % period) for l in range(L)]
    if len(in_window) != L:
        raise m.wrong(key, f"a number, or true or false for each of {L} layers")
    return {"layer_types": ["sliding_attention" if w else "full_attention" for w in in_window]}


def of_heads(state: State) -> dict[str, Any]:
    """Return the metadata on sizes of heads that GGUF has twice, if a config.json has them."""
    d = state.get("head_dim")
    if d is None:
        return {}
    turned = int(d * state["rope_parameters"].get("partial_rotary_factor", 1))
    return {"rope.dimension_count": turned, "attention.value_length": d}


def of_olmo(state: State) -> dict[str, Any]:
    """Return OLMo's metadata: which layers have windows, if there are any."""
    in_window = [kind == "sliding_attention" for kind in state.get("layer_types", ())]
    return {"attention.sliding_window_pattern": in_window} if in_window else {}


def of_olmo_1(state: State) -> dict[str, Any]:
    """Return the first OLMo's metadata."""
    clip = {} if state["clip_qkv"] is None else {"attention.clamp_kqv": state["clip_qkv"]}
    return {"attention.layer_norm_epsilon": 1e-5, **clip}


def of_ernie_moe(state: State) -> dict[str, Any]:
    """Return Ernie's metadata."""
    return {SHARED_LENGTH: state["moe_num_shared_experts"] * state["moe_intermediate_size"]}


def of_sigmoids(state: State) -> dict[str, Any]:
    """Return the metadata of experts whose weights are sigmoids."""
    return {"expert_gating_func": SIGMOID}


def of_llama4(state: State) -> dict[str, Any]:
    """Return Llama 4's metadata: a window of 0 if it has neither chunks nor layers without positions."""
    is_plain = CHUNKED not in state["layer_types"] and all(state["no_rope_layers"])
    return {"attention.sliding_window": 0} if is_plain else {}


def of_deepseek(state: State) -> dict[str, Any]:
    """Return DeepSeek's metadata, of latents, and of experts."""
    gate, rotary = SOFTMAX if state["model_type"] == "deepseek_v2" else SIGMOID, state["rope_parameters"]
    found = {"attention.head_count_kv": 1, **_of_latents(state), "expert_gating_func": gate}
    is_yarn = rotary["rope_type"] == "yarn"
    return found | ({"rope.scaling.yarn_log_multiplier": rotary["mscale_all_dim"] / 10} if is_yarn else {})


def _of_latents(state: State) -> dict[str, Any]:
    """Return the metadata of latents: to llama.cpp, one with the rotated rows is one head's keys, alone its values."""
    d_c, d_r = state["kv_lora_rank"], state["qk_rope_head_dim"]
    return {
        "attention.key_length": d_c + d_r,
        "attention.value_length": d_c,
        "attention.key_length_mla": state["qk_nope_head_dim"] + d_r,
    }


def of_delta(state: State) -> dict[str, Any]:
    """Return Qwen3-Next's metadata."""
    inner = state["linear_num_value_heads"] * state["linear_value_head_dim"]
    return {"ssm.inner_size": inner, **interval_of(state)}


def of_qwen35(state: State) -> dict[str, Any]:
    """Return Qwen 3.5's metadata."""
    return of_delta(state) | {"rope.dimension_sections": _sections(of_heads(state)["rope.dimension_count"])}


def of_granite_hybrid(state: State) -> dict[str, Any]:
    """Return Granite 4's metadata."""
    found = heads_of_layers(state, state["num_key_value_heads"])
    found |= {"ssm.inner_size": state["mamba_n_heads"] * state["mamba_d_head"]}
    found |= {"rope.scaling.finetuned": state["position_embedding_type"] == "rope"}
    if state["num_local_experts"]:
        found |= {key: state[field] for key, field in MIXTRAL.items()}
        found[SHARED_LENGTH] = state[SHARED]
    return found


def of_granite_moe(state: State) -> dict[str, Any]:
    """Return the metadata of a Granite with experts."""
    return {SHARED_LENGTH: state[SHARED]} if state.get(SHARED) else {}


def of_kimi(state: State) -> dict[str, Any]:
    """Return Kimi Linear's metadata: latents as in DeepSeek's, and how many of the first layers have an MLP."""
    return {
        **{key: state[name] for key, (name, _) in KIMI_OPTIONAL.items() if state.get(name) is not None},
        **heads_of_layers(state, 1),
        "leading_dense_block_count": state["mlp_layer_types"].count("dense"),
        **_of_latents(state),
        "attention.value_length_mla": state["v_head_dim"],
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
    }

"""The metadata of a GGUF file on its model, as the fields of a config.json, and the other way round.

Most keys are fields under another name; a table for each architecture has these, where fields that Llama has, too, have
its names. Two functions have the rest: one returns the other fields, from the metadata and the fields found so far; the
other, ``of_…``, the other metadata, from all fields. Defaults are llama.cpp's. A layer whose number of heads of keys is
0 is a recurrence (`granitehybrid`, `kimi-linear`); in `qwen3next` and `qwen35`, every n-th layer has attention.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from algorithms.lines import Llama3, Rotary, Yarn
from training.interchange.errors import InterchangeError
from training.interchange.experts import QWEN, SHARED
from training.interchange.gated import CONVOLUTION
from training.interchange.gguf_file import Keys, Metadata, keys
from training.interchange.hybrids import LINEAR
from training.interchange.llama4 import CHUNKED
from training.interchange.mamba import DENSE, SPARSE, TYPES
from training.interchange.rotary import FULL, SLIDING, rotary_fields

ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each frequency: the only trace of Llama 3's scaling in a file."""

OF_SIZES = keys("""
    context_length max_position_embeddings          embedding_length hidden_size
    feed_forward_length intermediate_size           block_count num_hidden_layers
    attention.head_count num_attention_heads        attention.head_count_kv num_key_value_heads
    attention.key_length head_dim
""")
ROTARY = OF_SIZES | keys("attention.layer_norm_rms_epsilon rms_norm_eps")
_H_KV = "attention.head_count_kv"


def _without(table: Keys, *left: str) -> Keys:
    return {key: field for key, field in table.items() if key not in left}


SHARED_LENGTH = "expert_shared_feed_forward_length"
SOFTMAX, SIGMOID = 1, 2
"""Values of expert_gating_func, and the weights of experts that they mean."""
SIGMOIDS = {"expert_gating_func": SIGMOID}

MIXTRAL = keys("expert_count num_local_experts  expert_used_count num_experts_per_tok")
CHOICE = keys("expert_count num_experts  expert_used_count num_experts_per_tok")
WIDTH = keys("expert_feed_forward_length moe_intermediate_size")
SAME_WIDTH = keys("expert_feed_forward_length intermediate_size=null")
WINDOW = keys("attention.sliding_window sliding_window")
OPTIONAL_WINDOW = keys("attention.sliding_window sliding_window=null")
CAP_OF_LOGITS = keys("final_logit_softcapping final_logit_softcapping=null")
CAPS = keys("attn_logit_softcapping attn_logit_softcapping  final_logit_softcapping final_logit_softcapping")
LLAMA = (
    ROTARY | OPTIONAL_WINDOW | keys("expert_count num_local_experts=null expert_used_count num_experts_per_tok=null")
)
GPT_OSS = SAME_WIDTH | ROTARY | WINDOW | MIXTRAL
MINIMAX = SAME_WIDTH | ROTARY | MIXTRAL
COHERE = OF_SIZES | WINDOW | keys("attention.layer_norm_epsilon rms_norm_eps  logit_scale logit_scale")
STARCODER2 = OF_SIZES | keys("attention.layer_norm_epsilon rms_norm_eps")
OLMO = OF_SIZES | keys("attention.clamp_kqv clip_qkv=null")
ERNIE_MOE = {**ROTARY, **WIDTH} | keys("""
    expert_count moe_num_experts                    expert_used_count moe_k
    expert_shared_count moe_num_shared_experts      leading_dense_block_count moe_layer_start_index=0
""")
FACTORS = keys("""
    attention.scale attention_multiplier            embedding_scale embedding_multiplier
    residual_scale residual_multiplier              logit_scale logits_scaling
""")
GRANITE_MOE = {**ROTARY, **FACTORS, **MIXTRAL, **keys(f"{SHARED_LENGTH} {SHARED}=null")}
LLAMA4 = {**ROTARY, **MIXTRAL} | keys("""
    feed_forward_length intermediate_size_mlp       expert_feed_forward_length intermediate_size
    interleave_moe_layer_step interleave_moe_layer_step
""")
_GROUPS = keys("""
    expert_weights_scale routed_scaling_factor=1.0  leading_dense_block_count first_k_dense_replace=0
    expert_group_count n_group=1                    expert_group_used_count topk_group=1
""")
_ROUTED = WIDTH | keys("""
    expert_count n_routed_experts                   expert_used_count num_experts_per_tok
    expert_shared_count n_shared_experts            expert_weights_norm norm_topk_prob=false
""")
_LATENTS = keys("""
    context_length max_position_embeddings          embedding_length hidden_size
    block_count num_hidden_layers                   attention.head_count num_attention_heads
    attention.layer_norm_rms_epsilon rms_norm_eps   attention.kv_lora_rank kv_lora_rank
    rope.dimension_count qk_rope_head_dim           attention.q_lora_rank q_lora_rank=null
""")
DEEPSEEK = {**_LATENTS, **_ROUTED, **_GROUPS} | keys("""
    feed_forward_length intermediate_size=null      attention.value_length_mla v_head_dim=null
""")
GLM_DSA = DEEPSEEK | keys("""
    attention.indexer.head_count index_n_heads      attention.indexer.key_length index_head_dim
    attention.indexer.top_k index_topk
""")
KIMI = {**_LATENTS, **WIDTH, **_GROUPS} | keys("""
    feed_forward_length intermediate_size
    expert_count num_experts                        expert_used_count num_experts_per_token
    expert_shared_count num_shared_experts          expert_group_count num_expert_group=1
    ssm.conv_kernel linear_conv_kernel_dim          kda.head_dim linear_head_dim
""")
GLM4_MOE = {**ROTARY, **_ROUTED, **_GROUPS}
DELTA = ROTARY | keys("""
    ssm.conv_kernel linear_conv_kernel_dim          ssm.state_size linear_key_head_dim
    ssm.group_count linear_num_key_heads            ssm.time_step_rank linear_num_value_heads
    full_attention_interval full_attention_interval=4
    ssm.inner_size linear_num_value_heads*linear_value_head_dim
""")
_WITH_SHARED = {**CHOICE, **WIDTH, **keys(f"{SHARED_LENGTH} {QWEN}")}
QWEN2_MOE = ROTARY | _WITH_SHARED
QWEN3_NEXT = DELTA | _WITH_SHARED
QWEN35_MOE = _without(QWEN3_NEXT, "feed_forward_length")
LFM2 = _without(ROTARY, _H_KV) | keys("shortconv.l_cache conv_L_cache")
LFM2_MOE = {**LFM2, **CHOICE, **WIDTH, **keys("leading_dense_block_count num_dense_layers=0")}
NEMOTRON = _without(ROTARY, _H_KV, "feed_forward_length") | keys("""
    ssm.conv_kernel conv_kernel                     ssm.state_size ssm_state_size
    ssm.group_count n_groups                        ssm.time_step_rank mamba_num_heads
    ssm.inner_size mamba_num_heads*mamba_head_dim
    expert_count n_routed_experts=null              expert_used_count num_experts_per_tok=null
    expert_feed_forward_length moe_intermediate_size=null
    expert_shared_feed_forward_length moe_shared_expert_intermediate_size=null
    expert_weights_norm norm_topk_prob=false        expert_weights_scale routed_scaling_factor=1.0
    expert_group_count n_group=1                    expert_group_used_count topk_group=1
""")
_MAMBA = keys("""
    ssm.conv_kernel mamba_d_conv                    ssm.state_size mamba_d_state
    ssm.group_count mamba_n_groups                  ssm.time_step_rank mamba_n_heads
    ssm.inner_size mamba_n_heads*mamba_d_head
""")
MAMBA = _without(ROTARY, _H_KV) | FACTORS | _MAMBA
FALCON = ROTARY | _MAMBA
_PLAIN = _without(OF_SIZES, _H_KV, "attention.key_length")
LLADA = _PLAIN | keys("attention.head_count_kv num_key_value_heads=null  attention.layer_norm_rms_epsilon rms_norm_eps")
GPT2 = _PLAIN | keys("attention.layer_norm_epsilon rms_norm_eps")
GEMMA4 = _without(ROTARY, _H_KV, "feed_forward_length", "attention.key_length") | WINDOW | CAP_OF_LOGITS
GEMMA4 |= keys("""
    attention.key_length global_head_dim            attention.key_length_swa head_dim
    attention.shared_kv_layers num_kv_shared_layers=0
    embedding_length_per_layer_input hidden_size_per_layer_input=0
    expert_count num_experts=null                   expert_used_count top_k_experts=null
    expert_feed_forward_length moe_intermediate_size=null
""")

State = dict[str, Any]
"""The fields of a config.json."""


def with_rotary(m: Metadata, names: Keys, base: float = 10_000.0, **defaults: float) -> dict[str, Any]:
    """Return the fields of a model with rotary positions, by `names`; `base` is the default of theirs."""
    d_e, H = m.integer("embedding_length"), m.integer("attention.head_count")
    found = m.fields(names, num_key_value_heads=H, head_dim=max(d_e // H, 1), **defaults)
    d_head = found["head_dim"]
    if m.integer("attention.value_length", d_head) != d_head:
        raise m.wrong("attention.value_length", f"the {d_head} of attention.key_length")
    for field, part in (("attention_bias", "attn_q"), ("mlp_bias", "ffn_up")):  # in any layer, not the first
        found[field] = any(name.endswith(f".{part}.bias") for name in m.file.tensors)
    found["use_qk_norm"] = m.has("blk.0.attn_q_norm.weight")
    return found | {"rope_parameters": rotary_in(m, d_head, base)}


def rotary_in(m: Metadata, d_head: int, base: float) -> dict[str, Any]:
    """Return the field rope_parameters."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": m.number("rope.freq_base", base)}
    turned = m.integer("rope.dimension_count", d_head)
    if turned != d_head:
        found["partial_rotary_factor"] = turned / d_head
    if m.has(ROPE_FACTORS):
        return found | _llama3(m, found["rope_theta"], turned)
    kind = m.get("rope.scaling.type", "none")
    if m.raw("rope.scale_linear") is not None:  # in files of 2023
        return found | {"rope_type": "linear", "factor": m.number("rope.scale_linear")}
    if kind == "none":
        return found
    found |= {"rope_type": kind, "factor": m.number("rope.scaling.factor")}
    if kind == "yarn":
        found["original_max_position_embeddings"] = m.integer("rope.scaling.original_context_length")
        said = [name for name in ("beta_fast", "beta_slow") if m.raw(f"rope.scaling.yarn_{name}") is not None]
        found |= {name: m.number(f"rope.scaling.yarn_{name}") for name in said}
        if (magnitude := m.number("rope.scaling.attn_factor", 1.0)) != 1.0:
            own = Yarn(factor=found["factor"], l_original=1).magnitude(1.0)
            found |= {} if math.isclose(magnitude, own, rel_tol=1e-6) else {"attention_factor": magnitude}
    return found


def _llama3(m: Metadata, base: float, d: int) -> dict[str, Any]:
    """Return Llama 3's scaling. GGUF has only the factors; the published settings are used if they give the same, with
    the original length that a factor between the others shows.
    """
    factors = m.file.read(ROPE_FACTORS).reshape(-1).astype(np.float64)
    scaling = Llama3(factor=float(f"{factors.max():.6g}"))
    if factors.size == d // 2 and 0 < factors.min() < scaling.factor:
        shares = (1 / factors - 1 / scaling.factor) / (1 - 1 / scaling.factor)
        i = np.abs(shares - 0.5).argmin()
        length = 2 * np.pi * base ** (2 * i / d) * (scaling.low + (scaling.high - scaling.low) * shares[i])
        scaling = dataclasses.replace(scaling, l_original=round(length)) if 0 < shares[i] < 1 else scaling
    positions = Rotary(base=base, scaling=scaling)
    expected = factors_of(positions, d)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4, atol=0):
        raise InterchangeError(
            f"{m.file.path} needs what this library does not have: frequencies other than Llama 3's ({ROPE_FACTORS})"
        )
    return rotary_fields(positions)


def turned_pairs(n: int, d: int) -> np.ndarray:
    """Return the divisors of the frequencies of d rows: 1 for the n pairs that turn, 1e30 for the others (Gemma 4)."""
    return np.where(np.arange(d // 2) < n, 1, 1e30).astype(np.float32)


def factors_of(positions: Rotary, d: int) -> np.ndarray:
    """Return the divisor of each frequency of positions that rotate d rows, which `Llama3` scales."""
    assert positions.scaling
    frequencies = positions.base ** (-np.arange(0, d, 2) / d)
    return frequencies / positions.scaling(frequencies, positions.base)[0]


def llama(m: Metadata, found: State) -> State:
    """Return Llama's fields; those of Mistral with windows, and of Mixtral with experts."""
    if found["num_local_experts"]:
        return {"model_type": "mixtral"}
    return {"model_type": "mistral"} if found["sliding_window"] else {}


def mistral3(m: Metadata, found: State) -> State:
    """Return Ministral 3's fields: queries grow with their positions, and YaRN's magnitude is divided by another."""
    beta, multiplier = m.get("attention.temperature_scale", 0.0), m.get("rope.scaling.yarn_log_multiplier", 0.0)
    more = {"mscale": 1.0, "mscale_all_dim": multiplier} if multiplier else {}
    return {"rope_parameters": {**found["rope_parameters"], "llama_4_scaling_beta": beta, **more}}


def olmo2(m: Metadata, found: State) -> State:
    """Return OLMo's fields; a file with windows is OLMo 3's, whose frequencies are not scaled in them."""
    rotary = found["rope_parameters"]
    if not found["sliding_window"]:
        return {}
    return {"model_type": "olmo3", **in_windows(rotary, rotary["rope_theta"]), **layer_types(m, 4)}


def in_windows(rotary: State, base: float) -> State:
    """Return the field rope_parameters of a model whose layers with windows have others, which are not scaled."""
    in_windows = {"rope_type": "default", "rope_theta": base}
    return {"rope_parameters": {"sliding_attention": in_windows, "full_attention": rotary}}


def exaone4(m: Metadata, found: State) -> State:
    """Return EXAONE 4's fields: only the model with 64 layers has windows in llama.cpp, in three of four."""
    if m.layers() == 64:
        return {"sliding_window": m.get("attention.sliding_window", 4096), **layer_types(m, 4)}
    if found["sliding_window"]:
        raise m.wrong("attention.sliding_window", "none in a model of other than 64 layers")
    return {"layer_types": ["full_attention"] * m.layers()}


def ernie_moe(m: Metadata, found: State) -> State:
    """Return Ernie's fields: what every token takes is as wide as some experts."""
    m.require(SHARED_LENGTH, found["moe_num_shared_experts"] * found["moe_intermediate_size"])
    return {}


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
    gate, rotary = m.get("expert_gating_func") or SOFTMAX, rotary_in(m, found["qk_rope_head_dim"], 10_000.0)
    if gate not in (SOFTMAX, SIGMOID):
        raise m.wrong("expert_gating_func", f"{SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    if gate == SIGMOID:
        more: State = {}
    elif found["norm_topk_prob"]:
        raise m.wrong("expert_weights_norm", "false with the softmax")
    else:
        method = "greedy" if found["n_group"] == 1 else "group_limited_greedy"
        more = {"model_type": "deepseek_v2", "topk_method": method}
    if rotary["rope_type"] == "yarn":
        mscale = round(10 * m.number("rope.scaling.yarn_log_multiplier"), 6)
        rotary |= {"mscale": mscale, "mscale_all_dim": mscale}
    is_one_head = m.raw("attention.key_length_mla") is not None
    H_kv = {"head_count_kv": 1 if is_one_head else found["num_attention_heads"]}
    return {**more, **_heads_of_latents(m, found, H_kv, is_one_head=is_one_head), "rope_parameters": rotary}


def without_later(m: Metadata, found: State) -> State:
    """Return the number of layers without the last of a file, which predict the token after the next, and of these."""
    later = m.get("nextn_predict_layers", 0)
    return {"num_hidden_layers": m.layers() - later, "num_nextn_predict_layers": later}


def kimi(m: Metadata, found: State) -> State:
    """Return Kimi Linear's fields: recurrences have as many heads as attentions."""
    (types, _), H = _by_heads(m), found["num_attention_heads"]
    sizes = {"linear_num_heads": H, "num_key_value_heads": H}
    return {"layer_types": types, **sizes, **_heads_of_latents(m, found, {}, is_one_head=True)}


def _heads_of_latents(m: Metadata, found: State, sizes: dict[str, int], *, is_one_head: bool) -> State:
    """Return the sizes of the heads, which a file has under keys of their own if a latent with the rotated rows is one
    head's keys there, and the latent its values; files from before 2025-04 do not. Others must be `sizes`.
    """
    d_c, d_r = found["kv_lora_rank"], found["qk_rope_head_dim"]
    for key, size in {**sizes, **({"key_length": d_c + d_r, "value_length": d_c} if is_one_head else {})}.items():
        m.require(f"attention.{key}", size)
    of_head = "_mla" if is_one_head else ""
    return {
        "qk_nope_head_dim": m.integer(f"attention.key_length{of_head}") - d_r,
        "v_head_dim": m.integer(f"attention.value_length{of_head}"),
    }


def of_layers(m: Metadata, key: str, what: str = "") -> list[int]:
    """Return a number for each layer, which a file says once or for each."""
    counts, L = m.raw(key), m.layers()
    counts = [counts] * L if isinstance(counts, int) else counts
    if not (isinstance(counts, list) and len(counts) == L and all(isinstance(n, int) and n >= 0 for n in counts)):
        raise m.wrong(key, f"a number for each of {L} layers{what}")
    return counts


def _by_layer(m: Metadata, key: str) -> tuple[list[int], int]:
    """Return a number for each layer, and that of those in which it is not 0."""
    what = ": 0, and the same in all others"
    counts = of_layers(m, key, what)
    if len({*counts} - {0}) != 1:
        raise m.wrong(key, f"a number for each of {m.layers()} layers{what}")
    return counts, max(counts)


def _by_heads(m: Metadata) -> tuple[list[str], int]:
    """Return the kind of each layer, and the number of heads of keys in those with attention."""
    counts, n = _by_layer(m, "attention.head_count_kv")
    return [FULL if count else LINEAR for count in counts], n


def heads_of_layers(state: State, n: int) -> dict[str, Any]:
    """Return the metadata on which layers have attention, with n heads of keys."""
    return {"attention.head_count_kv": [n if kind == FULL else 0 for kind in state["layer_types"]]}


def interval_of(state: State) -> dict[str, Any]:
    """Return the metadata on which layers have attention; what they do not say differs when they are read back."""
    types = state["layer_types"]
    return {"full_attention_interval": types.index(FULL) + 1 if FULL in types else len(types) + 1}


def qwen35(m: Metadata, found: State) -> State:
    """Return Qwen 3.5's fields: the positions of a text are the same in all sections of the rotated rows."""
    sections = _sections(m.integer("rope.dimension_count"))
    if m.raw("rope.dimension_sections") != sections:
        raise m.wrong("rope.dimension_sections", str(sections))
    return {}


def _sections(d: int) -> list[int]:
    """Return how many pairs of d rotated rows are of each of three positions, which take turns, and of a fourth."""
    return [(d // 2 + 2) // 3, (d // 2 + 1) // 3, d // 2 // 3, 0]


def granite_hybrid(m: Metadata, found: State) -> State:
    """Return Granite 4's fields: without experts, the shared MLP is the only one."""
    types, H_kv = _by_heads(m)
    more = {"num_key_value_heads": H_kv, "layer_types": types, "num_local_experts": 0}
    if m.get("rope.scaling.finetuned", True):
        more["position_embedding_type"] = "rope"
    more[SHARED] = found["intermediate_size"]
    return more | (m.fields(MIXTRAL | keys(f"{SHARED_LENGTH} {SHARED}")) if m.raw("expert_count") else {})


def llada(m: Metadata, found: State) -> State:
    """Return LLaDA's fields."""
    H = found["num_attention_heads"]
    m.require("rope.dimension_count", found["hidden_size"] // H)
    return {
        "num_key_value_heads": found["num_key_value_heads"] or H,
        "rope_theta": m.number("rope.freq_base", 10_000.0),
    }


def lfm2(m: Metadata, found: State) -> State:
    """Return LFM 2's fields: layers without heads of keys are convolutions."""
    types, H_kv = _by_heads(m)
    return {"num_key_value_heads": H_kv} | {"layer_types": [FULL if kind == FULL else CONVOLUTION for kind in types]}


def nemotron(m: Metadata, found: State) -> State:
    """Return Nemotron-H's fields: which layers have attention, and which are MLPs."""
    (types, H_kv), (units, width) = _by_heads(m), _by_layer(m, "feed_forward_length")
    m.raw("expert_shared_count")
    for l, n in enumerate(units):
        if n:
            types[l] = SPARSE if m.has(f"blk.{l}.ffn_gate_inp.weight") else DENSE
    return {TYPES: types, "intermediate_size": width, "num_key_value_heads": H_kv}


def gemma3(m: Metadata, found: State) -> State:
    """Return Gemma 3's fields: every sixth layer attends to all tokens, and has other frequencies than the rest."""
    rotary = in_windows(found["rope_parameters"], m.number("rope.freq_base_swa", 10_000.0))
    return rotary | windows(m, found, 6, largest=62)


def gemma4(m: Metadata, found: State) -> State:
    """Return Gemma 4's fields. To llama.cpp, layers without keys of their own have those of the two before them."""
    types, sizes = layer_types(m, 6), {"": found["global_head_dim"], "_swa": found["head_dim"]}
    L, kinds, pattern = m.layers(), types["layer_types"], "attention.sliding_window_pattern"
    n = L - found["num_kv_shared_layers"]
    if n < L and kinds[max(n - 2, 0) : n] != [SLIDING, FULL]:
        raise m.wrong(pattern, "true and false in the last two layers with keys of their own")
    for suffix, d in sizes.items():
        m.require(f"attention.value_length{suffix}", d)
        m.require(f"rope.dimension_count{suffix}", d)
    units, heads = of_layers(m, "feed_forward_length"), of_layers(m, "attention.head_count_kv")
    of_kind = dict(zip(kinds, heads, strict=True))
    if [of_kind[kind] for kind in kinds] != heads:
        raise m.wrong("attention.head_count_kv", "the same number in all layers of a kind")
    is_wide = units != units[:1] * L
    if is_wide and units != units[:1] * n + [2 * units[0]] * (L - n):
        raise m.wrong("feed_forward_length", "the same number, or twice as many without keys of their own")
    first = kinds.index(FULL) if FULL in kinds else 0
    of_full = {"head_dim": sizes[""], "num_key_value_heads": of_kind.get(FULL, heads[0])}
    rotary, own = {"rope_type": "default", "rope_theta": m.number("rope.freq_base")}, "per_layer_token_embd.weight"
    if m.has(ROPE_FACTORS):
        rotary |= {"rope_type": "proportional", "partial_rotary_factor": _share_of_pairs(m, sizes[""])}
    return types | {
        "intermediate_size": units[0],
        "num_key_value_heads": of_kind.get(SLIDING, heads[0]),
        "per_layer_config": {str(l): of_full for l, kind in enumerate(kinds) if kind == FULL},
        "attention_k_eq_v": not m.has(f"blk.{first}.attn_v.weight"),
        "use_double_wide_mlp": is_wide,
        "enable_moe_block": bool(found["num_experts"]),
        **({"vocab_size_per_layer_input": m.file.tensors[own].shape[0]} if m.has(own) else {}),
        **in_windows(rotary, m.number("rope.freq_base_swa")),
    }


def _share_of_pairs(m: Metadata, d: int) -> float:
    """Return how many of the pairs of d rows are turned: those whose frequency is divided by 1, and not by 10^30."""
    factors = m.file.read(ROPE_FACTORS).reshape(-1)
    n = int((factors == 1).sum())
    if not np.array_equal(factors, turned_pairs(n, d)):
        raise m.wrong(ROPE_FACTORS, f"1 and then 1e30, {d // 2} numbers in all")
    return 2 * n / d


def windows(m: Metadata, found: State, pattern: int, *, largest: int) -> State:
    """Return the fields on which layers have windows and on the scale of the scores; as in llama.cpp, the model with
    ``largest`` layers divides its scores by √(d_e/H).
    """
    L, d_e, H = (found[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    return {**layer_types(m, pattern), "query_pre_attn_scalar": d_e // H if largest == L else found["head_dim"]}


def layer_types(m: Metadata, pattern: int) -> State:
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
    turned = int(d * state.get("rope_parameters", {}).get("partial_rotary_factor", 1))
    return {"rope.dimension_count": turned, "attention.value_length": d}


def of_mistral3(state: State) -> dict[str, Any]:
    """Return Ministral 3's metadata; another magnitude than 1 differs when it is read back."""
    rotary = state["rope_parameters"]
    found = {"attention.temperature_scale": rotary.get("llama_4_scaling_beta", 0.0)}
    return found | ({"rope.scaling.yarn_log_multiplier": 1.0} if "attention_factor" in rotary else {})


def of_olmo(state: State) -> dict[str, Any]:
    """Return OLMo's metadata: which layers have windows, if there are any."""
    in_window = [kind == "sliding_attention" for kind in state.get("layer_types", ())]
    return {"attention.sliding_window_pattern": in_window} if in_window else {}


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


def of_qwen35(state: State) -> dict[str, Any]:
    """Return Qwen 3.5's metadata."""
    return interval_of(state) | {"rope.dimension_sections": _sections(of_heads(state)["rope.dimension_count"])}


def of_granite_hybrid(state: State) -> dict[str, Any]:
    """Return Granite 4's metadata."""
    found = heads_of_layers(state, state["num_key_value_heads"])
    found |= {"rope.scaling.finetuned": state["position_embedding_type"] == "rope"}
    if state["num_local_experts"]:
        found |= {key: state[field] for key, (field, _) in MIXTRAL.items()}
        found[SHARED_LENGTH] = state[SHARED]
    return found


def of_nemotron(state: State) -> dict[str, Any]:
    """Return Nemotron-H's metadata."""
    types, width = state[TYPES], state.get("moe_intermediate_size") or state["intermediate_size"]
    return {
        "attention.head_count_kv": [state["num_key_value_heads"] * (kind == FULL) for kind in types],
        "feed_forward_length": [width * (kind in (DENSE, SPARSE)) for kind in types],
    }


def of_kimi(state: State) -> dict[str, Any]:
    """Return Kimi Linear's metadata: latents as in DeepSeek's, and how many of the first layers have an MLP."""
    return {**heads_of_layers(state, 1), **_of_latents(state), "attention.value_length_mla": state["v_head_dim"]}


def of_gemma4(state: State) -> dict[str, Any]:
    """Return Gemma 4's metadata."""
    kinds, n = state["layer_types"], len(state["layer_types"]) - state["num_kv_shared_layers"]
    sizes, heads = {"": state["global_head_dim"], "_swa": state["head_dim"]}, state["num_global_key_value_heads"]
    return {
        **{
            f"{key}{suffix}": d
            for suffix, d in sizes.items()
            for key in ("attention.value_length", "rope.dimension_count")
        },
        "attention.sliding_window_pattern": [kind == SLIDING for kind in kinds],
        "attention.head_count_kv": [state["num_key_value_heads"] if kind == SLIDING else heads for kind in kinds],
        "feed_forward_length": [
            state["intermediate_size"] * (1 + (state["use_double_wide_mlp"] and l >= n)) for l in range(len(kinds))
        ],
        "rope.freq_base_swa": state["rope_parameters"][SLIDING]["rope_theta"],
    }

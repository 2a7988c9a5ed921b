"""Gemma 4 in GGUF files: its metadata as the fields of a config.json, and the other way round."""

from typing import Any

import numpy as np

from training.interchange.gguf_fields import CAP_OF_LOGITS, WINDOW, State, in_windows, layer_types, of_layers
from training.interchange.gguf_file import Metadata, keys
from training.interchange.gguf_rotary import ROPE_FACTORS, ROTARY, turned_pairs
from training.interchange.rotary import FULL, SLIDING

_OF_LAYERS = ("feed_forward_length", "attention.head_count_kv", "attention.key_length")
KEYS = {key: field for key, field in ROTARY.items() if key not in _OF_LAYERS} | WINDOW | CAP_OF_LOGITS
KEYS |= keys("""
    attention.key_length global_head_dim            attention.key_length_swa head_dim
    attention.shared_kv_layers num_kv_shared_layers=0
    embedding_length_per_layer_input hidden_size_per_layer_input=0
    expert_count num_experts=null                   expert_used_count top_k_experts=null
    expert_feed_forward_length moe_intermediate_size=null
""")


def read(m: Metadata, found: State) -> State:
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


def written(state: State) -> dict[str, Any]:
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

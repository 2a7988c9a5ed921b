"""Qwen3-Next and Qwen 3.5 (text), also with experts, and OLMo Hybrid, by changed lines: gated delta rules in most
layers. In Qwen's, attentions have gates; OLMo's have norms of what is added, and delta rules have norms first.
"""

from collections.abc import Sequence
from typing import Any

from algorithms import LLAMA
from algorithms.lines import GatedDelta, RMSNorm
from training.interchange import mtp
from training.interchange.containers import Tensors
from training.interchange.decoders import SILU, WITHOUT_MLP, Norms, of_lines
from training.interchange.description import Architecture, Field, Fields, Layers, Model, every, fields_of, in_turn, only
from training.interchange.rotary import FULL, Positions

LINEAR = "linear_attention"
OF_DELTA = " ".join(f"{LINEAR}.{size}" for size in ("n", "n_keys", "d_key", "d_value", "width"))
OF_LINEAR = (
    "linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim"
)
_APART = {"qkv": "W_q+W_k+W_v", **{a: f"W_{a}" for a in "zba"}}
_TOGETHER = {"qkvz": "W_q&W_k&W_v&W_z", "ba": "W_b&W_a/W_q"}
"""The projections before a delta rule: the ends of the tensors' names, and our arrays."""
_LAYER, _OURS = "model.layers.#", "layers.attention"
_DELTA = f"{_LAYER}.linear_attn"
_RATES = {f"{_DELTA}.dt_bias": f"{_OURS}.b_a", f"{_DELTA}.A_log": f"{_OURS}.a"}


def _of_qwen(names: str, H_kv: int, projections: dict[str, str], **others: Any) -> Architecture:
    return of_lines(
        names,
        *(*fields_of(OF_DELTA, OF_LINEAR), *SILU),
        positions=[Positions(share=0.25)],
        activation=(),
        biases=only("attention_bias", False, "biases of the gates of heads"),
        kinds=(LINEAR, FULL),
        H_kv=H_kv,
        d_head=256,
        same_epsilon=f"{LINEAR}.norm",
        tensors={
            f"{_LAYER}.self_attn.q_proj.*": f"{_OURS}.heads.*_q&{_OURS}.*_g",
            **{f"{_DELTA}.in_proj_{a}.weight": f"{_OURS}.{ours}" for a, ours in projections.items()},
            f"{_DELTA}.conv1d.weight": f"<{_OURS}.C_q+C_k+C_v>",
            **_RATES,
            f"{_DELTA}.norm.weight": f"{_OURS}.gamma",
            f"{_DELTA}.out_proj.weight": f"{_OURS}.W_out",
        },
        layers=Layers(every(4, "full_attention_interval", (LINEAR, FULL))),
        ignored=("mtp.*", "model.visual.*"),
        head=mtp.QWEN,
        **others,
    )


OLMO_LAYERS = Layers(lambda fields, L: [LINEAR if (l + 1) % 4 and (l + 1 < L or L > 3) else FULL for l in range(L)])
_OLMO_SIZES = (
    *(lambda found: found["H"],) * 2,
    lambda found: max(3 * found["d_e"] // (4 * found[f"{LINEAR}.n_keys"]), 1),
    lambda found: 2 * found[f"{LINEAR}.d_key"],
    4,
)


def _read_olmo(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    mlp: Any = LLAMA.mlp
    after = mlp.but(normalize_output=RMSNorm(epsilon=found["norm.epsilon"]))
    by_kind = {LINEAR: (mlp, "norm_first"), FULL: (after, "no_norm")}
    of_layers = in_turn([by_kind[kind] for kind in OLMO_LAYERS.of(fields, found["L"], [*by_kind])])
    found |= dict(zip(("mlp", "order"), zip(*of_layers, strict=True), strict=True))


def _own_rows(tensors: Tensors, model: Model) -> None:
    """Give the convolutions of queries, keys and values their rows; transformers saves a third of all as each."""
    for name in [name for name in tensors.names if name.endswith("linear_attn.q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{a}_conv1d") for a in "qkv"]
        line = next(a for a in model.config.variant.attentions if isinstance(a, GatedDelta))
        rows = line.n_keys * line.d_key, line.n_keys * line.d_key, line.n * line.d_value
        shapes = [tensors.shape(name) for name in names if name in tensors.names]
        if shapes == [(sum(rows) // 3, 1, line.width)] * 3:
            tensors.share_rows(names, rows)


_SECOND = f"{_LAYER}.feedforward_layer_norm.*|{_LAYER}.post_attention_layernorm.*"
KINDS = {
    "qwen3_next": _of_qwen("qwen3_next Qwen3Next QWEN3_NEXT", 2, _TOGETHER),
    "qwen3_5_text": _of_qwen("qwen3_5_text Qwen3_5 QWEN3_5", 4, _APART),
    "qwen3_5_moe_text": _of_qwen("qwen3_5_moe_text Qwen3_5Moe QWEN3_5_MOE", 2, _APART, sizes=WITHOUT_MLP),
    "olmo_hybrid": of_lines(
        "olmo_hybrid OlmoHybrid OLMO_HYBRID",
        *fields_of(OF_DELTA, OF_LINEAR, *_OLMO_SIZES),
        Field("linear_allow_neg_eigval", f"{LINEAR}.beta_factor", True, (1.0, 2.0)),
        positions=[Positions(optional=True)],
        activation=SILU,
        kinds=(LINEAR, FULL),
        norms=Norms("-", "-"),
        tensors={
            f"{_LAYER}.attention_layer_norm.*|{_LAYER}.input_layernorm.*": "layers.norm1.*",
            _SECOND: "layers.norm2.*",
            # in layers with attention, where it follows what attention adds
            _SECOND.replace("*", "weight"): f"{_OURS}.norm_out.gamma",
            f"{_LAYER}.post_feedforward_layernorm.weight": "layers.mlp.norm_out.gamma",
            **{f"{_DELTA}.{a}_proj.weight": f"{_OURS}.W_{a}" for a in "qkvba"},
            **{f"{_DELTA}.{a}_proj.weight": f"{_OURS}.W_{ours}" for a, ours in (("o", "out"), ("g", "z"))},
            **{f"{_DELTA}.{a}_conv1d.weight": f"<{_OURS}.C_{a}>" for a in "qkv"},
            **_RATES,
            f"{_DELTA}.o_norm.weight": f"{_OURS}.gamma",
        },
        read=_read_olmo,
        in_turn=True,
        rearrange=_own_rows,
        layers=OLMO_LAYERS,
    ),
}
"""By model_type."""

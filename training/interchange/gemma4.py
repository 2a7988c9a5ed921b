"""Gemma 4's text model, by changed lines: wide heads in global layers, shared keys and values, inputs of layers."""

from collections.abc import Sequence
from typing import Any

from algorithms import GEMMA, GEMMA4_MOE
from algorithms.lines import MLP, Attention, Experts, LayerEnd, RMSNorm
from training.interchange.decoders import LINE, Norms, of_lines, window
from training.interchange.description import Field, Fields, Layers, Model, every, in_turn
from training.interchange.errors import InterchangeError
from training.interchange.experts import Mixture
from training.interchange.rotary import FULL, SLIDING, Positions, rotary_fields

KIND, UNIFIED = "gemma4_text", "gemma4_unified_text"
"""The second has no inputs of layers, and no experts."""
_NORM = RMSNorm(epsilon=1e-6)
_LINE = LINE.but(scale=1.0, normalize_heads=_NORM, normalize_values=_NORM.but(gamma=False), normalize_output=_NORM)
_EXPERTS = Mixture(GEMMA4_MOE.mlp, chosen="top_k_experts", shared_width="intermediate_size")
_KINDS = Layers(every(6, "sliding_window_pattern", (SLIDING, FULL)))


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    L, n = found["L"], fields.integer("num_kv_shared_layers", 0, least=0)
    types = _KINDS.of(fields, L, [SLIDING, FULL])
    if types[-1] != FULL:
        fields.needs.append("a window in the last layer, which transformers removes")
    if n and (n >= L or set(types[: L - n]) != set(types)):
        raise InterchangeError(
            f"{fields.path}: num_kv_shared_layers: expected fewer, so that each kind has a layer before, got {n}"
        )
    lines, norm = _lines(fields, found, types), _NORM.but(epsilon=found["norm.epsilon"])
    last = {kind: l for l, kind in enumerate(types[: L - n])}
    of_layers = [lines[kind].but(keys_of=None if l < L - n else last[kind]) for l, kind in enumerate(types)]
    activation: Any = found.pop("mlp.activation")
    mlp = MLP(activation=activation, gated=True, biases=False, normalize_output=norm)
    wide = 2 * found["d_mlp"] if found.pop("is_wide") else None
    if kind == KIND and fields.flag("enable_moe_block", False):
        fields.require("use_double_wide_mlp", False, "wider MLPs beside experts")
        _EXPERTS.read(fields, found)
        mlp, wide = found["mlp"].but(activation=activation, normalize_output=norm), None
    found["attention"] = in_turn(of_layers)
    found["mlp"] = in_turn([mlp.but(d_mlp=None if l < L - n else wide) for l in range(L)])
    d = fields.integer("hidden_size_per_layer_input", 256 if kind == KIND else 0, least=0) or None
    found["layer_end"] = LayerEnd(d=d, activation=activation, norm=norm)
    if d and fields.integer("vocab_size_per_layer_input", 262_144) != found["N_V"]:
        fields.needs.append("inputs of layers for other tokens (vocab_size_per_layer_input)")


def _lines(fields: Fields, found: dict[str, Any], types: Sequence[str]) -> dict[str, Attention]:
    """Return the attention of each kind of layer; global layers have their own sizes."""
    norm, width, is_one = _NORM.but(epsilon=found["norm.epsilon"]), found.pop("attention.window"), found.pop("is_one")
    norms: dict[str, Any] = {
        "normalize_heads": norm,
        "normalize_values": norm.but(gamma=False),
        "normalize_output": norm,
    }
    line = _LINE.but(biases=found.pop("attention.biases"), **norms)
    local, full = (line.but(positions=found.pop(f"{kind}.positions")) for kind in (SLIDING, FULL))
    said = {name.lstrip("0") or "0": sizes for name, sizes in fields.table("per_layer_config").items()}
    of_each = [said.get(str(l), {}) for l, kind in enumerate(types) if kind == FULL]
    if not all(of == of_each[0] and isinstance(of, dict) for of in of_each) or len(said) > len(of_each):
        fields.needs.append("layers of one kind with several sizes (per_layer_config)")
        of_each = [{}]
    old = {"head_dim": fields.get("global_head_dim", 512)}
    old |= {"num_key_value_heads": fields.get("num_global_key_value_heads")} if is_one else {}
    of_full = fields.inner(of_each[0] if fields.has("per_layer_config") else old)
    d, n = of_full.integer("head_dim", found["d_attn"]), of_full.integer("num_key_value_heads", found["H_kv"])
    own: dict[str, Any] = {"d_head": None if d == found["d_attn"] else d, "n_keys": None if n == found["H_kv"] else n}
    return {SLIDING: local.but(window=width), FULL: full.but(keys_are_values=is_one, **own)}


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c = model.config
    lines = [c.variant.lines(l) for l in range(c.L)]
    if not all(type(line.attention) is Attention for line in lines):
        state.clear()
        return ["layers other than attentions"]
    attentions: list[Any] = [line.attention for line in lines]
    full = next((a for a in attentions if a.window is None), attentions[-1])
    local = next((a for a in attentions if a.window), full)
    shared = [line for line in lines if line.attention.keys_of is not None]
    end = c.variant.layer_end
    state |= {
        "layer_types": [SLIDING if a.window else FULL for a in attentions],
        "sliding_window": local.window or 512,
        "rope_parameters": {
            SLIDING: rotary_fields(local.positions),
            FULL: rotary_fields(full.positions) | {"partial_rotary_factor": getattr(full.positions, "share", 1.0)},
        },
        "attention_bias": full.biases is True,
        "attention_k_eq_v": full.keys_are_values,
        "global_head_dim": full.d_head or c.d_attn,
        "num_global_key_value_heads": full.n_keys or c.H_kv,
        "num_kv_shared_layers": len(shared),
        "use_double_wide_mlp": any(line.mlp and line.mlp.d_mlp for line in shared),
        "hidden_activation": state["hidden_activation"],
    }
    if isinstance(lines[0].mlp, Experts):
        _EXPERTS.fill(state, c, {})
        del state["hidden_act"]
    if kind == KIND:
        state["enable_moe_block"] = isinstance(lines[0].mlp, Experts)
        state |= {"hidden_size_per_layer_input": (end and end.d) or 0, "vocab_size_per_layer_input": c.N_V}
    return []


_LAYER = "model.layers.#"
KINDS = {
    kind: of_lines(
        f"{kind} {name} GEMMA",
        window(width),
        Field("final_logit_softcapping", "unembedding.cap", optional=float),
        Field("use_double_wide_mlp", "is_wide", False),
        Field("attention_k_eq_v", "is_one", False),
        attention=_LINE,
        positions=(
            Positions(f"{SLIDING}.positions", kind=SLIDING),
            Positions(f"{FULL}.positions", 1_000_000.0, share=1.0, kind=FULL),
        ),
        activation=[Field("hidden_activation", "mlp.activation", "gelu_pytorch_tanh")],
        variant=GEMMA.but(norm=_NORM),
        H_kv=4,
        d_head=256,
        norms=Norms(
            "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
        ),
        tensors={
            f"{_LAYER}.layer_scalar": "layers.end.s",
            f"{_LAYER}.per_layer_input_gate.weight": "layers.end.W_gate",
            f"{_LAYER}.per_layer_projection.weight": "layers.end.W_o",
            f"{_LAYER}.post_per_layer_input_norm.weight": "layers.end.norm_out.gamma",
            f"{_LAYER}.router.proj.weight": "layers.mlp.W_r",
            f"{_LAYER}.router.scale": "layers.mlp.norms.router.gamma",
            f"{_LAYER}.router.per_expert_scale": "layers.mlp.s",
            f"{_LAYER}.experts.gate_up_proj": "layers.mlp.experts.W_gate&W_mlp1",
            f"{_LAYER}.experts.down_proj": "layers.mlp.experts.W_mlp2/W_mlp2",
            f"{_LAYER}.pre_feedforward_layernorm_2.weight": "layers.mlp.norms.inputs.gamma",
            f"{_LAYER}.post_feedforward_layernorm_2.weight": "layers.mlp.norms.outputs.gamma",
            f"{_LAYER}.pre_feedforward_layernorm.weight": "layers.mlp.norms.shared.gamma",
            f"{_LAYER}.post_feedforward_layernorm_1.weight": "layers.mlp.shared.norm_out.gamma",
            f"{_LAYER}.mlp.gate_proj.weight": "layers.mlp.shared.W_gate",
            f"{_LAYER}.mlp.up_proj.weight": "layers.mlp.shared.W_mlp1",
            f"{_LAYER}.mlp.down_proj.weight": "layers.mlp.shared.W_mlp2",
            "model.embed_tokens_per_layer.weight": "layer_inputs.W_e",
            "model.per_layer_model_projection.weight": "layer_inputs.W_l",
            "model.per_layer_projection_norm.weight": "layer_inputs.norm.gamma",
        },
        ignored=tuple(
            f"*.{prefix}{name}.weight"
            for prefix, names in (
                ("self_attn.", ("k_proj", "v_proj", "k_norm", "v_norm")),
                ("attn_", ("k", "v", "k_norm")),
            )
            for name in names
        ),
        read=_read,
        write=_write,
        in_turn=True,
    )
    for kind, name, width in ((KIND, "Gemma4", 512), (UNIFIED, "Gemma4Unified", 1024))
}
"""By model_type. Files have keys and values of layers that do not compute any."""

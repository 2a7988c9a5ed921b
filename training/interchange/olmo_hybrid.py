"""OLMo Hybrid, by changed lines: gated delta rules with norms first, and attentions with norms of what is added."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, Attention, GatedDelta, RMSNorm, Rotary
from training.interchange.containers import Tensors
from training.interchange.decoders import FULL, OUTER, of_lines, read_scaling, rotary_fields, rotary_of
from training.interchange.description import Fields, Model, in_turn, theirs
from training.interchange.experts import OURS
from training.interchange.hybrids import LINEAR, OF_DELTA, OF_LINEAR, checked_types
from training.interchange.mapping import HEADS, rows

KIND = "olmo_hybrid"
NORM_OF_DELTA = RMSNorm(epsilon=1e-5)
"""Of what a delta rule gives, whose ε no field has."""
NOWHERE = {"rope_type": "default", "rope_theta": None}
"""What `rope_parameters` says where attentions have no positions."""


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    L, norm = found["L"], RMSNorm(epsilon=found["norm.epsilon"])
    mlp = MLP(activation="silu", gated=True, biases=False)
    fields.require("hidden_act", "silu", "another nonlinearity")
    attention = Attention(
        positions=_positions(fields, found["l_max"]),
        biases=fields.flag("attention_bias", False),
        normalize_heads=norm,
        heads_together=True,
        normalize_output=norm,
    )
    lines = {
        LINEAR: (_delta(fields, found["H"], found["d_e"]), mlp, "norm_first"),
        FULL: (attention, mlp.but(normalize_output=norm), "no_norm"),
    }
    default = [LINEAR if (l + 1) % 4 else FULL for l in range(L)]
    default[-1] = default[-1] if FULL in default else FULL
    of_layers = in_turn([lines[kind] for kind in checked_types(fields, fields.get("layer_types", default), L)])
    found |= {
        "norm": norm,
        "d_mid": found["d_attn"],
        **dict(zip(("attention", "mlp", "order"), zip(*of_layers, strict=True), strict=True)),
    }


def _positions(fields: Fields, l_max: int) -> Rotary | None:
    said = rotary_of(fields)
    if fields.table("rope_parameters") and said.has("rope_theta") and said.get("rope_theta") is None:
        return None
    said.require("partial_rotary_factor", 1.0, "rotary positions for only part of the rows")
    return Rotary(base=said.number("rope_theta", 10_000.0), scaling=read_scaling(said, l_max))


def _delta(fields: Fields, H: int, d_e: int) -> GatedDelta:
    n_keys = fields.integer("linear_num_key_heads", H)
    d_key = fields.integer("linear_key_head_dim", max(3 * d_e // (4 * n_keys), 1))
    defaults = H, n_keys, d_key, 2 * d_key, 4
    sizes = (fields.integer(f"linear_{name}", n) for name, n in zip(OF_LINEAR.split(), defaults, strict=True))
    factor = 2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0
    return GatedDelta(**dict(zip(OF_DELTA.split(), sizes, strict=True)), norm=NORM_OF_DELTA, beta_factor=factor)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    lines = [model.config.variant.lines(l) for l in range(model.config.L)]
    delta = next((line.attention for line in lines if isinstance(line.attention, GatedDelta)), None)
    full = next((line for line in lines if isinstance(line.attention, Attention)), None)
    if delta is None or full is None or full.mlp is None:
        state.clear()
        return ["layers other than gated delta rules and attention, with MLPs"]
    state["layer_types"] = [LINEAR if isinstance(line.attention, GatedDelta) else FULL for line in lines]
    state |= {f"linear_{n}": getattr(delta, a) for a, n in zip(OF_DELTA.split(), OF_LINEAR.split(), strict=True)}
    state["linear_allow_neg_eigval"] = delta.beta_factor == 2.0
    positions = full.attention.positions
    state["rope_parameters"] = NOWHERE if positions is None else rotary_fields(positions)
    state |= {"attention_bias": full.attention.biases is True, "hidden_act": theirs(full.mlp.activation or "gelu")}
    return []


def _own_rows(tensors: Tensors, model: Model) -> None:
    """Give the convolutions of queries, keys and values their rows; transformers saves a third of all as each."""
    for name in [name for name in tensors.names if name.endswith("linear_attn.q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{a}_conv1d") for a in "qkv"]
        line = next(a for a in model.config.variant.attentions if isinstance(a, GatedDelta))
        rows = line.n_keys * line.d_key, line.n_keys * line.d_key, line.n * line.d_value
        shapes = [tensors.shape(name) for name in names if name in tensors.names]
        if shapes == [(sum(rows) // 3, 1, line.width)] * 3:
            tensors.share_rows(names, rows)


def _tensors() -> dict[str, str]:
    layer, attention = "model.layers.#", "layers.attention"
    delta, (heads, mlp) = f"{layer}.linear_attn", ("q_proj k_proj v_proj o_proj", "gate_proj up_proj down_proj")
    of_delta = "W_q W_k W_v W_out W_z W_b W_a"
    return {
        "model.embed_tokens.weight": "W_e",
        f"{layer}.attention_layer_norm.*|{layer}.input_layernorm.*": "layers.norm1.*",
        f"{layer}.feedforward_layer_norm.*|{layer}.post_attention_layernorm.*": "layers.norm2.*",
        # in layers with attention, where it follows what attention adds
        f"{layer}.feedforward_layer_norm.weight|{layer}.post_attention_layernorm.weight": f"{attention}.norm_out.gamma",
        f"{layer}.post_feedforward_layernorm.weight": "layers.mlp.norm_out.gamma",
        **rows(f"{layer}.self_attn", heads, attention, HEADS),
        **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
        **{
            f"{delta}.{name}_proj.weight": f"{attention}.{ours}"
            for name, ours in zip("qkvogba", of_delta.split(), strict=True)
        },
        **{f"{delta}.{a}_conv1d.weight": f"<{attention}.C_{a}>" for a in "qkv"},
        f"{delta}.dt_bias": f"{attention}.b_a",
        f"{delta}.A_log": f"{attention}.a",
        f"{delta}.o_norm.weight": f"{attention}.gamma",
        **rows(f"{layer}.mlp", mlp, "layers.mlp", OURS),
        **OUTER,
    }


_OLMO = of_lines(KIND, "OlmoHybrid", _tensors(), _read, _write)
KINDS = {KIND: _OLMO._replace(in_turn=True, rearrange=_own_rows, mixers=(GatedDelta,))}
"""By model_type."""

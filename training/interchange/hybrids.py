"""Qwen3-Next and Qwen 3.5 (text), by changed lines: gated delta rules, and gated attention in every fourth layer."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, Attention, Experts, GatedDelta, RMSNorm, Rotary
from training.interchange.decoders import FULL, OUTER, of_lines, read_scaling, rotary_fields, rotary_of
from training.interchange.description import Architecture, Fields, Model, in_turn, theirs
from training.interchange.errors import InterchangeError
from training.interchange.experts import MIXTURES, OURS, Mixture, mixture_fields, mixture_table, read_mixture
from training.interchange.mapping import rows

LINEAR = "linear_attention"
OF_DELTA = "n n_keys d_key d_value width"
OF_LINEAR = "num_value_heads num_key_heads key_head_dim value_head_dim conv_kernel_dim"
DEFAULTS = 32, 16, 128, 128, 4
SHARED = "shared_expert_intermediate_size"
H_KV = {"qwen3_next": 2, "qwen3_5_text": 4}
PROJECTIONS = {
    "qwen3_next": {"qkvz": "W_q&W_k&W_v&W_z", "ba": "W_b&W_a/W_q"},
    "qwen3_5_text": {"qkv": "W_q+W_k+W_v", **{a: f"W_{a}" for a in "zba"}},
}
"""Of a kind, the projections before a delta rule: the ends of the tensors' names, and our arrays."""


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    L, epsilon, said = found["L"], found["norm.epsilon"], rotary_of(fields)
    norm = RMSNorm(epsilon=epsilon, offset=1.0)
    sizes = [
        fields.integer(f"linear_{name}", default) for name, default in zip(OF_LINEAR.split(), DEFAULTS, strict=True)
    ]
    delta = GatedDelta(**dict(zip(OF_DELTA.split(), sizes, strict=True)), norm=RMSNorm(epsilon=epsilon))
    attention = Attention(
        positions=Rotary(
            base=said.number("rope_theta", 10_000.0),
            share=said.number("partial_rotary_factor", 0.25),
            scaling=read_scaling(said, found["l_max"]),
        ),
        biases=False,
        normalize_heads=norm,
        gated=True,
    )
    fields.require("hidden_act", "silu", "another nonlinearity")
    fields.require("attention_bias", False, "biases of the gates of heads")
    lines: list[Any] = [{LINEAR: delta, FULL: attention}[kind] for kind in _layer_types(fields, L)]
    mlp = MLP(activation="silu", gated=True, biases=False)
    if kind in MIXTURES:
        mlp = _experts(fields, found, mlp, MIXTURES[kind])
    found |= {"d_mid": found["d_attn"], "norm": norm, "mlp": mlp, "attention": in_turn(lines)}


def _experts(fields: Fields, found: dict[str, Any], mlp: MLP, mixture: Mixture) -> Experts:
    """Return the line of a mixture with a shared expert, whose hidden units are a multiple of the others'."""
    d_mlp, shared = fields.integer(mixture.width, 512), fields.integer(SHARED, 512)
    if shared % d_mlp:
        fields.needs.append(f"a shared expert of {shared} hidden units, no multiple of {d_mlp}")
    found["d_mlp"] = d_mlp
    return read_mixture(fields, mixture, mlp, shared=max(shared // d_mlp, 1))


def _layer_types(fields: Fields, L: int) -> list[str]:
    """Return the kind of each layer."""
    interval = fields.integer("full_attention_interval", 4)
    return checked_types(
        fields, fields.get("layer_types", [LINEAR if (l + 1) % interval else FULL for l in range(L)]), L
    )


def checked_types(fields: Fields, types: Any, L: int) -> list[str]:
    """Return the kinds of layers. Raises InterchangeError if they are not those of L layers."""
    if not isinstance(types, list) or len(types) != L or not set(types) <= {LINEAR, FULL}:
        raise InterchangeError(
            f"{fields.path}: layer_types: expected {LINEAR} or {FULL} for each of {L} layers, got {str(types)[:60]}"
        )
    return types


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    deltas = [line for line in lines if isinstance(line, GatedDelta)]
    attentions = [line for line in lines if isinstance(line, Attention)]
    if not deltas or not attentions or v.mlp is None:
        state.clear()
        return ["layers other than gated delta rules and attention, with MLPs"]
    state["layer_types"] = [LINEAR if isinstance(line, GatedDelta) else FULL for line in lines]
    for ours, name in zip(OF_DELTA.split(), OF_LINEAR.split(), strict=True):
        state[f"linear_{name}"] = getattr(deltas[0], ours)
    positions = attentions[0].positions
    state["rope_parameters"] = {**rotary_fields(positions), "partial_rotary_factor": getattr(positions, "share", 1.0)}
    state |= {"attention_bias": False, "hidden_act": theirs(v.mlp.activation or "gelu")}
    if kind in MIXTURES:
        state |= mixture_fields(MIXTURES[kind], v.mlp, c.d_mlp) | {SHARED: c.d_mlp * getattr(v.mlp, "shared", 0)}
    return []


def _architecture(kind: str, name: str) -> Architecture:
    layer, attention = "model.layers.#", "layers.attention"
    delta = f"{layer}.linear_attn"
    of_delta = {f"{delta}.in_proj_{a}.weight": f"{attention}.{ours}" for a, ours in PROJECTIONS[kind].items()}
    mlp = rows(f"{layer}.mlp", "gate_proj up_proj down_proj", "layers.mlp", OURS)
    tensors = {
        "model.embed_tokens.weight": "W_e",
        **rows(layer, "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"),
        f"{layer}.self_attn.q_proj.*": f"{attention}.heads.*_q&{attention}.*_g",
        **rows(f"{layer}.self_attn", "k_proj v_proj o_proj", attention, "heads.*_k heads.*_v *_o"),
        **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
        **of_delta,
        f"{delta}.conv1d.weight": f"<{attention}.C_q+C_k+C_v>",
        f"{delta}.dt_bias": f"{attention}.b_a",
        f"{delta}.A_log": f"{attention}.a",
        f"{delta}.norm.weight": f"{attention}.gamma",
        f"{delta}.out_proj.weight": f"{attention}.W_out",
        **(mixture_table(MIXTURES[kind]) if kind in MIXTURES else mlp),
        **OUTER,
    }
    architecture = of_lines(kind, name, tensors, _read, _write, heads=(H_KV[kind], 256))
    return architecture._replace(ignored=("mtp.*", "model.visual.*"), mixers=(GatedDelta,))


KINDS = {kind: _architecture(kind, name) for kind, name in (("qwen3_next", "Qwen3Next"), ("qwen3_5_text", "Qwen3_5"))}
"""By model_type."""

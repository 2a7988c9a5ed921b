"""OLMo Hybrid, by changed lines: gated delta rules with norms first, and attentions with norms of what is added."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import Attention, GatedDelta, RMSNorm
from training.interchange.containers import Tensors
from training.interchange.decoders import SILU, VARIANT, of_lines
from training.interchange.description import Field, Fields, Layers, Model, fields_of, in_turn
from training.interchange.experts import OURS
from training.interchange.hybrids import LINEAR, OF_DELTA, OF_LINEAR
from training.interchange.mapping import HEADS, rows
from training.interchange.rotary import FULL, Positions

KIND = "olmo_hybrid"
LAYERS = Layers(lambda fields, L: [LINEAR if (l + 1) % 4 and (l + 1 < L or L > 3) else FULL for l in range(L)])
_NORM = RMSNorm(epsilon=1e-6)
_LINES = {
    # no field has the ε of what a delta rule gives
    LINEAR: GatedDelta(n=30, n_keys=30, d_key=96, d_value=192, norm=RMSNorm(epsilon=1e-5), beta_factor=2.0),
    FULL: Attention(biases=False, normalize_heads=_NORM, heads_together=True, normalize_output=_NORM),
}
_SIZES = (
    *(lambda found: found["H"],) * 2,
    lambda found: max(3 * found["d_e"] // (4 * found[f"{LINEAR}.n_keys"]), 1),
    lambda found: 2 * found[f"{LINEAR}.d_key"],
    4,
)


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    mlp = VARIANT.mlps[0]
    assert mlp
    norm = RMSNorm(epsilon=found["norm.epsilon"])
    by_kind = {LINEAR: (mlp, "norm_first"), FULL: (mlp.but(normalize_output=norm), "no_norm")}
    of_layers = in_turn([by_kind[kind] for kind in LAYERS.of(fields, found["L"], [*_LINES])])
    found |= dict(zip(("mlp", "order"), zip(*of_layers, strict=True), strict=True))


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    lines = [model.config.variant.lines(l) for l in range(model.config.L)]
    full = next((line for line in lines if isinstance(line.attention, Attention)), None)
    if full is None or full.mlp is None:
        state.clear()
        return ["layers other than GatedDelta and Attention, with MLPs"]
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
    delta, second = f"{layer}.linear_attn", f"{layer}.feedforward_layer_norm.*|{layer}.post_attention_layernorm.*"
    return {
        f"{layer}.attention_layer_norm.*|{layer}.input_layernorm.*": "layers.norm1.*",
        second: "layers.norm2.*",
        # in layers with attention, where it follows what attention adds
        second.replace("*", "weight"): f"{attention}.norm_out.gamma",
        f"{layer}.post_feedforward_layernorm.weight": "layers.mlp.norm_out.gamma",
        **rows(f"{layer}.self_attn", "q_proj k_proj v_proj o_proj", attention, HEADS),
        **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
        **{f"{delta}.{a}_proj.weight": f"{attention}.W_{a}" for a in "qkvba"},
        **{f"{delta}.{a}_proj.weight": f"{attention}.W_{ours}" for a, ours in (("o", "out"), ("g", "z"))},
        **{f"{delta}.{a}_conv1d.weight": f"<{attention}.C_{a}>" for a in "qkv"},
        f"{delta}.dt_bias": f"{attention}.b_a",
        f"{delta}.A_log": f"{attention}.a",
        f"{delta}.o_norm.weight": f"{attention}.gamma",
        **rows(f"{layer}.mlp", "gate_proj up_proj down_proj", "layers.mlp", OURS),
    }


KINDS = {
    KIND: of_lines(
        KIND,
        "OlmoHybrid",
        _tensors(),
        fields=[
            Positions(optional=True),
            Field("attention_bias", "attention.biases", False),
            *fields_of(OF_DELTA, OF_LINEAR, *_SIZES),
            Field("linear_allow_neg_eigval", f"{LINEAR}.beta_factor", True, (1.0, 2.0)),
            *SILU,
        ],
        variant=VARIANT.but(norm=_NORM),
        read=_read,
        write=_write,
        in_turn=True,
        rearrange=_own_rows,
        lines=_LINES,
        layers=LAYERS,
    )
}
"""By model_type."""
